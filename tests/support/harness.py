"""Running op cases: many graphs are compiled together, then each case compares its own with eager.

A compile has a fixed cost of about nine seconds, and further graphs in the same module cost a fraction of that. So the
cases of a chunk are first traced with compiling put off (`compile_together`), compiled as one module, kept in the
ordinary cache, and then each runs as a user would run it, with a cache hit.
"""

from __future__ import annotations

import traceback
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.support.cases import Case
from torch_max_backend import compile_together
from torch_max_backend.options import resolve

STRICT = {"fallback": "error"}

TOLERANCE = {
    # What torch.testing uses for float64 and the 16-bit types; float32 as Inductor's own op tests, since the order of
    # additions differs between any two implementations.
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-5, 1.5e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float16: (1e-3, 1e-5),
}


def compiled(case: Case) -> Any:
    """A fresh compiled form of the case's function."""
    torch._dynamo.reset()
    return torch.compile(case.function, backend="max_backend", fullgraph=True, dynamic=case.dynamic, options=STRICT)


def prepare(cases: list[Case], graphs_per_module: int = 24) -> dict[int, str]:
    """Compile all cases together; gives the error text of those that could not be lowered, by the case's ``id``."""
    failed: dict[int, str] = {}
    with compile_together(resolve(STRICT), graphs_per_module):
        for case in cases:
            try:
                with torch.no_grad():
                    compiled(case)(*case.make())
            except Exception:
                failed[id(case)] = traceback.format_exc(limit=-2)
    return failed


def check(case: Case) -> None:
    """Run one case compiled and in eager, and compare outputs, dtypes, shapes, strides and writes into inputs."""
    function = compiled(case)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    draws = [case.inputs] + ([case.second] if case.second is not None else [])
    for drawn in [*draws, draws[0]]:  # the first inputs once more: a second call must be as right as the first
        wanted_inputs, given_inputs = case.make(drawn), case.make(drawn)
        with torch.no_grad():
            wanted = case.function(*wanted_inputs)
            given = function(*given_inputs)
        compare((given, given_inputs), (wanted, wanted_inputs), case)
        assert aliasing((given, given_inputs)) == aliasing((wanted, wanted_inputs)), "other tensors share memory"
    if case.second is not None:
        frames = torch._dynamo.utils.counters["stats"]["unique_graphs"] - before
        assert frames <= 1, f"{frames} graphs for two sizes: the second size compiled again"


def compare(given: Any, wanted: Any, case: Case) -> None:
    """Assert that two results agree leaf by leaf."""
    left, right = pytree.tree_leaves(given), pytree.tree_leaves(wanted)
    assert len(left) == len(right), f"{len(left)} leaves, eager has {len(right)}"
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        if not isinstance(b, torch.Tensor):
            assert a == b or (a != a and b != b), f"leaf {i}: {a!r}, eager has {b!r}"
            continue
        rtol, atol = TOLERANCE.get(b.dtype, (0, 0))
        rtol = case.rtol if case.rtol is not None else rtol
        atol = case.atol if case.atol is not None else atol
        if case.exact or not b.dtype.is_floating_point:
            rtol = atol = 0.0
        torch.testing.assert_close(
            a, b, rtol=rtol, atol=atol, equal_nan=True, check_stride=True, msg=lambda m, i=i: f"leaf {i}: {m}"
        )
        if case.exact and b.dtype.is_floating_point:
            assert torch.equal(torch.signbit(a) & ~a.isnan(), torch.signbit(b) & ~b.isnan()), f"leaf {i}: sign of zero"


def aliasing(values: Any) -> list[list[int]]:
    """Which leaves share a storage: groups of indices."""
    groups: dict[int, list[int]] = {}
    for i, leaf in enumerate(pytree.tree_leaves(values)):
        if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().nbytes():
            groups.setdefault(leaf.untyped_storage().data_ptr(), []).append(i)
    return sorted(groups.values())
