"""Conversions to bfloat16, by the processor's own instruction where it has one."""
from .types import *
from .arithmetic import *
from .reductions import *


@always_inline("nodebug")
def f32_to_bf16[w: Int](x: Vec[f32, w]) -> Vec[bf16, w]:
    """To the nearest, ties to even. The instruction would make denormals zero, so they are rounded as integers."""
    comptime if converts_to_bf16[w]():
        if condition(reduce_or(is_denormal(x))):
            return rounded_to_bf16(x)
        return cast_plain[bf16](x)
    else:
        return rounded_to_bf16(x)


@always_inline("nodebug")
def rounded_to_bf16[w: Int](x: Vec[f32, w]) -> Vec[bf16, w]:
    var b = bitcast[u32](x)
    var odd = bit_and(shr_plain(b, const[u32, w](16)), const[u32, w](1))
    var rounded = shr_plain(add(add(b, odd), const[u32, w](0x7FFF)), const[u32, w](16))
    return bitcast[bf16](cast_plain[u16](select(is_nan(x), const[u32, w](0x7FC0), rounded)))


@always_inline("nodebug")
def converts_to_bf16[w: Int]() -> __mlir_type.`!kgen.scalar<bool>`:
    """Whether the processor has an instruction for so many lanes."""
    var has_it: Bool = __mlir_attr.`#kgen.param.expr<target_has_feature, #kgen.param.expr<current_target> : !kgen.target, "avx512bf16" : !kgen.string> : i1`
    return (has_it and w == 16).__mlir_bool__()


@always_inline("nodebug")
def is_denormal[w: Int](x: Vec[f32, w]) -> Vec[boolean, w]:
    """For 16 lanes."""
    var kinds = const[i32, 1](0x20)
    return __mlir_op.`pop.call_llvm_intrinsic`[
        intrin=__mlir_attr.`"llvm.x86.avx512.fpclass.ps.512" : !kgen.string`,
        hasSideEffects=__mlir_attr.`false`,
        _type=Vec[boolean, w].T,
    ](x.v, kinds.v)
