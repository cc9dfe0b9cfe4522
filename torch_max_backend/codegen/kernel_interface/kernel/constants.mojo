"""Constants that have no decimal spelling, and ramps."""
from vectors import *


@always_inline("nodebug")
def const_bits[d: DType, w: Int](x: IntLiteral[_]) -> Vec[d, w]:
    """The float with these bits."""
    if d == f64:
        return cast_plain[d](bitcast[f64](const[u64, w](x)))
    elif d == f32:
        return cast_plain[d](bitcast[f32](const[u32, w](x)))
    elif d == f16:
        return cast_plain[d](bitcast[f16](const[u16, w](x)))
    else:
        return cast_plain[d](bitcast[bf16](const[u16, w](x)))


@always_inline("nodebug")
def infinity[d: DType, w: Int]() -> Vec[d, w]:
    return cast_plain[d](bitcast[f32](const[u32, w](0x7F800000)))


@always_inline("nodebug")
def not_a_number[d: DType, w: Int]() -> Vec[d, w]:
    return cast_plain[d](bitcast[f32](const[u32, w](0x7FC00000)))


@always_inline("nodebug")
def iota[d: DType, w: Int]() -> Vec[d, w]:
    """0, 1, 2, …"""
    if is_float(d):
        return cast_plain[d](ramp[i32, w]())
    else:
        return ramp[d, w]()


@always_inline("nodebug")
def lane[d: DType, w: Int](x: Vec[d, w], k: Int) -> Vec[d, 1]:
    return lane_at(x, k)


@always_inline("nodebug")
def imin(a: Int, b: Int) -> Int:
    if a < b:
        return a
    return b


@always_inline("nodebug")
def imax(a: Int, b: Int) -> Int:
    if a > b:
        return a
    return b


@always_inline("nodebug")
def any_lane[w: Int](c: Vec[boolean, w]) -> Bool:
    return condition(reduce_or(c))
