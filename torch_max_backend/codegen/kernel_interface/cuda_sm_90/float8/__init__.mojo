"""Conversions from floats of 8 bits by the instruction that makes two float16 of two of them."""
from raw.vectors.types import *
from raw.vectors.arithmetic import *
from raw.vectors.pointers import *


@always_inline("nodebug")
def e4m3fn_to_f32[w: Int](x: Vec[u8, w]) -> Vec[f32, w]:
    """Exact."""
    return pairs_from[(0 < w).__mlir_bool__(), 0](x, const[f32, w](0))


@always_inline("nodebug")
def e4m3fn_to_f32(x: Vec[u8, 1]) -> Vec[f32, 1]:
    return lane_at(two_halves(cast_plain[u16](x)), 0)


@always_inline("nodebug")
def pairs_from[
    more: __mlir_type.`!kgen.scalar<bool>`, k: Int, w: Int
](x: Vec[u8, w], r: Vec[f32, w]) -> Vec[f32, w]:
    comptime if more:
        var two = with_lane(with_lane(const[u8, 2](0), 0, lane_at(x, k)), 1, lane_at(x, k + 1))
        var found = two_halves(__mlir_op.`pop.bitcast`[_type=Vec[u16, 1].T](two.v))
        var y = with_lane(with_lane(r, k, lane_at(found, 0)), k + 1, lane_at(found, 1))
        return pairs_from[(k + 2 < w).__mlir_bool__(), k + 2](x, y)
    else:
        return r


@always_inline("nodebug")
def two_halves(word: Vec[u16, 1]) -> Vec[f32, 2]:
    var halves: Vec[u32, 1] = __mlir_op.`pop.inline_asm`[
        _type=Vec[u32, 1].T,
        assembly=__mlir_attr.`"cvt.rn.f16x2.e4m3x2 $0, $1;" : !kgen.string`,
        constraints=__mlir_attr.`"=r,h" : !kgen.string`,
        hasSideEffects=__mlir_attr.`false`,
        isStackAligned=__mlir_attr.`false`,
    ](word.v)
    var pair: Vec[f16, 2] = __mlir_op.`pop.bitcast`[_type=Vec[f16, 2].T](halves.v)
    return cast_plain[f32](pair)
