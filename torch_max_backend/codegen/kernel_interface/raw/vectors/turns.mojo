"""Blocks of rows in memory as vectors of columns: transposes in registers. And vectors from last to first."""
from vectors.memory import *


@always_inline("nodebug")
def in_reverse[d: DType, w: Int](x: Vec[d, w]) -> Vec[d, w]:
    """The lanes from the last to the first."""
    return __mlir_op.`pop.call_llvm_intrinsic`[
        intrin=__mlir_attr.`"llvm.vector.reverse" : !kgen.string`,
        hasSideEffects=__mlir_attr.`false`,
        _type=Vec[d, w].T,
    ](x.v)


@always_inline("nodebug")
def moved_up[k: Int, d: DType, w: Int](before: Vec[d, w], x: Vec[d, w]) -> Vec[d, w]:
    """Each lane `k` further up; the last ones of `before` take the places of the first.

    Said to have effects, so that what is seldom needed is not computed ahead of its condition.
    """
    return __mlir_op.`pop.call_llvm_intrinsic`[
        intrin=__mlir_attr.`"llvm.vector.splice.right" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        _type=Vec[d, w].T,
    ](before.v, x.v, from_int[i32, 1](k).v)


@always_inline("nodebug")
def load_reversed[w: Int, d: DType](p: Ptr[d], i: Int) -> Vec[d, w]:
    """The element at `i`, and those before it."""
    return in_reverse(load[w](p, i - (w - 1)))


@always_inline("nodebug")
def load_reversed_masked[w: Int, d: DType](p: Ptr[d], i: Int, count: Int) -> Vec[d, w]:
    """The first `count` lanes from memory, zeros in the others."""
    return in_reverse(load_last[w](p, i - (w - 1), count))


@always_inline("nodebug")
def load_last[w: Int, d: DType](p: Ptr[d], i: Int, count: Int) -> Vec[d, w]:
    """The last `count` lanes from memory, zeros in the others."""
    var here = ge(ramp[i32, w](), from_int[i32, w](w - count))
    if d == boolean:
        return from_bytes[d](read_where(as_bytes(p), i, here, const[u8, w](0)))
    else:
        return read_where(p, i, here, const[d, w](0))


@always_inline("nodebug")
def zip_low[d: DType](a: Vec[d, 16], b: Vec[d, 16]) -> Vec[d, 16]:
    """The first halves of two vectors, lane by lane in turns."""
    return half_of_zip[d](a, b, const[i64, 1](0))


@always_inline("nodebug")
def zip_high[d: DType](a: Vec[d, 16], b: Vec[d, 16]) -> Vec[d, 16]:
    """The second halves of two vectors, lane by lane in turns."""
    return half_of_zip[d](a, b, const[i64, 1](16))


@always_inline("nodebug")
def half_of_zip[d: DType](a: Vec[d, 16], b: Vec[d, 16], start: Vec[i64, 1]) -> Vec[d, 16]:
    var both = Vec[d, 32](
        __mlir_op.`pop.call_llvm_intrinsic`[
            intrin=__mlir_attr.`"llvm.vector.interleave2" : !kgen.string`,
            hasSideEffects=__mlir_attr.`false`,
            _type=Vec[d, 32].T,
        ](a.v, b.v)
    )
    return __mlir_op.`pop.call_llvm_intrinsic`[
        intrin=__mlir_attr.`"llvm.vector.extract" : !kgen.string`,
        hasSideEffects=__mlir_attr.`false`,
        _type=Vec[d, 16].T,
    ](both.v, start.v)


@always_inline("nodebug")
def in_turns[d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, 2 * w]:
    """The lanes of two vectors in turns."""
    return Vec[d, 2 * w](
        __mlir_op.`pop.call_llvm_intrinsic`[
            intrin=__mlir_attr.`"llvm.vector.interleave2" : !kgen.string`,
            hasSideEffects=__mlir_attr.`false`,
            _type=Vec[d, 2 * w].T,
        ](a.v, b.v)
    )


@always_inline("nodebug")
def store_2_in_turns[d: DType](p: Ptr[d], i: Int, a: Vec[d, 16], b: Vec[d, 16]):
    store(p, i, in_turns(a, b))


@always_inline("nodebug")
def store_2_in_turns_masked[d: DType](p: Ptr[d], i: Int, count: Int, a: Vec[d, 16], b: Vec[d, 16]):
    """The first `count` lanes of each."""
    store_masked(p, i, 2 * count, in_turns(a, b))


@always_inline("nodebug")
def store_4_in_turns[d: DType](p: Ptr[d], i: Int, a: Vec[d, 16], b: Vec[d, 16], c: Vec[d, 16], e: Vec[d, 16]):
    store(p, i, in_turns(in_turns(a, c), in_turns(b, e)))


@always_inline("nodebug")
def store_4_in_turns_masked[d: DType](
    p: Ptr[d], i: Int, count: Int, a: Vec[d, 16], b: Vec[d, 16], c: Vec[d, 16], e: Vec[d, 16]
):
    """The first `count` lanes of each."""
    store_masked(p, i, 4 * count, in_turns(in_turns(a, c), in_turns(b, e)))


@always_inline("nodebug")
def store_8_in_turns[d: DType](
    p: Ptr[d], i: Int,
    a0: Vec[d, 16], a1: Vec[d, 16], a2: Vec[d, 16], a3: Vec[d, 16],
    a4: Vec[d, 16], a5: Vec[d, 16], a6: Vec[d, 16], a7: Vec[d, 16],
):
    var low = in_turns(in_turns(a0, a4), in_turns(a2, a6))
    var high = in_turns(in_turns(a1, a5), in_turns(a3, a7))
    store(p, i, in_turns(low, high))


@always_inline("nodebug")
def store_8_in_turns_masked[d: DType](
    p: Ptr[d], i: Int, count: Int,
    a0: Vec[d, 16], a1: Vec[d, 16], a2: Vec[d, 16], a3: Vec[d, 16],
    a4: Vec[d, 16], a5: Vec[d, 16], a6: Vec[d, 16], a7: Vec[d, 16],
):
    """The first `count` lanes of each."""
    var low = in_turns(in_turns(a0, a4), in_turns(a2, a6))
    var high = in_turns(in_turns(a1, a5), in_turns(a3, a7))
    store_masked(p, i, 8 * count, in_turns(low, high))


@always_inline("nodebug")
def row_of[d: DType](p: Ptr[d], i: Int, step: Int, k: Int, rows: Int, columns: Int) -> Vec[d, 16]:
    """Row `k` of a block, or its last one, with zeros behind its columns."""
    var row = k
    if rows <= k:
        row = rows - 1
    return load_masked[16](p, i + row * step, columns, const[d, 16](0))


@always_inline("nodebug")
def turn_block[d: DType](q: Ptr[d], p: Ptr[d], i: Int, step: Int, rows: Int, columns: Int):
    """Up to 16 rows of up to 16 elements, `step` apart, to `q` as 16 vectors: lane `k` of each is of row `k`."""
    if rows == 16 and columns == 16:
        turn_whole_block(q, p, i, step)
    else:
        turn_part_of_block(q, p, i, step, rows, columns)


@always_inline("nodebug")
def turn_half_a_block[d: DType](q: Ptr[d], p: Ptr[d], i: Int, step: Int, columns: Int):
    """8 rows of up to 16 elements, `step` apart, to `q` as 16 vectors of 8 lanes: lane `k` of each is of row `k`."""
    store_8_in_turns(
        q, 0,
        row_of(p, i, step, 0, 8, columns), row_of(p, i, step, 1, 8, columns),
        row_of(p, i, step, 2, 8, columns), row_of(p, i, step, 3, 8, columns),
        row_of(p, i, step, 4, 8, columns), row_of(p, i, step, 5, 8, columns),
        row_of(p, i, step, 6, 8, columns), row_of(p, i, step, 7, 8, columns),
    )


def turn_whole_block[d: DType](q: Ptr[d], p: Ptr[d], i: Int, step: Int):
    var a0 = load[16](p, i + 0 * step)
    var a1 = load[16](p, i + 1 * step)
    var a2 = load[16](p, i + 2 * step)
    var a3 = load[16](p, i + 3 * step)
    var a4 = load[16](p, i + 4 * step)
    var a5 = load[16](p, i + 5 * step)
    var a6 = load[16](p, i + 6 * step)
    var a7 = load[16](p, i + 7 * step)
    var a8 = load[16](p, i + 8 * step)
    var a9 = load[16](p, i + 9 * step)
    var a10 = load[16](p, i + 10 * step)
    var a11 = load[16](p, i + 11 * step)
    var a12 = load[16](p, i + 12 * step)
    var a13 = load[16](p, i + 13 * step)
    var a14 = load[16](p, i + 14 * step)
    var a15 = load[16](p, i + 15 * step)
    var b0 = zip_low(a0, a8)
    var b1 = zip_high(a0, a8)
    var b2 = zip_low(a1, a9)
    var b3 = zip_high(a1, a9)
    var b4 = zip_low(a2, a10)
    var b5 = zip_high(a2, a10)
    var b6 = zip_low(a3, a11)
    var b7 = zip_high(a3, a11)
    var b8 = zip_low(a4, a12)
    var b9 = zip_high(a4, a12)
    var b10 = zip_low(a5, a13)
    var b11 = zip_high(a5, a13)
    var b12 = zip_low(a6, a14)
    var b13 = zip_high(a6, a14)
    var b14 = zip_low(a7, a15)
    var b15 = zip_high(a7, a15)
    var c0 = zip_low(b0, b8)
    var c1 = zip_high(b0, b8)
    var c2 = zip_low(b1, b9)
    var c3 = zip_high(b1, b9)
    var c4 = zip_low(b2, b10)
    var c5 = zip_high(b2, b10)
    var c6 = zip_low(b3, b11)
    var c7 = zip_high(b3, b11)
    var c8 = zip_low(b4, b12)
    var c9 = zip_high(b4, b12)
    var c10 = zip_low(b5, b13)
    var c11 = zip_high(b5, b13)
    var c12 = zip_low(b6, b14)
    var c13 = zip_high(b6, b14)
    var c14 = zip_low(b7, b15)
    var c15 = zip_high(b7, b15)
    var d0 = zip_low(c0, c8)
    var d1 = zip_high(c0, c8)
    var d2 = zip_low(c1, c9)
    var d3 = zip_high(c1, c9)
    var d4 = zip_low(c2, c10)
    var d5 = zip_high(c2, c10)
    var d6 = zip_low(c3, c11)
    var d7 = zip_high(c3, c11)
    var d8 = zip_low(c4, c12)
    var d9 = zip_high(c4, c12)
    var d10 = zip_low(c5, c13)
    var d11 = zip_high(c5, c13)
    var d12 = zip_low(c6, c14)
    var d13 = zip_high(c6, c14)
    var d14 = zip_low(c7, c15)
    var d15 = zip_high(c7, c15)
    var e0 = zip_low(d0, d8)
    var e1 = zip_high(d0, d8)
    var e2 = zip_low(d1, d9)
    var e3 = zip_high(d1, d9)
    var e4 = zip_low(d2, d10)
    var e5 = zip_high(d2, d10)
    var e6 = zip_low(d3, d11)
    var e7 = zip_high(d3, d11)
    var e8 = zip_low(d4, d12)
    var e9 = zip_high(d4, d12)
    var e10 = zip_low(d5, d13)
    var e11 = zip_high(d5, d13)
    var e12 = zip_low(d6, d14)
    var e13 = zip_high(d6, d14)
    var e14 = zip_low(d7, d15)
    var e15 = zip_high(d7, d15)
    store(q, 0, e0)
    store(q, 16, e1)
    store(q, 32, e2)
    store(q, 48, e3)
    store(q, 64, e4)
    store(q, 80, e5)
    store(q, 96, e6)
    store(q, 112, e7)
    store(q, 128, e8)
    store(q, 144, e9)
    store(q, 160, e10)
    store(q, 176, e11)
    store(q, 192, e12)
    store(q, 208, e13)
    store(q, 224, e14)
    store(q, 240, e15)


def turn_part_of_block[d: DType](q: Ptr[d], p: Ptr[d], i: Int, step: Int, rows: Int, columns: Int):
    var a0 = row_of(p, i, step, 0, rows, columns)
    var a1 = row_of(p, i, step, 1, rows, columns)
    var a2 = row_of(p, i, step, 2, rows, columns)
    var a3 = row_of(p, i, step, 3, rows, columns)
    var a4 = row_of(p, i, step, 4, rows, columns)
    var a5 = row_of(p, i, step, 5, rows, columns)
    var a6 = row_of(p, i, step, 6, rows, columns)
    var a7 = row_of(p, i, step, 7, rows, columns)
    var a8 = row_of(p, i, step, 8, rows, columns)
    var a9 = row_of(p, i, step, 9, rows, columns)
    var a10 = row_of(p, i, step, 10, rows, columns)
    var a11 = row_of(p, i, step, 11, rows, columns)
    var a12 = row_of(p, i, step, 12, rows, columns)
    var a13 = row_of(p, i, step, 13, rows, columns)
    var a14 = row_of(p, i, step, 14, rows, columns)
    var a15 = row_of(p, i, step, 15, rows, columns)
    var b0 = zip_low(a0, a8)
    var b1 = zip_high(a0, a8)
    var b2 = zip_low(a1, a9)
    var b3 = zip_high(a1, a9)
    var b4 = zip_low(a2, a10)
    var b5 = zip_high(a2, a10)
    var b6 = zip_low(a3, a11)
    var b7 = zip_high(a3, a11)
    var b8 = zip_low(a4, a12)
    var b9 = zip_high(a4, a12)
    var b10 = zip_low(a5, a13)
    var b11 = zip_high(a5, a13)
    var b12 = zip_low(a6, a14)
    var b13 = zip_high(a6, a14)
    var b14 = zip_low(a7, a15)
    var b15 = zip_high(a7, a15)
    var c0 = zip_low(b0, b8)
    var c1 = zip_high(b0, b8)
    var c2 = zip_low(b1, b9)
    var c3 = zip_high(b1, b9)
    var c4 = zip_low(b2, b10)
    var c5 = zip_high(b2, b10)
    var c6 = zip_low(b3, b11)
    var c7 = zip_high(b3, b11)
    var c8 = zip_low(b4, b12)
    var c9 = zip_high(b4, b12)
    var c10 = zip_low(b5, b13)
    var c11 = zip_high(b5, b13)
    var c12 = zip_low(b6, b14)
    var c13 = zip_high(b6, b14)
    var c14 = zip_low(b7, b15)
    var c15 = zip_high(b7, b15)
    var d0 = zip_low(c0, c8)
    var d1 = zip_high(c0, c8)
    var d2 = zip_low(c1, c9)
    var d3 = zip_high(c1, c9)
    var d4 = zip_low(c2, c10)
    var d5 = zip_high(c2, c10)
    var d6 = zip_low(c3, c11)
    var d7 = zip_high(c3, c11)
    var d8 = zip_low(c4, c12)
    var d9 = zip_high(c4, c12)
    var d10 = zip_low(c5, c13)
    var d11 = zip_high(c5, c13)
    var d12 = zip_low(c6, c14)
    var d13 = zip_high(c6, c14)
    var d14 = zip_low(c7, c15)
    var d15 = zip_high(c7, c15)
    var e0 = zip_low(d0, d8)
    var e1 = zip_high(d0, d8)
    var e2 = zip_low(d1, d9)
    var e3 = zip_high(d1, d9)
    var e4 = zip_low(d2, d10)
    var e5 = zip_high(d2, d10)
    var e6 = zip_low(d3, d11)
    var e7 = zip_high(d3, d11)
    var e8 = zip_low(d4, d12)
    var e9 = zip_high(d4, d12)
    var e10 = zip_low(d5, d13)
    var e11 = zip_high(d5, d13)
    var e12 = zip_low(d6, d14)
    var e13 = zip_high(d6, d14)
    var e14 = zip_low(d7, d15)
    var e15 = zip_high(d7, d15)
    store(q, 0, e0)
    store(q, 16, e1)
    store(q, 32, e2)
    store(q, 48, e3)
    store(q, 64, e4)
    store(q, 80, e5)
    store(q, 96, e6)
    store(q, 112, e7)
    store(q, 128, e8)
    store(q, 144, e9)
    store(q, 160, e10)
    store(q, 176, e11)
    store(q, 192, e12)
    store(q, 208, e13)
    store(q, 224, e14)
    store(q, 240, e15)
