"""Kernels that differ in names alone are planned and written once, and come out as if each had been by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.codegen.test_written_source import program
from tests.support.grid_programs import programs_for_gpu
from tests.support.loop_programs import LoopProgram, random_program
from torch_max_backend.codegen.kernel_writer import KernelWriter
from torch_max_backend.loops.expr import cast, constant, op
from torch_max_backend.loops.rules import reduce, views
from torch_max_backend.loops.tensor import Tensor, pointwise
from torch_max_backend.schedule import alike, plan
from torch_max_backend.schedule.kernel import Kernel
from torch_max_backend.schedule.machine import CPU, GPU, Machine
from torch_max_backend.schedule.plan import schedule

pytestmark = pytest.mark.any_runner("programs without a graph")


def layers(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """Each is a softmax of what the one before gives, and a product with another weight."""
    found = []
    for w in weights:
        x = reduce.softmax(x, 1, False)
        x = reduce.over("sum", pointwise(lambda a, b: a * b, views.unsqueeze(x, 2), views.unsqueeze(w, 0)), [1])
        found.append(x)
    return tuple(found)


def made(machine: Machine) -> LoopProgram:
    x, *weights = (torch.randn(40, 40, generator=torch.Generator().manual_seed(k)) for k in range(7))
    return dataclasses.replace(program(layers, x, *weights, smooth=True), machine=machine)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """The kernels that have been planned."""
    found: list[Kernel] = []

    def noted(old: Callable[..., Any]) -> Callable[..., Any]:
        return lambda kernel, *args: found.append(kernel) or old(kernel, *args)

    for name in ("nest", "grid_nest"):
        monkeypatch.setattr(plan, name, noted(getattr(plan, name)))
    return found


@pytest.mark.parametrize("machine", [CPU, GPU], ids=["CPU", "GPU"])
def test_layers_are_planned_once(planned: list[Kernel], machine: Machine) -> None:
    steps = schedule(made(machine).program, machine).steps
    assert len(steps) >= 12
    assert len(planned) <= len(steps) // 2


@pytest.mark.parametrize(("machine", "most"), [(CPU, 8), (GPU, 6)], ids=["CPU", "GPU"])
def test_layers_are_written_once(monkeypatch: pytest.MonkeyPatch, machine: Machine, most: int) -> None:
    """On a CPU those whose rows threads keep are made by a later pass: each is written, and then found to be equal."""
    texts: list[str] = []
    old = KernelWriter.text

    def noted(self: KernelWriter) -> str:
        texts.append(old(self))
        return texts[-1]

    monkeypatch.setattr(KernelWriter, "text", noted)
    written = made(machine).written()
    assert written.spec.launches >= 12 and len(texts) <= most
    assert written.spec.kernels == len(set(texts))


def both(p: LoopProgram, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """The schedule, source and function of a program, with what is alike planned once, and each by itself."""
    found = []
    for form in (alike.form_of, lambda *args: None):
        with monkeypatch.context() as m:
            m.setattr(alike, "form_of", form)
            written = p.written()
            found.append((written.source, written.spec.source, str(written.spec.segments)))
    return found


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("first", range(0, 120, 30))
def test_random_programs_come_out_alike(monkeypatch: pytest.MonkeyPatch, first: int, symbolic: bool) -> None:
    seeds = range(first, first + 30)
    for p in [*programs_for_gpu(seeds, symbolic), *(random_program(seed, symbolic) for seed in seeds)]:
        together, alone = both(p, monkeypatch)
        assert together == alone, f"seed {p.seed}"


@pytest.mark.parametrize("machine", [CPU, GPU], ids=["CPU", "GPU"])
def test_layers_come_out_alike(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    together, alone = both(made(machine), monkeypatch)
    assert together == alone


def forms(function: Callable[..., tuple[Tensor, ...]], *inputs: torch.Tensor) -> list[Any]:
    """The forms of a program's kernels."""
    found: list[Any] = []
    p = program(function, *inputs)
    with pytest.MonkeyPatch.context() as m:
        m.setattr(alike, "form_of", lambda *args, old=alike.form_of: found.append(old(*args)) or found[-1])
        schedule(p.program, CPU)
    return found


X = torch.arange(24.0).reshape(4, 6)


def scaled(by: float) -> Callable[[Tensor], tuple[Tensor, ...]]:
    return lambda x: (pointwise(lambda a: op("copysign", a, constant(by, torch.float32)), x),)


def converted(dtype: torch.dtype) -> Callable[[Tensor], tuple[Tensor, ...]]:
    return lambda x: (pointwise(lambda a: cast(a, dtype), x),)


@pytest.mark.parametrize(
    ("one", "other", "x", "y"),
    [
        (scaled(0.0), scaled(-0.0), X, X),
        (scaled(1.0), scaled(1.0), X, X.reshape(6, 4)),
        (scaled(1.0), scaled(1.0), X, X.t().contiguous().t()),
        (converted(torch.float64), converted(torch.int64), X, X),
        (lambda x: (reduce.over("sum", x, [1]),), lambda x: (reduce.amax(x, [1]),), X, X),
        (lambda x: (views.flip(x, [1]),), lambda x: (views.flip(x, [0]),), X, X),
        (lambda x: (pointwise(lambda a: a * a, x),), lambda x: (pointwise(lambda a: a * (a + 0.0), x),), X, X),
    ],
    ids=["sign of zero", "sizes", "strides", "dtypes", "combiners", "indices", "operands"],
)  # fmt: skip
def test_what_differs_in_more_has_another_form(
    one: Callable[..., Any], other: Callable[..., Any], x: torch.Tensor, y: torch.Tensor
) -> None:
    (a,), (b,), (again,) = forms(one, x), forms(other, y), forms(one, x)
    assert a.key != b.key and a.key == again.key


def test_a_name_is_that_of_a_tensor_or_made_from_one() -> None:
    names = {"t5": "t7", "t5_parts": "t8"}
    assert [alike._renamed(name, names) for name in ("t5", "t5.2", "t5_scaled", "t5_parts.1")] == [
        "t7", "t7.2", "t7_scaled", "t8.1",
    ]  # fmt: skip
    with pytest.raises(KeyError, match="t55 is made from none"):
        alike._renamed("t55", names)
