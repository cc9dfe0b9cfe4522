"""Gradients of a convolution's filters on a CPU: products of an image, shifted by each tap, with the result's gradient."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.algorithm import sync_parallelize
from max.gpu.host import DeviceContext
from std.math import ceildiv
from std.memory import stack_allocation
from std.memory.alloc import unsafe_alloc

from .depthwise_convolution import copy_run
from .convolution import Window
from .gemm import DEEP, TASK, TASKS, AsTheyAre, Matrices, multiply_tile, panel_width, store_tile, sum_type, tile_height
from .matmul import multiply_matrices

comptime LEAST_ROWS = 48
"""Rows of products for which the gradient of the result is worth copying into a panel."""


@fieldwise_init
struct Shifted(Deinitable, ImplicitlyCopyable):
    """The layout of `[images, channels, taps_w, depth, phases, rows, out_width]`, an image as the columns of taps see it.

    Every column of taps has a copy that is as wide as the result. Rows of the padded image are apart by the stride, and
    sorted by their phase: what a row of taps sees of an image is contiguous.
    """

    var at: Window
    var channels: Int
    """Of all groups."""
    var phases: Int
    var rows: Int
    """Rows of a phase."""

    def __init__(out self, at: Window, channels: Int):
        self.at = at
        self.channels = channels
        var reach = (at.taps_h - 1) * at.dilation_h
        self.phases = min(at.stride_h, reach + 1)
        self.rows = reach // at.stride_h + at.out_height

    def plane(self) -> Int:
        """Elements for a place along the depth."""
        return self.phases * self.rows * self.at.out_width

    def column(self) -> Int:
        """Elements for a channel and a column of taps."""
        return self.at.depth * self.plane()

    def size(self) -> Int:
        """Elements for an image."""
        return self.channels * self.at.taps_w * self.column()

    def fill[
        T: DType, to: Origin[mut=True], of: Origin, //
    ](self, shifted: Pointer[Scalar[T], to], image: Pointer[Scalar[T], of], channel: Int):
        """Lay out a channel of an image; channels of all images are counted one after the other."""
        var at = self.at
        for i in range(at.taps_w * at.depth * self.phases * self.rows):
            var q = i % self.rows
            var phase = i // self.rows % self.phases
            var d = i // (self.rows * self.phases) % at.depth
            var tap = i // (self.rows * self.phases * at.depth)
            var line = shifted.unsafe_offset((channel * at.taps_w * at.depth * self.phases * self.rows + i) * at.out_width)
            for w in range(at.out_width):
                line[unsafe_offset=w] = 0
            var h = q * at.stride_h + phase - at.pad_h
            if h >= 0 and h < at.height:
                var row = image.unsafe_offset(((channel * at.depth + d) * at.height + h) * at.width)
                copy_run(line, row, tap * at.dilation_w - at.pad_w, at.stride_w, at.width, at.out_width)


@fieldwise_init
struct Gradient[T: DType, of_result: Origin[mut=True], of_g: Origin, of_x: Origin, //](Deinitable, ImplicitlyCopyable):
    """`[groups, taps_d * taps_h, channels * taps_w, features]` from the result's gradient and the shifted image."""

    var result: Pointer[Scalar[Self.T], Self.of_result]
    var gradient: Pointer[Scalar[Self.T], Self.of_g]
    var shifted: Pointer[Scalar[Self.T], Self.of_x]
    var layout: Shifted
    var images: Int
    var features: Int
    """Filters of a group."""

    def rows(self) -> Int:
        """Rows of the product for a row of taps."""
        return self.layout.at.channels * self.layout.at.taps_w

    @no_inline
    def compute(self, group: Int, first_row: Int, last_row: Int, column: Int):
        """Some rows, for all rows of taps, of the panel of filters that begins with `column`."""
        comptime width = panel_width[Self.T]()
        comptime height = tile_height()
        var at = self.layout.at
        var columns = min(width, self.features - column)
        var pixels = at.out_height * at.out_width
        var groups = self.layout.channels // at.channels
        var panel = unsafe_alloc[Scalar[Self.T]](DEEP * width, alignment=64)
        var sums = stack_allocation[height * width, Scalar[Self.T], alignment=64]()
        var matrix = self.rows() * self.features
        var result = self.result.unsafe_offset(group * at.taps_d * at.taps_h * matrix)
        for tap in range(at.taps_d * at.taps_h):
            for row in range(first_row, last_row):
                for j in range(columns):
                    result[unsafe_offset=tap * matrix + row * self.features + column + j] = 0
        for slice in range(self.images * at.out_depth):
            var image = slice // at.out_depth
            var depth = slice % at.out_depth
            var plane = (image * groups + group) * self.features * at.out_depth + depth
            var source = Matrices[Self.T, True](self.gradient, pixels, at.out_depth * pixels)
            for k in range(0, pixels, DEEP):
                var deep = min(DEEP, pixels - k)
                source.pack[width](plane, panel, k, deep, column, columns)
                for tap in range(at.taps_d * at.taps_h):
                    var d = depth * at.stride_d + tap // at.taps_h * at.dilation_d - at.pad_d
                    if d < 0 or d >= at.depth:
                        continue
                    var down = tap % at.taps_h * at.dilation_h
                    var line = down % at.stride_h * self.layout.rows + down // at.stride_h
                    var start = image * self.layout.size() + group * self.rows() * self.layout.column()
                    start += d * self.layout.plane() + line * at.out_width + k
                    var left = self.shifted.unsafe_offset(start)
                    var step = self.layout.column()
                    var row = first_row
                    comptime for tall in [height, 4, 1]:
                        while row + tall <= last_row:
                            multiply_tile[tall](sums, left.unsafe_offset(row * step), step, panel, deep)
                            store_tile[False, width](
                                result.unsafe_offset(tap * matrix),
                                self.features,
                                sums,
                                AsTheyAre(),
                                0,
                                row,
                                column,
                                tall,
                                columns,
                                True,
                                False,
                            )
                            row += tall
        panel.unsafe_free()

    def compute_all(self, groups: Int):
        """All filters, in tasks."""
        comptime height = tile_height()
        comptime width = panel_width[Self.T]()
        var job = self
        var at = self.layout.at
        var across = ceildiv(self.features, width)
        var blocks = ceildiv(self.rows(), height)
        var work = self.images * at.pixels() * at.taps() * at.channels * self.features * groups
        var tasks = min(max(work // TASK, 1), TASKS)
        var most = max(self.rows() * at.taps_d * at.taps_h // LEAST_ROWS, 1)
        var down = min(min(ceildiv(tasks, groups * across), most), blocks)

        def work_on(task: Int) {var job, var across, var blocks, var down}:
            var piece = task % down
            var panel = task // down % across
            var first = blocks * piece // down * height
            var last = min(blocks * (piece + 1) // down * height, job.rows())
            job.compute(task // (down * across), first, last, panel * width)

        sync_parallelize(work_on, groups * across * down)


@extensibility.register("tmb_filter_gradients")
struct FilterGradients:
    """`[groups, taps of D and H, C / groups * taps of W, F / groups]` of an image `[N, C, D, H, W]`.

    `gradient` `[N, F, *O]` is that of the result. `numbers` has the strides, the paddings before, the dilations and the
    taps of D, H and W.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=4, ...],
        gradient: InputTensor[dtype=result.dtype, rank=5, ...],
        image: InputTensor[dtype=result.dtype, rank=5, ...],
        numbers: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target == "cpu", "tmb_filter_gradients runs on CPUs"
        differentiate(
            result.unsafe_ptr(),
            gradient.unsafe_ptr(),
            image.unsafe_ptr(),
            window_of(result.dim_size(0), gradient, image, numbers),
            image.dim_size(0),
            result.dim_size(0),
            result.dim_size(3),
        )


def window_of(groups: Int, gradient: InputTensor[rank=5, ...], image: InputTensor[rank=5, ...], numbers: InputTensor[dtype=DType.int64, rank=1, ...]) -> Window:
    """What the filters see of an image; see `FilterGradients`."""
    return Window(
        image.dim_size(1) // max(groups, 1),
        image.dim_size(2),
        image.dim_size(3),
        image.dim_size(4),
        gradient.dim_size(2),
        gradient.dim_size(3),
        gradient.dim_size(4),
        Int(numbers[9]),
        Int(numbers[10]),
        Int(numbers[11]),
        Int(numbers[0]),
        Int(numbers[1]),
        Int(numbers[2]),
        Int(numbers[3]),
        Int(numbers[4]),
        Int(numbers[5]),
        Int(numbers[6]),
        Int(numbers[7]),
        Int(numbers[8]),
    )


@no_inline
def differentiate[
    T: DType, of_result: Origin[mut=True], of_g: Origin, of_x: Origin, //
](
    result: Pointer[Scalar[T], of_result],
    gradient: Pointer[Scalar[T], of_g],
    image: Pointer[Scalar[T], of_x],
    at: Window,
    images: Int,
    groups: Int,
    features: Int,
):
    """Not part of the kernel, which is compiled for every shape."""
    var layout = Shifted(at, at.channels * groups)
    var shifted = unsafe_alloc[Scalar[T]](max(images * layout.size(), 1), alignment=64)
    fill_all(shifted, image, layout, images)
    Gradient(result, gradient, shifted, layout, images, features).compute_all(groups)
    shifted.unsafe_free()


def fill_all[
    T: DType, to: Origin[mut=True], of: Origin, //
](shifted: Pointer[Scalar[T], to], image: Pointer[Scalar[T], of], layout: Shifted, images: Int):
    """Lay out all images, in tasks."""
    var count = images * layout.channels
    var tasks = min(max(images * layout.size() // (TASK // 8), 1), min(TASKS, count))

    def fill(task: Int) {var shifted, var image, var layout, var count, var tasks}:
        for channel in range(count * task // tasks, count * (task + 1) // tasks):
            layout.fill(shifted, image, channel)

    sync_parallelize(fill, tasks)


# -- all images at once ------------------------------------------------------------------------------------------------
@fieldwise_init
struct Unfolded(Deinitable, ImplicitlyCopyable):
    """The layout `[channels, taps, images, *out]` of what each tap sees, zeros where it is padding."""

    var at: Window
    var images: Int
    var channels: Int
    """Of all groups."""

    def size(self) -> Int:
        """Elements for a channel."""
        return self.at.taps() * self.images * self.at.pixels()

    def fill[
        T: DType, to: Origin[mut=True], of: Origin, //
    ](self, columns: Pointer[Scalar[T], to], image: Pointer[Scalar[T], of], channel: Int):
        """Lay out a channel of all images."""
        var at = self.at
        var plane = at.depth * at.height * at.width
        var line = columns.unsafe_offset(channel * self.size())
        for tap in range(at.taps()):
            var from_d = tap // (at.taps_h * at.taps_w) * at.dilation_d - at.pad_d
            var from_h = tap // at.taps_w % at.taps_h * at.dilation_h - at.pad_h
            var from_w = tap % at.taps_w * at.dilation_w - at.pad_w
            for i in range(self.images):
                var source = image.unsafe_offset((i * self.channels + channel) * plane)
                if at.is_plain():
                    copy_run(line, source, 0, 1, plane, plane)
                    line = line.unsafe_offset(plane)
                    continue
                for row in range(at.out_depth * at.out_height):
                    var d = row // at.out_height * at.stride_d + from_d
                    var h = row % at.out_height * at.stride_h + from_h
                    for w in range(at.out_width):
                        line[unsafe_offset=w] = 0
                    if d >= 0 and d < at.depth and h >= 0 and h < at.height:
                        var above = source.unsafe_offset((d * at.height + h) * at.width)
                        copy_run(line, above, from_w, at.stride_w, at.width, at.out_width)
                    line = line.unsafe_offset(at.out_width)

    def fill_all[
        T: DType, to: Origin[mut=True], of: Origin, //
    ](self, columns: Pointer[Scalar[T], to], image: Pointer[Scalar[T], of]):
        """Lay out all channels, in tasks."""
        var layout = self
        var tasks = min(max(self.channels * self.size() // (TASK // 8), 1), min(TASKS, self.channels))

        def some(task: Int) {var layout, var columns, var image, var tasks}:
            for channel in range(layout.channels * task // tasks, layout.channels * (task + 1) // tasks):
                layout.fill(columns, image, channel)

        sync_parallelize(some, tasks)


@extensibility.register("tmb_filter_gradients_at_once")
struct FilterGradientsAtOnce:
    """`[groups, F / groups, C / groups * taps]` by one product for a group, over the pixels of all images.

    Operands are those of `tmb_filter_gradients`, which needs less memory and wants many pixels and filters.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=3, ...],
        gradient: InputTensor[dtype=result.dtype, rank=5, ...],
        image: InputTensor[dtype=result.dtype, rank=5, ...],
        numbers: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target == "cpu", "tmb_filter_gradients_at_once runs on CPUs"
        comptime assert result.dtype == sum_type[result.dtype](), "the result has the type of sums"
        differentiate_at_once(
            result.unsafe_ptr(),
            gradient.unsafe_ptr(),
            image.unsafe_ptr(),
            window_of(result.dim_size(0), gradient, image, numbers),
            image.dim_size(0),
            result.dim_size(0),
            result.dim_size(1),
        )


@no_inline
def differentiate_at_once[
    T: DType, of_result: Origin[mut=True], of_g: Origin, of_x: Origin, //
](
    result: Pointer[Scalar[T], of_result],
    gradient: Pointer[Scalar[T], of_g],
    image: Pointer[Scalar[T], of_x],
    at: Window,
    images: Int,
    groups: Int,
    features: Int,
):
    """Not part of the kernel, which is compiled for every shape."""
    var taps = at.channels * at.taps()
    var depth = images * at.pixels()
    var of_image = Unfolded(at, images, at.channels * groups)
    var pixel = Window(features, 1, 1, at.pixels(), 1, 1, at.pixels(), 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1)
    var of_gradient = Unfolded(pixel, images, features * groups)
    var columns = unsafe_alloc[Scalar[T]](max(groups * taps * depth, 1), alignment=64)
    var rows = unsafe_alloc[Scalar[T]](max(groups * features * depth, 1), alignment=64)
    of_image.fill_all(columns, image)
    of_gradient.fill_all(rows, gradient)
    multiply_matrices[True](result, rows, columns, groups, features, taps, depth)
    columns.unsafe_free()
    rows.unsafe_free()
