"""Tensors in memory and the table of a kernel's arguments. A boolean is a byte, 0 or 1."""
from .types import *
from .arithmetic import *
from .reductions import *


struct Ptr[d: DType](TrivialRegisterPassable):
    comptime __del__is_trivial = True
    comptime __move_ctor_is_trivial = True
    comptime __copy_ctor_is_trivial = True
    comptime T = __mlir_type[`!kgen.pointer<scalar<`, Self.d.v, `>>`]
    var p: Self.T

    @always_inline("builtin")
    def __init__(out self, p: Self.T):
        self.p = p


struct Table(TrivialRegisterPassable):
    """The argument of a kernel: words of 64 bits."""

    comptime __del__is_trivial = True
    comptime __move_ctor_is_trivial = True
    comptime __copy_ctor_is_trivial = True
    var words: Ptr[i64]

    @always_inline("nodebug")
    def pointer[d: DType](self, k: Int) -> Ptr[d]:
        return read(pointer_to[Ptr[d]](self.words, k))

    @always_inline("nodebug")
    def int(self, k: Int) -> Int:
        return to_int(load[1](self.words, k))

    @always_inline("nodebug")
    def f64(self, k: Int) -> Vec[f64, 1]:
        return read(pointer_to[Vec[f64, 1]](self.words, k))


@always_inline("nodebug")
def pointer_to[T: TrivialRegisterPassable, d: DType](p: Ptr[d], i: Int) -> __mlir_type[`!kgen.pointer<`, T, `>`]:
    return __mlir_op.`pop.pointer.bitcast`[_type=__mlir_type[`!kgen.pointer<`, T, `>`]](
        __mlir_op.`pop.offset`(p.p, i.v)
    )


@always_inline("nodebug")
def read[T: TrivialRegisterPassable](p: __mlir_type[`!kgen.pointer<`, T, `>`]) -> T:
    return __mlir_op.`pop.load`[
        alignment=__mlir_attr.`1 : index`,
        isVolatile=__mlir_attr.`false`,
        isInvariant=__mlir_attr.`false`,
        isNonTemporal=__mlir_attr.`false`,
    ](p)


@always_inline("nodebug")
def write[T: TrivialRegisterPassable](p: __mlir_type[`!kgen.pointer<`, T, `>`], x: T):
    __mlir_op.`pop.store`[
        alignment=__mlir_attr.`1 : index`, isVolatile=__mlir_attr.`false`, isNonTemporal=__mlir_attr.`false`
    ](x, p)


@always_inline("nodebug")
def as_bytes[d: DType](p: Ptr[d]) -> Ptr[u8]:
    return Ptr[u8](__mlir_op.`pop.pointer.bitcast`[_type=Ptr[u8].T](p.p))


@always_inline("nodebug")
def as_words[d: DType](p: Ptr[d]) -> Ptr[u16]:
    """A tensor of 16-bit elements as their bits."""
    return Ptr[u16](__mlir_op.`pop.pointer.bitcast`[_type=Ptr[u16].T](p.p))


@always_inline("nodebug")
def from_bytes[d: DType, w: Int](x: Vec[u8, w]) -> Vec[d, w]:
    return cast_plain[d](ne(x, const[u8, w](0)))


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
def load_at[w: Int, d: DType](p: Ptr[d], offsets: Vec[i64, w]) -> Vec[d, w]:
    return gather_from[(0 < w).__mlir_bool__(), 0](p, offsets, const[d, w](0))


@always_inline("nodebug")
def gather_from[
    more: __mlir_type.`!kgen.scalar<bool>`, k: Int, d: DType, w: Int
](p: Ptr[d], offsets: Vec[i64, w], r: Vec[d, w]) -> Vec[d, w]:
    comptime if more:
        var x = with_lane(r, k, load[1](p, to_int(lane_at(offsets, k))))
        return gather_from[(k + 1 < w).__mlir_bool__(), k + 1](p, offsets, x)
    else:
        return r


@always_inline("nodebug")
def load_at_where[w: Int, d: DType](p: Ptr[d], offsets: Vec[i64, w], here: Vec[boolean, w]) -> Vec[d, w]:
    """The lanes for which `here` holds from memory, zeros in the others."""
    return gather_where[(0 < w).__mlir_bool__(), 0](p, offsets, here, const[d, w](0))


@always_inline("nodebug")
def gather_where[
    more: __mlir_type.`!kgen.scalar<bool>`, k: Int, d: DType, w: Int
](p: Ptr[d], offsets: Vec[i64, w], here: Vec[boolean, w], r: Vec[d, w]) -> Vec[d, w]:
    comptime if more:
        var x = r
        if condition(lane_at(here, k)):
            x = with_lane(r, k, load[1](p, to_int(lane_at(offsets, k))))
        return gather_where[(k + 1 < w).__mlir_bool__(), k + 1](p, offsets, here, x)
    else:
        return r


@always_inline("nodebug")
def store_at[d: DType, w: Int](p: Ptr[d], offsets: Vec[i64, w], x: Vec[d, w]):
    scatter_from[(0 < w).__mlir_bool__(), 0](p, offsets, x)


@always_inline("nodebug")
def scatter_from[
    more: __mlir_type.`!kgen.scalar<bool>`, k: Int, d: DType, w: Int
](p: Ptr[d], offsets: Vec[i64, w], x: Vec[d, w]):
    comptime if more:
        store(p, to_int(lane_at(offsets, k)), lane_at(x, k))
        scatter_from[(k + 1 < w).__mlir_bool__(), k + 1](p, offsets, x)


@always_inline("nodebug")
def load_strided[w: Int, d: DType](p: Ptr[d], i: Int, step: Int) -> Vec[d, w]:
    return strided_from[(0 < w).__mlir_bool__(), 0](p, i, step, const[d, w](0))


@always_inline("nodebug")
def strided_from[
    more: __mlir_type.`!kgen.scalar<bool>`, k: Int, d: DType, w: Int
](p: Ptr[d], i: Int, step: Int, r: Vec[d, w]) -> Vec[d, w]:
    comptime if more:
        return strided_from[(k + 1 < w).__mlir_bool__(), k + 1](p, i + step, step, with_lane(r, k, load[1](p, i)))
    else:
        return r


@always_inline("nodebug")
def store_strided[d: DType, w: Int](p: Ptr[d], i: Int, step: Int, x: Vec[d, w]):
    strided_to[(0 < w).__mlir_bool__(), 0](p, i, step, x)


@always_inline("nodebug")
def strided_to[
    more: __mlir_type.`!kgen.scalar<bool>`, k: Int, d: DType, w: Int
](p: Ptr[d], i: Int, step: Int, x: Vec[d, w]):
    comptime if more:
        store(p, i, lane_at(x, k))
        strided_to[(k + 1 < w).__mlir_bool__(), k + 1](p, i + step, step, x)


@always_inline("nodebug")
def load_strided_masked[w: Int, d: DType](p: Ptr[d], i: Int, step: Int, count: Int) -> Vec[d, w]:
    """The first `count` lanes, at least one, from memory; the others repeat the last of them."""
    return first_strided_from[(0 < w).__mlir_bool__(), 0](p, i, step, count, const[d, w](0))


@always_inline("nodebug")
def first_strided_from[
    more: __mlir_type.`!kgen.scalar<bool>`, k: Int, d: DType, w: Int
](p: Ptr[d], i: Int, step: Int, count: Int, r: Vec[d, w]) -> Vec[d, w]:
    comptime if more:
        var next = i
        if k + 1 < count:
            next = i + step
        return first_strided_from[(k + 1 < w).__mlir_bool__(), k + 1](
            p, next, step, count, with_lane(r, k, load[1](p, i))
        )
    else:
        return r


@always_inline("nodebug")
def store_strided_masked[d: DType, w: Int](p: Ptr[d], i: Int, step: Int, count: Int, x: Vec[d, w]):
    """The first `count` lanes to memory."""
    first_strided_to[(0 < w).__mlir_bool__(), 0](p, i, step, count, x)


@always_inline("nodebug")
def first_strided_to[
    more: __mlir_type.`!kgen.scalar<bool>`, k: Int, d: DType, w: Int
](p: Ptr[d], i: Int, step: Int, count: Int, x: Vec[d, w]):
    comptime if more:
        if k < count:
            store(p, i, lane_at(x, k))
        first_strided_to[(k + 1 < w).__mlir_bool__(), k + 1](p, i + step, step, count, x)


@always_inline("nodebug")
def atomic_add[d: DType](p: Ptr[d], i: Int, x: Vec[d, 1]):
    _ = __mlir_op.`pop.atomic.rmw`[
        bin_op=__mlir_attr.`#pop.bin_op<add>`,
        ordering=__mlir_attr.`#pop.atomic_ordering<monotonic>`,
        syncscope=__mlir_attr.`"" : !kgen.string`,
        _type=Vec[d, 1].T,
    ](__mlir_op.`pop.offset`(p.p, i.v), x.v)
