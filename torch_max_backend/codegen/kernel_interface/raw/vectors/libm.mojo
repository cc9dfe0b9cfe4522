"""Functions of numbers that are not written in Mojo, and those for which a processor may have something faster."""
from .types import *
from .arithmetic import *
from .calls import *


@always_inline("nodebug")
def libm[name: StaticString, d: DType, w: Int](a: Vec[d, w]) -> Vec[d, w]:
    """The C library's function, lane by lane."""
    var r = a
    var k = 0
    while k < w:
        r = with_lane(r, k, call_c[name](lane_at(r, k)))
        k += 1
    return r


@always_inline("nodebug")
def libm[name: StaticString, d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    var r = a
    var k = 0
    while k < w:
        r = with_lane(r, k, call_c[name](lane_at(r, k), lane_at(b, k)))
        k += 1
    return r


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


@always_inline("nodebug")
def reciprocal_nearly[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return div_plain(const[f32, w](1), x)


@always_inline("nodebug")
def div_nearly[w: Int](a: Vec[f32, w], b: Vec[f32, w]) -> Vec[f32, w]:
    return div_plain(a, b)


@always_inline("nodebug")
def div_closely[w: Int](a: Vec[f32, w], b: Vec[f32, w]) -> Vec[f32, w]:
    return div_plain(a, b)
