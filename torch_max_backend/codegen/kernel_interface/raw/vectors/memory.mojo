"""Tensors in memory. A boolean is a byte, 0 or 1."""
from .types import *
from .pointers import *
from .arithmetic import *
from .reductions import *


@always_inline("nodebug")
def load[w: Int, d: DType](p: Ptr[d], i: Int) -> Vec[d, w]:
    if d == boolean:
        return from_bytes[d](read(pointer_to[Vec[u8, w]](p, i)))
    else:
        return read(pointer_to[Vec[d, w]](p, i))


@always_inline("nodebug")
def store[d: DType, w: Int](p: Ptr[d], i: Int, x: Vec[d, w]):
    if d == boolean:
        write(pointer_to[Vec[u8, w]](p, i), cast_plain[u8](x))
    else:
        write(pointer_to[Vec[d, w]](p, i), x)


@always_inline("nodebug")
def first_lanes[w: Int](count: Int) -> Vec[boolean, w]:
    """Whether a lane is one of the first `count`."""
    var most: Int = w
    if count < most:
        most = count
    return lt(ramp[i32, w](), from_int[i32, w](most))


@always_inline("nodebug")
def load_masked[w: Int, d: DType](p: Ptr[d], i: Int, count: Int, other: Vec[d, w]) -> Vec[d, w]:
    """The first `count` lanes from memory, the others from `other`."""
    if w == 1:
        if count > 0:
            return load[w](p, i)
        return other
    elif d == boolean:
        return from_bytes[d](read_where(as_bytes(p), i, first_lanes[w](count), cast_plain[u8](other)))
    else:
        return read_where(p, i, first_lanes[w](count), other)


@always_inline("nodebug")
def load_where[w: Int, d: DType](p: Ptr[d], i: Int, here: Vec[boolean, w]) -> Vec[d, w]:
    """The lanes for which `here` holds from memory, zeros in the others."""
    if condition(reduce_and(here)):
        return load[w](p, i)
    if w == 1:
        return const[d, w](0)
    elif d == boolean:
        return from_bytes[d](read_where(as_bytes(p), i, here, const[u8, w](0)))
    else:
        return read_where(p, i, here, const[d, w](0))


@always_inline("nodebug")
def read_where[d: DType, w: Int](p: Ptr[d], i: Int, here: Vec[boolean, w], other: Vec[d, w]) -> Vec[d, w]:
    return __mlir_op.`pop.call_llvm_intrinsic`[
        intrin=__mlir_attr.`"llvm.masked.load" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        _type=Vec[d, w].T,
    ](__mlir_op.`pop.offset`(p.p, i.v), const[i32, 1](1).v, here.v, other.v)


@always_inline("nodebug")
def store_masked[d: DType, w: Int](p: Ptr[d], i: Int, count: Int, x: Vec[d, w]):
    """The first `count` lanes to memory."""
    if w == 1:
        if count > 0:
            store(p, i, x)
    elif d == boolean:
        write_masked(as_bytes(p), i, count, cast_plain[u8](x))
    else:
        write_masked(p, i, count, x)


@always_inline("nodebug")
def write_masked[d: DType, w: Int](p: Ptr[d], i: Int, count: Int, x: Vec[d, w]):
    __mlir_op.`pop.call_llvm_intrinsic`[
        intrin=__mlir_attr.`"llvm.masked.store" : !kgen.string`, hasSideEffects=__mlir_attr.`true`, _type=None
    ](x.v, __mlir_op.`pop.offset`(p.p, i.v), const[i32, 1](1).v, first_lanes[w](count).v)


@always_inline("nodebug")
def atomic_add[d: DType](p: Ptr[d], i: Int, x: Vec[d, 1]):
    _ = __mlir_op.`pop.atomic.rmw`[
        bin_op=__mlir_attr.`#pop.bin_op<add>`,
        ordering=__mlir_attr.`#pop.atomic_ordering<monotonic>`,
        syncscope=__mlir_attr.`"" : !kgen.string`,
        _type=Vec[d, 1].T,
    ](__mlir_op.`pop.offset`(p.p, i.v), x.v)


@always_inline("nodebug")
def store_first(p: Ptr[i64], i: Int, x: Vec[i64, 1]) -> Bool:
    """Store `x` if zero is there; whether it was."""
    if to_int(load[1](p, i)) != 0:
        return __mlir_attr.`false`
    store(p, i, x)
    return __mlir_attr.`true`

@always_inline("nodebug")
def note_error(p: Ptr[i64], code: Int, value: Int, size: Int):
    """Store a code and the value that it is about, if none is stored yet."""
    if store_first(p, 0, from_int[i64, 1](code)):
        store(p, 1, from_int[i64, 1](value))


@always_inline("nodebug")
def opaque32[d: DType, w: Int](x: Vec[d, w]) -> Vec[d, w]:
    """`x`: only a GPU's compiler must not know what it can be."""
    return x


@always_inline("nodebug")
def opaque64[d: DType, w: Int](x: Vec[d, w]) -> Vec[d, w]:
    return x
