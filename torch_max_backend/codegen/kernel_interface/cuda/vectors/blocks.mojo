"""From the values of many threads to one, which all of them get. All threads of the warp or block must call."""
from raw.vectors.types import *
from raw.vectors.arithmetic import *
from .memory import bytes_of
from .threads import *
from .shuffles import *
from .shared import *


@always_inline("nodebug")
def larger[d: DType](a: Vec[d, 1], b: Vec[d, 1]) -> Vec[d, 1]:
    if is_float(d):
        return float_maximum(a, b)
    else:
        return select(gt(b, a), b, a)


@always_inline("nodebug")
def smaller[d: DType](a: Vec[d, 1], b: Vec[d, 1]) -> Vec[d, 1]:
    if is_float(d):
        return float_minimum(a, b)
    else:
        return select(lt(b, a), b, a)


@always_inline("nodebug")
def warp_fold[
    width: Int, d: DType, f: def(Vec[d, 1], Vec[d, 1]) thin -> Vec[d, 1]
](x: Vec[d, 1]) -> Vec[d, 1]:
    """`f` over the values of `width` neighbouring lanes, a power of two up to 32, in pairs."""
    return fold_from[(1 < width).__mlir_bool__(), 1, width, d, f](x)


@always_inline("nodebug")
def fold_from[
    more: __mlir_type.`!kgen.scalar<bool>`, step: Int, width: Int, d: DType, f: def(Vec[d, 1], Vec[d, 1]) thin -> Vec[d, 1]
](x: Vec[d, 1]) -> Vec[d, 1]:
    comptime if more:
        return fold_from[(step * 2 < width).__mlir_bool__(), step * 2, width, d, f](f(x, shuffle_xor(x, step)))
    else:
        return x


@always_inline("nodebug")
def block_fold[
    d: DType, f: def(Vec[d, 1], Vec[d, 1]) thin -> Vec[d, 1]
](x: Vec[d, 1], identity: Vec[d, 1]) -> Vec[d, 1]:
    """`f` over the values of all threads of a block, which has whole warps, 32 of them at most."""
    var r = warp_fold[32, d, f](x)
    var warps = warps_in_block()
    if warps > 1:
        var found = shared[d, 32]()
        if lane_in_warp() == 0:
            shared_store(found, warp_in_block(), r)
        block_barrier()
        r = identity
        if lane_in_warp() < warps:
            r = shared_load[1](found, lane_in_warp())
        r = warp_fold[32, d, f](r)
        block_barrier()  # the next call may write
    return r


@always_inline("nodebug")
def lowest[d: DType]() -> Vec[d, 1]:
    """Below all others: minus infinity, or the smallest integer."""
    if is_float(d):
        return cast_plain[d](bitcast[f32](const[u32, 1](0xFF800000)))
    elif is_signed(d):
        return cast_plain[d](shl_plain(const[i64, 1](-1), from_int[i64, 1](bytes_of(d) * 8 - 1)))
    else:
        return const[d, 1](0)


@always_inline("nodebug")
def highest[d: DType]() -> Vec[d, 1]:
    if is_float(d):
        return cast_plain[d](bitcast[f32](const[u32, 1](0x7F800000)))
    else:
        return sub(lowest[d](), const[d, 1](1))


@always_inline("nodebug")
def zero_of_sums[d: DType]() -> Vec[d, 1]:
    """What adds nothing: of floats -0, to which -0 may be added."""
    if is_float(d):
        return cast_plain[d](const[f32, 1](-0.0))
    else:
        return const[d, 1](0)


@always_inline("nodebug")
def all_bits[d: DType]() -> Vec[d, 1]:
    return cast_plain[d](const[i64, 1](-1))


@always_inline("nodebug")
def block_add[d: DType](x: Vec[d, 1]) -> Vec[d, 1]:
    return block_fold[d, add[d, 1]](x, zero_of_sums[d]())


@always_inline("nodebug")
def block_mul[d: DType](x: Vec[d, 1]) -> Vec[d, 1]:
    return block_fold[d, mul[d, 1]](x, const[d, 1](1))


@always_inline("nodebug")
def block_max[d: DType](x: Vec[d, 1]) -> Vec[d, 1]:
    """Not a number where one of them is none."""
    return block_fold[d, larger[d]](x, lowest[d]())


@always_inline("nodebug")
def block_min[d: DType](x: Vec[d, 1]) -> Vec[d, 1]:
    """Not a number where one of them is none."""
    return block_fold[d, smaller[d]](x, highest[d]())


@always_inline("nodebug")
def block_and[d: DType](x: Vec[d, 1]) -> Vec[d, 1]:
    return block_fold[d, bit_and[d, 1]](x, all_bits[d]())


@always_inline("nodebug")
def block_or[d: DType](x: Vec[d, 1]) -> Vec[d, 1]:
    return block_fold[d, bit_or[d, 1]](x, const[d, 1](0))


@always_inline("nodebug")
def warp_add[width: Int, d: DType](x: Vec[d, 1]) -> Vec[d, 1]:
    return warp_fold[width, d, add[d, 1]](x)


@always_inline("nodebug")
def warp_mul[width: Int, d: DType](x: Vec[d, 1]) -> Vec[d, 1]:
    return warp_fold[width, d, mul[d, 1]](x)


@always_inline("nodebug")
def warp_max[width: Int, d: DType](x: Vec[d, 1]) -> Vec[d, 1]:
    return warp_fold[width, d, larger[d]](x)


@always_inline("nodebug")
def warp_min[width: Int, d: DType](x: Vec[d, 1]) -> Vec[d, 1]:
    return warp_fold[width, d, smaller[d]](x)


@always_inline("nodebug")
def warp_and[width: Int, d: DType](x: Vec[d, 1]) -> Vec[d, 1]:
    return warp_fold[width, d, bit_and[d, 1]](x)


@always_inline("nodebug")
def warp_or[width: Int, d: DType](x: Vec[d, 1]) -> Vec[d, 1]:
    return warp_fold[width, d, bit_or[d, 1]](x)
