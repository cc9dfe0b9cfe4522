"""How a plane of an image is laid out for a filter of its own, on a CPU, and the convolution of planes.

A plane of an image is laid out as the filter sees it: its rows and columns, with zeros around, are apart by the strides
and sorted by their phase, in rows as long as one of the result and what a filter reaches beyond it. Then a tap reads a
contiguous stretch for all elements of the result, the rows of which are as long: what is computed between their ends and
the next ones' beginnings is not used. So short rows fill vectors, too.
"""

from std.math import ceildiv
from std.memory import stack_allocation
from std.sys.info import simd_width_of
from std.utils.numerics import isfinite

from .gemm import plus_product

comptime AT_ONCE = 4
"""Vectors of a result that are computed together."""
comptime CHEAP = 4
"""How many times more products than others make a task: a vector of them takes little more than one."""


@fieldwise_init
struct Axis(Deinitable, ImplicitlyCopyable):
    """A spatial axis of a convolution."""

    var size: Int
    var out_size: Int
    var taps: Int
    var stride: Int
    var pad: Int
    var dilation: Int

    def row(self) -> Int:
        """Elements of a phase: those of the result, and what the filter reaches beyond them."""
        return self.out_size + self.shift(self.taps - 1)

    def shift(self, tap: Int) -> Int:
        """How far behind an element of the result a tap reads, in its phase."""
        return tap * self.dilation // self.stride

    def phase(self, tap: Int) -> Int:
        """The phase that a tap reads."""
        return tap * self.dilation % self.stride


@fieldwise_init
struct Grid(Deinitable, ImplicitlyCopyable):
    """The layout of a plane, `[phases of rows, phases of columns, rows, columns]`."""

    var h: Axis
    var w: Axis

    def taps(self) -> Int:
        """Of a filter."""
        return self.h.taps * self.w.taps

    def pixels(self) -> Int:
        """Elements of a plane of the result."""
        return self.h.out_size * self.w.out_size

    def size(self) -> Int:
        """Elements of a plane of the image."""
        return self.h.size * self.w.size

    def phases(self) -> Int:
        """Phases of a plane."""
        return self.h.stride * self.w.stride

    def elements(self) -> Int:
        """Elements of a phase."""
        return self.h.row() * self.w.row()

    def length(self) -> Int:
        """From the first to the last element of the result, in rows as long as a phase's."""
        return (self.h.out_size - 1) * self.w.row() + self.w.out_size

    def shift(self, tap: Int) -> Int:
        """How far behind an element of the result a tap reads, in its phase."""
        return self.h.shift(tap // self.w.taps) * self.w.row() + self.w.shift(tap % self.w.taps)

    def phase(self, tap: Int) -> Int:
        """The phase that a tap reads."""
        return self.h.phase(tap // self.w.taps) * self.w.stride + self.w.phase(tap % self.w.taps)

    def room[T: DType](self) -> Int:
        """Elements of a phase and of what is read behind its end."""
        return self.elements() + (AT_ONCE + 1) * simd_width_of[T]()

    @no_inline
    def lay_out[
        T: DType, to: Origin[mut=True], of: Origin, //
    ](self, laid: Pointer[Scalar[T], to], plane: Pointer[Scalar[T], of]):
        """All phases of a plane of the image, a `room` apart."""
        var apart = self.room[T]()
        for i in range(self.phases() * apart):
            laid[unsafe_offset=i] = 0
        for phase in range(self.phases()):
            for q in range(self.h.row()):
                var h = q * self.h.stride + phase // self.w.stride - self.h.pad
                if h >= 0 and h < self.h.size:
                    copy_run(
                        laid.unsafe_offset(phase * apart + q * self.w.row()),
                        plane.unsafe_offset(h * self.w.size),
                        phase % self.w.stride - self.w.pad,
                        self.w.stride,
                        self.w.size,
                        self.w.row(),
                    )

    @no_inline
    def spread[
        T: DType, to: Origin[mut=True], of: Origin, //
    ](self, laid: Pointer[Scalar[T], to], plane: Pointer[Scalar[T], of]):
        """A plane of the result, in rows as long as a phase's, with a `room` of zeros in front and behind."""
        for i in range(2 * self.room[T]()):
            laid[unsafe_offset=i] = 0
        for row in range(self.h.out_size):
            var line = laid.unsafe_offset(self.room[T]() + row * self.w.row())
            copy_run(line, plane.unsafe_offset(row * self.w.out_size), 0, 1, self.w.out_size, self.w.out_size)

    @no_inline
    def gather[
        T: DType, to: Origin[mut=True], of: Origin, //
    ](self, plane: Pointer[Scalar[T], to], phase: Int, laid: Pointer[Scalar[T], of]):
        """The inverse of `lay_out` for a phase: what no filter sees is left as it is."""
        for q in range(self.h.row()):
            var h = q * self.h.stride + phase // self.w.stride - self.h.pad
            if h >= 0 and h < self.h.size:
                for p in range(self.w.row()):
                    var w = p * self.w.stride + phase % self.w.stride - self.w.pad
                    if w >= 0 and w < self.w.size:
                        plane[unsafe_offset = h * self.w.size + w] = laid[unsafe_offset = q * self.w.row() + p]

    def source(self, pixel: Int, tap: Int) -> Int:
        """Where in the image's plane a tap of an element of the result reads, or -1 in the padding."""
        var h = pixel // self.w.out_size * self.h.stride - self.h.pad + tap // self.w.taps * self.h.dilation
        var w = pixel % self.w.out_size * self.w.stride - self.w.pad + tap % self.w.taps * self.w.dilation
        return h * self.w.size + w if 0 <= h < self.h.size and 0 <= w < self.w.size else -1


@always_inline
def copy_run[
    T: DType, P: DType, to: Origin[mut=True], of: Origin, //
](line: Pointer[Scalar[P], to], row: Pointer[Scalar[T], of], start: Int, stride: Int, width: Int, length: Int):
    """Elements `start`, `start + stride`, … of a row, as far as the row has them."""
    var first = 0
    if start < 0:
        first = ceildiv(-start, stride)
    var last = length
    if start + (length - 1) * stride >= width:
        last = ceildiv(width - start, stride)
    var j = first
    if stride == 1:
        comptime for lanes in [16, 4]:
            while j + lanes <= last:
                line.unsafe_store(j, row.unsafe_load[width=lanes](start + j).cast[P]())
                j += lanes
    elif stride == 2:
        comptime lanes = 8
        while j + lanes <= last and start + (j + lanes) * 2 <= width:
            var pairs = row.unsafe_load[width=2 * lanes](start + j * 2).deinterleave()
            line.unsafe_store(j, rebind[SIMD[T, lanes]](pairs[0]).cast[P]())
            j += lanes
    while j < last:
        line[unsafe_offset=j] = row[unsafe_offset=start + j * stride].cast[P]()
        j += 1


def are_finite[T: DType, of: Origin, //](values: Pointer[Scalar[T], of], count: Int) -> Bool:
    """Whether none of the values is infinite or NaN."""
    for i in range(count):
        if not isfinite(values[unsafe_offset=i]):
            return False
    return True


@no_inline
def weighted_sums[
    T: DType, to: Origin[mut=True], of: Origin, of_weights: Origin, of_places: Origin, //
](
    result: Pointer[Scalar[T], to],
    source: Pointer[Scalar[T], of],
    weights: Pointer[Scalar[T], of_weights],
    places: Pointer[Int, of_places],
    count: Int,
    length: Int,
):
    """The sums of `weights[t] * source[places[t] + i]` for `i` up to `length`, and up to the next whole vectors."""
    comptime lanes = simd_width_of[T]()
    comptime step = AT_ONCE * lanes
    for first in range(0, length, step):
        var sums = stack_allocation[AT_ONCE, SIMD[T, lanes]]()
        comptime for i in range(AT_ONCE):
            sums[unsafe_offset=i] = 0
        for t in range(count):
            var factor = SIMD[T, lanes](weights[unsafe_offset=t])
            var from_ = source.unsafe_offset(places[unsafe_offset=t] + first)
            comptime for i in range(AT_ONCE):
                var x = from_.unsafe_load[width=lanes](i * lanes)
                sums[unsafe_offset=i] = plus_product(sums[unsafe_offset=i], factor, x)
        comptime for i in range(AT_ONCE):
            result.unsafe_store(first + i * lanes, sums[unsafe_offset=i])


@no_inline
def convolve_plane[
    T: DType,
    to: Origin[mut=True],
    of: Origin,
    of_taps: Origin,
    of_sums: Origin[mut=True],
    of_room: Origin[mut=True],
    of_places: Origin[mut=True],
    //,
](
    result: Pointer[Scalar[T], to],
    plane: Pointer[Scalar[T], of],
    taps: Pointer[Scalar[T], of_taps],
    at: Grid,
    sums: Pointer[Scalar[T], of_sums],
    room: Pointer[Scalar[T], of_room],
    places: Pointer[Int, of_places],
):
    """A plane of the result, of one of the image; `taps` are finite, `sums` and `room` that of one and of all phases."""
    at.lay_out(room, plane)
    for tap in range(at.taps()):
        places[unsafe_offset=tap] = at.phase(tap) * at.room[T]() + at.shift(tap)
    weighted_sums(sums, room, taps, places, at.taps(), at.length())
    for row in range(at.h.out_size):
        var line = sums.unsafe_offset(row * at.w.row())
        copy_run(result.unsafe_offset(row * at.w.out_size), line, 0, 1, at.w.out_size, at.w.out_size)
