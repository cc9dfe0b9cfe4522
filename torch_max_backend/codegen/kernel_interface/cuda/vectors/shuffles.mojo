"""Values of other lanes of the warp. All 32 lanes must call."""
from raw.vectors.types import *
from raw.vectors.arithmetic import *
from .memory import bytes_of


@always_inline("nodebug")
def unsigned_of(d: DType) -> DType:
    """The unsigned integer of the same size."""
    if d == i64 or d == u64 or d == f64:
        return u64
    elif d == i32 or d == u32 or d == f32:
        return u32
    elif d == i8 or d == u8 or d == boolean:
        return u8
    return u16


@always_inline("nodebug")
def word_of[d: DType](x: Vec[d, 1]) -> Vec[u64, 1]:
    """The bits of `x`, and zeros."""
    return word_from[(d == boolean).__mlir_bool__()](x)


@always_inline("nodebug")
def word_from[flag: __mlir_type.`!kgen.scalar<bool>`, d: DType](x: Vec[d, 1]) -> Vec[u64, 1]:
    comptime if flag:
        return cast_plain[u64](x)
    else:
        return cast_plain[u64](bitcast[unsigned_of(d)](x))


@always_inline("nodebug")
def of_word[d: DType](word: Vec[u64, 1]) -> Vec[d, 1]:
    return from_word[(d == boolean).__mlir_bool__(), d](word)


@always_inline("nodebug")
def from_word[flag: __mlir_type.`!kgen.scalar<bool>`, d: DType](word: Vec[u64, 1]) -> Vec[d, 1]:
    comptime if flag:
        return cast_plain[d](ne(word, const[u64, 1](0)))
    else:
        return bitcast[d](cast_plain[unsigned_of(d)](word))


@always_inline("nodebug")
def shuffle_half[name: StaticString](x: Vec[u64, 1], where: Int, bounds: Int) -> Vec[u64, 1]:
    """The low 32 bits of another lane's `x`."""
    var r: Vec[u32, 1] = __mlir_op.`pop.call_llvm_intrinsic`[
        intrin=name.v, hasSideEffects=__mlir_attr.`true`, _type=Vec[u32, 1].T
    ](const[i32, 1](-1).v, cast_plain[u32](x).v, from_int[i32, 1](where).v, from_int[i32, 1](bounds).v)
    return cast_plain[u64](r)


@always_inline("nodebug")
def shuffle[name: StaticString, d: DType](x: Vec[d, 1], where: Int, bounds: Int) -> Vec[d, 1]:
    var word = word_of(x)
    var r = shuffle_half[name](word, where, bounds)
    if bytes_of(d) == 8:
        var half = const[u64, 1](32)
        r = bit_or(r, shl_plain(shuffle_half[name](shr_plain(word, half), where, bounds), half))
    return of_word[d](r)


@always_inline("nodebug")
def shuffle_xor[d: DType](x: Vec[d, 1], mask: Int) -> Vec[d, 1]:
    """Of the lane whose number differs in the bits of `mask`."""
    return shuffle["llvm.nvvm.shfl.sync.bfly.i32"](x, mask, 31)


@always_inline("nodebug")
def shuffle_down[d: DType](x: Vec[d, 1], by: Int) -> Vec[d, 1]:
    """Of the lane `by` further up; its own where there is none."""
    return shuffle["llvm.nvvm.shfl.sync.down.i32"](x, by, 31)


@always_inline("nodebug")
def shuffle_up[d: DType](x: Vec[d, 1], by: Int) -> Vec[d, 1]:
    """Of the lane `by` further down; its own where there is none."""
    return shuffle["llvm.nvvm.shfl.sync.up.i32"](x, by, 0)


@always_inline("nodebug")
def shuffle_from[d: DType](x: Vec[d, 1], lane: Int) -> Vec[d, 1]:
    return shuffle["llvm.nvvm.shfl.sync.idx.i32"](x, lane, 31)
