"""Where a thread is in its warp, block and grid, and barriers."""
from raw.vectors.types import *
from raw.vectors.arithmetic import *


@always_inline("builtin")
def on_gpu() -> Bool:
    return __mlir_attr.`true`


@always_inline("nodebug")
def special_register[name: StaticString]() -> Int:
    """A number that the processor keeps for each thread, of at most 31 bits."""
    var x: Vec[u32, 1] = __mlir_op.`pop.call_llvm_intrinsic`[
        intrin=name.v, hasSideEffects=__mlir_attr.`false`, _type=Vec[u32, 1].T
    ]()
    return to_int(cast_plain[i64](x))


@always_inline("nodebug")
def thread_in_block() -> Int:
    return special_register["llvm.nvvm.read.ptx.sreg.tid.x"]()


@always_inline("nodebug")
def threads_in_block() -> Int:
    return special_register["llvm.nvvm.read.ptx.sreg.ntid.x"]()


@always_inline("nodebug")
def block_index() -> Int:
    return special_register["llvm.nvvm.read.ptx.sreg.ctaid.x"]()


@always_inline("nodebug")
def block_index_y() -> Int:
    return special_register["llvm.nvvm.read.ptx.sreg.ctaid.y"]()


@always_inline("nodebug")
def grid_size() -> Int:
    return special_register["llvm.nvvm.read.ptx.sreg.nctaid.x"]()


@always_inline("nodebug")
def grid_size_y() -> Int:
    return special_register["llvm.nvvm.read.ptx.sreg.nctaid.y"]()


@always_inline("nodebug")
def lane_in_warp() -> Int:
    return rem32(thread_in_block(), 32)


@always_inline("nodebug")
def warp_in_block() -> Int:
    return div32(thread_in_block(), 32)


@always_inline("nodebug")
def warps_in_block() -> Int:
    """The number of a block's warps, of which the last may have fewer threads."""
    return div32(threads_in_block() + 31, 32)


@always_inline("nodebug")
def thread_index() -> Int:
    """Of all threads of the grid."""
    return block_index() * threads_in_block() + thread_in_block()


@always_inline("nodebug")
def thread_count() -> Int:
    return grid_size() * threads_in_block()


@always_inline("nodebug")
def div32(a: Int, b: Int) -> Int:
    """`a // b` of numbers below 2^32, which a GPU divides faster."""
    return to_int(cast_plain[i64](div_plain(from_int[u32, 1](a), from_int[u32, 1](b))))


@always_inline("nodebug")
def rem32(a: Int, b: Int) -> Int:
    """`a % b` of numbers below 2^32."""
    return to_int(cast_plain[i64](rem_plain(from_int[u32, 1](a), from_int[u32, 1](b))))


@always_inline("nodebug")
def imin32(a: Int, b: Int) -> Int:
    """The lesser of two numbers of -2^31..2^31 - 1."""
    var x = from_int[i32, 1](a)
    var y = from_int[i32, 1](b)
    return to_int(cast_plain[i64](select(lt(x, y), x, y)))


@always_inline("nodebug")
def imax32(a: Int, b: Int) -> Int:
    """The greater of two numbers of -2^31..2^31 - 1."""
    var x = from_int[i32, 1](a)
    var y = from_int[i32, 1](b)
    return to_int(cast_plain[i64](select(gt(x, y), x, y)))


@always_inline("nodebug")
def small(a: Int) -> Int:
    """`a`, which is in 0..2^32 - 1: the compiler then knows it, and calculates with fewer instructions."""
    return to_int(cast_plain[i64](from_int[u32, 1](a)))


@always_inline("nodebug")
def block_barrier():
    """Wait for all threads of the block, which then see what the others have written."""
    __mlir_op.`pop.call_llvm_intrinsic`[
        intrin=__mlir_attr.`"llvm.nvvm.barrier.cta.sync.aligned.all" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        _type=None,
    ](const[i32, 1](0).v)


@always_inline("nodebug")
def warp_barrier():
    """Wait for all threads of the warp, which then see what the others have written."""
    __mlir_op.`pop.call_llvm_intrinsic`[
        intrin=__mlir_attr.`"llvm.nvvm.bar.warp.sync" : !kgen.string`, hasSideEffects=__mlir_attr.`true`, _type=None
    ](const[i32, 1](-1).v)
