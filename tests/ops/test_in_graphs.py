"""Public ops in compiled graphs: fused by this backend, opaque to others, and never a graph break."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ops.cases import FIRST, OpCase
from tests.ops.test_results import hold, results_of, with_gradients
from torch_max_backend import ops, reports
from torch_max_backend.diagnostics.report import GraphReport
from torch_max_backend.ops.declaration import declaration_of, gradient

STRICT = {"fallback": "error", "executor": "auto"}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def compiled(function: Any, backend: str = "max_backend") -> Any:
    options = {"options": STRICT} if backend == "max_backend" else {}
    return torch.compile(function, backend=backend, fullgraph=True, **options)


def report_of(function: Any, *args: Any) -> GraphReport:
    """The report of the one graph that a call compiles."""
    known = len(reports())
    compiled(function)(*args)
    (report,) = [r for r in reports()[known:] if r.compile_id]
    return report


QUICK = (
    "softmax_online",
    "gelu",
    "fused_linear_gelu",
    "rope",
    "cross_entropy",
    "pairwise_distance",
    "contact_map_packed",
)
"""Ops that the ordinary run has here, beside those that it has in eager."""


@pytest.mark.parametrize(
    "names",
    [pytest.param(QUICK, id="some"), pytest.param([c.op for c in FIRST], id="all", marks=pytest.mark.full)],
)
def test_ops_in_one_graph(names: Any) -> None:
    """Forward and backward of ops, each in one of the dtypes, against the references in float64.

    All of them read a factor that the graph computes, so that they are one region and one compile.
    """
    dtypes = {case: DTYPES[k % len(DTYPES)] for k, case in enumerate(FIRST) if case.op in names}
    own, wide = zip(*(with_gradients(case, case.made(dtype)) for case, dtype in dtypes.items()))

    def run(zero: torch.Tensor, *given: Any) -> list[torch.Tensor]:
        one = zero.cos()
        results = []
        for case, (first, *rest) in zip(dtypes, given, strict=True):
            results += results_of(case.call(first * one.to(first.dtype), *rest))
        return results

    known = len(reports())
    found = compiled(run)(torch.zeros(()), *own)
    wanted = [results_of(declaration_of(case.op).reference(*args)) for case, args in zip(dtypes, wide)]
    owners = [case for case, results in zip(dtypes, wanted) for _ in results]
    wanted = flat(wanted)
    for case, f, w in zip(owners, found, wanted, strict=True):
        hold(f, w, declaration_of(case.op).tolerance, dtypes[case], str(case))
    leaves = [[x for x in flat(args) if isinstance(x, torch.Tensor) and x.requires_grad] for args in (own, wide)]
    wanted = [w for f, w in zip(found, wanted) if f.requires_grad]
    found = [f for f in found if f.requires_grad]
    slopes = [torch.randn(f.shape, dtype=torch.float64).to(f.dtype) for f in found]
    ours = torch.autograd.grad(found, leaves[0], slopes)
    theirs = torch.autograd.grad(wanted, leaves[1], [s.double() for s in slopes])
    owners = [case for case, args in zip(dtypes, own) for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
    for case, leaf, f, w in zip(owners, leaves[0], ours, theirs, strict=True):
        backward = gradient(declaration_of(case.op))
        assert backward is not None
        lies_as_leaf = f.stride() == leaf.stride() == torch.empty_like(leaf).stride()
        assert lies_as_leaf or f.is_contiguous(), f"a gradient of {case}"
        hold(f.contiguous(), w, backward.tolerance, dtypes[case], f"a gradient of {case}")
    assert all(r.stats.regions == r.stats.programs and not r.islands for r in reports()[known:])
    assert len([r for r in reports()[known:] if r.compile_id]) == 2


def flat(args: Any) -> list[Any]:
    return [x for own in args for x in own]


def test_an_op_is_one_kernel_with_its_neighbours() -> None:
    report = report_of(lambda x, w: torch.sin(ops.rms_norm(x * 2, w) + 1), torch.randn(64, 128), torch.randn(128))
    assert (report.stats.regions, report.kernels, report.launches, len(report.islands)) == (1, 1, 1, 0)


def test_a_loss_by_parts_is_a_library_call() -> None:
    x, weight, target = torch.randn(40, 16), torch.randn(50, 16), torch.randint(0, 50, (40,))
    report = report_of(lambda x, w: ops.linear_cross_entropy(x * 2, w, target).mean(), x, weight)
    calls = [name for program in report.programs for name in program.library_calls]
    assert calls == ["torch_max_backend torch_max_backend.linear_cross_entropy.default"]
    assert not report.islands


def test_other_backends_call_the_op() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ops.swiglu(ops.rms_norm(x * 2, w), x).sum()

    x, w = torch.randn(33, 40, requires_grad=True), torch.randn(40, requires_grad=True)
    found = torch.autograd.grad(compiled(run, "aot_eager")(x, w), (x, w))
    for f, wanted in zip(found, torch.autograd.grad(run(x, w), (x, w)), strict=True):
        torch.testing.assert_close(f, wanted)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case.op == "add_rms_norm" else pytest.mark.full) for case in FIRST],
    ids=str,
)
def test_opcheck(case: OpCase) -> None:
    own, _ = with_gradients(case, case.made(torch.float32))
    torch.library.opcheck(declaration_of(case.op).overload, tuple(own))


def test_torch_runs_an_op_that_a_user_leaves_to_it() -> None:
    own = {"options": {"torch_executed_ops": ("torch_max_backend.rms_norm",), "executor": "auto"}}
    known = len(reports())
    with pytest.warns(UserWarning, match="torch_max_backend.rms_norm"):
        torch.compile(lambda x: ops.rms_norm(x + 1) * 2, backend="max_backend", **own)(torch.randn(33, 40))
    (report,) = [r for r in reports()[known:] if r.islands]
    assert [i.op for i in report.islands] == ["torch_max_backend.rms_norm.default"]
