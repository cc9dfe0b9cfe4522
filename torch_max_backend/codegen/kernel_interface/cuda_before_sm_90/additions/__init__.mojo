"""Atomic additions of GPUs before sm_90."""
from raw.vectors.types import *
from raw.vectors.arithmetic import *
from raw.vectors.pointers import *


@always_inline("nodebug")
def atomic_add[d: DType](p: Ptr[d], i: Int, x: Vec[d, 1]):
    """Add to what is there; what was there before is not told."""
    _ = __mlir_op.`pop.atomic.rmw`[
        bin_op=__mlir_attr.`#pop.bin_op<add>`,
        ordering=__mlir_attr.`#pop.atomic_ordering<monotonic>`,
        syncscope=__mlir_attr.`"device" : !kgen.string`,
        _type=Vec[d, 1].T,
    ](__mlir_op.`pop.offset`(p.p, i.v), x.v)


@always_inline("nodebug")
def atomic_add_vector[d: DType, w: Int](p: Ptr[d], i: Int, x: Vec[d, w]):
    """Neighbours, one after the other."""
    var lane = 0
    while lane < w:
        atomic_add(p, i + lane, lane_at(x, lane))
        lane += 1
