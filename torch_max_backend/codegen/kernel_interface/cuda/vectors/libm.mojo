"""Functions of numbers that are not written in Mojo: CUDA's own, which the build adds, and the processor's fast ones."""
from raw.vectors.types import *
from raw.vectors.arithmetic import *
from raw.vectors.calls import *


@always_inline("nodebug")
def libm[name: StaticString, d: DType, w: Int](a: Vec[d, w]) -> Vec[d, w]:
    """CUDA's function, lane by lane."""
    return called_from[(0 < w).__mlir_bool__(), 0, name](a, a)


@always_inline("nodebug")
def called_from[
    more: __mlir_type.`!kgen.scalar<bool>`, k: Int, name: StaticString, d: DType, w: Int
](a: Vec[d, w], r: Vec[d, w]) -> Vec[d, w]:
    comptime if more:
        return called_from[(k + 1 < w).__mlir_bool__(), k + 1, name](a, with_lane(r, k, call_c[name](lane_at(a, k))))
    else:
        return r


@always_inline("nodebug")
def libm[name: StaticString, d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    return called_from_two[(0 < w).__mlir_bool__(), 0, name](a, b, a)


@always_inline("nodebug")
def called_from_two[
    more: __mlir_type.`!kgen.scalar<bool>`, k: Int, name: StaticString, d: DType, w: Int
](a: Vec[d, w], b: Vec[d, w], r: Vec[d, w]) -> Vec[d, w]:
    comptime if more:
        var x = with_lane(r, k, call_c[name](lane_at(a, k), lane_at(b, k)))
        return called_from_two[(k + 1 < w).__mlir_bool__(), k + 1, name](a, b, x)
    else:
        return r


@always_inline("nodebug")
def each[
    more: __mlir_type.`!kgen.scalar<bool>`, k: Int, name: StaticString, d: DType, w: Int
](a: Vec[d, w], r: Vec[d, w]) -> Vec[d, w]:
    """An instruction that takes one number, lane by lane."""
    comptime if more:
        var x = with_lane(r, k, intrinsic[name](lane_at(a, k)))
        return each[(k + 1 < w).__mlir_bool__(), k + 1, name](a, x)
    else:
        return r


@always_inline("nodebug")
def each_of_two[
    more: __mlir_type.`!kgen.scalar<bool>`, k: Int, name: StaticString, d: DType, w: Int
](a: Vec[d, w], b: Vec[d, w], r: Vec[d, w]) -> Vec[d, w]:
    comptime if more:
        var x = with_lane(r, k, intrinsic[name](lane_at(a, k), lane_at(b, k)))
        return each_of_two[(k + 1 < w).__mlir_bool__(), k + 1, name](a, b, x)
    else:
        return r


@always_inline("nodebug")
def exp2_nearly[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """`2^x` to two units in the last place; denormal results are zero."""
    return each[(0 < w).__mlir_bool__(), 0, "llvm.nvvm.ex2.approx.ftz.f"](x, x)


@always_inline("nodebug")
def log2_nearly[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """Off by `2^-22`, also where the result is small; of a denormal number, that of zero."""
    return each[(0 < w).__mlir_bool__(), 0, "llvm.nvvm.lg2.approx.ftz.f"](x, x)


@always_inline("nodebug")
def log2_of_all[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """As accurate as `log2_nearly`, of denormal numbers too, which takes longer."""
    return each[(0 < w).__mlir_bool__(), 0, "llvm.nvvm.lg2.approx.f"](x, x)


@always_inline("nodebug")
def saturated[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """0 below 0 and for what is no number, 1 above 1."""
    return each[(0 < w).__mlir_bool__(), 0, "llvm.nvvm.saturate.f"](x, x)


@always_inline("nodebug")
def rsqrt_nearly[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    return each[(0 < w).__mlir_bool__(), 0, "llvm.nvvm.rsqrt.approx.f"](x, x)


@always_inline("nodebug")
def reciprocal_nearly[w: Int](x: Vec[f32, w]) -> Vec[f32, w]:
    """To one unit in the last place; denormal results are zero."""
    return each[(0 < w).__mlir_bool__(), 0, "llvm.nvvm.rcp.approx.ftz.f"](x, x)


@always_inline("nodebug")
def div_nearly[w: Int](a: Vec[f32, w], b: Vec[f32, w]) -> Vec[f32, w]:
    """To two units in the last place."""
    return each_of_two[(0 < w).__mlir_bool__(), 0, "llvm.nvvm.div.full"](a, b, a)


@always_inline("nodebug")
def div_closely[w: Int](a: Vec[f32, w], b: Vec[f32, w]) -> Vec[f32, w]:
    """To half a unit in the last place, or hardly more. What is computed of `b` alone is computed once, if it is the same
    for many: a reciprocal, and a power of two by which extreme numbers are brought to where that has all its digits.
    """
    var size = float_abs(b)
    var one = const[f32, w](1)
    var scale = select(gt(size, const[f32, w](1.2676506e30)), const[f32, w](5.4210109e-20), one)
    scale = select(lt(size, const[f32, w](7.8886091e-31)), const[f32, w](1.8446744e19), scale)
    var d = mul(b, scale)
    var r = reciprocal_nearly(d)
    var n = mul(a, scale)
    var q = mul(n, r)
    var better = fma(fma(neg(d), q, n), r, q)
    return select(lt(float_abs(better), const[f32, w](3.4028235e38)), better, q)
