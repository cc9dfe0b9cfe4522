"""Stable sorting and binary search along the rows of a matrix.

Elements are compared by integer keys that have torch's order: NaN is the largest number, and the two zeros are equal.
Keys of a descending order are inverted, so that every loop here ascends.
"""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.algorithm import sync_parallelize
from max.gpu.host import DeviceContext
from std.math import ceildiv
from std.memory import bitcast
from std.utils.coord import Coord
from std.utils.numerics import isnan

comptime RUN = 32
"""The length of the runs that are sorted before merging starts."""


@always_inline
def key_of[dtype: DType, K: DType, descending: Bool](x: Scalar[dtype]) -> Scalar[K]:
    """An integer of the same width with the order of `x`."""
    var key: Scalar[K]
    comptime if dtype.is_floating_point():
        key = bitcast[K](x)
        if isnan(x):
            key = Scalar[K].MAX
        elif key == Scalar[K].MIN:
            key = 0
        elif key < 0:
            key ^= Scalar[K].MAX
    else:
        key = x.cast[K]()
    comptime if descending:
        return ~key
    return key


def merge_passes(n: Int) -> Int:
    """How often runs are merged until one of `n` elements is left."""
    var passes = 0
    var width = RUN
    while width < n:
        width *= 2
        passes += 1
    return passes


@extensibility.register("tmb_sort")
struct Sort[descending: Bool]:
    """Every row in order, and where its elements come from. The last three outputs are scratch.

    Runs of 32 elements are merged pairwise, from one pair of buffers into the other. A CPU merges run by run; on a GPU
    every element of the result finds by binary search which element of the two runs it is.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        values: OutputTensor[rank=2, ...],
        indices: OutputTensor[dtype=DType.int64, rank=2, ...],
        keys: OutputTensor[rank=2, ...],
        spare_indices: OutputTensor[dtype=DType.int64, rank=2, ...],
        spare_keys: OutputTensor[dtype=keys.dtype, rank=2, ...],
        x: InputTensor[dtype=values.dtype, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        comptime K = keys.dtype
        var n = x.dim_size(1)
        var passes = merge_passes(n)
        var swapped = passes % 2 == 1
        var source_keys = spare_keys.unsafe_ptr() if swapped else keys.unsafe_ptr()
        var target_keys = keys.unsafe_ptr() if swapped else spare_keys.unsafe_ptr()
        var source = spare_indices.unsafe_ptr() if swapped else indices.unsafe_ptr()
        var sink = indices.unsafe_ptr() if swapped else spare_indices.unsafe_ptr()

        comptime if target == "cpu":
            var rows = x.dim_size(0)
            var chunks = min(rows, 16) if rows * n > 4096 else min(rows, 1)
            var each = ceildiv(rows, max(chunks, 1))

            def sort_rows(chunk: Int) {
                var x,
                var n,
                var rows,
                var each,
                var passes,
                var values,
                var source_keys,
                var target_keys,
                var source,
                var sink,
            }:
                for row in range(chunk * each, min((chunk + 1) * each, rows)):
                    var from_keys = source_keys.unsafe_offset(row * n)
                    var to_keys = target_keys.unsafe_offset(row * n)
                    var from_places = source.unsafe_offset(row * n)
                    var to_places = sink.unsafe_offset(row * n)
                    for i in range(n):
                        var key = key_of[values.dtype, K, Self.descending](x[row, i])
                        var j = i
                        var start = i // RUN * RUN
                        while j > start and from_keys[unsafe_offset=j - 1] > key:
                            from_keys[unsafe_offset=j] = from_keys[unsafe_offset=j - 1]
                            from_places[unsafe_offset=j] = from_places[unsafe_offset=j - 1]
                            j -= 1
                        from_keys[unsafe_offset=j] = key
                        from_places[unsafe_offset=j] = Int64(i)
                    var width = RUN
                    for _ in range(passes):
                        for start in range(0, n, 2 * width):
                            var i = start
                            var middle = min(start + width, n)
                            var j = middle
                            var end = min(start + 2 * width, n)
                            for at in range(start, end):
                                var left = i < middle and (
                                    j >= end or from_keys[unsafe_offset=i] <= from_keys[unsafe_offset=j]
                                )
                                var taken = i if left else j
                                to_keys[unsafe_offset=at] = from_keys[unsafe_offset=taken]
                                to_places[unsafe_offset=at] = from_places[unsafe_offset=taken]
                                i += Int(left)
                                j += Int(not left)
                        swap(from_keys, to_keys)
                        swap(from_places, to_places)
                        width *= 2
                    for i in range(n):
                        values[row, i] = x[row, Int(from_places[unsafe_offset=i])]

            sync_parallelize(sort_rows, chunks)
        else:

            def rank_in_run[
                lanes: Int
            ](at: Coord[...]) {var x, var n, var source_keys, var source} -> SIMD[values.dtype, lanes]:
                var row = Int(at[0].value())
                var column = Int(at[1].value())
                var key = key_of[values.dtype, K, Self.descending](x[row, column])
                var start = column // RUN * RUN
                var place = row * n + start
                for j in range(start, min(start + RUN, n)):
                    var other = key_of[values.dtype, K, Self.descending](x[row, j])
                    place += Int(other < key or (other == key and j < column))
                source_keys[unsafe_offset=place] = key
                source[unsafe_offset=place] = Int64(column)
                return SIMD[values.dtype, lanes](0)

            foreach[target=target, simd_width=1](rank_in_run, values, ctx)
            var width = RUN
            for step in range(passes):

                def merged[
                    lanes: Int
                ](at: Coord[...]) {
                    var n, var width, var source_keys, var target_keys, var source
                } -> SIMD[DType.int64, lanes]:
                    var row = Int(at[0].value())
                    var column = Int(at[1].value())
                    var start = column // (2 * width) * (2 * width)
                    var left = source_keys.unsafe_offset(row * n + start)
                    var left_size = min(width, n - start)
                    var right = left.unsafe_offset(left_size)
                    var right_size = min(2 * width, n - start) - left_size
                    # How many of the first elements come from the left run.
                    var place = column - start
                    var low = max(place - right_size, 0)
                    var high = min(place, left_size)
                    while low < high:
                        var middle = (low + high) // 2
                        if left[unsafe_offset=middle] <= right[unsafe_offset=place - 1 - middle]:
                            low = middle + 1
                        else:
                            high = middle
                    var other = place - low
                    var taken = left_size + other
                    if low < left_size:
                        if other >= right_size or left[unsafe_offset=low] <= right[unsafe_offset=other]:
                            taken = low
                    target_keys[unsafe_offset=row * n + column] = left[unsafe_offset=taken]
                    return SIMD[DType.int64, lanes](source[unsafe_offset=row * n + start + taken])

                if (passes - step) % 2 == 1:
                    foreach[target=target, simd_width=1](merged, indices, ctx)
                else:
                    foreach[target=target, simd_width=1](merged, spare_indices, ctx)
                swap(source_keys, target_keys)
                swap(source, sink)
                width *= 2

            var order = indices.unsafe_ptr()

            def value_at[lanes: Int](at: Coord[...]) {var x, var n, var order} -> SIMD[values.dtype, lanes]:
                var row = Int(at[0].value())
                var place = order[unsafe_offset=row * n + Int(at[1].value())]
                return SIMD[values.dtype, lanes](x[row, Int(place)])

            foreach[target=target, simd_width=1](value_at, values, ctx)


@extensibility.register("tmb_search_sorted")
struct SearchSorted[right: Bool]:
    """Where each value belongs in the sorted row of the same number, or in the only row; torch's comparisons."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=2, ...],
        rows: InputTensor[rank=2, ...],
        values: InputTensor[dtype=rows.dtype, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        var size = rows.dim_size(1)
        var shared = rows.dim_size(0) == 1

        def place[lanes: Int](at: Coord[...]) {var rows, var values, var size, var shared} -> SIMD[result.dtype, lanes]:
            var row = Int(at[0].value())
            var value = values[row, Int(at[1].value())]
            if shared:
                row = 0
            var low = 0
            var high = size
            while low < high:
                var middle = (low + high) // 2
                var reached: Bool
                comptime if Self.right:
                    reached = rows[row, middle] > value
                else:
                    reached = rows[row, middle] >= value
                if reached:
                    high = middle
                else:
                    low = middle + 1
            return SIMD[result.dtype, lanes](low)

        foreach[target=target, simd_width=1](place, result, ctx)
