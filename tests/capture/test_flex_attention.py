"""``flex_attention`` as plain ops: eager's results for every score and mask function, and no islands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as module
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from torch_max_backend import max_backend, reports
from torch_max_backend.diagnostics import report

pytestmark = pytest.mark.sampled

FLASH = "ATen aten._scaled_dot_product_flash_attention_for_cpu.default"
LENGTH = 48
Function = Callable[..., Any]


def compiled(function: Function, dynamic: bool = False) -> Function:
    report.clear()
    chosen = {"fallback": "error", "executor": "auto"}
    backend = lambda gm, inputs: max_backend(gm, inputs, options=chosen)  # noqa: E731
    return torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)


@pytest.fixture(autouse=True)
def all_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's front door refuses gradients and sums on a CPU, the op behind it has them."""
    monkeypatch.setattr(module, "_validate_device", lambda *args: None)
    monkeypatch.setattr(module, "_apply_kernel_options", lambda *args: {"BACKEND": "AUTO"})


def close(mine: Any, eager: Any) -> None:
    """Within two units in the last place of the largest value for 16 bits: scores are float32 in both."""
    for a, b in zip(mine, eager, strict=True):
        is_short = b.dtype.itemsize == 2
        atol = 2 * torch.finfo(b.dtype).eps * b.abs().max().item()
        torch.testing.assert_close(a, b, **({"rtol": 0, "atol": atol} if is_short else {}))
        assert a.stride() == b.stride()


def inputs(
    length: int = LENGTH, keys: int = LENGTH, heads: int = 4, groups: int = 1, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, ...]:
    shapes = [(2, heads, length, 16), (2, heads // groups, keys, 16), (2, heads // groups, keys, 16)]
    return tuple(torch.randn(s, dtype=dtype) for s in shapes)


def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def window(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i >= j) & (i - j < 9) & (i != 5)  # and a row that sees nothing


DOCUMENTS = torch.arange(LENGTH) // 17


def documents(b: Any, h: Any, i: Any, j: Any) -> Any:
    return DOCUMENTS[i] == DOCUMENTS[j]


def of_heads(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (j < 20 + h) | (b == 0)


SLOPES = torch.rand(4)
TABLE = torch.randn(4, 2 * LENGTH)


def slopes(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + (j - i) * SLOPES[h]


def table(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + TABLE[h, i - j + LENGTH]


def hides(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return torch.where(i - j < 7, s, -float("inf"))


def caps(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return 5 * torch.tanh(s / 5)


def scales_by_head(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s * SLOPES[h] + b


def attention(score: Function | None, mask: Function | None, length: int = LENGTH, keys: int = LENGTH) -> Function:
    blocks = create_block_mask(mask, 2, 4, length, keys, device="cpu", BLOCK_SIZE=32) if mask else None
    return lambda q, k, v: (flex_attention(q, k, v, score, blocks, enable_gqa=q.shape[1] != k.shape[1]),)


def with_both_sums(score: Function, mask: Function) -> Function:
    blocks = create_block_mask(mask, 2, 4, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=32)

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out, more = flex_attention(q, k, v, score, blocks, return_aux=AuxRequest(lse=True, max_scores=True))
        return out, more.lse, more.max_scores

    return function


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("score", "mask"),
    [
        (None, None),
        (None, causal),
        (None, window),
        (slopes, documents),
        (table, causal),
        (hides, of_heads),
        (caps, window),
        (scales_by_head, documents),
    ],
)
def test_scores_and_masks(score: Function | None, mask: Function | None, dtype: torch.dtype) -> None:
    function, given = attention(score, mask), inputs(dtype=dtype)
    close(compiled(function)(*given), function(*given))
    calls = reports()[-1].library_calls
    assert (calls == {FLASH: 1}) is (score not in (caps, scales_by_head))


@pytest.mark.parametrize("score", [slopes, caps])
def test_fewer_heads_and_other_numbers_of_keys(score: Function) -> None:
    function, given = attention(score, causal, 20, LENGTH), inputs(20, groups=2)
    close(compiled(function)(*given), function(*given))


@pytest.mark.parametrize("score", [slopes, caps])
def test_one_batch_of_keys_for_all(score: Function) -> None:
    function, (q, k, v) = attention(score, causal), inputs()
    close(compiled(function)(q, k[:1], v[:1]), function(q, k[:1], v[:1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sums_and_largest_scores_of_rows_that_see_nothing(dtype: torch.dtype) -> None:
    function, given = with_both_sums(slopes, window), inputs(dtype=dtype)
    mine = compiled(function)(*given)
    close(mine, function(*given))
    assert mine[1][0, 0, 5] == mine[2][0, 0, 5] == -float("inf")
    assert not mine[0][:, :, 5].any()


@pytest.mark.parametrize("score", [None, caps])
def test_heads_behind_positions(score: Function | None) -> None:
    function, given = attention(score, causal), [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs()]
    close(compiled(function)(*given), function(*given))


@pytest.mark.parametrize("score", [slopes, caps])
def test_long_rows_in_blocks(score: Function) -> None:
    function, given = attention(score, causal, 500, 500), inputs(500, 500)
    mine = compiled(function)
    close(mine(*given), function(*given))
    assert sum(reports()[-1].library_calls.values()) > 4


def test_infinite_and_missing_scores() -> None:
    function, (q, k, v) = with_both_sums(caps, causal), inputs()
    q[0, 0, 3], q[0, 1, 4, 0] = float("inf"), float("nan")
    torch.testing.assert_close(compiled(function)(q, k, v), function(q, k, v), equal_nan=True)


def test_float64() -> None:
    for score in (slopes, caps):
        function, given = attention(score, causal), inputs(dtype=torch.float64)
        close(compiled(function)(*given), function(*given))


def test_float64_with_sums_is_an_island_with_a_reason() -> None:
    function = compiled(with_both_sums(slopes, causal))
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="torch promises float32"):
        function(*inputs(dtype=torch.float64))


@pytest.mark.parametrize("score", [slopes, caps])
def test_symbolic_lengths(score: Function) -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor]:
        return (flex_attention(q, k, v, score),)

    mine = compiled(function, dynamic=True)
    for length in (24, 37):
        given = inputs(length, length)
        close(mine(*given), function(*given))
    assert len(reports()) == 1


# -- gradients ---------------------------------------------------------------------------------------------------------
def results_of(function: Function, given: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    own = [x.clone().requires_grad_() for x in given]
    found = function(*own)
    sum((x.float() * torch.linspace(0.5, 1, x.numel()).view(x.shape)).sum() for x in found).backward()
    return [*(x.detach() for x in found), *(x.grad for x in own if x.grad is not None)]


def biased(q: Any, k: Any, v: Any, bias: Any, factor: Any) -> tuple[torch.Tensor]:
    score = lambda s, b, h, i, j: s * factor + bias[h, i - j + LENGTH]  # noqa: E731
    return (flex_attention(q, k, v, score, BLOCKS, enable_gqa=True),)


BLOCKS = create_block_mask(window, 2, 4, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_all_that_a_score_function_reads(dtype: torch.dtype) -> None:
    given = (*inputs(groups=2, dtype=dtype), torch.randn(4, 2 * LENGTH), torch.tensor(1.5))
    close(results_of(compiled(biased), given), results_of(biased, given))


def test_gradients_through_sums() -> None:
    blocks = create_block_mask(causal, 2, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=32)

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out, more = flex_attention(q, k, v, caps, blocks, return_aux=AuxRequest(lse=True))
        return out, more.lse

    q, k, v = inputs()
    close(results_of(compiled(function), (q, k[:1], v[:1])), results_of(function, (q, k[:1], v[:1])))
