"""A thread's part of the work, and indices that are checked."""
from vectors import *
from .comparison import *
from .constants import *


@always_inline("nodebug")
def share_chunks(n: Int, chunk: Int) -> Int:
    return ((n + chunk - 1) // chunk + thread_count() - 1) // thread_count() * chunk


@always_inline("nodebug")
def share_begin(n: Int, chunk: Int) -> Int:
    """Where this thread's part of 0..n begins: a multiple of `chunk`, or n."""
    return imin(thread_index() * share_chunks(n, chunk), n)


@always_inline("nodebug")
def share_end(n: Int, chunk: Int) -> Int:
    return imin((thread_index() + 1) * share_chunks(n, chunk), n)


@always_inline("nodebug")
def checked_index[w: Int](errors: Ptr[i64], x: Vec[i64, w], size: Int, code: Int) -> Vec[i64, w]:
    """Indices of `size` elements, at least 1. One that is out of range is noted, and moved into the range."""
    var top = from_int[i64, w](size - 1)
    var zero = const[i64, w](0)
    if any_lane(bit_or(lt(x, zero), gt(x, top))):
        note_outside[(0 < w).__mlir_bool__(), 0](errors, x, 0, size, code)
    return maximum(minimum(x, top), zero)


@always_inline("nodebug")
def wrapped_index[w: Int](errors: Ptr[i64], x: Vec[i64, w], size: Int, code: Int) -> Vec[i64, w]:
    """The same; from -1 down indices count from the end."""
    var top = from_int[i64, w](size - 1)
    var zero = const[i64, w](0)
    var count = from_int[i64, w](size)
    if any_lane(bit_or(lt(x, neg(count)), gt(x, top))):
        note_outside[(0 < w).__mlir_bool__(), 0](errors, x, 0 - size, size, code)
    return maximum(minimum(select(lt(x, zero), add(x, count), x), top), zero)


@always_inline("nodebug")
def note_outside[more: __mlir_type.`!kgen.scalar<bool>`, k: Int, w: Int](errors: Ptr[i64], x: Vec[i64, w], low: Int, high: Int, code: Int):
    """Note the first lane that is not in low..high."""
    comptime if more:
        var i = to_int(lane_at(x, k))
        if i < low or i >= high:
            note_error(errors, code, i, high)
        note_outside[(k + 1 < w).__mlir_bool__(), k + 1](errors, x, low, high, code)
