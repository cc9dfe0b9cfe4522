"""Horizontal operations: from all lanes to one."""
from .types import *
from .arithmetic import *


@always_inline("nodebug")
def reduce_add[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, 1]:
    return a.v.reduce_add()


@always_inline("nodebug")
def reduce_mul[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, 1]:
    return a.v.reduce_mul()


@always_inline("nodebug")
def reduce_max[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, 1]:
    var r = lane_at(a, 0)
    for k in range(1, w):
        r = select(is_nan(r), r, select(gt(r, lane_at(a, k)), r, lane_at(a, k)))
    return r


@always_inline("nodebug")
def reduce_min[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, 1]:
    var r = lane_at(a, 0)
    for k in range(1, w):
        r = select(is_nan(r), r, select(lt(r, lane_at(a, k)), r, lane_at(a, k)))
    return r


@always_inline("nodebug")
def reduce_and[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, 1]:
    var r = lane_at(a, 0)
    for k in range(1, w):
        r = bit_and(r, lane_at(a, k))
    return r


@always_inline("nodebug")
def reduce_or[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, 1]:
    var r = lane_at(a, 0)
    for k in range(1, w):
        r = bit_or(r, lane_at(a, k))
    return r
