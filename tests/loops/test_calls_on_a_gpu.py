"""How programs call CUDA's libraries: what these read and write. Functions are traced for a GPU that is not there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from tests.support.absent_gpu import trace
from tests.support.loop_programs import noted_programs
from torch_max_backend.loops import build, convolution_layout, on_gpu
from torch_max_backend.loops.program import Call, Program, Ref
from torch_max_backend.runtime.odd_products import MM_OF_ODD_COLUMNS
from torch_max_backend.schedule.machine import GPU
from torch_max_backend.schedule.plan import schedule

pytestmark = pytest.mark.any_runner("loop programs, of which nothing is run")

aten = torch.ops.aten
F = torch.nn.functional
HALF = {"dtype": torch.bfloat16, "device": "cuda"}


@pytest.fixture
def program_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Program]:
    """The loop program of a function of tensors with given shapes."""
    found = noted_programs(monkeypatch)

    def program(function: Callable[..., Any], *inputs: Callable[[], torch.Tensor]) -> Program:
        trace(function, *inputs)
        return found[-1]

    return program


def half(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.empty(shape, **HALF)


def single(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.empty(shape, device="cuda")


def calls(program: Program) -> list[Call]:
    return [s for s in program.steps if isinstance(s, Call)]


def strides(call: Call) -> tuple[int, ...]:
    (result,) = call.results
    assert result is not None
    return tuple(int(s.constant) for s in result.strides)


def test_a_convolution_has_channels_last_and_no_bias(program_of: Callable[..., Program]) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.relu(F.conv2d(x, w, b))

    (call,) = calls(program_of(function, half(2, 16, 9, 9), half(8, 16, 3, 3), half(8)))
    image, weight, bias = call.args[:3]
    assert bias is None
    assert [int(s.constant) for s in image.strides] == [16 * 81, 1, 9 * 16, 16]
    assert [int(s.constant) for s in weight.strides] == [16 * 9, 1, 3 * 16, 16]
    assert strides(call) == (8 * 49, 1, 7 * 8, 8)


@pytest.mark.parametrize(
    ("groups", "inside", "is_last"), [(4, 16, True), (4, 15, False), (16, 1, True), (4, 24, False), (2, 64, True)]
)
def test_groups_that_fill_no_tile_stay_contiguous(
    program_of: Callable[..., Program], groups: int, inside: int, is_last: bool
) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.relu(F.conv2d(x, w, groups=groups))

    channels = groups * inside
    taps = 5 if inside == 1 else 3  # with fewer, a depthwise one is no call
    (call,) = calls(program_of(function, half(2, channels, 9, 9), half(channels, inside, taps, taps)))
    assert (strides(call)[1] == 1) is is_last


@pytest.mark.parametrize(
    ("channels", "features", "taps", "is_last"),
    [(32, 4, 1, False), (12, 64, 1, False), (32, 64, 1, True), (32, 4, 3, True)],
)
def test_one_tap_of_channels_that_fill_no_tile_stays_contiguous(
    program_of: Callable[..., Program], channels: int, features: int, taps: int, is_last: bool
) -> None:
    weight = half(features, channels, taps, taps)
    for function in (activated, activated_twice):
        (call,) = calls(program_of(function, half(2, channels, 64, 64), weight))
        assert lies_last(call.args[0]) is lies_last(call.results[0]) is is_last


def lies_last(x: Any) -> bool:
    """Whether an argument or a result of a call, an image with more than one channel, has its channels last."""
    return int(x.strides[1].constant) == 1


def activated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.relu(F.conv2d(x, w))


def activated_twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return activated(x.sin(), w)


LARGE = single(2, 4, 512, 512), single(8, 4, 3, 3)
"""An image and a weight that are worth a copy."""


def test_float32_has_channels_last_where_it_is_multiplied_in_tf32(program_of: Callable[..., Program]) -> None:
    (call,) = calls(program_of(activated, *LARGE))
    assert all(map(lies_last, (*call.args[:2], *call.results)))


def test_float32_without_tf32_is_contiguous(
    program_of: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    (call,) = calls(program_of(activated, *LARGE))
    assert not any(map(lies_last, (*call.args[:2], *call.results)))


@pytest.mark.parametrize(
    ("image", "weight"),
    [((2, 16, 9, 9), (8, 16, 3, 3)), ((2, 32, 256, 256), (32, 32, 1, 1)), ((2, 64, 64, 64), (64, 1, 5, 5))],
    ids=["small", "one tap", "depthwise"],
)
def test_float32_is_copied_only_for_much_work(
    program_of: Callable[..., Program], image: tuple[int, ...], weight: tuple[int, ...]
) -> None:
    """What is computed may be written with channels last all the same."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.relu(F.conv2d(x, w, groups=x.shape[1] // w.shape[1]))

    (call,) = calls(program_of(function, single(*image), single(*weight)))
    assert not lies_last(call.args[0]) and not lies_last(call.results[0])
    (call,) = calls(program_of(lambda x, w: function(x.sin(), w), single(*image), single(*weight)))
    assert lies_last(call.args[0]) and lies_last(call.results[0])


@pytest.mark.parametrize("make", [half, single])
def test_a_large_result_that_leaves_is_copied_back(program_of: Callable[..., Program], make: Any) -> None:
    program = program_of(F.conv2d, make(2, 4, 512, 512), make(8, 4, 3, 3))
    (call,) = calls(program)
    assert all(map(lies_last, (*call.args[:2], *call.results)))
    ((name, order),) = program.outputs
    assert order == (0, 1, 2, 3) and name in {d.name for d in program.definitions()}


@pytest.mark.parametrize("make", [half, single])
def test_an_image_of_one_channel_is_contiguous(program_of: Callable[..., Program], make: Any) -> None:
    """So ATen takes it, and would give a contiguous result."""
    for function in (activated, activated_twice):
        (call,) = calls(program_of(function, make(2, 1, 512, 512), make(32, 1, 5, 5)))
        assert strides(call) == (32 * 508**2, 508**2, 508, 1)


@pytest.mark.parametrize(
    ("make", "image", "weight", "is_last"),
    [
        (half, (2, 16, 9, 9), (8, 16, 3, 3), True),
        (half, (2, 60, 9, 9), (60, 15, 3, 3), False),
        (half, (2, 1, 9, 9), (8, 1, 5, 5), False),
        (single, (2, 4, 512, 512), (8, 4, 3, 3), True),
        (single, (2, 16, 9, 9), (8, 16, 3, 3), False),
    ],
)
def test_gradients_lie_as_the_forward(
    program_of: Callable[..., Program], make: Any, image: tuple[int, ...], weight: tuple[int, ...], is_last: bool
) -> None:
    groups = image[1] // weight[1]

    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.relu(F.conv2d(x, w, groups=groups))

    def backward(x: torch.Tensor, w: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        op = torch.ops.aten.convolution_backward
        return op(gradient, x, w, [0], [1, 1], [0, 0], [1, 1], False, [0, 0], groups, [True, True, False])

    result = image[0], weight[0], image[2] - weight[2] + 1, image[3] - weight[3] + 1
    (call,) = calls(program_of(forward, make(*image), make(*weight)))
    assert lies_last(call.results[0]) is is_last
    (call,) = calls(program_of(backward, make(*image), make(*weight), make(*result)))
    assert lies_last(call.args[0]) is is_last
    assert [lies_last(r) for r in call.results[:2] if weight[1] > 1] == [is_last] * (2 if weight[1] > 1 else 0)


def gradients(*mask: bool) -> Callable[..., Any]:
    def function(x: torch.Tensor, w: torch.Tensor, gradient: torch.Tensor, y: torch.Tensor) -> Any:
        op, of_result = torch.ops.aten.convolution_backward, torch.where(y > 0, gradient, 0)
        found = op(of_result, x, w, [w.shape[0]], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, list(mask))
        return tuple(g for g in found if g is not None)

    return function


def test_the_gradient_of_a_bias_is_a_loop(program_of: Callable[..., Program]) -> None:
    image, weight = half(2, 16, 9, 9), half(8, 16, 3, 3)
    result = half(2, 8, 9, 9)
    program = program_of(gradients(True, True, True), image, weight, result, result)
    (call,) = calls(program)
    assert call.args[-1] == [True, True, False] and call.results[2] is None
    (sum_,) = [d for d in program.definitions() if d.name == program.outputs[2][0]]
    assert program.steps.index(sum_) < program.steps.index(call)
    assert not calls(program_of(gradients(False, False, True), image, weight, result, result))


@pytest.mark.parametrize("bias", [False, True])
def test_zeros_make_columns_even(program_of: Callable[..., Program], bias: bool) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.linear(x, w, b if bias else None), -1)

    (call,) = calls(program_of(function, half(4096, 768), half(1001, 768), half(1001)))
    assert call.target is (aten.addmm.default if bias else aten.mm.default) and strides(call) == (1008, 1)
    *bias_, _, weight = call.args
    assert [int(s.constant) for s in weight.sizes] == [768, 1008]
    assert [int(s.constant) for s in weight.strides] == [1, 768]
    assert [[int(s.constant) for s in x.sizes] for x in bias_] == [[1008]] * bias


@pytest.mark.parametrize(
    ("rows", "bias", "target"),
    [
        (128, False, MM_OF_ODD_COLUMNS),
        (4096, False, MM_OF_ODD_COLUMNS),
        (128, True, MM_OF_ODD_COLUMNS),
        (4096, True, aten.addmm.default),
    ],
)
def test_odd_columns_of_a_large_weight_are_a_product_of_their_own(
    program_of: Callable[..., Program], rows: int, bias: bool, target: Any
) -> None:
    """Many rows with a bias are a product with zeros behind the weight, since cuBLASLt adds no bias to parts."""

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.linear(x, w, b if bias else None), -1)

    (call,) = calls(program_of(function, half(rows, 768), half(30522, 768), half(30522)))
    assert call.target is target and strides(call) == (30528, 1)
    (weight,) = [x for x in call.args if isinstance(x, Ref) and x.sizes[0] == 768]
    assert weight.sizes[1] == (30522 if target is MM_OF_ODD_COLUMNS else 30528)


def test_a_bias_of_one_number_keeps_odd_columns(program_of: Callable[..., Program]) -> None:
    (call,) = calls(program_of(torch.addmm, half(1), half(4096, 768), half(768, 1001)))
    assert call.target is aten.addmm.default and strides(call) == (1001, 1)


# -- activations of products -------------------------------------------------------------------------------------------
def gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


@pytest.mark.parametrize("columns", [1024, 1001])
@pytest.mark.parametrize("rows", [(4096,), (8, 512), (3, 5)])
def test_a_product_has_the_activation_behind_it(
    program_of: Callable[..., Program], rows: tuple[int, ...], columns: int
) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return gelu(F.linear(x, w, b)) * 2

    program = program_of(function, half(*rows, 768), half(columns, 768), half(columns))
    (call,) = calls(program)
    assert call.target is aten._addmm_activation.default and call.kwargs == {"use_gelu": True}
    assert "aten.gelu.default" in call.where and "aten.addmm.default" in call.where
    assert "tanh" not in str(program) and "sigmoid" not in str(program)


def test_products_without_a_bias_share_zeros_for_it(program_of: Callable[..., Program]) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return gelu(x @ w) + gelu(x @ v)

    program = program_of(function, half(4096, 768), half(768, 1024), half(768, 1024))
    assert [c.target for c in calls(program)] == [aten._addmm_activation.default] * 2
    zeros = {str(step.body) for step in schedule(program, GPU).program.definitions() if step.sizes == (1024,)}
    assert zeros == {"0.0"}
    assert len({c.args[0].name for c in calls(schedule(program, GPU).program)}) == 1


def test_a_small_product_has_no_bias_for_an_activation(program_of: Callable[..., Program]) -> None:
    (call,) = calls(program_of(lambda x, w: gelu(x @ w), half(70, 64), half(64, 128)))
    assert call.target is aten.mm.default


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        lambda x, w, b: F.relu(F.linear(x, w, b)),
        lambda x, w, b: (y := F.linear(x, w, b), gelu(y)),
        lambda x, w, b: gelu(F.linear(x, w, b).float()),
        lambda x, w, b: gelu(F.linear(x, w, b)[:, :64]),
        lambda x, w, b: gelu(F.linear(x, w, b) + 1),
    ],
    ids=["erf", "ReLU", "read twice", "float32", "a part", "sum"],
)
def test_other_activations_are_loops(program_of: Callable[..., Program], function: Any) -> None:
    (call,) = calls(program_of(function, half(4096, 768), half(1024, 768), half(1024)))
    assert call.target is aten.addmm.default


def test_small_products_have_no_zeros(program_of: Callable[..., Program]) -> None:
    (call,) = calls(program_of(lambda x, w: (x @ w).relu(), half(16, 512), half(512, 1001)))
    assert strides(call) == (1001, 1)


def test_a_product_reads_rows_at_sixteen_bytes(program_of: Callable[..., Program]) -> None:
    program = program_of(lambda x, w: torch.softmax(x, -1) @ w, half(256, 1001), half(1001, 64))
    (call,) = calls(program)
    assert list(program.rows.values()) == [(1001, 1008)]
    assert [int(s.constant) for s in call.args[0].strides] == [1008, 1]


def test_a_mask_is_made_one_of_floats_once(program_of: Callable[..., Program]) -> None:
    def function(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        once = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        return F.scaled_dot_product_attention(once, q, q, attn_mask=mask)

    def mask() -> torch.Tensor:
        return torch.empty((1, 1, 32, 32), dtype=torch.bool, device="cuda").transpose(2, 3)

    first, second = calls(program_of(function, half(2, 4, 32, 64), mask))
    masks = [c.kwargs.get("attn_mask", c.args[3] if len(c.args) > 3 else None) for c in (first, second)]
    assert masks[0] == masks[1] and masks[0].strides[-1] == 1


def test_a_mask_that_is_computed_has_rows_that_torch_does_not_copy(program_of: Callable[..., Program]) -> None:
    """As a table of windows' places is looked up. Without it, torch adds columns to make 49 a multiple of 16."""

    def function(q: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q, attn_mask=table.sigmoid().permute(2, 0, 1).unsqueeze(0))

    (call,) = calls(program_of(function, half(2, 4, 49, 64), half(49, 49, 4)))
    assert [int(s.constant) for s in call.args[3].sizes] == [1, 4, 49, 49]
    assert [int(s.constant) for s in call.args[3].strides[1:]] == [49 * 64, 64, 1]


@pytest.mark.parametrize("length", [197, 13])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("is_computed", [True, False], ids=["computed", "given"])
def test_efficient_attention_reads_a_bias_at_aligned_rows(
    program_of: Callable[..., Program], length: int, dtype: torch.dtype, is_computed: bool
) -> None:
    """Torch pads a bias for that, and takes a view; the view is of no use if the padding is not in memory."""

    def function(q: torch.Tensor, bias: torch.Tensor, gradient: torch.Tensor) -> Any:
        bias = bias.sin() if is_computed else bias
        added = F.pad(bias, [0, -length % 16])[..., :length]
        y, *saved = aten._scaled_dot_product_efficient_attention(q, q, q, added, True, 0.0, False)
        inputs = (True, True, True, True)
        back = aten._scaled_dot_product_efficient_attention_backward(
            gradient, q, q, q, added, y, *saved, 0.0, inputs, False
        )
        return y, back

    q = lambda: torch.empty(2, 4, length, 64, device="cuda", dtype=dtype)  # noqa: E731
    bias = lambda: torch.empty(2, 4, length, length, device="cuda", dtype=dtype)  # noqa: E731
    forward, backward = calls(program_of(function, q, bias, q))
    for mask in (forward.args[3], backward.args[4]):
        assert [int(n.constant) for n in mask.sizes] == [2, 4, length, length]
        *outer, last = (int(s.constant) for s in mask.strides)
        assert last == 1 and all(s % 8 == 0 for s in outer)


def test_a_bias_that_begins_between_aligned_places_is_copied(program_of: Callable[..., Program]) -> None:
    def function(q: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return aten._scaled_dot_product_efficient_attention(q, q, q, bias[..., 3:35], False, 0.0, False)[0]

    (call,) = calls(program_of(function, half(2, 4, 32, 64), half(2, 4, 32, 48)))
    assert call.args[3].offset == 0 and [int(s.constant) for s in call.args[3].strides[-2:]] == [32, 1]


def test_attention_lies_as_its_queries(program_of: Callable[..., Program]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        q = x.view(2, 32, 4, 64).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(2, 32, 256).relu()

    (call,) = calls(program_of(function, half(2, 32, 256)))
    assert strides(call) == (32 * 256, 64, 256, 1)


def rotated_heads(x: torch.Tensor, w: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """[2, 32, 256] times [256, heads * 64] as [2, heads, 32, 64], with halves turned as rotary embeddings do."""
    heads = (x @ w).view(2, 32, -1, 64).transpose(1, 2)
    turned = torch.cat((-heads[..., 32:], heads[..., :32]), -1)
    return heads * angles.cos() + turned * angles.sin()


HEADS_LAST = (32 * 256, 64, 256, 1)
"""Strides of four heads of 64, behind 32 positions."""


def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)[0]


@pytest.mark.parametrize("attention", [F.scaled_dot_product_attention, fused])
def test_computed_queries_lie_as_in_eager(program_of: Callable[..., Program], attention: Any) -> None:
    """So that the product behind attention reads its result where it is."""

    def function(x: torch.Tensor, w: torch.Tensor, angles: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        q = rotated_heads(x, w, angles)
        return attention(q, q, q).transpose(1, 2).reshape(2, 32, 256) @ out

    inputs = half(2, 32, 256), half(256, 256), half(2, 1, 32, 64), half(256, 256)
    _, call, behind = calls(program_of(function, *inputs))
    assert all(tuple(int(s.constant) for s in x.strides) == HEADS_LAST for x in (*call.args[:3], call.results[0]))
    assert behind.args[0].name == call.results[0].name


def test_gradients_of_attention_lie_as_what_they_are_of(program_of: Callable[..., Program]) -> None:
    """Of queries and keys as in eager, of values where the region reads them."""

    def function(x: torch.Tensor, w: torch.Tensor, angles: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        q = rotated_heads(x, w, angles)
        y, logsumexp, *saved = aten._scaled_dot_product_flash_attention(q, q, v)
        back = aten._scaled_dot_product_flash_attention_backward(
            y.sin(), q, q, v, y, logsumexp, *saved[:4], 0.0, False, *saved[4:6]
        )
        return [g.relu() for g in back]

    inputs = half(2, 32, 256), half(256, 256), half(2, 1, 32, 64), half(2, 4, 32, 64)
    back = calls(program_of(function, *inputs))[-1]
    found = [tuple(int(s.constant) for s in x.strides) for x in (*back.args[:5], *back.results[:3])]
    own = (4 * 32 * 64, 32 * 64, 64, 1)
    assert found == [HEADS_LAST, HEADS_LAST, HEADS_LAST, own, HEADS_LAST, HEADS_LAST, HEADS_LAST, own]


def test_gradients_of_attention_may_have_symbolic_lengths(program_of: Callable[..., Program]) -> None:
    """These are arguments of the call, beside the tensors."""

    def function(q: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
        y, logsumexp, *_, seed, offset, _ = aten._scaled_dot_product_cudnn_attention(q, q, q, None, True)
        return aten._scaled_dot_product_cudnn_attention_backward(
            g, q, q, q, y, logsumexp, seed, offset, None, None, None, q.shape[2], q.shape[2], 0.0, False
        )

    def symbolic() -> torch.Tensor:
        x = torch.empty(2, 4, 77, 64, **HALF)
        torch._dynamo.mark_dynamic(x, 2)
        return x

    back = calls(program_of(function, symbolic, symbolic))[-1]
    assert back.args[11] == back.args[1].sizes[2] and not back.args[11].is_constant


def test_attention_that_is_written_out_is_a_call_between_products(program_of: Callable[..., Program]) -> None:
    """As a layer has it: queries are read where their product has left them, and the result lies as the next wants."""

    def function(x: torch.Tensor, y: torch.Tensor, *w: torch.Tensor) -> torch.Tensor:
        q, k, v = ((z @ u).view(2, -1, 2, 32).transpose(1, 2) for z, u in zip((x, y, y), w, strict=False))
        p = F.dropout(torch.softmax(q @ k.transpose(-1, -2) / 32**0.5, -1), 0.1, training=False)
        return (p @ v).transpose(1, 2).reshape(2, 196, 64) @ w[3]

    program = program_of(function, half(2, 196, 64), half(2, 49, 64), *[half(64, 64)] * 4)
    assert [str(c.target) for c in calls(program)] == [
        *["aten.mm.default"] * 3,
        "aten.scaled_dot_product_attention.default",
        "aten.mm.default",
    ]
    assert not list(program.definitions())
    assert [[int(s.constant) for s in x.strides] for x in calls(program)[3].args[:3]] == [
        [196 * 64, 32, 64, 1],
        *[[49 * 64, 32, 64, 1]] * 2,
    ]


def test_a_factor_of_uneven_rows_is_copied_once(program_of: Callable[..., Program]) -> None:
    """As the gradient of a language model's logits, of which two products are made."""

    def function(x: torch.Tensor, w: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x @ w, x.t() @ h

    first, second = calls(program_of(function, half(4096, 1001), half(1001, 768), half(4096, 768)))
    assert first.args[0].name == second.args[0].name
    assert [int(s.constant) for s in first.args[0].sizes] == [4096, 1008]
    assert [int(s.constant) for s in first.args[1].sizes] == [1008, 768]
    assert [int(s.constant) for s in second.args[0].sizes] == [1001, 4096]
    assert [int(s.constant) for s in second.args[0].strides] == [1, 1008]


def test_what_is_computed_for_two_products_has_zeros_behind_its_rows(program_of: Callable[..., Program]) -> None:
    """It is written once, and both products read it there."""

    def function(x: torch.Tensor, w: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.sin()
        return y @ w, y.t() @ h

    program = program_of(function, half(4096, 1001), half(1001, 768), half(4096, 768))
    first, second = calls(program)
    assert first.args[0].name == second.args[0].name
    assert [int(s.constant) for s in first.args[0].sizes] == [4096, 1008]
    assert [int(s.constant) for s in second.args[0].strides] == [1, 1008]
    written = [d for d in schedule(program, GPU).program.definitions() if d.sizes[0] == 4096]
    assert [int(d.sizes[1].constant) for d in written] == [1008]


def test_prefixes_of_known_sizes_are_loops(program_of: Callable[..., Program]) -> None:
    assert calls(program_of(lambda x: x.cumsum(1), half(8, 65536))) == []
    (call,) = calls(program_of(lambda x: x.cummax(1), half(8, 65536)))
    assert call.library == "ATen"


@pytest.mark.parametrize("sizes", [(70, 65, 67), (64, 72, 67), (70, 67, 64), (65, 66, 70)], ids=str)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("part", [1, 2**22], ids=["cut", "with zeros"])
def test_products_with_odd_sizes_are_right(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int, int], turned: bool, part: int
) -> None:
    """The walk for a GPU, on a CPU, with products of a size that is soon computed."""
    monkeypatch.setattr(on_gpu, "WORTH_A_PART", part)
    monkeypatch.setattr(build, "FromRegion", on_gpu.OnGpu)
    for limit in ("WORTH_ZEROS", "WORTH_A_COPY", "LARGE"):
        monkeypatch.setattr(on_gpu, limit, 1)
    m, k, n = sizes
    a, b, bias = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
    a, b = (a.t().contiguous().t(), b.t().contiguous().t()) if turned else (a, b)
    inputs = [x.bfloat16() for x in (a, b, bias)]
    options = {"executor": "auto", "fallback": "error"}
    for function in (
        lambda a, b, bias: (a @ b).sin(),
        lambda a, b, bias: torch.addmm(bias, a, b),
        lambda a, b, c: a @ b,
        lambda a, b, bias: F.relu(torch.addmm(bias, a, b)),
        lambda a, b, c: F.relu(a @ b) * 2,
    ):
        torch._dynamo.reset()
        got = torch.compile(function, backend="max_backend", options=options)(*inputs)
        exact = function(*(x.double() for x in inputs))
        # Elements are up to 32, and rounded to 8 bits, once or twice, before the sine is taken.
        torch.testing.assert_close(got.double(), exact, rtol=2**-7, atol=2**-3)
        assert got.stride() == function(*inputs).stride()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("channels", "weight", "how"),
    [
        (4, (8, 4, 3, 3), {}),
        (1, (8, 1, 3, 3), {"padding": 1}),
        (8, (8, 1, 3, 3), {"groups": 8}),
        (6, (4, 3, 3, 3), {"groups": 2}),
        (4, (4, 8, 3, 3), {"stride": 2}),
    ],
    ids=["dense", "one channel", "depthwise", "groups", "transposed"],
)
def test_convolutions_with_gradients_are_right(
    monkeypatch: pytest.MonkeyPatch, channels: int, weight: tuple[int, ...], how: dict[str, Any]
) -> None:
    """The walk for a GPU, on a CPU, with images that are soon worth a copy."""
    monkeypatch.setattr(build, "FromRegion", on_gpu.OnGpu)
    monkeypatch.setattr(convolution_layout, "WORTH_COPIES", 1)
    function = F.conv_transpose2d if "stride" in how else F.conv2d
    bias = torch.randn(weight[1] if "stride" in how else weight[0], requires_grad=True)
    x, w = torch.randn(2, channels, 9, 9, requires_grad=True), torch.randn(weight, requires_grad=True)

    def twice(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return function(x, w, **how), function(x.sin(), w, bias, **how).relu()

    torch._dynamo.reset()
    options = {"executor": "auto", "fallback": "error"}
    got = torch.compile(twice, backend="max_backend", options=options)(x, w, bias)
    wanted = twice(x, w, bias)
    weights = [torch.randn_like(y) for y in wanted]
    gradients = [torch.autograd.grad(ys, (x, w, bias), weights) for ys in (got, wanted)]
    for one, other in zip((*got, *gradients[0]), (*wanted, *gradients[1]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
        assert one.stride() == other.stride()


# -- sorts -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shape", "dtype", "dim"),
    [
        ((4096, 32), torch.float32, -1),
        ((131072, 7), torch.int64, 1),
        ((64, 1024, 32), torch.float32, 1),
        ((2048, 5), torch.bool, 0),
    ],
    ids=str,
)
def test_short_rows_are_sorted_by_a_kernel(program_of: Any, shape: tuple[int, ...], dtype: Any, dim: int) -> None:
    def functions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*torch.sort(x, dim, True), *torch.sort(x, dim=dim, stable=True), torch.argsort(x, dim))

    assert calls(program_of(functions, lambda: torch.empty(shape, dtype=dtype, device="cuda"))) == []


@pytest.mark.parametrize(("shape", "dim"), [((100, 4097), -1), ((4097, 100), 0), ((100_000,), 0)], ids=str)
def test_long_rows_are_sorted_by_aten(program_of: Any, shape: tuple[int, ...], dim: int) -> None:
    program = program_of(lambda x: torch.sort(x * 2, dim=dim, stable=True), single(*shape))
    assert [c.target for c in calls(program)] == [torch.ops.aten.sort.stable]


def test_a_sort_is_one_kernel_with_what_is_around_it(program_of: Any) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = (x * 2 + 1).sort(-1)
        return values.relu(), places - 1

    assert len(schedule(program_of(function, single(4096, 32)), GPU).steps) == 1


def test_values_by_rank_are_those_of_a_sort(program_of: Any) -> None:
    """Where the places are read, too, they are ATen's: so is which of equal elements it names."""
    functions = (lambda x: x.topk(5), lambda x: x.kthvalue(3), lambda x: x.median(-1))
    for function in functions:
        assert calls(program_of(lambda x, f=function: f(x).values, single(4096, 200))) == []
        assert len(calls(program_of(lambda x, f=function: f(x), single(4096, 200)))) == 1
        assert len(calls(program_of(lambda x, f=function: f(x).values, single(4096, 1100)))) == 1


@pytest.mark.parametrize(
    ("depth", "columns", "turned", "expected"),
    [(4096, 8192, False, 0), (4096, 8200, False, 1), (4096, 8200, True, 0)],
    ids=["columns", "many columns", "many rows"],
)
def test_a_product_of_one_row_is_a_loop(
    depth: int, columns: int, turned: bool, expected: int, program_of: Callable[..., Program]
) -> None:
    """But with more than 2^25 elements whose rows are contiguous."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ (w.t() if turned else w)

    weight = half(columns, depth) if turned else half(depth, columns)
    assert len(calls(program_of(function, half(1, depth), weight))) == expected
    assert len(calls(program_of(function, half(2, depth), weight))) == 1


@pytest.mark.parametrize("make", [half, single])
@pytest.mark.parametrize(("weight", "is_call"), [((32, 1, 3, 3), False), ((32, 1, 5, 5), True), ((32, 2, 3, 3), True)])
def test_depthwise_convolutions_of_few_taps_are_loops(
    program_of: Callable[..., Program], make: Any, weight: tuple[int, ...], is_call: bool
) -> None:
    """With what follows in the same kernel."""

    def function(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.relu(F.conv2d(x, w, bias, padding=1, groups=32 // weight[1]))

    program = program_of(function, make(2, 32, 40, 40), make(*weight), make(32))
    assert len(calls(program)) == is_call


@pytest.mark.parametrize(("features", "dtype", "call"), [
    (50257, torch.int8, "torch_max_backend.mm_of_packed.default"),
    (50257, torch.uint8, "torch_max_backend.mm_of_packed.default"),
    (3072, torch.int8, "torch_max_backend.mm_of_packed.default"),
    (2048, torch.int8, "aten.mm.default"),
])  # fmt: skip
def test_a_large_matrix_of_integers_is_unpacked_in_parts(
    program_of: Callable[..., Program], features: int, dtype: torch.dtype, call: str
) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x @ w.to(x.dtype).t()) * scale

    weight = partial(torch.empty, (features, 768), dtype=dtype, device="cuda")
    (found,) = calls(program_of(function, half(32, 768), weight, half(features)))
    assert str(found.target) == call
    assert strides(found) == (-(-features // 8) * 8, 1)


@pytest.mark.parametrize(
    ("depth", "turned", "strides"), [(64, False, [48, 1]), (64, True, [1, 64]), (60, True, [48, 1])]
)
def test_a_factor_lies_as_what_it_is_computed_from(
    program_of: Callable[..., Program], depth: int, turned: bool, strides: list[int]
) -> None:
    """Such as a weight of 8 bits, which a linear reads turned; but not where its rows would begin anywhere."""

    def function(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x @ ((w.t() if turned else w).to(torch.float32) * scale).to(x.dtype)

    shape = (48, depth) if turned else (depth, 48)
    weight = partial(torch.empty, shape, dtype=torch.float8_e4m3fn, device="cuda")
    (call,) = calls(program_of(function, half(5, depth), weight, single(48)))
    assert [int(s.constant) for s in call.args[1].strides] == strides
