"""Vectors of elements from places of their own, lane by lane."""
from raw.vectors.lanes import *


@always_inline("nodebug")
def load_at[w: Int, d: DType](p: Ptr[d], offsets: Vec[i64, w]) -> Vec[d, w]:
    return gather_from[(0 < w).__mlir_bool__(), 0](p, offsets, const[d, w](0))


@always_inline("nodebug")
def load_at_where[w: Int, d: DType](p: Ptr[d], offsets: Vec[i64, w], here: Vec[boolean, w]) -> Vec[d, w]:
    """The lanes for which `here` holds from memory, zeros in the others."""
    return gather_where[(0 < w).__mlir_bool__(), 0](p, offsets, here, const[d, w](0))
