"""Images with their channels last in memory, on a GPU.

Torch's sizes are always ``[N, C, *S]``. A value may lie as ``[N, *S, C]`` in memory and be permuted by ``permute`` of
``tensor_ops.py``, which moves nothing until an op asks for another order. Ops that look at each element by itself,
norms and pools compute such images as they lie, so that a network of convolutions has no transposes inside.
"""

from __future__ import annotations

from max.graph import TensorValue, ops

from torch_max_backend.aten_functions.support.tensor_ops import memory_order, numel, permute, reshape, static
from torch_max_backend.aten_functions.support.written_transpose import written_transpose


def last_order(rank: int) -> tuple[int, ...]:
    """The permutation that brings the channels of ``[N, C, *S]`` to the end."""
    return (0, *range(2, rank), 1)


def is_channels_last(x: TensorValue) -> bool:
    """Whether the channels of ``x`` ``[N, C, *S]`` are known to lie last in memory."""
    return x.rank > 2 and x.device.is_gpu() and memory_order(x) == last_order(x.rank)


def channels_last(x: TensorValue) -> TensorValue:
    """``[N, C, *S]`` as ``[N, *S, C]``: what is in memory if it lies so, else a transpose."""
    if is_channels_last(x):
        return permute(x, last_order(x.rank))
    shape = [x.shape[0], *x.shape[2:], x.shape[1]]
    if static(x.shape[1]) == 1 or static(numel(x.shape[2:])) == 1:
        return reshape(x, shape)
    flat = reshape(x, [x.shape[0], x.shape[1], numel(x.shape[2:])])
    written = written_transpose(flat, [0, 2, 1])
    return reshape(permute(flat, [0, 2, 1]) if written is None else written, shape)


def channels_first(x: TensorValue) -> TensorValue:
    """``[N, *S, C]`` as ``[N, C, *S]``; it stays as it is in memory."""
    return permute(x, (0, x.rank - 1, *range(1, x.rank - 1)))


def as_rows(x: TensorValue) -> TensorValue:
    """``[N, C, *S]`` as ``[N * S, C]`` where the channels lie last; ``x`` itself elsewhere."""
    return reshape(channels_last(x), [numel([x.shape[0], *x.shape[2:]]), x.shape[1]]) if is_channels_last(x) else x


def from_rows(y: TensorValue, x: TensorValue) -> TensorValue:
    """The inverse of :func:`as_rows` of ``x``."""
    return channels_first(reshape(y, [x.shape[0], *x.shape[2:], x.shape[1]])) if is_channels_last(x) else y


def add_per_channel(x: TensorValue, vector: TensorValue) -> TensorValue:
    """``x [N, C, *S]`` plus a vector over channels, in the order of memory."""
    if is_channels_last(x):
        return channels_first(ops.add(channels_last(x), vector))
    return ops.add(x, reshape(vector, [vector.shape[0], *[1] * (x.rank - 2)]))
