"""Conversions to bfloat16."""
from .types import *
from .arithmetic import *


@always_inline("nodebug")
def f32_to_bf16[w: Int](x: Vec[f32, w]) -> Vec[bf16, w]:
    """To the nearest, ties to even. A processor's own instruction might make denormals zero."""
    var b = bitcast[u32](x)
    var odd = bit_and(shr_plain(b, const[u32, w](16)), const[u32, w](1))
    var rounded = shr_plain(add(add(b, odd), const[u32, w](0x7FFF)), const[u32, w](16))
    return bitcast[bf16](cast_plain[u16](select(is_nan(x), const[u32, w](0x7FC0), rounded)))
