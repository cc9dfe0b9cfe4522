"""``associative_scan`` as plain ops: pairs are combined level by level, so that a level is one loop over all pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torch_max_backend.capture.fake_tensors import tensors_of, value_of
from torch_max_backend.capture.inlining import NOT_INLINED, higher_order_nodes, inline

Combine = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], list[torch.Tensor]]


def inline_associative_scans(gm: fx.GraphModule) -> None:
    """Replace ``associative_scan`` by slices, what combines two elements, and concatenations.

    One along a dimension of symbolic size is left alone: the number of levels follows from the size.
    """
    for node in higher_order_nodes(gm, "associative_scan"):
        (first, *_) = tensors_of([value_of(n) for n in node.args[1]])
        if isinstance(first.shape[0], torch.SymInt):
            node.meta[NOT_INLINED] = "the number of its steps is symbolic"
        else:
            inline(gm, node, associative_scan)


def associative_scan(
    combine_fn: Callable[..., Any], xs: Sequence[torch.Tensor], additional_inputs: Sequence[Any]
) -> list[torch.Tensor]:
    """All prefixes of ``xs``, along dimension 0 of each, in eager's order of combining.

    Args:
        combine_fn: Takes an element of each of ``xs``, the next one of each, and ``additional_inputs``.
    """
    dims = (0,) * (2 * len(xs)) + (None,) * len(additional_inputs)
    of_all = torch.vmap(lambda *args: tuple(combine_fn(*args)), in_dims=dims)
    return _prefixes(list(xs), lambda first, second: list(of_all(*first, *second, *additional_inputs)))


def _prefixes(xs: list[torch.Tensor], combine: Combine) -> list[torch.Tensor]:
    count = xs[0].shape[0]
    if count < 2:
        return xs
    odd = _prefixes(combine([x[:-1:2] for x in xs], [x[1::2] for x in xs]), combine)
    if count == 2:
        return [torch.cat([x[:1], last]) for x, last in zip(xs, odd, strict=True)]
    before = [o[:-1] for o in odd] if count % 2 == 0 else odd
    rest = combine(before, [x[2::2] for x in xs])
    even = [torch.cat([x[:1], r]) for x, r in zip(xs, rest, strict=True)]
    return [_interleaved(*pair) for pair in zip(even, odd, strict=True)]


def _interleaved(even: torch.Tensor, odd: torch.Tensor) -> torch.Tensor:
    """Elements of both in turns. ``even`` has as many as ``odd``, or one more."""
    pairs = torch.stack([even[: odd.shape[0]], odd], dim=1).flatten(0, 1)
    return pairs if even.shape[0] == odd.shape[0] else torch.cat([pairs, even[-1:]])
