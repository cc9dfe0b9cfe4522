"""Conversions to bfloat16."""
from raw.vectors.types import *


@always_inline("nodebug")
def f32_to_bf16[w: Int](x: Vec[f32, w]) -> Vec[bf16, w]:
    """To the nearest, ties to even."""
    return cast_plain[bf16](x)
