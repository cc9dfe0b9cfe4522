"""Calls of public ops: errors, shapes that share a program, empty tensors, vmap, autocast, second gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from torch_max_backend import compile_together, ops, reports
from torch_max_backend.base.errors import RegistrationError
from torch_max_backend.ops.declaration import ROUNDED_ONCE, declaration_of
from torch_max_backend.ops.define import public_op
from torch_max_backend.ops.eager_call import EagerCall, Layout, SeenSizes, Signature, with_fixed
from torch_max_backend.ops.linear_losses import log_sum_exp
from torch_max_backend.options import resolve


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
    return lambda: torch.zeros(shape, dtype=dtype)


INT = torch.int64
ERRORS = [
    (
        ops.rms_norm,
        [zeros(3, 4), zeros(5)],
        r"weight must have the shape \[n\] with n = 4 as in x, got \[5\]",
    ),
    (ops.rms_norm, [zeros()], r"rms_norm: x must have at least 1 dimension \[..., n\], got 0: \[\]"),
    (ops.rms_norm, [zeros(3, 0)], r"rms_norm: x must have the shape \[..., n\] with n at least 1, got \[3, 0\]"),
    (ops.rms_norm, [zeros(3, dtype=INT)], "rms_norm: x must be float32 or bfloat16 or float16 or float64, got int64"),
    (ops.swiglu, [zeros(3), zeros(3, dtype=torch.float64)], "swiglu: up must be float32 as gate, got float64"),
    (
        ops.add_rms_norm,
        [zeros(2, 3, 4), zeros(3, 4)],
        r"add_rms_norm: the leading dimensions of residual, \[..., n\], must be \[2, 3\] as those of x, got \[3\]",
    ),
    (
        ops.rope,
        [zeros(3, 5), zeros(3, 2), zeros(3, 2)],
        r"rope: x must have .* a multiple of 2, got \[3, 5\]",
    ),
    (ops.rope, [zeros(3, 4), zeros(3, 3), zeros(3, 2)], r"rope: cos must have the shape \[s, r\] with r = 2 as in x"),
    (ops.rmsd, [zeros(4, 2), zeros(4, 2)], r"rmsd: a must have the shape \[..., n, 3\], got \[4, 2\]"),
    (ops.gelu, [zeros(3), lambda: "erf"], "gelu: approximate must be 'none' or 'tanh', got 'erf'"),
    (ops.softmax_online, [zeros(3, 4), lambda: 2], "softmax_online: dim must be from -2 to 1, got 2"),
    (ops.softmax_online, [zeros(3, 0)], r"softmax_online: x must have at least one element along dim -1, got \[3, 0\]"),
    (ops.reduce, [zeros(3), lambda: "max"], "reduce: how must be one of sum, mean, amax, amin, prod, got 'max'"),
    (ops.reduce, [zeros(3), lambda: "sum", lambda: [1]], "reduce: dims must be from -1 to 0 .* got 1"),
    (ops.reduce, [zeros(3, 4), lambda: "sum", lambda: [1, -1]], r"reduce: dims must name .* once, got \[1, -1\]"),
    (ops.reduce, [zeros(0, 4), lambda: "amax", lambda: [0]], "reduce: amax needs .* got size 0 along 0"),
    (ops.contact_map, [zeros(4, 3), lambda: 0.0], "contact_map: cutoff must be above 0, got 0.0"),
    (ops.cross_entropy, [zeros(4, 3), zeros(4)], "cross_entropy: target must be int64 or int32, got float32"),
    (
        ops.cross_entropy,
        [zeros(4, 3), zeros(4, dtype=INT), lambda: -100, lambda: 2.0],
        "cross_entropy: label_smoothing must be from 0 to 1, got 2.0",
    ),
]


@pytest.mark.any_runner("nothing is computed")
@pytest.mark.parametrize("is_fake", [False, True], ids=["eager", "fake"])
@pytest.mark.parametrize(("op", "makers", "message"), ERRORS)
def test_errors_name_argument_limit_and_value(op: Any, makers: Any, message: str, is_fake: bool) -> None:
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) if is_fake else torch.no_grad():
        args = [make() for make in makers]
        with pytest.raises(ops.ArgumentError, match=message):
            op(*args)


@pytest.mark.any_runner("nothing is computed")
def test_a_layout_that_is_not_strided_is_an_error() -> None:
    with pytest.raises((ops.ArgumentError, NotImplementedError)):
        ops.gelu(torch.zeros(3, 3).to_sparse())


def test_shapes_share_a_program() -> None:
    """Leading dimensions that lie behind each other are one; sizes are no reason to compile."""
    calls = [torch.randn(s) for s in ((40, 64), (2, 33, 80), (35, 2, 3, 41), (1, 64, 100))]
    ops.rms_norm(calls[0])
    known = len(reports())
    for x in calls:
        torch.testing.assert_close(ops.rms_norm(x), torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6))
    assert len(reports()) == known


@pytest.mark.parametrize("shape", [(3, 4), (1, 7), (7, 1), (1, 1), (2, 1, 40)], ids=str)
def test_sizes_of_one_and_short_ones(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    torch.testing.assert_close(ops.softmax_online(x), torch.softmax(x, -1))


@pytest.mark.any_runner("nothing is computed")
def test_sizes_are_numbers_until_they_vary() -> None:
    """On a GPU: of a batch after two calls that differ in nothing else, of rows' lengths after many."""
    layout = Layout(torch.float32, torch.device("cuda", 0), ((1, "batch0"), (1, "n")), (1, 0), (1, None), (False, True))
    signature = Signature((layout, None), (1e-6,))
    seen = SeenSizes(signature)
    fixed = []
    for batch, n in ((40, 64), (50, 96), (50, 128), (60, 128)):
        values = {"batch0": batch, "n": n}
        seen.note(values)
        fixed.append(with_fixed(signature, values, seen.varying))
    sizes = [(found.layouts[0].sizes, values) for found, values in fixed if found.layouts[0]]
    assert sizes[:3] == [(((40, ""), (64, "")), {}), (((50, ""), (96, "")), {}), (((50, ""), (128, "")), {})]
    assert sizes[3] == (((1, "batch0"), (128, "")), {"batch0": 60})
    for n in range(200, 208):
        seen.note({"batch0": n, "n": n})
    assert with_fixed(signature, {"batch0": 5, "n": 6}, seen.varying) == (signature, {"batch0": 5, "n": 6})


@pytest.mark.any_runner("nothing is computed")
def test_strides_are_numbers_until_they_vary() -> None:
    layout = Layout(torch.float32, torch.device("cuda", 0), ((1, "m"), (2, "n")), (1, 0), (1, None), (False, False))
    signature, values = Signature((layout,), ()), {"m": 40, "n": 50, "stride 2": 128}
    found, left = with_fixed(signature, values, {"m"})
    assert found.layouts[0] is not None and left == {"m": 40}
    assert (found.layouts[0].sizes, found.layouts[0].strides) == (((1, "m"), (100, "")), (1, 128))
    found, left = with_fixed(signature, values, {"stride 2"})
    assert found.layouts[0] is not None and left == {"stride 2": 128}
    assert (found.layouts[0].sizes, found.layouts[0].strides) == (((40, ""), (100, "")), (1, None))


@pytest.mark.any_runner("nothing is computed")
def test_no_rows() -> None:
    x, weight = torch.randn(0, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    y = ops.rms_norm(x, weight)
    assert y.shape == (0, 4)
    for_x, for_weight = torch.autograd.grad(y, (x, weight), torch.randn(0, 4))
    assert for_x.shape == (0, 4)
    assert torch.equal(for_weight, torch.zeros(4))


def test_results_do_not_share_memory_with_arguments() -> None:
    x = torch.randn(3, 4)
    for y in (ops.reduce(x, "sum", []), ops.copy_transpose(x), ops.copy_transpose(x[:1])):
        assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_compiles_are_put_off_with_those_of_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch compiles an op's program too; until then PyTorch computes the reference."""
    monkeypatch.setenv("TORCH_MAX_BACKEND_CACHE_DIR", str(tmp_path))
    call, x = EagerCall(declaration_of("swiglu")), torch.randn(40, 64)
    with compile_together(resolve({"fallback": "error"}, None)):
        early = call(x, x)
    known = len(reports())
    torch.testing.assert_close(call(x, x), early)
    (report,) = reports()[known:]
    assert report.stats.hits == 1


def test_vmap() -> None:
    x, weights = torch.randn(3, 5, 64), torch.randn(3, 64)
    expected = torch.stack([ops.rms_norm(x[:, k], weights[0]) for k in range(5)])
    torch.testing.assert_close(torch.vmap(ops.rms_norm, (1, None))(x, weights[0]), expected)
    expected = torch.stack([ops.rms_norm(x[k], weights[k]) for k in range(3)])
    torch.testing.assert_close(torch.vmap(ops.rms_norm)(x, weights), expected)
    normed, total = torch.vmap(ops.add_rms_norm, (0, None))(x, x[0])
    torch.testing.assert_close(total, x + x[0])
    torch.testing.assert_close(normed, ops.rms_norm(x + x[0]))


def test_autocast() -> None:
    x, weight = torch.randn(40, 64, dtype=torch.bfloat16), torch.randn(64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.rms_norm(x, weight).dtype == torch.float32
        assert ops.softmax_online(x).dtype == torch.float32
        loss = ops.linear_cross_entropy(x.float(), torch.randn(50, 64), torch.zeros(40, dtype=INT))
        linear = ops.fused_linear_bias_residual(x.float(), torch.randn(64, 64), None, x)
    assert (linear.dtype, loss.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.full
def test_gradients_have_gradients() -> None:
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ops.rms_norm, (x, weight))
    assert torch.autograd.gradgradcheck(ops.rms_norm, (x, weight))
    assert torch.autograd.gradgradcheck(ops.swiglu, (x, x.detach().clone().requires_grad_()))


@pytest.mark.full
@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_gradient_of_a_product_with_zeros(zeros: int) -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    x[1, :zeros] = 0
    assert torch.autograd.gradcheck(lambda x: ops.reduce(x, "prod", [1]), x.requires_grad_())


@pytest.mark.parametrize("rows_at_once", [40, 16])
def test_parts_of_a_loss(monkeypatch: pytest.MonkeyPatch, rows_at_once: int) -> None:
    """The logits of a few classes are in memory at a time, and the results are those of all classes at once."""
    from torch_max_backend.ops import linear_losses

    x, weight = torch.randn(37, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True)
    target = torch.randint(0, 50, (37,))
    target[5] = -100
    slope = torch.randn(37)
    whole = F.cross_entropy(F.linear(x, weight), target, reduction="none")
    expected = torch.autograd.grad(whole, (x, weight), slope)
    seen = []
    linear = linear_losses.F.linear
    monkeypatch.setitem(linear_losses.LOGITS_AT_ONCE, "cpu", 500)
    monkeypatch.setattr(linear_losses, "ROWS_AT_ONCE", rows_at_once)
    monkeypatch.setattr(linear_losses.F, "linear", lambda *args: seen.append(linear(*args)) or seen[-1])
    parts = ops.linear_cross_entropy(x, weight, target)
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(torch.autograd.grad(parts, (x, weight), slope), expected)
    assert max(logits.numel() for logits in seen) <= 500
    assert len(seen) > 2 * (37 // rows_at_once)


def test_sums_of_infinite_logits() -> None:
    x = torch.tensor([[torch.inf, 0.0], [-torch.inf, -torch.inf], [-torch.inf, 2.0], [torch.nan, 1.0]])
    torch.testing.assert_close(log_sum_exp(x), x.logsumexp(-1), equal_nan=True)


def test_a_class_that_is_none_is_an_error() -> None:
    x, weight = torch.randn(4, 16), torch.randn(50, 16)
    for target in (50, -1):
        with pytest.raises((IndexError, RuntimeError), match=str(target)):
            ops.linear_cross_entropy(x, weight, torch.tensor([0, 3, target, 1]))


@pytest.mark.any_runner("nothing is computed")
def test_a_name_is_taken_once() -> None:
    with pytest.raises(RegistrationError, match="gelu is a public op already"):
        public_op(
            "gelu(Tensor x) -> Tensor", shapes={"x": "..."}, results=["..."], tolerance=ROUNDED_ONCE, flops=lambda s: 0
        )(lambda x: x)


@pytest.mark.any_runner("nothing is computed")
def test_shapes_name_the_tensors_of_the_schema() -> None:
    with pytest.raises(RegistrationError, match=r"misnamed has the tensors \['x'\], and shapes of \['y'\]"):
        public_op(
            "misnamed(Tensor x) -> Tensor",
            shapes={"y": "..."},
            results=["..."],
            tolerance=ROUNDED_ONCE,
            flops=lambda s: 0,
        )(lambda x: x)
