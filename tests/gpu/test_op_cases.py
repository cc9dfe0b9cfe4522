"""The op cases of ``tests/aten_functions`` once more, on a GPU: each agrees with eager on the GPU.

By default the first case of every family runs, with ``-m full`` all of them. Inputs are the same as on a CPU, moved;
what a case makes itself is made on the GPU.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.support.case_tables import case_modules, case_tables
from tests.support.cases import Case, on_device
from tests.support.float64 import check_or_compare_with_float64
from tests.support.harness import prepare

CHUNK = 4

EXCLUDED = {
    "attention/(logarithms|.*backward).*": "the op is torch's for CPUs",
    "histogram/.*": "torch has no histogram with edges on a GPU",
    "integer_convolution/.*": "torch convolves no integers on a GPU",
    "matmul/integers_.*": "torch multiplies no matrices of integers on a GPU",
    "mode/.*": "an island on a GPU: torch has an algorithm of its own there",
    "matmul/int_mm": "an island on a GPU: MAX multiplies no matrices of integers there",
    "grouped/(columns|inner).*_bf16": "torch asserts on a GPU that groups begin at multiples of 16 bytes",
    "grouped/(?!fallback|.*bf16).*": "torch 2.11 multiplies groups of bfloat16 matrices alone on a GPU",
    "grouped/fallback_(integers|bytes)": "torch multiplies no matrices of integers on a GPU",
}
"""Cases that say nothing on a GPU, by a pattern of ``family/name``, and why."""

ODD_IN_TORCH = {
    "normalization/batch_norm_update_given": "cuDNN's gradients are those of training, whatever the op is told",
    "sorting/sorts_bf16": "values differ at NaN, which have a sign, as a CPU makes them of float32; ATen sorts digits",
    "sorting/sorts_tied.*": "sorts that are not told to be stable, and medians, take equal elements in any order",
    "attention/forward_bf16": "cuDNN makes numbers of rows whose mask is nowhere true; its other kernels zeros, as we",
    "pooling/places_channels_last": "for channels last the place in a window of -inf is 0, else the window's first",
}
"""Cases in which torch's kernels for GPUs disagree among each other or with what is documented, by a pattern, and how:
seen with torch 2.11 on an H200."""

EXACT_ON_A_CPU = {"special/exact_logarithms": "log10(pow(10, 9)) differs by a unit in the last place there"}
"""Cases that are held to the bit on a CPU alone, and why; a GPU's have the tolerance of their dtype."""

SLOW = "polynomials/(every.*|high|numbers)"
"""Cases that run with ``-m full`` alone: on a GPU torch compiles each polynomial when it is first called: minutes."""


def _on_gpu(case: Case) -> Case:
    """The case with its inputs on the GPU."""

    def moving(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return lambda generator: on_device(x, "cuda")
        return (lambda generator: on_device(_on_cpu(x, generator), "cuda")) if callable(x) else x

    second = None if case.second is None else tuple(map(moving, case.second))
    return replace(case, inputs=tuple(map(moving, case.inputs)), second=second)


def _on_cpu(make: Callable[[torch.Generator], torch.Tensor], generator: torch.Generator) -> torch.Tensor:
    """What a maker draws from a generator of the CPU, whatever the default device is."""
    with torch.device("cpu"):
        return make(generator)


def why_excluded(name: str) -> str:
    """The reason why a case is left out; empty for one that is not."""
    return _matching(name, EXCLUDED)


def _matching(name: str, reasons: dict[str, str]) -> str:
    """The reason of the first pattern that a name matches; empty if it matches none."""
    return next((why for pattern, why in reasons.items() if re.fullmatch(pattern, name)), "")


def _chunks() -> list[Any]:
    """A parameter for each chunk of cases."""
    core, rest = [], []
    for family, cases in case_tables().items():
        named = [(f"{family}/{c.name}", c) for c in cases]
        named = [(name, c) for name, c in named if not (_matching(name, ODD_IN_TORCH) or why_excluded(name))]
        first = [pair for pair in named if not re.fullmatch(SLOW, pair[0])][:1]
        core += first
        rest += [pair for pair in named if pair not in first]
    found = []
    for prefix, cases, marks in (("core", core, []), ("rest", rest, [pytest.mark.full])):
        for i in range(0, len(cases), CHUNK):
            found.append(pytest.param(cases[i : i + CHUNK], id=f"{prefix}-{i // CHUNK}", marks=marks))
    return found


@pytest.mark.parametrize("cases", _chunks())
def test_op_cases(cases: list[tuple[str, Case]]) -> None:
    with torch.device("cuda"), _constants_on_gpu():
        report(cases, prepare, check_or_compare_with_float64)


def why_torch_cannot(case: Case) -> str:
    """Why a case says nothing of a backend here: torch, or a package, lacks it, or it fails without a backend.

    AOTAutograd of torch 2.11 forgets which device is the default one where a graph makes tensors, and Dynamo compiles
    pools of dynamic sizes again.
    """
    torch._dynamo.reset()
    compiled = torch.compile(case.function, backend="aot_eager", fullgraph=True, dynamic=case.dynamic)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    try:
        with torch.no_grad():
            results = case.function(*case.make()), compiled(*case.make())
            if case.second is not None:
                compiled(*case.make(case.second))
    except (RuntimeError, AttributeError) as error:  # the first is also of what torch lacks, the other of a package
        return f"{type(error).__name__}: {error}"
    devices, others = ([x.device for x in pytree.tree_leaves(r) if isinstance(x, torch.Tensor)] for r in results)
    if devices != others:
        return "AOTAutograd forgets the default device"
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"] - before
    return "Dynamo compiles again for other sizes" if graphs > 1 else ""


@contextmanager
def _constants_on_gpu() -> Iterator[None]:
    """Tensors that the modules of cases hold, and that their functions read, are on the GPU inside the block."""
    modules = list(case_modules().values())
    held = [(m, name, x) for m in modules for name, x in vars(m).items() if isinstance(x, torch.Tensor)]
    for module, name, x in held:
        setattr(module, name, on_device(x, "cuda"))
    try:
        yield
    finally:
        for module, name, x in held:
            setattr(module, name, x)


def report(
    named: list[tuple[str, Case]],
    prepared: Callable[[list[Case]], dict[int, str]],
    checked: Callable[[str, Case], None],
) -> None:
    """Run a chunk, and report all cases that fail in one error; those that torch itself cannot run are warned of."""
    cases = {name: _on_gpu(replace(case, exact=case.exact and name not in EXACT_ON_A_CPU)) for name, case in named}
    errors = prepared(list(cases.values()))
    failures = {name: errors[id(case)] for name, case in cases.items() if id(case) in errors}
    for name, case in cases.items():
        if name not in failures:
            try:
                checked(name.replace("/", "-", 1), case)
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {error}"
    for name in list(failures):
        if why := why_torch_cannot(cases[name]):
            warnings.warn(f"{name} says nothing here: {why}", stacklevel=1)
            del failures[name]
    broken = {name for name, case in cases.items() if case.broken}
    text = "\n\n".join(f"{name}: {why.strip()[-1200:]}" for name, why in failures.items() if name not in broken)
    assert not failures.keys() - broken, f"{len(failures.keys() - broken)} of {len(cases)} cases fail\n\n{text}"
