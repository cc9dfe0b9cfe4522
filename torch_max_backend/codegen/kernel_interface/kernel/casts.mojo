"""Conversions as torch's `.to` does them."""
from vectors import *
from .constants import *
from .comparison import *


@always_inline("nodebug")
def bf16_to_f32[w: Int](x: Vec[bf16, w]) -> Vec[f32, w]:
    if on_gpu():
        return cast_plain[f32](x)
    return bitcast[f32](shl_plain(cast_plain[u32](bitcast[u16](x)), const[u32, w](16)))


@always_inline("nodebug")
def cast[e: DType, d: DType, w: Int](x: Vec[d, w]) -> Vec[e, w]:
    if d == e:
        return cast_plain[e](x)
    elif e == boolean:
        return cast_plain[e](ne(x, const[d, w](0)))
    elif d == bf16:
        return from_common[e](bf16_to_f32(cast_plain[bf16](x)))
    elif e == bf16:
        return cast_plain[e](f32_to_bf16(cast_plain[f32](x)))
    elif d == f16 or e == f16:
        return from_common[e](cast_plain[f32](x))
    else:
        return from_common[e](x)


@always_inline("nodebug")
def from_common[e: DType, d: DType, w: Int](x: Vec[d, w]) -> Vec[e, w]:
    """To any type but bool and bfloat16, from any but the short floats."""
    if is_float(d) and (e == i8 or e == i16 or e == u8 or e == u16):
        return cast_plain[e](cast_plain[i32](x))
    elif is_float(d) and e == u32:
        return cast_plain[e](cast_plain[i64](x))
    else:
        return cast_plain[e](x)
