"""Attention on a GPU, over dtypes, sizes, lengths, masks, groups of heads and strides, against float64.

Tolerances are derived, element by element. With weights ``p`` that sum to 1, a result is a mean of values. A kernel may
round each weight to the dtype before it is multiplied, which changes the mean by at most ``unit(dtype)`` of
``p @ |v|``, and rounds the result. It sums scores in float32: an error ``e`` of a score changes its weight by ``e``
relatively, and the other weights of the row through their sum. TF32, which float32 uses below the precision "highest",
cuts the operands of both products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.gpu.checks import TF32_UNIT, Allowed, Call, check_calls, rounding, unit
from tests.support.cases import randn

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
INF = float("inf")
F32_UNIT = unit(F32)

Maker = Callable[[torch.Generator], torch.Tensor]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = None, **rest: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **rest)


def allowed(dtype: torch.dtype, is_causal: bool = False, scale: float | None = None) -> Allowed:
    """What each element may be off by; a row that attends to nothing is exact."""
    cut = TF32_UNIT if dtype is F32 else 0.0

    def bound(inputs: list[Any], exact: torch.Tensor) -> torch.Tensor:
        q, k, v, *mask = inputs
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        factor = q.shape[-1] ** -0.5 if scale is None else scale
        scores = q @ k.mT * factor
        steps = 4 * q.shape[-1] ** 0.5 + 8
        error = (q.abs() @ k.abs().mT) * abs(factor) * (steps * F32_UNIT + 2 * cut)
        if is_causal:
            scores = scores.masked_fill(torch.ones_like(scores[0, 0]).tril() == 0, -INF)
        if mask and mask[0].dtype == torch.bool:
            scores = scores.masked_fill(~mask[0], -INF)
        elif mask:
            scores = scores + mask[0]
            error = error + (4 * F32_UNIT) * mask[0].clamp_min(-1e4).abs()
        weights = torch.softmax(scores, -1).nan_to_num(0.0)
        error = torch.where(weights > 0, error, 0.0).amax(-1, keepdim=True)
        mean = weights @ v.abs()
        sums = 4 * k.shape[2] ** 0.5 * F32_UNIT
        return mean * (unit(dtype) + 2 * error + 2 * cut + sums) * 1.01 + rounding(exact, dtype)

    return bound


def call(
    name: str,
    q: tuple[int, ...],
    k: tuple[int, ...] | None = None,
    dtype: torch.dtype = BF16,
    mask: Any = None,
    function: Callable[..., torch.Tensor] = attend,
    dynamic: bool = False,
    **rest: Any,
) -> Call:
    """Attention of ``q [B, H, S, E]`` to ``k [B, G, T, E]``, given by shape; in memory lengths come before heads."""

    shapes = (q, k or q, k or q)
    grouped = {"enable_gqa": True} if shapes[0][1] != shapes[1][1] else {}

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        return function(*tensors, **grouped, **rest)

    inputs: tuple[Any, ...] = tuple(_heads_inside(*s, dtype=dtype) for s in shapes)
    if mask is not None:
        inputs += (mask,)
    precision = "high" if dtype is F32 else "highest"
    return Call(name, run, inputs, allowed=allowed(dtype, **rest), precision=precision, dynamic=dynamic)


def _heads_inside(b: int, h: int, s: int, e: int, dtype: torch.dtype) -> Maker:
    make = randn(b, s, h, e, dtype=dtype)
    return lambda generator: make(generator).transpose(1, 2)


def _window(s: int, t: int, width: int) -> torch.Tensor:
    """Each query sees itself and what is less than ``width`` before it, both counted from the end."""
    distance = torch.arange(s)[:, None] + (t - s) - torch.arange(t)
    return (distance >= 0) & (distance < width)


def _random_mask(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.5


def _with_dead_rows(mask: torch.Tensor) -> torch.Tensor:
    mask = mask.clone()
    mask[..., ::5, :] = False
    return mask


def _additive(mask: torch.Tensor, dtype: torch.dtype, low: float) -> torch.Tensor:
    bias = torch.randn(mask.shape, generator=torch.Generator().manual_seed(4))
    return bias.masked_fill(~mask, low).to(dtype)


LENGTHS = [(1, 1), (2, 2), (63, 63), (64, 64), (77, 77), (128, 128), (129, 129), (300, 300), (1000, 1000)]
UNEQUAL = [(1, 2), (1, 77), (1, 300), (1, 4096), (7, 300), (100, 300), (300, 100), (129, 1)]


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("size", [64, 128])
def test_lengths(size: int, dtype: torch.dtype) -> None:
    calls = []
    for s, t in LENGTHS + UNEQUAL:
        q, k = (2, 4, s, size), (2, 4, t, size)
        calls += [call(f"full {s} {t}", q, k, dtype), call(f"causal {s} {t}", q, k, dtype, is_causal=True)]
    check_calls(calls)


@pytest.mark.parametrize("size", [8, 32, 40, 72, 80, 96, 160, 256, 264])
def test_sizes(size: int) -> None:
    q, one, k = (2, 4, 200, size), (2, 4, 1, size), (2, 4, 333, size)
    mask = _random_mask(2, 1, 200, 333)
    check_calls(
        [
            call("full", q, k),
            call("causal", q, is_causal=True),
            call("one query", one, k),
            call("masked", q, k, mask=mask),
            call("one query, masked", one, k, mask=mask[:, :, :1]),
        ]
    )


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    scores = scores if mask is None else scores.masked_fill(~mask, -INF)
    return torch.softmax(scores, -1) @ v


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("size", [32, 36, 64])
def test_attention_that_is_written_out(size: int, dtype: torch.dtype) -> None:
    """It is as exact as attention that is one op."""
    q, k, mask = (2, 4, 400, size), (2, 4, 200, size), _window(400, 200, 150) | (torch.arange(200) < 3)
    calls = [call("full", q, k, dtype, function=written_out), call("masked", q, k, dtype, mask, written_out)]
    check_calls(calls)


@pytest.mark.parametrize(("heads", "groups"), [(8, 8), (8, 2), (6, 2), (16, 1), (32, 1), (71, 1)])
def test_groups(heads: int, groups: int) -> None:
    q, one, k = (2, heads, 150, 64), (2, heads, 1, 64), (2, groups, 150, 64)
    mask = _random_mask(2, 1, 1, 150)
    check_calls(
        [
            call("full", q, k),
            call("causal", q, k, is_causal=True),
            call("one query", one, k),
            call("masked", q, k, mask=mask),
            call("one query, masked", one, k, mask=mask),
        ]
    )


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize(("s", "t"), [(130, 130), (65, 199), (199, 65), (1, 200)])
def test_masks(s: int, t: int, dtype: torch.dtype) -> None:
    q, k = (2, 4, s, 64), (2, 4, t, 64)
    wide = _random_mask(2, 4, s, t)
    masks = {
        "every head": wide,
        "every item": wide[:, :1],
        "one item": wide[:1],
        "rows": wide[0, 0],
        "keys": wide[:, :1, :1],
        "dead rows": _with_dead_rows(wide),
        "dead item": wide & torch.tensor([True, False])[:, None, None, None],
        "window": _window(s, t, 50),
        "window, later": _window(s, t, 50).flip(1),
        "added": _additive(wide[:1], dtype, -INF),
        "added, dead rows": _additive(_with_dead_rows(wide[:, :1]), dtype, -INF),
        "added, lowest": _additive(wide[:, :1], dtype, torch.finfo(dtype).min),
    }
    check_calls([call(name, q, k, dtype, mask) for name, mask in masks.items()])


def _lowest_rows(s: int, t: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(s, t, dtype=dtype).index_fill_(0, torch.tensor([0, s - 1]), torch.finfo(dtype).min)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_rows_of_the_lowest_number_are_as_in_eager(dtype: torch.dtype, request: pytest.FixtureRequest) -> None:
    """Torch's kernels multiply masks by log2(e), and give zeros where that is minus infinity; MAX's give the mean."""
    if request.config.getoption("--executor") == "graph":
        pytest.skip("a kernel of MAX's")
    q, k, v = torch.randn(3, 2, 4, 130, 64, device="cuda", dtype=dtype)
    mask = _lowest_rows(130, 130, dtype).cuda()
    given = torch.compile(attend, backend="max_backend", options={"fallback": "error"})(q, k, v, mask)
    torch.testing.assert_close(given, attend(q, k, v, mask))


def test_written_out_rows_of_the_lowest_number_are_means() -> None:
    def steps(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5 + mask, -1) @ v

    shape, mask = (2, 4, 400, 64), _lowest_rows(400, 400, BF16)
    check_calls([call("steps", shape, shape, BF16, mask, steps)])


@pytest.mark.parametrize("size", [64, 128])
def test_scales(size: int) -> None:
    """Flat and peaked rows: of a peaked one nearly all weight is on one key."""
    q = (2, 4, 300, size)
    scales = (0.0, 0.01, 0.3, 4.0, -1.0)
    calls = [call(f"full {s}", q, scale=s) for s in scales]
    check_calls(calls + [call(f"causal {s}", q, scale=s, is_causal=True) for s in scales])


def test_float32() -> None:
    q, k = (2, 4, 100, 64), (2, 4, 200, 64)
    check_calls([call("full", q, k, F32), call("causal", q, dtype=F32, is_causal=True)])


def _fused(x: torch.Tensor) -> list[torch.Tensor]:
    """q, k and v ``[B, H, S, E]``, sliced from ``[B, S, 3, H, E]``."""
    return [part.transpose(1, 2) for part in x.unbind(2)]


@pytest.mark.parametrize("size", [64, 128])
def test_strided(size: int) -> None:
    """Slices of one tensor, heads before the length, and what a transformer does behind attention."""
    x = randn(2, 130, 3, 4, size, dtype=BF16)
    heads_first = randn(2, 4, 130, size, dtype=BF16)
    gaps = randn(2, 130, 4, 2 * size, dtype=BF16)

    def sliced(x: torch.Tensor) -> torch.Tensor:
        return attend(*_fused(x), is_causal=True)

    def joined(x: torch.Tensor) -> torch.Tensor:
        return attend(*_fused(x)).transpose(1, 2).flatten(2)

    def with_gaps(*xs: torch.Tensor) -> torch.Tensor:
        return attend(*(x[..., :size].transpose(1, 2) for x in xs))

    bound, causal = allowed(BF16), allowed(BF16, is_causal=True)
    check_calls(
        [
            Call("sliced", sliced, (x,), allowed=lambda xs, exact: causal(_fused(*xs), exact)),
            Call("joined", joined, (x,), allowed=lambda xs, exact: _joined(bound, xs, exact, size)),
            Call("heads first", attend, (heads_first, heads_first, heads_first), allowed=bound),
            Call(
                "gaps",
                with_gaps,
                (gaps, gaps, gaps),
                allowed=lambda xs, exact: bound([x[..., :size].transpose(1, 2) for x in xs], exact),
            ),
        ]
    )


def _joined(bound: Allowed, xs: list[Any], exact: torch.Tensor, size: int) -> torch.Tensor:
    apart = exact.unflatten(2, (-1, size)).transpose(1, 2)
    result: torch.Tensor = bound(_fused(*xs), apart).transpose(1, 2).flatten(2)
    return result


def test_symbolic_lengths() -> None:
    q, k = (2, 4, 77, 64), (2, 4, 301, 64)
    check_calls(
        [
            call("full", q, k, dynamic=True),
            call("causal", q, is_causal=True, dynamic=True),
            call("causal, more keys", q, k, is_causal=True, dynamic=True),
            call("masked", q, k, mask=_random_mask(2, 1, 77, 301), dynamic=True),
            call("masked, square", q, mask=_random_mask(77, 77), dynamic=True),
        ]
    )


def test_many_long_rows() -> None:
    q = (1, 16, 4096, 128)
    check_calls([call("full", q), call("causal", q, is_causal=True)])
