"""The most frequent element of every row.

Torch sorts a row with C++'s `std::sort` and names the last of equal elements, in the order that sorting left them in.
`std::sort` is not stable, so its steps are taken here one by one: partitioning around the median of three down to runs
of 16, heap sort where that goes too deep, and insertion at the end.
"""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.gpu.host import DeviceContext
from std.utils.coord import Coord

from .sort import key_of

comptime RUN = 16
"""Runs of this length are left to insertion."""


@always_inline
def before[dtype: DType, floating: Bool](a: Scalar[dtype], b: Scalar[dtype]) -> Bool:
    """The order of two keys; the key of NaN is the largest, and every comparison with it is false."""
    comptime if floating:
        return a < b and b != Scalar[dtype].MAX
    return a < b


@always_inline
def less[floating: Bool](keys: OutputTensor[rank=2, ...], row: Int, i: Int, j: Int) -> Bool:
    """The order of two elements of a row."""
    return before[keys.dtype, floating](keys[row, i], keys[row, j])


def move(
    keys: OutputTensor[rank=2, ...],
    places: OutputTensor[dtype=DType.int64, rank=2, ...],
    row: Int,
    to: Int,
    source: Int,
):
    """Copies an element with its place."""
    keys[row, to] = keys[row, source]
    places[row, to] = places[row, source]


def exchange(
    keys: OutputTensor[rank=2, ...], places: OutputTensor[dtype=DType.int64, rank=2, ...], row: Int, i: Int, j: Int
):
    """Swaps two elements with their places."""
    var key = keys[row, i]
    var place = places[row, i]
    move(keys, places, row, i, j)
    keys[row, j] = key
    places[row, j] = place


def partition[floating: Bool](
    keys: OutputTensor[rank=2, ...],
    places: OutputTensor[dtype=DType.int64, rank=2, ...],
    row: Int,
    start: Int,
    end: Int,
) -> Int:
    """Divides a range around the median of three of its elements, which moves to the start; gives the cut."""
    var a = start + 1
    var b = start + (end - start) // 2
    var c = end - 1
    var median: Int
    if less[floating](keys, row, a, b):
        median = b if less[floating](keys, row, b, c) else (c if less[floating](keys, row, a, c) else a)
    else:
        median = a if less[floating](keys, row, a, c) else (c if less[floating](keys, row, b, c) else b)
    exchange(keys, places, row, start, median)
    var left = start + 1
    var right = end
    while True:
        while less[floating](keys, row, left, start):
            left += 1
        right -= 1
        while less[floating](keys, row, start, right):
            right -= 1
        if left >= right:
            return left
        exchange(keys, places, row, left, right)
        left += 1


def sift[floating: Bool](
    keys: OutputTensor[rank=2, ...],
    places: OutputTensor[dtype=DType.int64, rank=2, ...],
    row: Int,
    start: Int,
    top: Int,
    size: Int,
    key: Scalar[keys.dtype],
    place: Int64,
):
    """Puts an element into a heap of `size` elements from `start` on, whose hole is at `top`."""
    var hole = top
    var child = top
    while child < (size - 1) // 2:
        child = 2 * (child + 1)
        if less[floating](keys, row, start + child, start + child - 1):
            child -= 1
        move(keys, places, row, start + hole, start + child)
        hole = child
    if size % 2 == 0 and child == (size - 2) // 2:
        child = 2 * child + 1
        move(keys, places, row, start + hole, start + child)
        hole = child
    while hole > top and before[keys.dtype, floating](keys[row, start + (hole - 1) // 2], key):
        move(keys, places, row, start + hole, start + (hole - 1) // 2)
        hole = (hole - 1) // 2
    keys[row, start + hole] = key
    places[row, start + hole] = place


def heap_sort[floating: Bool](
    keys: OutputTensor[rank=2, ...],
    places: OutputTensor[dtype=DType.int64, rank=2, ...],
    row: Int,
    start: Int,
    end: Int,
):
    """Sorts a range that partitioning divides too unevenly."""
    var size = end - start
    for top in range((size - 2) // 2, -1, -1):
        sift[floating](keys, places, row, start, top, size, keys[row, start + top], places[row, start + top])
    for last in range(size - 1, 0, -1):
        var key = keys[row, start + last]
        var place = places[row, start + last]
        move(keys, places, row, start + last, start)
        sift[floating](keys, places, row, start, 0, last, key, place)


def insertion_sort[floating: Bool](
    keys: OutputTensor[rank=2, ...], places: OutputTensor[dtype=DType.int64, rank=2, ...], row: Int, n: Int
):
    """Sorts a row whose elements are at most a run away from where they belong."""
    for i in range(1, n):
        var key = keys[row, i]
        var place = places[row, i]
        var j = i
        if i < RUN and before[keys.dtype, floating](key, keys[row, 0]):
            while j > 0:
                move(keys, places, row, j, j - 1)
                j -= 1
        else:
            while j > 0 and before[keys.dtype, floating](key, keys[row, j - 1]):
                move(keys, places, row, j, j - 1)
                j -= 1
        keys[row, j] = key
        places[row, j] = place


def sort_range[floating: Bool](
    keys: OutputTensor[rank=2, ...],
    places: OutputTensor[dtype=DType.int64, rank=2, ...],
    row: Int,
    start: Int,
    end: Int,
    deepest: Int,
):
    """Partitions a range until its parts are short."""
    var last = end
    var depth = deepest
    while last - start > RUN:
        if depth == 0:
            heap_sort[floating](keys, places, row, start, last)
            return
        depth -= 1
        var cut = partition[floating](keys, places, row, start, last)
        sort_range[floating](keys, places, row, cut, last, depth)
        last = cut


def introsort[floating: Bool](
    keys: OutputTensor[rank=2, ...], places: OutputTensor[dtype=DType.int64, rank=2, ...], row: Int, n: Int
):
    """Sorts a row as `std::sort` does."""
    var depth = 0
    var size = n
    while size > 1:
        size //= 2
        depth += 2
    sort_range[floating](keys, places, row, 0, n, depth)
    insertion_sort[floating](keys, places, row, n)


@extensibility.register("tmb_mode")
struct Mode:
    """The most frequent element of every row, of several the least, and its place. The last two outputs are scratch."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        values: OutputTensor[rank=1, ...],
        indices: OutputTensor[dtype=DType.int64, rank=1, ...],
        keys: OutputTensor[rank=2, ...],
        places: OutputTensor[dtype=DType.int64, rank=2, ...],
        x: InputTensor[dtype=values.dtype, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        comptime floating = values.dtype.is_floating_point()
        var n = x.dim_size(1)

        def mode[
            lanes: Int
        ](at: Coord[...]) {var x, var n, var values, var keys, var places} -> SIMD[DType.int64, lanes]:
            var row = Int(at[0].value())
            for i in range(n):
                keys[row, i] = key_of[values.dtype, keys.dtype, False](x[row, i])
                places[row, i] = Int64(i)
            introsort[floating](keys, places, row, n)
            var most = 0
            var count = 0
            var best = 0
            for i in range(n):
                count += 1
                var last = i == n - 1 or keys[row, i] != keys[row, i + 1]
                comptime if floating:
                    last = last or keys[row, i] == Scalar[keys.dtype].MAX
                if last:
                    if count > most:
                        most = count
                        best = i
                    count = 0
            values[row] = x[row, Int(places[row, best])]
            return SIMD[DType.int64, lanes](places[row, best])

        foreach[target=target, simd_width=1](mode, indices, ctx)
