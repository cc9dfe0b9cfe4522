"""Lanes from and to places of their own, over the loads and stores of whichever form is on the path."""
from vectors.memory import *


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
def is_bf16[d: DType]() -> __mlir_type.`!kgen.scalar<bool>`:
    return (d == bf16).__mlir_bool__()


@always_inline("nodebug")
def load_strided[w: Int, d: DType](p: Ptr[d], i: Int, step: Int) -> Vec[d, w]:
    comptime if is_bf16[d]():  # as words: LLVM fails where it makes shuffles of such loads
        return bitcast[d](strided_from[(0 < w).__mlir_bool__(), 0](as_words(p), i, step, const[u16, w](0)))
    else:
        return strided_from[(0 < w).__mlir_bool__(), 0](p, i, step, const[d, w](0))


@always_inline("nodebug")
def load_every[step: Int, n: Int, last: Int, w: Int, d: DType](p: Ptr[d], i: Int) -> Vec[d, w]:
    """`w` elements, from the one at `i` on each `step`-th: lanes of two vectors of `n`, of which the second one begins
    at `i + last` and ends with the last element, so that nothing behind it is read."""
    comptime if is_bf16[d]():  # as words: see above
        var a = load[n](as_words(p), i)
        var b = load[n](as_words(p), i + last)
        var x = every_from[(0 < w).__mlir_bool__(), (0 < n).__mlir_bool__(), 0, step, last](a, b, const[u16, w](0))
        return bitcast[d](x)
    else:
        var a = load[n](p, i)
        var b = load[n](p, i + last)
        return every_from[(0 < w).__mlir_bool__(), (0 < n).__mlir_bool__(), 0, step, last](a, b, const[d, w](0))


@always_inline("nodebug")
def every_from[
    more: __mlir_type.`!kgen.scalar<bool>`,
    first: __mlir_type.`!kgen.scalar<bool>`,
    k: Int,
    step: Int,
    last: Int,
    d: DType,
    n: Int,
    w: Int,
](a: Vec[d, n], b: Vec[d, n], r: Vec[d, w]) -> Vec[d, w]:
    comptime if more:
        var x = with_lane(r, k, lane_of[first, k * step, k * step - last](a, b))
        return every_from[(k + 1 < w).__mlir_bool__(), (k * step + step < n).__mlir_bool__(), k + 1, step, last](a, b, x)
    else:
        return r


@always_inline("nodebug")
def lane_of[
    first: __mlir_type.`!kgen.scalar<bool>`, j: Int, k: Int, d: DType, n: Int
](a: Vec[d, n], b: Vec[d, n]) -> Vec[d, 1]:
    """Lane `j` of the first vector, or lane `k` of the second one."""
    comptime if first:
        return lane_at(a, j)
    else:
        return lane_at(b, k)


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
    comptime if is_bf16[d]():
        return bitcast[d](first_strided_from[(0 < w).__mlir_bool__(), 0](as_words(p), i, step, count, const[u16, w](0)))
    else:
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
