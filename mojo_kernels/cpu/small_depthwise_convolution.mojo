"""Convolutions of small planes with a filter of their own each, and their gradients, on a CPU.

A vector holds the same element of neighbouring channels: rows of two elements fill it, and taps that would read the
padding are left out. For that the planes of as many channels are turned, and turned back.
"""

from std.math import ceildiv
from std.memory.alloc import unsafe_alloc
from std.sys.info import simd_width_of

from .gemm import plus_product
from .depthwise_convolution import Axis, Grid

comptime MOST = 64
"""Elements of a small plane of a result: a longer one fills vectors by itself, and is not worth turning."""
comptime MOST_READ = 4 * MOST
"""Elements of the image's plane. Found by measuring planes of 2 x 2 to 32 x 32 (docs/cpu-kernels.md)."""


def is_small[T: DType](at: Grid, channels: Int) -> Bool:
    """Whether planes are so small, and channels so many, that they should be turned."""
    return at.pixels() <= MOST and at.size() <= MOST_READ and 2 * channels >= simd_width_of[T]()


@no_inline
def turn[
    T: DType, to: Origin[mut=True], of: Origin, //
](turned: Pointer[Scalar[T], to], planes: Pointer[Scalar[T], of], count: Int, length: Int):
    """`count` planes of `length` elements, as a vector for each element. Missing planes are zeros."""
    comptime lanes = simd_width_of[T]()
    for i in range(length):
        for plane in range(count):
            turned[unsafe_offset = i * lanes + plane] = planes[unsafe_offset = plane * length + i]
        for plane in range(count, lanes):
            turned[unsafe_offset = i * lanes + plane] = 0


@no_inline
def turn_back[
    T: DType, to: Origin[mut=True], of: Origin, //
](planes: Pointer[Scalar[T], to], turned: Pointer[Scalar[T], of], count: Int, length: Int):
    """The inverse of `turn`."""
    comptime lanes = simd_width_of[T]()
    for plane in range(count):
        for i in range(length):
            planes[unsafe_offset = plane * length + i] = turned[unsafe_offset = i * lanes + plane]


@fieldwise_init
struct Reach(ImplicitlyCopyable):
    """Which taps of an axis read the image for an element of the result, and where the first of them reads."""

    var first: Int
    var last: Int
    """The tap behind the last one."""
    var start: Int


def reach_of(axis: Axis, element: Int) -> Reach:
    """The taps of an element of the result."""
    var start = element * axis.stride - axis.pad
    var first = ceildiv(max(-start, 0), axis.dilation)
    var last = min(axis.taps, ceildiv(max(axis.size - start, 0), axis.dilation))
    return Reach(first, last, start + first * axis.dilation)


struct Small[T: DType](Movable):
    """Planes of an image and of a result, and filters, of as many channels as a vector holds."""

    comptime lanes = simd_width_of[Self.T]()
    comptime Memory = MutPointer[Scalar[Self.T], MutUntrackedOrigin]

    var at: Grid
    var image: Self.Memory
    var result: Self.Memory
    var filters: Self.Memory
    var some: Self.Memory
    """Of the filters' size: what an image adds to their gradients."""

    def __init__(out self, at: Grid):
        self.at = at
        self.image = unsafe_alloc[Scalar[Self.T]](at.size() * Self.lanes, alignment=64)
        self.result = unsafe_alloc[Scalar[Self.T]](at.pixels() * Self.lanes, alignment=64)
        self.filters = unsafe_alloc[Scalar[Self.T]](at.taps() * Self.lanes, alignment=64)
        self.some = unsafe_alloc[Scalar[Self.T]](at.taps() * Self.lanes, alignment=64)

    def free(deinit self):
        """Give the memory back."""
        self.image.unsafe_free()
        self.result.unsafe_free()
        self.filters.unsafe_free()
        self.some.unsafe_free()

    def read_image[of: Origin, //](self, planes: Pointer[Scalar[Self.T], of], count: Int):
        """Take `count` planes of an image."""
        turn(self.image, planes, count, self.at.size())

    def read_result[of: Origin, //](self, planes: Pointer[Scalar[Self.T], of], count: Int):
        """Take `count` planes of a result, or of its gradient."""
        turn(self.result, planes, count, self.at.pixels())

    def read_filters[of: Origin, //](self, planes: Pointer[Scalar[Self.T], of], count: Int):
        """Take `count` filters."""
        turn(self.filters, planes, count, self.at.taps())

    def write_image[to: Origin[mut=True], //](self, planes: Pointer[Scalar[Self.T], to], count: Int):
        """Give `count` planes of the image."""
        turn_back(planes, self.image, count, self.at.size())

    def write_result[to: Origin[mut=True], //](self, planes: Pointer[Scalar[Self.T], to], count: Int):
        """Give `count` planes of the result."""
        turn_back(planes, self.result, count, self.at.pixels())

    def write_filters[to: Origin[mut=True], //](self, planes: Pointer[Scalar[Self.T], to], count: Int):
        """Give `count` filters."""
        turn_back(planes, self.filters, count, self.at.taps())

    def clear_filters(self):
        """Make all filters zeros."""
        for i in range(self.at.taps() * Self.lanes):
            self.filters[unsafe_offset=i] = 0

    @no_inline
    def convolve(self):
        """The result, of image and filters."""
        var h, w = self.at.h, self.at.w
        for oh in range(h.out_size):
            var rows = reach_of(h, oh)
            for ow in range(w.out_size):
                var columns = reach_of(w, ow)
                var sums = SIMD[Self.T, Self.lanes](0)
                for kh in range(rows.first, rows.last):
                    var row = (rows.start + (kh - rows.first) * h.dilation) * w.size + columns.start
                    var x = self.image.unsafe_offset(row * Self.lanes)
                    var f = self.filters.unsafe_offset((kh * w.taps + columns.first) * Self.lanes)
                    for kw in range(columns.last - columns.first):
                        sums = plus_product(
                            sums,
                            f.unsafe_load[width=Self.lanes](kw * Self.lanes),
                            x.unsafe_load[width=Self.lanes](kw * w.dilation * Self.lanes),
                        )
                self.result.unsafe_store((oh * w.out_size + ow) * Self.lanes, sums)

    @no_inline
    def spread(self):
        """The gradient of the image, of the result's and filters."""
        var h, w = self.at.h, self.at.w
        for i in range(self.at.size() * Self.lanes):
            self.image[unsafe_offset=i] = 0
        for oh in range(h.out_size):
            var rows = reach_of(h, oh)
            for ow in range(w.out_size):
                var columns = reach_of(w, ow)
                var grad = self.result.unsafe_load[width=Self.lanes]((oh * w.out_size + ow) * Self.lanes)
                for kh in range(rows.first, rows.last):
                    var row = (rows.start + (kh - rows.first) * h.dilation) * w.size + columns.start
                    var x = self.image.unsafe_offset(row * Self.lanes)
                    var f = self.filters.unsafe_offset((kh * w.taps + columns.first) * Self.lanes)
                    for kw in range(columns.last - columns.first):
                        var place = kw * w.dilation * Self.lanes
                        var total = x.unsafe_load[width=Self.lanes](place)
                        x.unsafe_store(place, plus_product(total, grad, f.unsafe_load[width=Self.lanes](kw * Self.lanes)))

    @no_inline
    def correlate(self):
        """Add the gradient of the filters, of the result's and the image."""
        var h, w = self.at.h, self.at.w
        for i in range(self.at.taps() * Self.lanes):
            self.some[unsafe_offset=i] = 0
        for oh in range(h.out_size):
            var rows = reach_of(h, oh)
            for ow in range(w.out_size):
                var columns = reach_of(w, ow)
                var grad = self.result.unsafe_load[width=Self.lanes]((oh * w.out_size + ow) * Self.lanes)
                for kh in range(rows.first, rows.last):
                    var row = (rows.start + (kh - rows.first) * h.dilation) * w.size + columns.start
                    var x = self.image.unsafe_offset(row * Self.lanes)
                    var f = self.some.unsafe_offset((kh * w.taps + columns.first) * Self.lanes)
                    for kw in range(columns.last - columns.first):
                        var value = x.unsafe_load[width=Self.lanes](kw * w.dilation * Self.lanes)
                        var total = f.unsafe_load[width=Self.lanes](kw * Self.lanes)
                        f.unsafe_store(kw * Self.lanes, plus_product(total, grad, value))
        for tap in range(self.at.taps()):
            var total = self.filters.unsafe_load[width=Self.lanes](tap * Self.lanes)
            var more = self.some.unsafe_load[width=Self.lanes](tap * Self.lanes)
            self.filters.unsafe_store(tap * Self.lanes, total + more)
