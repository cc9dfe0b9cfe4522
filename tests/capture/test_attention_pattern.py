"""Attention that is written out. Graphs are traced for a GPU that is not there, and run on the CPU as rewritten."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from torch_max_backend.base.target import Machine
from torch_max_backend.capture import attention_pattern
from torch_max_backend.capture.attention_masks import simplify_masks
from torch_max_backend.capture.attention_pattern import recognize_attention
from torch_max_backend.capture.user_controlled_ops import left_to_torch

pytestmark = pytest.mark.any_runner("a graph pass, which comes before the partition")

aten = torch.ops.aten
F = torch.nn.functional
Function = Callable[..., object]
Shapes = tuple[tuple[int, ...], ...]
HEADS: Shapes = (2, 3, 9, 16), (2, 3, 5, 16), (2, 3, 5, 8)
"""Shapes of queries, keys and values."""


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1), -1) @ v


def divided(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(16)
    return F.dropout(F.softmax(scores, dim=-1), 0.0, training=True) @ v


def of_layers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Queries, keys and values as layers give them: ``[B, L, H * E]``, and the result so too."""
    q, k, v = (t.view(2, t.shape[1], 3, 16).transpose(1, 2) for t in (x, y, y * 2))
    return divided(q, k, v).transpose(1, 2).reshape(x.shape)


def packed(x: torch.Tensor) -> torch.Tensor:
    q, k, v = x.reshape(2, 7, 3, 3, 16).permute(2, 0, 3, 1, 4).unbind(0)
    q = q * 16**-0.5
    scores = (q @ k.transpose(-2, -1)).softmax(dim=-1)
    return (F.dropout(scores, 0.1, training=False) @ v).transpose(1, 2).reshape(2, 7, 48)


def in_float32(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q * 0.5) @ (k * 0.5).transpose(2, 3)
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v


def of_matrices(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.reshape(6, *x.shape[2:]) for x in (q, k, v))
    return torch.bmm(torch.softmax(torch.bmm(q, k.mT) * 0.25, 2), v).view(2, 3, 9, 8)


def of_plain_matrices(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.bmm(torch.softmax(torch.bmm(q, k.mT).mul(0.25), 2), v)


def einsum(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * 0.3
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT / 4 + bias).softmax(-1) @ v


def of_windows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    scores = q @ k.mT / 4 + bias.unsqueeze(0)
    scores = (scores.view(2, 2, 3, 9, 9) + mask.unsqueeze(1).unsqueeze(0)).view(4, 3, 9, 9)
    return scores.softmax(-1) @ v


def by_temperature(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, factor: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    return (q @ k.mT * (factor * 0.1).exp() + bias).softmax(-1) @ v


def of_matrices_by_temperature(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    scores = q.flatten(0, 1) @ k.flatten(0, 1).mT
    return ((scores.view(2, 3, 9, 5) * factor).softmax(-1).flatten(0, 1) @ v.view(6, 5, 1, 8)[:, :, 0]).view(2, 3, 9, 8)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    shown = torch.ones(9, 9, device=q.device, dtype=torch.bool).tril().view(1, 1, 9, 9)
    scores = (q @ k.mT * 0.25).masked_fill(shown == 0, float("-inf"))
    return scores.softmax(-1) @ v


def shown_by_where(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    scores = torch.where(bias[:1] > -1, q @ k.mT, float("-inf"))
    return torch.where(bias > 2, float("-inf"), scores).softmax(-1) @ v


BIASED: Shapes = (*HEADS, (3, 9, 5))
ATTENTION: list[tuple[Function, Shapes]] = [
    (plain, HEADS),
    (divided, HEADS),
    (divided, ((2, 1, 9, 32), (2, 1, 5, 32), (2, 1, 5, 32))),
    (of_layers, ((2, 9, 48), (2, 5, 48))),
    (packed, ((2, 7, 144),)),
    (in_float32, HEADS),
    (of_matrices, HEADS),
    (of_plain_matrices, tuple(s[1:] for s in HEADS)),
    (einsum, HEADS),
    (biased, BIASED),
    (biased, (*HEADS, (2, 1, 1, 5))),
    (biased, (*HEADS, (9, 5))),
    (causal, ((2, 3, 9, 16),) * 3),
    (shown_by_where, BIASED),
    (by_temperature, (*HEADS, (3, 1, 1), (3, 9, 5))),
    (of_matrices_by_temperature, (*HEADS, (3, 1, 1))),
    (plain, ((2, 3, 64, 12), (2, 3, 64, 12), (2, 3, 64, 6))),
    (of_windows, (*[(4, 3, 9, 16)] * 3, (3, 9, 9), (2, 9, 9))),
]


LIMITS = {name: getattr(attention_pattern, name) for name in ("SHORT", "SHORT_WITH_BIAS")}


@pytest.fixture(autouse=True)
def few_numbers_are_worth_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LIMITS:
        monkeypatch.setattr(attention_pattern, name, 0)


@pytest.fixture(autouse=True)
def elsewhere() -> Iterator[None]:
    with Machine.parse("cuda:sm_90a").pretended():
        yield


def rewritten(function: Function, shapes: Shapes, dtype: torch.dtype = torch.bfloat16) -> fx.GraphModule:
    gm = make_fx(function)(*(torch.empty(s, device="cuda", dtype=dtype) for s in shapes))
    recognize_attention(gm)
    gm.graph.lint()
    gm.recompile()
    return gm


def _on_cpu(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with tensors that it makes on the CPU."""
    for node in gm.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cpu")}
    gm.recompile()
    return gm


def count(gm: fx.GraphModule, op: object) -> int:
    return len(gm.graph.find_nodes(op="call_function", target=op))


@pytest.mark.parametrize(("function", "shapes"), ATTENTION)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_is_one_op(function: Callable[..., torch.Tensor], shapes: Shapes, dtype: torch.dtype) -> None:
    gm = rewritten(function, shapes, dtype)
    assert count(gm, aten.scaled_dot_product_attention.default) == 1
    assert not count(gm, aten.bmm.default) and not count(gm, aten._softmax.default)
    with _disable_current_modes():
        torch.manual_seed(0)
        given = [torch.randn(s).to(dtype) for s in shapes]
        got, exact, eager = _on_cpu(gm)(*given), function(*(x.double() for x in given)), function(*given)
        assert got.dtype is dtype and got.shape == eager.shape and got.stride() == eager.stride()
        # Each number of the result is rounded once, and each weight: values are up to 4, and weights add up to 1.
        bound = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(got.double(), exact, rtol=0, atol=bound)
        assert (got - exact).abs().mean() <= 1.5 * (eager - exact).abs().mean()


@pytest.mark.parametrize(
    ("lengths", "is_one_op"),
    [((13, 13), False), ((16, 16), False), ((16, 17), True), ((1, 16), True), ((17, 5), True)],
)
@pytest.mark.parametrize("with_bias", [False, True])
def test_what_is_short_stays_steps(
    monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, int], is_one_op: bool, with_bias: bool
) -> None:
    """Of one query a loop computes attention, whatever the number of keys."""
    for name, limit in LIMITS.items():
        monkeypatch.setattr(attention_pattern, name, limit)
    queries, keys = (n * 2 if with_bias and lengths[0] != 1 else n for n in lengths)
    shapes: Shapes = (2, 3, queries, 16), (2, 3, keys, 16), (2, 3, keys, 8)
    function, *others = (biased, (3, queries, keys)) if with_bias else (plain,)
    assert count(rewritten(function, (*shapes, *others)), aten.scaled_dot_product_attention.default) == is_one_op


def test_a_row_that_is_hidden_is_not_a_number() -> None:
    """As in eager; a fused kernel has zeros there."""
    gm = rewritten(shown_by_where, BIASED)
    with _disable_current_modes():
        q, k, v, bias = (torch.randn(s).bfloat16() for s in BIASED)
        bias[1, 4], bias[2, 7] = 3, 0
        got, eager = _on_cpu(gm)(q, k, v, bias), shown_by_where(q, k, v, bias)
        assert eager[:, 1, 4].isnan().all() and not eager[:, 2, 7].isnan().any()
        assert torch.equal(got.isnan(), eager.isnan())


def test_nothing_asks_whether_a_triangle_hides_rows() -> None:
    assert not count(rewritten(causal, ((2, 3, 9, 16),) * 3), aten.all.dim)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [(of_layers, ((2, 9, 48), (2, 5, 48))), (packed, ((2, 7, 144),)), (of_matrices, HEADS), (biased, BIASED)],
)
def test_heads_are_those_of_the_model(function: Function, shapes: Shapes) -> None:
    (node,) = rewritten(function, shapes).graph.find_nodes(
        op="call_function", target=aten.scaled_dot_product_attention.default
    )
    assert node.meta["val"].shape[:2] == (2, 3)
    assert [n.meta["val"].shape[:2] for n in node.args[:3]] == [(2, 3)] * 3


def test_a_bias_that_all_samples_have_is_not_repeated() -> None:
    (node,) = rewritten(biased, BIASED).graph.find_nodes(
        op="call_function", target=aten.scaled_dot_product_attention.default
    )
    assert node.args[3].meta["val"].shape == (1, 3, 9, 5) and node.kwargs == {"scale": 0.25}


def test_a_mask_of_a_triangle_is_no_tensor() -> None:
    gm = rewritten(causal, ((2, 3, 9, 16),) * 3)
    simplify_masks(gm)
    (node,) = gm.graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default)
    assert node.args[3:] == (None, 0.0, True)


def hidden_by_the_lowest(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT).masked_fill(bias > 0, torch.finfo(q.dtype).min).softmax(-1) @ v


def with_the_lowest(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT + torch.finfo(q.dtype).min * bias).softmax(-1) @ v


@pytest.mark.parametrize("function", [hidden_by_the_lowest, with_the_lowest])
def test_rows_that_are_hidden_by_the_lowest_number_are_means(function: Function) -> None:
    """As in eager: every key of the row has the same weight. Kernels on a GPU multiply what they get by log2(e)."""
    gm = rewritten(function, BIASED)
    assert count(gm, aten.scaled_dot_product_attention.default) == 1
    with _disable_current_modes():
        q, k, v = (torch.randn(s).bfloat16() for s in HEADS)
        bias = torch.zeros(3, 9, 5).bfloat16()
        bias[:, 4] = 1
        bias[1, 6, 2:] = 1
        run = fx.Interpreter(_on_cpu(gm), garbage_collect_values=False)
        got = run.run(q, k, v, bias)
        (attention,) = gm.graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default)
        added = run.env[attention.args[3]]
        torch.testing.assert_close(got[:, :, 4].float(), v.float().mean(2), rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(got, function(q, k, v, bias), rtol=2e-2, atol=2e-2)
        assert (added.float() * math.log2(math.e)).isfinite().all()


def test_a_row_to_which_minus_infinity_is_added_is_not_a_number() -> None:
    """As in eager; a fused kernel has zeros there."""
    gm = rewritten(biased, BIASED)
    with _disable_current_modes():
        q, k, v, bias = (torch.randn(s).bfloat16() for s in BIASED)
        bias[1, 4], bias[2, 7, 1:] = -math.inf, -math.inf
        got, eager = _on_cpu(gm)(q, k, v, bias), biased(q, k, v, bias)
        assert eager[:, 1, 4].isnan().all() and not eager[:, 2, 7].isnan().any()
        assert torch.equal(got.isnan(), eager.isnan())
        torch.testing.assert_close(got, eager, rtol=2e-2, atol=2e-2, equal_nan=True)


def probabilities_leave(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    p = torch.softmax(q @ k.mT, -1)
    return p @ v, p


def scores_leave(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    s = q @ k.mT
    return torch.softmax(s * 2, -1) @ v, s


def over_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT, -2) @ v


def turned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ q.mT, -1).mT @ q


def scaled_with_its_bias(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return ((q @ k.mT + bias) * 0.5).softmax(-1) @ v


def hidden_by_a_number(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Where all of a row is hidden by it, the scores still count."""
    return (q @ k.mT).masked_fill(bias > 0, -1e4).softmax(-1) @ v


def hidden_twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT).masked_fill(bias > 0, -3.389e38).masked_fill(bias < 0, -3.389e38).softmax(-1) @ v


def scaled_with_its_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return ((q @ k.mT).masked_fill(bias > 0, -3.389e38) / 1e38).softmax(-1) @ v


def biased_before_its_temperature(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    return ((q @ k.mT + bias) * bias[:, :1, :1]).softmax(-1) @ v


def by_row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT * bias).softmax(-1) @ v


def with_another_function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.mT).tanh(), -1) @ v


def with_a_bias_of_float32(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT + bias.float()).softmax(-1).to(q.dtype) @ v


def as_second_factor(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return v.mT @ torch.softmax(k @ q.mT, -1)


def reshaped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Probabilities in other rows than those of the softmax."""
    return torch.softmax(q @ q.mT, -1).reshape(2, 3, 27, 3) @ torch.ones_like(q[:, :, :3])


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (probabilities_leave, HEADS),
        (scores_leave, HEADS),
        (over_queries, HEADS),
        (turned, HEADS),
        (scaled_with_its_bias, BIASED),
        (hidden_by_a_number, BIASED),
        (hidden_twice, BIASED),
        (scaled_with_its_mask, BIASED),
        (biased_before_its_temperature, BIASED),
        (by_row, BIASED),
        (with_another_function, HEADS),
        (with_a_bias_of_float32, BIASED),
        (as_second_factor, HEADS),
        (reshaped, HEADS),
        (plain, ((2, 3, 9, 6), (2, 3, 5, 6), (2, 3, 5, 6))),
        (plain, ((2, 3, 9, 264), (2, 3, 5, 264), (2, 3, 5, 264))),
    ],
)
def test_what_a_fused_kernel_does_not_compute_stays(function: Function, shapes: Shapes) -> None:
    gm = rewritten(function, shapes)
    assert not count(gm, aten.scaled_dot_product_attention.default) and count(gm, aten.bmm.default) == 2


def test_a_lowest_number_that_float16_has_not_stays() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.mT).float().masked_fill(bias > 0, torch.finfo(torch.float32).min)
        return scores.softmax(-1).to(q.dtype) @ v

    for dtype, found in ((torch.bfloat16, 1), (torch.float16, 0)):
        assert count(rewritten(function, BIASED, dtype), aten.scaled_dot_product_attention.default) == found


def test_float32_stays() -> None:
    assert not count(rewritten(plain, HEADS, torch.float32), aten.scaled_dot_product_attention.default)


def test_dropout_stays() -> None:
    def dropped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.softmax(q @ k.mT, -1), 0.5, training=True) @ v

    assert not count(rewritten(dropped, HEADS), aten.scaled_dot_product_attention.default)


def test_what_the_user_wants_for_torch_stays() -> None:
    with left_to_torch(("aten.bmm",)):
        assert not count(rewritten(plain, HEADS), aten.scaled_dot_product_attention.default)


def test_a_cpu_keeps_its_steps() -> None:
    with _disable_current_modes():
        inputs = [torch.empty(s, dtype=torch.bfloat16) for s in HEADS]
        gm = make_fx(plain, tracing_mode="fake")(*inputs)
    recognize_attention(gm)
    assert not count(gm, aten.scaled_dot_product_attention.default)
