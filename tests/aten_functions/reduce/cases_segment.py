"""Reductions of pieces of an axis, and hashes of bits."""

from __future__ import annotations

import torch

from tests.support.cases import Case, bools, ints, randn, special

NAN, INF = float("nan"), float("inf")
BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64
aten = torch.ops.aten
REDUCTIONS = ("sum", "mean", "max", "min", "prod")


def by_lengths(x, lengths):
    return tuple(
        torch.segment_reduce(x, r, lengths=lengths, axis=lengths.dim() - 1, initial=i)
        for r in REDUCTIONS
        for i in (None, 0.5)
    )


def by_offsets(x, offsets):
    return tuple(
        torch.segment_reduce(x, r, offsets=offsets, axis=offsets.dim() - 1, initial=i)
        for r in REDUCTIONS
        for i in (None, -1)
    )


def waves(y):
    return torch.arange(y.numel(), dtype=torch.float32).cos().view_as(y).to(y.dtype)


def gradients(x, lengths):
    """Of both signs: of equal maxima torch shares a positive gradient, and gives all of a negative one to each."""
    axis, found = lengths.dim() - 1, []
    for r in REDUCTIONS:
        for i in (None, 0.5):
            y = torch.segment_reduce(x, r, lengths=lengths, axis=axis, initial=i)
            found.append(aten._segment_reduce_backward(waves(y), y, x, r, lengths=lengths, axis=axis, initial=i))
    return tuple(found)


def gradients_by_offsets(x, offsets):
    axis, found = offsets.dim() - 1, []
    for r in REDUCTIONS:
        y = torch.segment_reduce(x, r, offsets=offsets, axis=axis)
        found.append(aten._segment_reduce_backward(waves(y), y, x, r, offsets=offsets, axis=axis))
    return tuple(found)


def hashes(x):
    hash_tensor = torch.hash_tensor
    return (
        hash_tensor(x),
        hash_tensor(x, 0),
        hash_tensor(x, -1, keepdim=True),
        hash_tensor(x, (0, 1)),
        hash_tensor(x, (0, 1), keepdim=True),
        hash_tensor(x[0, 0]),
        hash_tensor(x[0, 0], 0),
    )


ROWS = torch.tensor([[1.0, NAN, 2.0], [INF, 0.0, -1.0], [-INF, 3.0, 4.0], [2.0, -2.0, NAN], [0.5, 1.0, -0.0]])

CASES = [
    Case("lengths", by_lengths, (randn(9, 4), torch.tensor([3, 0, 4, 2]))),
    Case("lengths_1d", by_lengths, (randn(9), torch.tensor([4, 5]))),
    Case("lengths_2d", by_lengths, (randn(2, 5, 3), torch.tensor([[2, 0, 3], [1, 4, 0]]))),
    Case("lengths_i32", by_lengths, (randn(6, 2), torch.tensor([1, 5], dtype=torch.int32))),
    Case("lengths_f64", by_lengths, (randn(9, 4, dtype=F64), torch.tensor([3, 6]))),
    Case("lengths_bf16", by_lengths, (randn(4, 3, dtype=BF16), torch.tensor([2, 0, 2])),
         rtol=2e-2, why="torch rounds sums and products to 16 bits at every step"),
    Case("lengths_f16", by_lengths, (randn(4, 3, dtype=F16), torch.tensor([2, 0, 2])),
         rtol=2e-3, why="torch rounds sums and products to 16 bits at every step"),
    Case("lengths_special", by_lengths, (ROWS, torch.tensor([1, 0, 3, 1]))),
    Case("offsets", by_offsets, (randn(9, 4), torch.tensor([0, 3, 3, 9]))),
    Case("offsets_2d", by_offsets, (randn(2, 5, 3), torch.tensor([[0, 2, 2, 5], [0, 1, 5, 5]]))),
    Case("lengths_none", by_lengths, (randn(0, 2), torch.tensor([0, 0]))),
    Case("gradients", gradients, (randn(9, 4), torch.tensor([3, 0, 4, 2]))),
    Case("gradients_ties", gradients, (ints(12, 3, low=-1, high=3, dtype=torch.float32), torch.tensor([5, 1, 6]))),
    Case("gradients_2d", gradients, (randn(2, 5, 3), torch.tensor([[2, 0, 3], [1, 4, 0]]))),
    Case("gradients_special", gradients, (ROWS, torch.tensor([1, 0, 3, 1]))),
    Case("gradients_bf16", gradients, (randn(4, 3, dtype=BF16), torch.tensor([2, 0, 2])),
         rtol=2e-2, why="torch rounds quotients and products to 16 bits at every step"),
    Case("gradients_none", gradients, (randn(0, 2), torch.tensor([0, 0]))),
    Case("gradients_offsets", gradients_by_offsets, (randn(9, 4), torch.tensor([0, 3, 3, 9]))),
    Case("gradients_dynamic", gradients, (randn(9, 5), torch.tensor([3, 0, 4, 2])), dynamic=True,
         second=(randn(7, 2), torch.tensor([3, 4, 0]))),
    Case("lengths_dynamic", by_lengths, (randn(9, 5), torch.tensor([3, 0, 4, 2])), dynamic=True,
         second=(randn(7, 2), torch.tensor([3, 4, 0]))),
]  # fmt: skip

if hasattr(aten, "hash_tensor"):
    CASES += [
        Case("hashes", hashes, (randn(4, 5),)),
        Case("hashes_f64", hashes, (randn(4, 5, dtype=F64),)),
        Case("hashes_bf16", hashes, (randn(4, 5, dtype=BF16),)),
        Case("hashes_f16", hashes, (randn(4, 5, dtype=F16, scale=1e-6),)),
        Case("hashes_special", hashes, (special().reshape(4, 4),)),
        Case("hashes_special_bf16", hashes, (special(BF16).reshape(4, 4),)),
        Case("hashes_i64", hashes, (ints(4, 5, low=-(2**62), high=2**62),)),
        Case("hashes_i32", hashes, (ints(4, 5, dtype=torch.int32),)),
        Case("hashes_i16", hashes, (ints(4, 5, dtype=torch.int16),)),
        Case("hashes_i8", hashes, (ints(4, 5, dtype=torch.int8),)),
        Case("hashes_u8", hashes, (ints(4, 5, low=0, dtype=torch.uint8),)),
        Case("hashes_bool", hashes, (bools(4, 5),)),
        Case("hashes_empty", lambda x: torch.hash_tensor(x, 0), (randn(3, 0),)),
    ]
