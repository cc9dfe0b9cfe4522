"""Tensors in memory. A boolean is a byte, 0 or 1.

A GPU reads what is not aligned byte by byte, so here an address has the alignment of its element, or of its vector.
"""
from raw.vectors.types import *
from raw.vectors.arithmetic import *
from raw.vectors.reductions import *
from raw.vectors.pointers import *



@always_inline("nodebug")
def bytes_of(d: DType) -> Int:
    """The size of an element in memory."""
    if d == i64 or d == u64 or d == f64:
        return 8
    elif d == i32 or d == u32 or d == f32:
        return 4
    elif d == i8 or d == u8 or d == boolean:
        return 1
    return 2


@always_inline("nodebug")
def vector_alignment(d: DType, w: Int) -> Int:
    """The size of a vector, at most 16."""
    var size = bytes_of(d) * w
    if size > 16:
        return 16
    return size


@always_inline("nodebug")
def read_aligned[T: TrivialRegisterPassable, alignment: Int](p: __mlir_type[`!kgen.pointer<`, T, `>`]) -> T:
    return __mlir_op.`pop.load`[
        alignment=alignment.v,
        isVolatile=__mlir_attr.`false`,
        isInvariant=__mlir_attr.`false`,
        isNonTemporal=__mlir_attr.`false`,
    ](p)


@always_inline("nodebug")
def read_unchanging[T: TrivialRegisterPassable, alignment: Int](p: __mlir_type[`!kgen.pointer<`, T, `>`]) -> T:
    return __mlir_op.`pop.load`[
        alignment=alignment.v,
        isVolatile=__mlir_attr.`false`,
        isInvariant=__mlir_attr.`true`,
        isNonTemporal=__mlir_attr.`false`,
    ](p)


@always_inline("nodebug")
def write_aligned[T: TrivialRegisterPassable, alignment: Int](p: __mlir_type[`!kgen.pointer<`, T, `>`], x: T):
    __mlir_op.`pop.store`[
        alignment=alignment.v, isVolatile=__mlir_attr.`false`, isNonTemporal=__mlir_attr.`false`
    ](x, p)


@always_inline("nodebug")
def load[w: Int, d: DType](p: Ptr[d], i: Int) -> Vec[d, w]:
    return load_of[(bytes_of(d) * 16 + w == 2 * 16 + 8).__mlir_bool__(), w](p, i)


@always_inline("nodebug")
def load_of[are_halves: __mlir_type.`!kgen.scalar<bool>`, w: Int, d: DType](p: Ptr[d], i: Int) -> Vec[d, w]:
    """A vector that is read element by element, or by words where it has eight elements of two bytes."""
    comptime if are_halves:
        return halves_of_words[w](p, i)
    else:
        if d == boolean:
            return from_bytes[d](read_aligned[Vec[u8, w], 1](pointer_to[Vec[u8, w]](p, i)))
        else:
            return read_aligned[Vec[d, w], bytes_of(d)](pointer_to[Vec[d, w]](p, i))


@always_inline("nodebug")
def halves_of_words[w: Int, d: DType](p: Ptr[d], i: Int) -> Vec[d, w]:
    """Eight elements of 16 bits by the words that they are in: four, or five where the first one is half of a word."""
    var at = __mlir_op.`pop.pointer_to_index`[_type=__mlir_type.index](pointer_to[Vec[u32, 1]](p, i))
    var odd = bit_and(from_int[u32, 1](Int(at)), const[u32, 1](2))
    var first = i - to_int(shr_plain(cast_plain[i64](odd), const[i64, 1](1)))
    var a = word_of(p, first)
    var b = word_of(p, first + 2)
    var c = word_of(p, first + 4)
    var e = word_of(p, first + 6)
    var f = const[u32, 1](0)
    if condition(ne(odd, const[u32, 1](0))):
        f = word_of(p, first + 8)
    var by = mul(odd, const[u32, 1](8))
    var words = const[u32, 4](0)
    words = with_lane(words, 0, word_between(a, b, by))
    words = with_lane(words, 1, word_between(b, c, by))
    words = with_lane(words, 2, word_between(c, e, by))
    words = with_lane(words, 3, word_between(e, f, by))
    return __mlir_op.`pop.bitcast`[_type=Vec[d, w].T](words.v)


@always_inline("nodebug")
def word_of[d: DType](p: Ptr[d], i: Int) -> Vec[u32, 1]:
    return read_aligned[Vec[u32, 1], 4](pointer_to[Vec[u32, 1]](p, i))


@always_inline("nodebug")
def word_between(low: Vec[u32, 1], high: Vec[u32, 1], by: Vec[u32, 1]) -> Vec[u32, 1]:
    """The word that begins so many bits behind the begin of `low`, and ends in `high`."""
    return __mlir_op.`pop.inline_asm`[
        _type=Vec[u32, 1].T,
        assembly=__mlir_attr.`"shf.r.wrap.b32 $0, $1, $2, $3;" : !kgen.string`,
        constraints=__mlir_attr.`"=r,r,r,r" : !kgen.string`,
        hasSideEffects=__mlir_attr.`false`,
        isStackAligned=__mlir_attr.`false`,
    ](low.v, high.v, by.v)


@always_inline("nodebug")
def store[d: DType, w: Int](p: Ptr[d], i: Int, x: Vec[d, w]):
    if d == boolean:
        write_aligned[Vec[u8, w], 1](pointer_to[Vec[u8, w]](p, i), cast_plain[u8](x))
    else:
        write_aligned[Vec[d, w], bytes_of(d)](pointer_to[Vec[d, w]](p, i), x)


@always_inline("nodebug")
def load_aligned[w: Int, d: DType](p: Ptr[d], i: Int) -> Vec[d, w]:
    """Of an address that is a multiple of the vector's size, or of 16 where it is larger."""
    if d == boolean:
        return from_bytes[d](read_aligned[Vec[u8, w], vector_alignment(d, w)](pointer_to[Vec[u8, w]](p, i)))
    else:
        return read_aligned[Vec[d, w], vector_alignment(d, w)](pointer_to[Vec[d, w]](p, i))


@always_inline("nodebug")
def store_aligned[d: DType, w: Int](p: Ptr[d], i: Int, x: Vec[d, w]):
    """To an address that is a multiple of the vector's size, or of 16 where it is larger."""
    if d == boolean:
        write_aligned[Vec[u8, w], vector_alignment(d, w)](pointer_to[Vec[u8, w]](p, i), cast_plain[u8](x))
    else:
        write_aligned[Vec[d, w], vector_alignment(d, w)](pointer_to[Vec[d, w]](p, i), x)


@always_inline("nodebug")
def load_once[w: Int, d: DType](p: Ptr[d], i: Int) -> Vec[d, w]:
    """As `load_aligned`, of memory that nothing writes while the kernel runs."""
    if d == boolean:
        return from_bytes[d](read_unchanging[Vec[u8, w], vector_alignment(d, w)](pointer_to[Vec[u8, w]](p, i)))
    else:
        return read_unchanging[Vec[d, w], vector_alignment(d, w)](pointer_to[Vec[d, w]](p, i))


@always_inline("nodebug")
def load_masked[w: Int, d: DType](p: Ptr[d], i: Int, count: Int, other: Vec[d, w]) -> Vec[d, w]:
    """The first `count` lanes from memory, the others from `other`."""
    return first_from[(0 < w).__mlir_bool__(), 0](p, i, count, other)


@always_inline("nodebug")
def first_from[more: __mlir_type.`!kgen.scalar<bool>`, k: Int, d: DType, w: Int](p: Ptr[d], i: Int, count: Int, r: Vec[d, w]) -> Vec[d, w]:
    comptime if more:
        var x = r
        if k < count:
            x = with_lane(r, k, load[1](p, i + k))
        return first_from[(k + 1 < w).__mlir_bool__(), k + 1](p, i, count, x)
    else:
        return r


@always_inline("nodebug")
def load_where[w: Int, d: DType](p: Ptr[d], i: Int, here: Vec[boolean, w]) -> Vec[d, w]:
    """The lanes for which `here` holds from memory, zeros in the others."""
    return chosen_from[(0 < w).__mlir_bool__(), 0](p, i, here, const[d, w](0))


@always_inline("nodebug")
def chosen_from[
    more: __mlir_type.`!kgen.scalar<bool>`, k: Int, d: DType, w: Int
](p: Ptr[d], i: Int, here: Vec[boolean, w], r: Vec[d, w]) -> Vec[d, w]:
    comptime if more:
        var x = r
        if condition(lane_at(here, k)):
            x = with_lane(r, k, load[1](p, i + k))
        return chosen_from[(k + 1 < w).__mlir_bool__(), k + 1](p, i, here, x)
    else:
        return r


@always_inline("nodebug")
def store_masked[d: DType, w: Int](p: Ptr[d], i: Int, count: Int, x: Vec[d, w]):
    """The first `count` lanes to memory."""
    first_to[(0 < w).__mlir_bool__(), 0](p, i, count, x)


@always_inline("nodebug")
def first_to[more: __mlir_type.`!kgen.scalar<bool>`, k: Int, d: DType, w: Int](p: Ptr[d], i: Int, count: Int, x: Vec[d, w]):
    comptime if more:
        if k < count:
            store(p, i + k, lane_at(x, k))
        first_to[(k + 1 < w).__mlir_bool__(), k + 1](p, i, count, x)


@always_inline("nodebug")
def other_word(x: Vec[u32, 1]) -> Vec[u32, 1]:
    """A word that no compiler knows to be the same."""
    return __mlir_op.`pop.inline_asm`[
        _type=Vec[u32, 1].T,
        assembly=__mlir_attr.`"mov.b32 $0, $1;" : !kgen.string`,
        constraints=__mlir_attr.`"=r,r" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        isStackAligned=__mlir_attr.`false`,
    ](x.v)


@always_inline("nodebug")
def anew[d: DType](x: Vec[d, 8]) -> Vec[d, 8]:
    """Numbers of 16 bits, of which everything is computed once more: what was computed before takes no registers."""
    var words: Vec[u32, 4] = __mlir_op.`pop.bitcast`[_type=Vec[u32, 4].T](x.v)
    words = with_lane(words, 0, other_word(lane_at(words, 0)))
    words = with_lane(words, 1, other_word(lane_at(words, 1)))
    words = with_lane(words, 2, other_word(lane_at(words, 2)))
    words = with_lane(words, 3, other_word(lane_at(words, 3)))
    return __mlir_op.`pop.bitcast`[_type=Vec[d, 8].T](words.v)


@always_inline("nodebug")
def opaque32[d: DType, w: Int](x: Vec[d, w]) -> Vec[d, w]:
    """Integers of 32 bits, of whose values the compiler knows nothing."""
    return cast_plain[d](opaque32_from[(0 < w).__mlir_bool__(), 0](cast_plain[u32](x)))


@always_inline("nodebug")
def opaque32_from[more: __mlir_type.`!kgen.scalar<bool>`, k: Int, w: Int](x: Vec[u32, w]) -> Vec[u32, w]:
    comptime if more:
        var lane: Vec[u32, 1] = __mlir_op.`pop.inline_asm`[
            _type=Vec[u32, 1].T,
            assembly=__mlir_attr.`"mov.b32 $0, $1;" : !kgen.string`,
            constraints=__mlir_attr.`"=r,r" : !kgen.string`,
            hasSideEffects=__mlir_attr.`false`,
            isStackAligned=__mlir_attr.`false`,
        ](lane_at(x, k).v)
        return opaque32_from[(k + 1 < w).__mlir_bool__(), k + 1](with_lane(x, k, lane))
    else:
        return x


@always_inline("nodebug")
def opaque64[d: DType, w: Int](x: Vec[d, w]) -> Vec[d, w]:
    """Integers of 64 bits, of whose values the compiler knows nothing."""
    return cast_plain[d](opaque64_from[(0 < w).__mlir_bool__(), 0](cast_plain[u64](x)))


@always_inline("nodebug")
def opaque64_from[more: __mlir_type.`!kgen.scalar<bool>`, k: Int, w: Int](x: Vec[u64, w]) -> Vec[u64, w]:
    comptime if more:
        var lane: Vec[u64, 1] = __mlir_op.`pop.inline_asm`[
            _type=Vec[u64, 1].T,
            assembly=__mlir_attr.`"mov.b64 $0, $1;" : !kgen.string`,
            constraints=__mlir_attr.`"=l,l" : !kgen.string`,
            hasSideEffects=__mlir_attr.`false`,
            isStackAligned=__mlir_attr.`false`,
        ](lane_at(x, k).v)
        return opaque64_from[(k + 1 < w).__mlir_bool__(), k + 1](with_lane(x, k, lane))
    else:
        return x
