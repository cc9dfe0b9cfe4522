"""Memory that the threads of a block share."""
from raw.vectors.types import *
from raw.vectors.arithmetic import *
from raw.vectors.pointers import from_bytes
from .memory import bytes_of


struct Shared[d: DType](TrivialRegisterPassable):
    """An address in shared memory."""

    comptime __del__is_trivial = True
    comptime __move_ctor_is_trivial = True
    comptime __copy_ctor_is_trivial = True
    comptime T = __mlir_type[`!kgen.pointer<scalar<`, Self.d.v, `>, 3>`]
    var p: Self.T

    @always_inline("builtin")
    def __init__(out self, p: Self.T):
        self.p = p


@always_inline("nodebug")
def shared[d: DType, count: Int]() -> Shared[d]:
    """An array of `count` elements, another one for each call in a kernel's text; its values are not set."""
    return Shared[d](
        __mlir_op.`pop.global_alloc`[
            name=__mlir_attr.`"shared" : !kgen.string`,
            count=count.v,
            memoryType=__mlir_attr.`#pop.global_alloc_addr_space<gpu_shared>`,
            _type=Shared[d].T,
            alignment=__mlir_attr.`16 : index`,
        ]()
    )


@always_inline("nodebug")
def shared_pointer[
    T: TrivialRegisterPassable, d: DType
](p: Shared[d], i: Int) -> __mlir_type[`!kgen.pointer<`, T, `, 3>`]:
    return __mlir_op.`pop.pointer.bitcast`[_type=__mlir_type[`!kgen.pointer<`, T, `, 3>`]](
        __mlir_op.`pop.offset`(p.p, i.v)
    )


@always_inline("nodebug")
def shared_read[T: TrivialRegisterPassable, alignment: Int](p: __mlir_type[`!kgen.pointer<`, T, `, 3>`]) -> T:
    return __mlir_op.`pop.load`[
        alignment=alignment.v,
        isVolatile=__mlir_attr.`false`,
        isInvariant=__mlir_attr.`false`,
        isNonTemporal=__mlir_attr.`false`,
    ](p)


@always_inline("nodebug")
def shared_write[T: TrivialRegisterPassable, alignment: Int](p: __mlir_type[`!kgen.pointer<`, T, `, 3>`], x: T):
    __mlir_op.`pop.store`[
        alignment=alignment.v, isVolatile=__mlir_attr.`false`, isNonTemporal=__mlir_attr.`false`
    ](x, p)


@always_inline("nodebug")
def shared_load[w: Int, d: DType](p: Shared[d], i: Int) -> Vec[d, w]:
    if d == boolean:
        return from_bytes[d](shared_read[Vec[u8, w], 1](shared_pointer[Vec[u8, w]](p, i)))
    else:
        return shared_read[Vec[d, w], bytes_of(d)](shared_pointer[Vec[d, w]](p, i))


@always_inline("nodebug")
def shared_store[d: DType, w: Int](p: Shared[d], i: Int, x: Vec[d, w]):
    if d == boolean:
        shared_write[Vec[u8, w], 1](shared_pointer[Vec[u8, w]](p, i), cast_plain[u8](x))
    else:
        shared_write[Vec[d, w], bytes_of(d)](shared_pointer[Vec[d, w]](p, i), x)


@always_inline("nodebug")
def shared_load_aligned[w: Int, d: DType](p: Shared[d], i: Int) -> Vec[d, w]:
    """A vector that begins at a multiple of its bytes."""
    return shared_read[Vec[d, w], bytes_of(d) * w](shared_pointer[Vec[d, w]](p, i))


@always_inline("nodebug")
def shared_store_aligned[d: DType, w: Int](p: Shared[d], i: Int, x: Vec[d, w]):
    """A vector that begins at a multiple of its bytes."""
    shared_write[Vec[d, w], bytes_of(d) * w](shared_pointer[Vec[d, w]](p, i), x)
