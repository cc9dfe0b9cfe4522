"""Vectors of elements from places of their own: elements of 4 or 8 bytes by the processor's own instruction."""
from .types import *
from .arithmetic import *
from .pointers import *
from .lanes import *

comptime address: DType = __mlir_attr.`#kgen.dtype.constant<address> : !kgen.dtype`


@always_inline("nodebug")
def load_at[w: Int, d: DType](p: Ptr[d], offsets: Vec[i64, w]) -> Vec[d, w]:
    if w > 1 and (d == f32 or d == i32 or d == u32):
        return gather[2](p, offsets, const[boolean, w](1))
    elif w > 1 and (d == f64 or d == i64 or d == u64):
        return gather[3](p, offsets, const[boolean, w](1))
    else:
        return gather_from[(0 < w).__mlir_bool__(), 0](p, offsets, const[d, w](0))


@always_inline("nodebug")
def load_at_where[w: Int, d: DType](p: Ptr[d], offsets: Vec[i64, w], here: Vec[boolean, w]) -> Vec[d, w]:
    """The lanes for which `here` holds from memory, zeros in the others."""
    if w > 1 and (d == f32 or d == i32 or d == u32):
        return gather[2](p, offsets, here)
    elif w > 1 and (d == f64 or d == i64 or d == u64):
        return gather[3](p, offsets, here)
    else:
        return gather_where[(0 < w).__mlir_bool__(), 0](p, offsets, here, const[d, w](0))


@always_inline("nodebug")
def gather[shift: Int, w: Int, d: DType](p: Ptr[d], offsets: Vec[i64, w], here: Vec[boolean, w]) -> Vec[d, w]:
    """Elements of `1 << shift` bytes, zeros where `here` does not hold."""
    var first = Vec[index, 1](
        __mlir_op.`pop.cast_from_builtin`[_type=Vec[index, 1].T](__mlir_op.`pop.pointer_to_index`(p.p))
    )
    var places = add(splat[w](cast_plain[i64](first)), shl_plain(offsets, from_int[i64, w](shift)))
    return __mlir_op.`pop.call_llvm_intrinsic`[
        intrin=__mlir_attr.`"llvm.masked.gather" : !kgen.string`, hasSideEffects=__mlir_attr.`true`, _type=Vec[d, w].T
    ](as_addresses(places), const[i32, 1](1).v, here.v, const[d, w](0).v)


@always_inline("nodebug")
def as_addresses[w: Int](places: Vec[i64, w]) -> Vec[address, w].T:
    """By way of memory, which the compiler leaves out: there is no other conversion."""
    var p = own_memory[i64, w]()
    write(pointer_to[Vec[i64, w]](p, 0), places)
    return read(pointer_to[Vec[address, w]](p, 0)).v
