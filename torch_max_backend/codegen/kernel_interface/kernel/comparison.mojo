"""Smaller and larger, signs, kinds of floats."""
from vectors import *
from .constants import *


@always_inline("nodebug")
def is_inf[d: DType, w: Int](x: Vec[d, w]) -> Vec[boolean, w]:
    return eq(float_abs(x), infinity[d, w]())


@always_inline("nodebug")
def is_finite[d: DType, w: Int](x: Vec[d, w]) -> Vec[boolean, w]:
    return lt(float_abs(x), infinity[d, w]())


@always_inline("nodebug")
def minimum[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    """The smaller, the first of equal ones; not a number where one of them is none."""
    if is_float(d) and on_gpu():
        return float_minimum(a, b)
    var m = select(lt(b, a), b, a)
    if is_float(d):
        return select(is_nan(b), b, m)
    return m


@always_inline("nodebug")
def maximum[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    """The larger, the first of equal ones; not a number where one of them is none."""
    if is_float(d) and on_gpu():
        return float_maximum(a, b)
    var m = select(gt(b, a), b, a)
    if is_float(d):
        return select(is_nan(b), b, m)
    return m


@always_inline("nodebug")
def minimum_so_far[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    """`minimum`, with any NaN for one, and of zeros the first: CPUs have an instruction for that but for NaN."""
    if is_float(d) and on_gpu():
        return select(bit_or(lt(b, a), is_nan(b)), b, a)
    if is_float(d):
        return select(is_nan(b), not_a_number[d, w](), select(lt(b, a), b, a))
    return minimum(a, b)


@always_inline("nodebug")
def maximum_so_far[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    """`maximum`, with any NaN for one, and of zeros the first: CPUs have an instruction for that but for NaN."""
    if is_float(d) and on_gpu():
        return select(bit_or(gt(b, a), is_nan(b)), b, a)
    if is_float(d):
        return select(is_nan(b), not_a_number[d, w](), select(gt(b, a), b, a))
    return maximum(a, b)


@always_inline("nodebug")
def fmin[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    """The smaller; the other where one is not a number."""
    var m = select(lt(a, b), a, b)
    if is_float(d):
        return select(is_nan(b), a, m)
    return m


@always_inline("nodebug")
def fmax[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    """The larger; the other where one is not a number."""
    var m = select(gt(a, b), a, b)
    if is_float(d):
        return select(is_nan(b), a, m)
    return m


@always_inline("nodebug")
def absolute[d: DType, w: Int](x: Vec[d, w]) -> Vec[d, w]:
    if is_float(d):
        return float_abs(x)
    elif is_signed(d):
        return select(lt(x, const[d, w](0)), neg(x), x)
    else:
        return x


@always_inline("nodebug")
def sign[d: DType, w: Int](x: Vec[d, w]) -> Vec[d, w]:
    """1, 0 or -1; 0 for what is not a number."""
    var zero = const[d, w](0)
    var one = const[d, w](1)
    return select(gt(x, zero), one, select(lt(x, zero), sub(zero, one), zero))
