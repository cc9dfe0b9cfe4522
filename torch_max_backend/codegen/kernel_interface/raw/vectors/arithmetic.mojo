"""What the processor has an instruction for."""
from .types import *


@always_inline("nodebug")
def add[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    return __mlir_op.`pop.add`(a.v, b.v)


@always_inline("nodebug")
def sub[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    return __mlir_op.`pop.sub`(a.v, b.v)


@always_inline("nodebug")
def mul[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    return __mlir_op.`pop.mul`(a.v, b.v)


@always_inline("nodebug")
def div_plain[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    return __mlir_op.`pop.div`(a.v, b.v)


@always_inline("nodebug")
def rem_plain[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    return __mlir_op.`pop.rem`(a.v, b.v)


@always_inline("nodebug")
def bit_and[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    return __mlir_op.`pop.simd.and`(a.v, b.v)


@always_inline("nodebug")
def bit_or[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    return __mlir_op.`pop.simd.or`(a.v, b.v)


@always_inline("nodebug")
def bit_xor[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    return __mlir_op.`pop.simd.xor`(a.v, b.v)


@always_inline("nodebug")
def shl_plain[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    return __mlir_op.`pop.shl`(a.v, b.v)


@always_inline("nodebug")
def shr_plain[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    return __mlir_op.`pop.shr`(a.v, b.v)


@always_inline("nodebug")
def neg[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, w]:
    return __mlir_op.`pop.neg`(a.v)


@always_inline("nodebug")
def fma[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w], c: Vec[d, w]) -> Vec[d, w]:
    return __mlir_op.`pop.fma`(a.v, b.v, c.v)


@always_inline("nodebug")
def eq[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[boolean, w]:
    return __mlir_op.`pop.cmp`[pred=__mlir_attr.`#kgen.cmp_pred<eq>`](a.v, b.v)


@always_inline("nodebug")
def ne[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[boolean, w]:
    """True for what is not a number: the compiler's own `ne` of floats is false there."""
    if is_float(d):
        return bit_xor(eq(a, b), const[boolean, w](1))
    else:
        return __mlir_op.`pop.cmp`[pred=__mlir_attr.`#kgen.cmp_pred<ne>`](a.v, b.v)


@always_inline("nodebug")
def lt[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[boolean, w]:
    return __mlir_op.`pop.cmp`[pred=__mlir_attr.`#kgen.cmp_pred<lt>`](a.v, b.v)


@always_inline("nodebug")
def le[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[boolean, w]:
    return __mlir_op.`pop.cmp`[pred=__mlir_attr.`#kgen.cmp_pred<le>`](a.v, b.v)


@always_inline("nodebug")
def gt[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[boolean, w]:
    return __mlir_op.`pop.cmp`[pred=__mlir_attr.`#kgen.cmp_pred<gt>`](a.v, b.v)


@always_inline("nodebug")
def ge[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[boolean, w]:
    return __mlir_op.`pop.cmp`[pred=__mlir_attr.`#kgen.cmp_pred<ge>`](a.v, b.v)


@always_inline("nodebug")
def select[d: DType, w: Int](c: Vec[boolean, w], a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    return __mlir_op.`pop.simd.select`(c.v, a.v, b.v)


@always_inline("nodebug")
def sqrt[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, w]:
    return intrinsic["llvm.sqrt"](a)


@always_inline("nodebug")
def floor[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, w]:
    return intrinsic["llvm.floor"](a)


@always_inline("nodebug")
def ceil[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, w]:
    return intrinsic["llvm.ceil"](a)


@always_inline("nodebug")
def trunc[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, w]:
    return intrinsic["llvm.trunc"](a)


@always_inline("nodebug")
def round_even[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, w]:
    return intrinsic["llvm.roundeven"](a)


@always_inline("nodebug")
def float_abs[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, w]:
    return intrinsic["llvm.fabs"](a)


@always_inline("nodebug")
def copysign[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    return intrinsic["llvm.copysign"](a, b)


@always_inline("nodebug")
def float_maximum[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    """Not a number where one of them is none."""
    return intrinsic["llvm.maximum"](a, b)


@always_inline("nodebug")
def float_minimum[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    """Not a number where one of them is none."""
    return intrinsic["llvm.minimum"](a, b)


@always_inline("nodebug")
def is_nan[d: DType, w: Int](x: Vec[d, w]) -> Vec[boolean, w]:
    return __mlir_op.`pop.call_llvm_intrinsic`[
        intrin=__mlir_attr.`"llvm.is.fpclass" : !kgen.string`,
        hasSideEffects=__mlir_attr.`false`,
        _type=Vec[boolean, w].T,
    ](x.v, const[i32, 1](3).v)
