"""Conversions from floats of 8 bits, which are carried as their bits."""
from .types import *
from .arithmetic import *


@always_inline("nodebug")
def e4m3fn_to_f32[w: Int](x: Vec[u8, w]) -> Vec[f32, w]:
    """Exact. The bits are those of a float16 but for the exponent's place and bias, and for NaN."""
    var bits = cast_plain[u16](x)
    var size = bit_and(bits, const[u16, w](0x7F))
    var number = select(eq(size, const[u16, w](0x7F)), const[u16, w](0x7E00), shl_plain(size, const[u16, w](7)))
    var sign = shl_plain(bit_and(bits, const[u16, w](0x80)), const[u16, w](8))
    return mul(cast_plain[f32](bitcast[f16](bit_or(number, sign))), const[f32, w](256.0))
