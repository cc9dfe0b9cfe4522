"""Horizontal operations: from all lanes to one."""
from .types import *
from .arithmetic import *


@always_inline("nodebug")
def horizontal[name: StaticString, d: DType, w: Int](a: Vec[d, w]) -> Vec[d, 1]:
    return __mlir_op.`pop.call_llvm_intrinsic`[
        intrin=name.v, hasSideEffects=__mlir_attr.`false`, _type=Vec[d, 1].T
    ](a.v)


@always_inline("nodebug")
def horizontal_any_order[name: StaticString, d: DType, w: Int](start: Vec[d, 1], a: Vec[d, w]) -> Vec[d, 1]:
    return __mlir_op.`pop.call_llvm_intrinsic`[
        intrin=name.v,
        hasSideEffects=__mlir_attr.`false`,
        fastmathFlags=__mlir_attr.`#pop.fmf<reassoc>`,
        _type=Vec[d, 1].T,
    ](start.v, a.v)


@always_inline("nodebug")
def reduce_add[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, 1]:
    if w == 1:
        return lane_at(a, 0)
    elif is_float(d):
        return horizontal_any_order["llvm.vector.reduce.fadd"](const[d, 1](-0.0), a)
    else:
        return horizontal["llvm.vector.reduce.add"](a)


@always_inline("nodebug")
def reduce_mul[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, 1]:
    if w == 1:
        return lane_at(a, 0)
    elif is_float(d):
        return horizontal_any_order["llvm.vector.reduce.fmul"](const[d, 1](1), a)
    else:
        return horizontal["llvm.vector.reduce.mul"](a)


@always_inline("nodebug")
def reduce_max[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, 1]:
    if w == 1:
        return lane_at(a, 0)
    elif is_float(d):
        return horizontal["llvm.vector.reduce.fmaximum"](a)
    elif is_signed(d):
        return horizontal["llvm.vector.reduce.smax"](a)
    else:
        return horizontal["llvm.vector.reduce.umax"](a)


@always_inline("nodebug")
def reduce_min[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, 1]:
    if w == 1:
        return lane_at(a, 0)
    elif is_float(d):
        return horizontal["llvm.vector.reduce.fminimum"](a)
    elif is_signed(d):
        return horizontal["llvm.vector.reduce.smin"](a)
    else:
        return horizontal["llvm.vector.reduce.umin"](a)


@always_inline("nodebug")
def reduce_and[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, 1]:
    if w == 1:
        return lane_at(a, 0)
    else:
        return horizontal["llvm.vector.reduce.and"](a)


@always_inline("nodebug")
def reduce_or[d: DType, w: Int](a: Vec[d, w]) -> Vec[d, 1]:
    if w == 1:
        return lane_at(a, 0)
    else:
        return horizontal["llvm.vector.reduce.or"](a)
