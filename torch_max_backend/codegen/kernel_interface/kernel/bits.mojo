"""Bits of integers; shifts by any number."""
from vectors import *
from .constants import *


@always_inline("nodebug")
def bit_not[d: DType, w: Int](x: Vec[d, w]) -> Vec[d, w]:
    if d == boolean:
        return bit_xor(x, const[d, w](1))
    else:
        return bit_xor(x, sub(const[d, w](0), const[d, w](1)))


@always_inline("nodebug")
def bits_of(d: DType) -> Int:
    if d == i64 or d == u64 or d == f64:
        return 64
    elif d == i32 or d == u32 or d == f32:
        return 32
    elif d == i8 or d == u8 or d == boolean:
        return 8
    return 16


@always_inline("nodebug")
def out_of_width[d: DType, w: Int](n: Vec[d, w]) -> Vec[boolean, w]:
    return bit_or(lt(n, const[d, w](0)), ge(n, from_int[d, w](bits_of(d))))


@always_inline("nodebug")
def shift_left[d: DType, w: Int](x: Vec[d, w], n: Vec[d, w]) -> Vec[d, w]:
    """By less than zero or the width or more: 0."""
    var far = out_of_width(n)
    return select(far, const[d, w](0), shl_plain(x, select(far, const[d, w](0), n)))


@always_inline("nodebug")
def shift_right[d: DType, w: Int](x: Vec[d, w], n: Vec[d, w]) -> Vec[d, w]:
    """Of the signed with copies of the sign; by less than zero or the width or more: -1 or 0."""
    var far = out_of_width(n)
    if is_signed(d):
        return shr_plain(x, select(far, from_int[d, w](bits_of(d) - 1), n))
    else:
        return select(far, const[d, w](0), shr_plain(x, select(far, const[d, w](0), n)))
