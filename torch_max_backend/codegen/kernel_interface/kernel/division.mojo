"""Division and remainders as torch rounds them. Integers divided by zero give 0."""
from vectors import *
from .constants import *
from .comparison import *


@always_inline("nodebug")
def div[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    """Of floats."""
    return div_plain(a, b)


@always_inline("nodebug")
def reciprocal[d: DType, w: Int](x: Vec[d, w]) -> Vec[d, w]:
    return div_plain(const[d, w](1), x)


@always_inline("nodebug")
def int_quotient[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    """`a / b` of integers, rounded to zero.

    Floats with enough bits give the exact quotient of narrow integers, and CPUs divide vectors of floats only.
    """
    var zero = const[d, w](0)
    var one = const[d, w](1)
    var minus_one = sub(zero, one)
    var by_zero = eq(b, zero)
    if is_signed(d):
        var negated = eq(b, minus_one)  # the smallest integer by -1 would trap
        var by = select(bit_or(by_zero, negated), one, b)
        return select(by_zero, zero, select(negated, sub(zero, a), nonzero_quotient(a, by)))
    else:
        return select(by_zero, zero, nonzero_quotient(a, select(by_zero, one, b)))


@always_inline("nodebug")
def nonzero_quotient[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    if on_gpu():
        # LLVM divides what it knows to have 16 bits in pairs, and then has no instruction for that.
        if d == i64 or d == u64:
            return div_plain(opaque64(a), b)
        elif d == i32 or d == u32:
            return div_plain(opaque32(a), b)
        else:
            return cast_plain[d](div_plain(opaque32(cast_plain[i32](a)), cast_plain[i32](b)))
    elif d == i64 or d == u64:
        return div_plain(a, b)
    elif d == i32:
        return cast_plain[d](cast_plain[i32](div_plain(cast_plain[f64](a), cast_plain[f64](b))))
    elif d == u32:
        return cast_plain[d](cast_plain[i64](div_plain(cast_plain[f64](a), cast_plain[f64](b))))
    else:
        return cast_plain[d](cast_plain[i32](div_plain(cast_plain[f32](a), cast_plain[f32](b))))


@always_inline("nodebug")
def trunc_div[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    if is_float(d):
        return trunc(div_plain(a, b))
    else:
        return int_quotient(a, b)


@always_inline("nodebug")
def fmod[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    """The remainder with the sign of `a`."""
    if is_float(d):
        return float_fmod(a, b)
    else:
        var r = sub(a, mul(int_quotient(a, b), b))
        return select(eq(b, const[d, w](0)), const[d, w](0), r)


@always_inline("nodebug")
def float_fmod[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    """Exact: a fused step where the quotient is small, the C library where it is not."""
    var q = trunc(div_plain(a, b))
    var r = fma(neg(q), b, a)
    var overshot = lt(mul(r, copysign(const[d, w](1), a)), const[d, w](0))
    r = copysign(select(overshot, add(r, copysign(b, a)), r), a)
    r = select(bit_and(is_inf(b), is_finite(a)), a, r)
    if any_lane(ge(float_abs(q), const[d, w](8388608))):
        if d == f32:
            r = libm["fmodf"](a, b)
        else:
            r = libm["fmod"](a, b)
    return r


@always_inline("nodebug")
def signs_differ[d: DType, w: Int](r: Vec[d, w], b: Vec[d, w]) -> Vec[boolean, w]:
    """Whether `r` is not zero and has another sign than `b`."""
    var zero = const[d, w](0)
    return bit_and(ne(r, zero), bit_xor(lt(r, zero), lt(b, zero)))


@always_inline("nodebug")
def remainder[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    """The remainder with the sign of `b`."""
    var r = fmod(a, b)
    return select(signs_differ(r, b), add(r, b), r)


@always_inline("nodebug")
def floor_div[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    if is_float(d):
        var r = float_fmod(a, b)
        var q = div_plain(sub(a, r), b)
        q = select(signs_differ(r, b), sub(q, const[d, w](1)), q)
        var whole = floor(q)
        whole = select(gt(sub(q, whole), cast_plain[d](const[f32, w](0.5))), add(whole, const[d, w](1)), whole)
        var exact = div_plain(a, b)
        whole = select(eq(q, const[d, w](0)), copysign(const[d, w](0), exact), whole)
        return select(eq(b, const[d, w](0)), exact, whole)
    else:
        var q = int_quotient(a, b)
        var r = sub(a, mul(q, b))
        var down = bit_and(signs_differ(r, b), ne(b, const[d, w](0)))
        return select(down, sub(q, const[d, w](1)), q)
