"""Selection along the rows of a matrix on a CPU: which of several equal elements is taken is what torch takes.

Torch selects with the C++ standard library (and its own quickselect for `kthvalue`), whose order of equal elements
follows from the algorithm: heaps of a prefix, or a partition around the median of three. The same steps are taken here,
on pairs of an integer key (see `sort/sort.mojo`) and the place in the row.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.algorithm import sync_parallelize
from max.gpu.host import DeviceContext
from std.bit import log2_floor
from std.math import ceildiv

from .sort import key_of

comptime SMALL = 16
"""Ranges up to this length are left to the final insertion sort."""


struct Pairs[K: DType, of_keys: Origin[mut=True], of_places: Origin[mut=True]]:
    """The keys and places of one row. All ranges are half open."""

    var keys: Pointer[Scalar[Self.K], Self.of_keys]
    var places: Pointer[Int64, Self.of_places]

    def __init__(out self, keys: Pointer[Scalar[Self.K], Self.of_keys], places: Pointer[Int64, Self.of_places]):
        self.keys = keys
        self.places = places

    @always_inline
    def key(self, i: Int) -> Scalar[Self.K]:
        return self.keys[unsafe_offset=i]

    @always_inline
    def less(self, i: Int, j: Int) -> Bool:
        return self.key(i) < self.key(j)

    @always_inline
    def copy_within(self, source: Int, target: Int):
        self.keys[unsafe_offset=target] = self.keys[unsafe_offset=source]
        self.places[unsafe_offset=target] = self.places[unsafe_offset=source]

    @always_inline
    def put(self, i: Int, key: Scalar[Self.K], place: Int64):
        self.keys[unsafe_offset=i] = key
        self.places[unsafe_offset=i] = place

    @always_inline
    def exchange(self, i: Int, j: Int):
        var key = self.key(i)
        var place = self.places[unsafe_offset=i]
        self.copy_within(j, i)
        self.put(j, key, place)

    # -- heaps: the largest key of [first, first + size) is on top --------------------------------------------------
    def sift(self, first: Int, top: Int, size: Int, key: Scalar[Self.K], place: Int64):
        """Put a pair into the hole at `top`: the hole sinks to a leaf, then the pair rises from there."""
        var hole = top
        var child = top
        while child < (size - 1) // 2:
            child = 2 * (child + 1)
            if self.less(first + child, first + child - 1):
                child -= 1
            self.copy_within(first + child, first + hole)
            hole = child
        if size % 2 == 0 and child == (size - 2) // 2:
            child = 2 * child + 1
            self.copy_within(first + child, first + hole)
            hole = child
        while hole > top and self.key(first + (hole - 1) // 2) < key:
            self.copy_within(first + (hole - 1) // 2, first + hole)
            hole = (hole - 1) // 2
        self.put(first + hole, key, place)

    def replace_top(self, first: Int, size: Int, at: Int):
        """The top moves to `at`, outside the heap, and the pair from there enters the heap."""
        var key = self.key(at)
        var place = self.places[unsafe_offset=at]
        self.copy_within(first, at)
        self.sift(first, 0, size, key, place)

    def heap_select(self, first: Int, middle: Int, last: Int):
        """The smallest pairs of [first, last) as a heap in [first, middle)."""
        var size = middle - first
        for parent in range((size - 2) // 2, -1, -1):
            if size >= 2:
                self.sift(first, parent, size, self.key(first + parent), self.places[unsafe_offset=first + parent])
        for i in range(middle, last):
            if self.less(i, first):
                self.replace_top(first, size, i)

    def partial_sort(self, first: Int, middle: Int, last: Int):
        """The smallest pairs of [first, last) in order in [first, middle)."""
        self.heap_select(first, middle, last)
        for end in range(middle - 1, first, -1):
            self.replace_top(first, end - first, end)

    # -- insertion ---------------------------------------------------------------------------------------------------
    def insert(self, first: Int, i: Int):
        """Move the pair at `i` down to its place in the sorted range [first, i)."""
        var key = self.key(i)
        var place = self.places[unsafe_offset=i]
        var j = i
        while j > first and key < self.key(j - 1):
            self.copy_within(j - 1, j)
            j -= 1
        self.put(j, key, place)

    def insertion_sort(self, first: Int, last: Int):
        for i in range(first + 1, last):
            self.insert(first, i)

    # -- partition ---------------------------------------------------------------------------------------------------
    def median_to_first(self, first: Int, a: Int, b: Int, c: Int):
        """Exchange `first` with the median of three."""
        var chosen: Int
        if self.less(a, b):
            chosen = b if self.less(b, c) else (c if self.less(a, c) else a)
        else:
            chosen = a if self.less(a, c) else (c if self.less(b, c) else b)
        self.exchange(first, chosen)

    def cut(self, first: Int, last: Int) -> Int:
        """Partition [first, last) around the median of three of its pairs; gives where the upper part starts."""
        self.median_to_first(first, first + 1, first + (last - first) // 2, last - 1)
        var low = first + 1
        var high = last
        while True:
            while self.less(low, first):
                low += 1
            high -= 1
            while self.less(first, high):
                high -= 1
            if low >= high:
                return low
            self.exchange(low, high)
            low += 1

    def select(self, first_: Int, nth: Int, last_: Int):
        """The pair that belongs at `nth` stands there, smaller ones before it."""
        var first = first_
        var last = last_
        if first == last or nth == last:
            return
        var depth = 2 * log2_floor(last - first)
        while last - first > 3:
            if depth == 0:
                self.heap_select(first, nth + 1, last)
                self.exchange(first, nth)
                return
            depth -= 1
            var at = self.cut(first, last)
            if at <= nth:
                first = at
            else:
                last = at
        self.insertion_sort(first, last)

    def sort_loop(self, first: Int, last_: Int, depth_: Int):
        """Partition until only short ranges are out of order."""
        var last = last_
        var depth = depth_
        while last - first > SMALL:
            if depth == 0:
                self.partial_sort(first, last, last)
                return
            depth -= 1
            var at = self.cut(first, last)
            self.sort_loop(at, last, depth)
            last = at

    def sort(self, first: Int, last: Int):
        """All pairs of [first, last) in order; not stable."""
        if last - first > 1:
            self.sort_loop(first, last, 2 * log2_floor(last - first))
            self.insertion_sort(first, last)

    # -- torch's own quickselect -------------------------------------------------------------------------------------
    def quick_select(self, k: Int, size: Int):
        """The pair that belongs at `k` of [0, size) stands there."""
        var low = 0
        var high = size - 1
        while low < high:
            if high == low + 1:
                if self.less(high, low):
                    self.exchange(low, high)
                return
            self.exchange((low + high) // 2, low + 1)
            if self.less(high, low + 1):
                self.exchange(low + 1, high)
            if self.less(high, low):
                self.exchange(low, high)
            if self.less(low, low + 1):
                self.exchange(low + 1, low)
            var i = low + 1
            var j = high
            var pivot = self.key(low)
            while True:
                i += 1
                while self.key(i) < pivot:
                    i += 1
                j -= 1
                while pivot < self.key(j):
                    j -= 1
                if j < i:
                    break
                self.exchange(i, j)
            self.exchange(low, j)
            if j <= k:
                low = i
            if j >= k:
                high = j - 1


@extensibility.register("tmb_select")
struct Select[how: StaticString, descending: Bool]:
    """Elements of every row by rank, and where they stand.

    `how` says which, and so by which of torch's algorithms:
    - `sorted`, `unsorted`: the first `k` (in `rank`), in order or as they were found;
    - `all`: the whole row in order;
    - `kth`: the one of rank `k`, counted from 1.

    The last two outputs are scratch.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        values: OutputTensor[rank=2, ...],
        indices: OutputTensor[dtype=DType.int64, rank=2, ...],
        keys: OutputTensor[rank=2, ...],
        places: OutputTensor[dtype=DType.int64, rank=2, ...],
        x: InputTensor[dtype=values.dtype, rank=2, ...],
        rank: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target == "cpu", "tmb_select runs on CPUs"
        comptime K = keys.dtype
        var rows = x.dim_size(0)
        var n = x.dim_size(1)
        var k = Int(rank[0])
        var wanted = values.dim_size(1)
        if wanted == 0 or n == 0:
            return
        var chunks = min(rows, 16) if rows * n > 4096 else min(rows, 1)
        var each = ceildiv(rows, max(chunks, 1))
        var all_keys = keys.unsafe_ptr()
        var all_places = places.unsafe_ptr()

        def select_rows(chunk: Int) {
            var x, var n, var k, var wanted, var rows, var each, var values, var indices, var all_keys, var all_places
        }:
            for row in range(chunk * each, min((chunk + 1) * each, rows)):
                var pairs = Pairs(all_keys.unsafe_offset(row * n), all_places.unsafe_offset(row * n))
                for i in range(n):
                    pairs.put(i, key_of[values.dtype, K, Self.descending](x[row, i]), Int64(i))
                var first = 0
                comptime if Self.how == "kth":
                    first = k - 1
                    pairs.quick_select(first, n)
                elif Self.how == "all":
                    pairs.sort(0, n)
                else:
                    if k * 64 <= n:
                        pairs.partial_sort(0, k, n)
                    else:
                        pairs.select(0, k - 1, n)
                        comptime if Self.how == "sorted":
                            pairs.sort(0, k - 1)
                for i in range(wanted):
                    var place = pairs.places[unsafe_offset=first + i]
                    values[row, i] = x[row, Int(place)]
                    indices[row, i] = place

        sync_parallelize(select_rows, chunks)
