"""What the processor has an instruction for."""
from .types import *
from std.ffi import external_call
import std.math as math
from std.utils.numerics import isnan


@always_inline("nodebug")
def add[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    comptime if d.is_numeric():
        return a.v + b.v
    else:
        return a


@always_inline("nodebug")
def sub[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    comptime if d.is_numeric():
        return a.v - b.v
    else:
        return a


@always_inline("nodebug")
def mul[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    comptime if d.is_numeric():
        return a.v * b.v
    else:
        return a


@always_inline("nodebug")
def div_plain[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    comptime if d.is_numeric():
        return a.v / b.v
    else:
        return a


@always_inline("nodebug")
def bit_and[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    comptime if not d.is_floating_point():
        return a.v & b.v
    else:
        return a


@always_inline("nodebug")
def bit_or[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    comptime if not d.is_floating_point():
        return a.v | b.v
    else:
        return a


@always_inline("nodebug")
def bit_xor[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    comptime if not d.is_floating_point():
        return a.v ^ b.v
    else:
        return a


@always_inline("nodebug")
def shl_plain[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    comptime if d.is_integral():
        return a.v << b.v
    else:
        return a


@always_inline("nodebug")
def shr_plain[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    comptime if d.is_integral():
        return a.v >> b.v
    else:
        return a


@always_inline("nodebug")
def neg[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, w]:
    comptime if d.is_numeric():
        return -a.v
    else:
        return a


@always_inline("nodebug")
def fma[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w], c: Vec[d, w]) -> Vec[d, w]:
    comptime if d.is_numeric():
        return math.fma(a.v, b.v, c.v)
    else:
        return a


@always_inline("nodebug")
def eq[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[boolean, w]:
    return a.v.eq(b.v)


@always_inline("nodebug")
def ne[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[boolean, w]:
    comptime if d.is_floating_point():
        return ~a.v.eq(b.v)
    else:
        return a.v.ne(b.v)


@always_inline("nodebug")
def lt[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[boolean, w]:
    return a.v.lt(b.v)


@always_inline("nodebug")
def le[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[boolean, w]:
    return a.v.le(b.v)


@always_inline("nodebug")
def gt[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[boolean, w]:
    return a.v.gt(b.v)


@always_inline("nodebug")
def ge[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[boolean, w]:
    return a.v.ge(b.v)


@always_inline("nodebug")
def select[d: DType, w: Int](c: Vec[boolean, w], a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    return c.v.select(a.v, b.v)


@always_inline("nodebug")
def sqrt[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, w]:
    comptime if d.is_floating_point():
        return math.sqrt(a.v)
    else:
        return a


@always_inline("nodebug")
def floor[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, w]:
    comptime if d.is_floating_point():
        return math.floor(a.v)
    else:
        return a


@always_inline("nodebug")
def ceil[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, w]:
    comptime if d.is_floating_point():
        return math.ceil(a.v)
    else:
        return a


@always_inline("nodebug")
def trunc[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, w]:
    comptime if d.is_floating_point():
        return math.trunc(a.v)
    else:
        return a


@always_inline("nodebug")
def round_even[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, w]:
    comptime if d.is_floating_point():
        return round(a.v)
    else:
        return a


@always_inline("nodebug")
def float_abs[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, w]:
    comptime if d.is_floating_point():
        return abs(a.v)
    else:
        return a


@always_inline("nodebug")
def copysign[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    comptime if d.is_floating_point():
        return math.copysign(a.v, b.v)
    else:
        return a


@always_inline("nodebug")
def float_maximum[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    """Not a number where one of them is none."""
    return select(is_nan(b), b, select(gt(b, a), b, a))


@always_inline("nodebug")
def float_minimum[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    """Not a number where one of them is none."""
    return select(is_nan(b), b, select(lt(b, a), b, a))


@always_inline("nodebug")
def exp2_nearly[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """`2^x` to two units in the last place; denormal results may be zero."""
    return libm["exp2f"](x)


@always_inline("nodebug")
def log2_nearly[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """Of a denormal number it may be that of zero."""
    return log2_of_all(x)


@always_inline("nodebug")
def log2_of_all[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return libm["log2f"](x)


@always_inline("nodebug")
def saturated[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """0 below 0 and for what is no number, 1 above 1."""
    var above = select(gt(x, const[f32, w](0)), x, const[f32, w](0))
    return select(lt(above, const[f32, w](1)), above, const[f32, w](1))


@always_inline("nodebug")
def rsqrt_nearly[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return div_plain(const[f32, w](1), sqrt(x))


@always_inline
def reciprocal_nearly[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return div_plain(const[f32, w](1), x)


@always_inline("nodebug")
def div_nearly[w: Int](a: Vec[f32, w], b: Vec[f32, w]) -> Vec[f32, w]:
    return div_plain(a, b)


@always_inline("nodebug")
def div_closely[w: Int](a: Vec[f32, w], b: Vec[f32, w]) -> Vec[f32, w]:
    return div_plain(a, b)


@always_inline("nodebug")
def is_nan[d: DType, w: Int](x: Vec[d, w]) -> Vec[boolean, w]:
    return isnan(x.v)


@always_inline("nodebug")
def libm[name: StaticString, d: DType, w: Int](a: Vec[d, w]) -> Vec[d, w]:
    """The C library's function, lane by lane."""
    var r = a
    for k in range(w):
        r.v[k] = external_call[name, Scalar[d]](a.v[k])
    return r


@always_inline("nodebug")
def libm[name: StaticString, d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    var r = a
    for k in range(w):
        r.v[k] = external_call[name, Scalar[d]](a.v[k], b.v[k])
    return r
