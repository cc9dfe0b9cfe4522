"""Programs that free some of their inputs, and what they need of memory then."""

from __future__ import annotations

import dataclasses
import re
import weakref
from collections.abc import Sequence

import pytest
import torch
from torch import fx

from tests.support.grid_emulator import emulated
from tests.support.grid_programs import SMALL_GPU
from tests.support.loop_programs import LoopProgram, random_program
from torch_max_backend.codegen import program_memory
from torch_max_backend.codegen.program_writer import WrittenProgram, write_program
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.program import Call, Called, Input, Ref, dense_strides
from torch_max_backend.loops.rules import views
from torch_max_backend.loops.tensor import building, define, named, pointwise
from torch_max_backend.partition.region import Port
from torch_max_backend.schedule.machine import GPU
from torch_max_backend.schedule.plan import schedule

pytestmark = pytest.mark.any_runner("loop programs, which come after the partition")


def written(made: LoopProgram, consumed: Sequence[int]) -> WrittenProgram:
    """A random program that consumes its inputs at these positions."""
    region, graph = made.region(), fx.Graph()
    for k, x in enumerate(made.inputs):
        node = graph.placeholder(f"x{k}")
        node.meta["val"] = x
        region.inputs.append(Port(node, tuple(range(x.dim())), consumed=k in consumed))
    return write_program(region, schedule(made.program, made.machine), [False] * len(made.inputs), 0)


def not_stored(made: LoopProgram) -> list[int]:
    targets = {target for target, _ in made.program.stores}
    return [k for k, name in enumerate(made.program.inputs) if name not in targets]


@pytest.mark.parametrize("alone", [1, 1 << 20], ids=["alone", "in a block"])
@pytest.mark.parametrize("seed", range(12))
def test_results_are_those_of_the_interpreter(monkeypatch: pytest.MonkeyPatch, seed: int, alone: int) -> None:
    monkeypatch.setattr(program_memory, "ALONE", alone)
    made = random_program(seed)
    made.machine = SMALL_GPU
    consumed = not_stored(made)
    program = written(made, consumed)
    assert ("block_of" in program.spec.source) <= (alone > 1)
    inputs = made.fresh()
    held = [inputs[k] for k in consumed]
    kept = [x for k, x in enumerate(inputs) if k not in consumed]
    outputs = emulated(program)(*kept, *([held] if consumed else []))
    assert not held
    made.check([*outputs, *inputs], made.expected(), "with consumed inputs")


def first_with_calls() -> LoopProgram:
    """A program that ends with a kernel behind a library call which reads what a kernel has made of an input."""
    for seed in range(200):
        made = random_program(seed)
        made.machine = GPU
        steps = made.program.steps
        if any(isinstance(s, Call) for s in steps) and len(made.inputs) > 1 and not made.program.stores:
            return made
    raise AssertionError("no program has a library call")


def test_an_input_is_deleted_after_its_last_reader() -> None:
    made = first_with_calls()
    lines = written(made, range(len(made.inputs))).spec.source.splitlines()
    begin = lines.index("    held.clear()")
    for name in made.program.inputs:
        deleted = [k for k, line in enumerate(lines) if line.strip() == f"del {name}"]
        readers = [k for k, line in enumerate(lines) if re.search(rf"\b{name}\b", line) and k not in deleted]
        assert len(deleted) == 1 and max(readers) < deleted[0]
        between = lines[max(readers) + 2 : deleted[0]]
        is_read = max(readers) > begin
        assert not is_read or not any(line.strip().startswith(("words", "segment")) for line in between)
    assert lines[0] == "def run(held):"


def test_what_is_freed_makes_room() -> None:
    made = first_with_calls()
    kept, consumed = (written(made, which).totals for which in ((), range(len(made.inputs))))
    assert max(int(t.constant) for t in consumed) <= max(int(t.constant) for t in kept)


def product_of_twice(also: str = "") -> LoopProgram:
    """Twice a matrix, times itself; ``also`` says what else is made of the matrix, which leaves."""
    sizes = (Index.of(8), Index.of(8))
    with building() as b:
        b.program.inputs["x0"] = Input("x0", torch.float32, sizes, dense_strides(sizes))
        x = named("x0", sizes, torch.float32)
        twice = pointwise(lambda e: e * 2.0, views.t(x) if also == "its transpose alone" else x)
        define(twice.shape, twice.dtype, twice.at)
        ref = Ref(b.program.steps[-1].name, sizes, dense_strides(sizes), Index.of(0))  # type: ignore[union-attr]
        called = Called(b.name(), torch.float32, sizes, dense_strides(sizes))
        b.program.steps.append(Call("ATen", torch.ops.aten.mm.default, (ref, ref), {}, (called,)))
        b.program.outputs.append((called.name, (0, 1)))
        if also == "a later sum":
            result = named(called.name, sizes, torch.float32)
            later = pointwise(lambda e, f: e + f, result, x)
            define(later.shape, later.dtype, later.at)
            b.program.outputs.append((b.program.steps[-1].name, (0, 1)))  # type: ignore[union-attr]
        b.program.shapes.update({name: sizes for name, _ in b.program.outputs})
    count = len(b.program.outputs)
    x0 = torch.arange(64.0).remainder(5).reshape(8, 8)
    return LoopProgram(0, b.program, [x0], False, [(8, 8)] * count, machine=SMALL_GPU)


@pytest.mark.parametrize("is_shared", [False, True])
def test_an_input_that_nobody_else_has_is_written_over(monkeypatch: pytest.MonkeyPatch, is_shared: bool) -> None:
    monkeypatch.setattr(program_memory, "ALONE", 1)
    made = product_of_twice()
    held = made.fresh()
    (address,) = (x.data_ptr() for x in held)
    kept = list(held) if is_shared else []
    program = written(made, [0])
    read: list[int] = []

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        read.append(x.data_ptr())
        return torch.mm(x, y)

    (name,) = (n for n, value in program.spec.values.items() if value is torch.ops.aten.mm.default)
    program = dataclasses.replace(program, spec=dataclasses.replace(program.spec, values={name: product}))
    outputs = emulated(program)(held)
    assert (read == [address]) is not is_shared
    assert all(x.equal(y) for x, y in zip(kept, made.inputs, strict=False))
    made.check([*outputs, *made.inputs], made.expected(), "written over an input")


@pytest.mark.parametrize("also", ["a later sum", "its transpose alone"])
def test_what_is_read_elsewhere_is_not_written_over(monkeypatch: pytest.MonkeyPatch, also: str) -> None:
    monkeypatch.setattr(program_memory, "ALONE", 1)
    assert "references(" in written(product_of_twice(), [0]).spec.source
    assert "references(" not in written(product_of_twice(), []).spec.source
    assert "references(" not in written(product_of_twice(also), [0]).spec.source


def test_inputs_that_begin_anywhere_are_copied() -> None:
    made = first_with_calls()
    program = written(made, [0])
    moved = [torch.empty(x.numel() + 1, dtype=x.dtype)[1:].as_strided(x.shape, x.stride()) for x in made.inputs]
    for x, y in zip(moved, made.inputs, strict=True):
        x.copy_(y)
    outputs = emulated(program)(*moved[1:], moved[:1])
    made.check([*outputs, *made.inputs], made.expected(), "with inputs that begin anywhere")


def test_nobody_but_the_caller_holds_what_is_consumed() -> None:
    made = first_with_calls()
    run = emulated(written(made, range(len(made.inputs))))
    held = made.fresh()
    alive = [weakref.ref(x) for x in held]
    run(held)
    assert not any(x() is not None for x in alive)
