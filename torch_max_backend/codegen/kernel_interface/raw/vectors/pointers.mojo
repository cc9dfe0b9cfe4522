"""Addresses of tensors, and the table of a kernel's arguments."""
from .types import *
from .arithmetic import *


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
        return to_int(read(pointer_to[Vec[i64, 1]](self.words, k)))

    @always_inline("nodebug")
    def f64(self, k: Int) -> Vec[f64, 1]:
        return read(pointer_to[Vec[f64, 1]](self.words, k))


@always_inline("nodebug")
def own_memory[d: DType, count: Int]() -> Ptr[d]:
    """Memory of `count` elements on the stack of the kernel that calls this; its values are not set."""
    return Ptr[d](
        __mlir_op.`pop.stack_allocation`[count=count.v, alignment=__mlir_attr.`64 : index`, _type=Ptr[d].T]()
    )


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
