"""Convolutions on a CPU: products of the filters with the windows of an image, which are laid out a panel at a time."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.algorithm import sync_parallelize
from max.gpu.host import DeviceContext
from std.math import ceildiv, sqrt
from std.memory import stack_allocation
from std.memory.alloc import unsafe_alloc
from std.sys.info import simd_width_of

from .gemm import FEW_TASK, TASKS, AsTheyAre, Finish, Matrices, Source, has_pairs, multiply_all, plus_product
from .depthwise_convolution import CHEAP, Axis, Grid, are_finite, convolve_plane, copy_run
from .small_depthwise_convolution import Small, is_small

comptime FEW_FILTERS = 4
"""With fewer filters for a channel, windows are not worth laying out."""
comptime FEW_PIXELS = 64
"""With fewer pixels in a result, several images share a panel."""


@fieldwise_init
struct Window(Deinitable, ImplicitlyCopyable):
    """Which places of an image the filters see: one number per spatial axis, the last one changing fastest."""

    var channels: Int
    """Channels of a group."""
    var depth: Int
    var height: Int
    var width: Int
    var out_depth: Int
    var out_height: Int
    var out_width: Int
    var taps_d: Int
    var taps_h: Int
    var taps_w: Int
    var stride_d: Int
    var stride_h: Int
    var stride_w: Int
    var pad_d: Int
    var pad_h: Int
    var pad_w: Int
    var dilation_d: Int
    var dilation_h: Int
    var dilation_w: Int

    def pixels(self) -> Int:
        """Places of the result."""
        return self.out_depth * self.out_height * self.out_width

    def size(self) -> Int:
        """Elements of a group of channels."""
        return self.channels * self.depth * self.height * self.width

    def taps(self) -> Int:
        """Elements of a filter for one channel."""
        return self.taps_d * self.taps_h * self.taps_w

    def is_plain(self) -> Bool:
        """Whether every place of the result sees one place of the image, the same one."""
        var whole = self.pixels() * self.channels == self.size()
        return whole and self.taps() == 1 and self.pad_d + self.pad_h + self.pad_w == 0


@fieldwise_init
struct Windows[of: Origin, //, dtype: DType](Source):
    """`[channels * taps, pixels]` of every image and group: what each tap sees of each channel.

    Pixels beyond those of an image are the next one's.
    """

    var data: Pointer[Scalar[Self.dtype], Self.of]
    var at: Window

    def pack[
        P: DType, to: Origin[mut=True], //, width: Int
    ](self, item: Int, panel: Pointer[Scalar[P], to], k: Int, depth: Int, column: Int, columns: Int):
        comptime assert not has_pairs[P](), "windows are laid out in the type of sums"
        var at = self.at
        # The panel's columns as runs along a row of the result.
        var runs = 0
        var run_column = stack_allocation[width, Int]()
        var run_length = stack_allocation[width, Int]()
        var run_d = stack_allocation[width, Int]()
        var run_h = stack_allocation[width, Int]()
        var run_w = stack_allocation[width, Int]()
        var run_image = stack_allocation[width, Int]()
        var done = 0
        while done < columns:
            var image = (column + done) // at.pixels()
            var pixel = (column + done) % at.pixels()
            var w = pixel % at.out_width
            var row = pixel // at.out_width
            var length = min(columns - done, at.out_width - w)
            run_column[unsafe_offset=runs] = done
            run_length[unsafe_offset=runs] = length
            run_d[unsafe_offset=runs] = row // at.out_height * at.stride_d - at.pad_d
            run_h[unsafe_offset=runs] = row % at.out_height * at.stride_h - at.pad_h
            run_w[unsafe_offset=runs] = w * at.stride_w - at.pad_w
            run_image[unsafe_offset=runs] = image * at.size()
            runs += 1
            done += length
        var tap = k % at.taps()
        var plane = self.data.unsafe_offset(item * at.size() + k // at.taps() * at.depth * at.height * at.width)
        for i in range(depth):
            var line = panel.unsafe_offset(i * width)
            line.unsafe_store(0, SIMD[P, width](0))
            var shift_w = tap % at.taps_w * at.dilation_w
            var shift_h = tap // at.taps_w % at.taps_h * at.dilation_h
            var shift_d = tap // (at.taps_w * at.taps_h) * at.dilation_d
            for run in range(runs):
                var d = run_d[unsafe_offset=run] + shift_d
                var h = run_h[unsafe_offset=run] + shift_h
                if d >= 0 and d < at.depth and h >= 0 and h < at.height:
                    copy_run(
                        line.unsafe_offset(run_column[unsafe_offset=run]),
                        plane.unsafe_offset(run_image[unsafe_offset=run] + (d * at.height + h) * at.width),
                        run_w[unsafe_offset=run] + shift_w,
                        at.stride_w,
                        at.width,
                        run_length[unsafe_offset=run],
                    )
            tap += 1
            if tap == at.taps():
                tap = 0
                plane = plane.unsafe_offset(at.depth * at.height * at.width)


@fieldwise_init
struct Together[T: DType, F: Finish, of_result: Origin[mut=True], of_sums: Origin, //](Deinitable, ImplicitlyCopyable):
    """Sums `[features, images * pixels]`, which become the result `[images, features, pixels]`."""

    var result: Pointer[Scalar[Self.T], Self.of_result]
    var sums: Pointer[Scalar[Self.T], Self.of_sums]
    var finish: Self.F
    var images: Int
    var features: Int
    var pixels: Int

    @no_inline
    def move(self, image: Int):
        """Finish an image."""
        comptime most = simd_width_of[Self.T]()
        for feature in range(self.features):
            var line = self.result.unsafe_offset((image * self.features + feature) * self.pixels)
            var total = self.sums.unsafe_offset((feature * self.images + image) * self.pixels)
            var j = 0
            comptime for lanes in [most, 1]:
                while j + lanes <= self.pixels:
                    line.unsafe_store(j, self.finish.apply[lanes](total.unsafe_load[width=lanes](j), image, feature, j))
                    j += lanes

    def move_all(self):
        """Finish all images, in tasks."""
        var job = self
        var tasks = min(max(self.images * self.features * self.pixels // FEW_TASK, 1), self.images)

        def some(task: Int) {var job, var tasks}:
            for image in range(job.images * task // tasks, job.images * (task + 1) // tasks):
                job.move(image)

        sync_parallelize(some, tasks)


# -- what follows a convolution ----------------------------------------------------------------------------------------
@fieldwise_init
struct Epilogue[T: DType, of_scale: Origin, of_shift: Origin, of_addend: Origin, //](Finish):
    """A scale and a shift for every filter, a tensor like the result to add, and bounds: what a plane becomes."""

    var scale: Pointer[Scalar[Self.T], Self.of_scale]
    var shift: Pointer[Scalar[Self.T], Self.of_shift]
    var addend: Pointer[Scalar[Self.T], Self.of_addend]
    var groups: Int
    var features: Int
    """Filters of a group."""
    var pixels: Int
    var scales: Bool
    var adds: Bool
    var low: Scalar[Self.T]
    var high: Scalar[Self.T]

    @always_inline
    def apply[
        W: DType, //, lanes: Int
    ](self, totals: SIMD[W, lanes], item: Int, row: Int, column: Int) -> SIMD[W, lanes]:
        var y = totals
        if self.scales:
            var feature = item % self.groups * self.features + row
            var scale = SIMD[W, lanes](self.scale[unsafe_offset=feature].cast[W]())
            y = plus_product(SIMD[W, lanes](self.shift[unsafe_offset=feature].cast[W]()), y, scale)
        if self.adds:
            var place = (item * self.features + row) * self.pixels + column
            y += self.addend.unsafe_load[width=lanes](place).cast[W]()
        var low = SIMD[W, lanes](self.low.cast[W]())
        var high = SIMD[W, lanes](self.high.cast[W]())
        y = y.lt(low).select(low, y)  # so that NaN stays
        return y.gt(high).select(high, y)


# -- few filters for a channel -----------------------------------------------------------------------------------------
def grid_of(at: Window) -> Grid:
    """The layout of the planes of images of one depth."""
    return Grid(
        Axis(at.height, at.out_height, at.taps_h, at.stride_h, at.pad_h, at.dilation_h),
        Axis(at.width, at.out_width, at.taps_w, at.stride_w, at.pad_w, at.dilation_w),
    )


@fieldwise_init
struct Planes[T: DType, F: Finish, of_result: Origin[mut=True], of_x: Origin, of_filters: Origin, //](
    Deinitable, ImplicitlyCopyable
):
    """A convolution, one plane of the result at a time."""

    var result: Pointer[Scalar[Self.T], Self.of_result]
    var image: Pointer[Scalar[Self.T], Self.of_x]
    var filters: Pointer[Scalar[Self.T], Self.of_filters]
    var finish: Self.F
    var at: Window
    var features: Int
    """Filters of a group."""
    var groups: Int

    @no_inline
    def compute(self, plane: Int):
        """The plane of one image and filter."""
        var at = self.at
        var group = plane // self.features
        var result = self.result.unsafe_offset(plane * at.pixels())
        for i in range(at.pixels()):
            result[unsafe_offset=i] = 0
        var count = self.features * self.groups
        var taps = self.filters.unsafe_offset(plane % count * at.channels * at.taps())
        var image = self.image.unsafe_offset(group * at.size())
        for row in range(at.out_depth * at.out_height):
            var line = result.unsafe_offset(row * at.out_width)
            for i in range(at.channels * at.taps_d * at.taps_h):
                var d = row // at.out_height * at.stride_d - at.pad_d + i // at.taps_h % at.taps_d * at.dilation_d
                var h = row % at.out_height * at.stride_h - at.pad_h + i % at.taps_h * at.dilation_h
                if d >= 0 and d < at.depth and h >= 0 and h < at.height:
                    var channel = i // (at.taps_h * at.taps_d)
                    var source = image.unsafe_offset(((channel * at.depth + d) * at.height + h) * at.width)
                    for tap in range(at.taps_w):
                        var factor = taps[unsafe_offset=i * at.taps_w + tap]
                        add_row(line, source, factor, tap * at.dilation_w - at.pad_w, at.stride_w, at.width, at.out_width)
            self.finish_row(plane, row * at.out_width)

    @always_inline
    def finish_row(self, plane: Int, first: Int):
        """Finish the row of the result whose first pixel is `first`."""
        var line = self.result.unsafe_offset(plane * self.at.pixels() + first)
        comptime most = simd_width_of[Self.T]()
        var item = plane // self.features
        var feature = plane % self.features
        var j = 0
        comptime for lanes in [most, 1]:
            while j + lanes <= self.at.out_width:
                var total = line.unsafe_load[width=lanes](j)
                line.unsafe_store(j, self.finish.apply[lanes](total, item, feature, first + j))
                j += lanes

    def compute_all(self, count: Int):
        """`count` planes, in tasks."""
        var job = self
        var at = self.at
        var work = at.pixels() * at.channels * at.taps()
        var is_flat = at.channels == 1 and at.depth == 1 and at.out_depth == 1 and at.taps_d == 1
        if is_flat and self.features == 1 and is_small[Self.T](grid_of(at), self.groups):
            var images = count // self.groups
            var vectors = images * ceildiv(self.groups, simd_width_of[Self.T]())
            var few = min(max(count * work // (FEW_TASK * CHEAP), 1), min(TASKS, vectors))

            def turned(task: Int) {var job, var images, var vectors, var few}:
                job.compute_small(vectors * task // few, vectors * (task + 1) // few, images)

            sync_parallelize(turned, few)
            return
        var tasks = min(max(count * work // (FEW_TASK * (CHEAP if is_flat else 1)), 1), min(TASKS, count))

        def some(task: Int) {var job, var count, var tasks, var is_flat}:
            var first, last = count * task // tasks, count * (task + 1) // tasks
            if is_flat:
                job.compute_flat(first, last)
            else:
                for plane in range(first, last):
                    job.compute(plane)

        sync_parallelize(some, tasks)

    @no_inline
    def compute_small(self, first: Int, last: Int, images: Int):
        """Vectors of channels from `first` on, each in the first image, then in the second, and so on."""
        var small = Small[Self.T](grid_of(self.at))
        for item in range(first, last):
            var channel = item // images * small.lanes
            var count = min(self.groups - channel, small.lanes)
            if item == first or item % images == 0:
                small.read_filters(self.filters.unsafe_offset(channel * self.at.taps()), count)
            var plane = item % images * self.groups + channel
            small.read_image(self.image.unsafe_offset(plane * self.at.size()), count)
            small.convolve()
            small.write_result(self.result.unsafe_offset(plane * self.at.pixels()), count)
            for i in range(plane, plane + count):
                for row in range(self.at.out_height):
                    self.finish_row(i, row * self.at.out_width)
        small^.free()

    @no_inline
    def compute_flat(self, first: Int, last: Int):
        """Planes from `first` on, each of one channel's plane."""
        var at = self.at
        var grid = grid_of(at)
        var sums = unsafe_alloc[Scalar[Self.T]](grid.room[Self.T](), alignment=64)
        var room = unsafe_alloc[Scalar[Self.T]](grid.phases() * grid.room[Self.T](), alignment=64)
        var places = unsafe_alloc[Int](at.taps())
        for plane in range(first, last):
            var taps = self.filters.unsafe_offset(plane % (self.features * self.groups) * at.taps())
            if not are_finite(taps, at.taps()):
                self.compute(plane)
                continue
            var result = self.result.unsafe_offset(plane * at.pixels())
            var image = self.image.unsafe_offset(plane // self.features * at.size())
            convolve_plane(result, image, taps, grid, sums, room, places)
            for row in range(at.out_height):
                self.finish_row(plane, row * at.out_width)
        sums.unsafe_free()
        room.unsafe_free()
        places.unsafe_free()


@always_inline
def add_row[
    T: DType, to: Origin[mut=True], of: Origin, //
](line: Pointer[Scalar[T], to], row: Pointer[Scalar[T], of], factor: Scalar[T], start: Int, stride: Int, width: Int, length: Int):
    """Add elements `start`, `start + stride`, … of a row, times a factor, as far as the row has them."""
    comptime lanes = simd_width_of[T]()
    var j = 0
    if start < 0:
        j = ceildiv(-start, stride)
    var last = length
    if start + (length - 1) * stride >= width:
        last = ceildiv(width - start, stride)
    if stride == 1:
        while j + lanes <= last:
            var x = row.unsafe_load[width=lanes](start + j)
            line.unsafe_store(j, plus_product(line.unsafe_load[width=lanes](j), SIMD[T, lanes](factor), x))
            j += lanes
    elif stride == 2:
        while j + lanes <= last and start + (j + lanes) * 2 <= width:
            var pair = row.unsafe_load[width=2 * lanes](start + j * 2).deinterleave()
            var x = rebind[SIMD[T, lanes]](pair[0])
            line.unsafe_store(j, plus_product(line.unsafe_load[width=lanes](j), SIMD[T, lanes](factor), x))
            j += lanes
    while j < last:
        line[unsafe_offset=j] += row[unsafe_offset=start + j * stride] * factor
        j += 1


# -- the op ------------------------------------------------------------------------------------------------------------
@extensibility.register("tmb_convolve")
struct Convolve:
    """`[N, C, D, H, W]` with filters `[F, C / groups, KD, KH, KW]`, and what follows: `clamp(norm(y + bias) + addend)`.

    `numbers` has the strides, the paddings before and the dilations of D, H and W (what is needed behind the far ends
    follows from the size of the result), and whether there are a bias, an inference batch norm, its weight, its bias,
    and an addend; one without is any tensor. `bounds` has the least and the largest value of the result, and the batch
    norm's epsilon.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=5, ...],
        image: InputTensor[dtype=result.dtype, rank=5, ...],
        filters: InputTensor[dtype=result.dtype, rank=5, ...],
        bias: InputTensor[dtype=result.dtype, rank=1, ...],
        mean: InputTensor[dtype=result.dtype, rank=1, ...],
        variance: InputTensor[dtype=result.dtype, rank=1, ...],
        norm_weight: InputTensor[dtype=result.dtype, rank=1, ...],
        norm_bias: InputTensor[dtype=result.dtype, rank=1, ...],
        addend: InputTensor[dtype=result.dtype, rank=5, ...],
        bounds: InputTensor[dtype=DType.float64, rank=1, ...],
        numbers: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target == "cpu", "tmb_convolve runs on CPUs"
        var at = Window(
            filters.dim_size(1),
            image.dim_size(2),
            image.dim_size(3),
            image.dim_size(4),
            result.dim_size(2),
            result.dim_size(3),
            result.dim_size(4),
            filters.dim_size(2),
            filters.dim_size(3),
            filters.dim_size(4),
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
        var count = result.dim_size(1)
        var scale = unsafe_alloc[Scalar[result.dtype]](max(count, 1))
        var shift = unsafe_alloc[Scalar[result.dtype]](max(count, 1))
        set_scales(
            scale,
            shift,
            count,
            bias.unsafe_ptr(),
            mean.unsafe_ptr(),
            variance.unsafe_ptr(),
            norm_weight.unsafe_ptr(),
            norm_bias.unsafe_ptr(),
            bounds[2],
            numbers.unsafe_ptr().unsafe_offset(9),
        )
        var groups = image.dim_size(1) // max(at.channels, 1)
        var features = count // max(groups, 1)
        var scales = Int(numbers[9]) + Int(numbers[10]) > 0
        var low = bounds[0].cast[result.dtype]()
        var high = bounds[1].cast[result.dtype]()
        var adds = Int(numbers[13]) != 0
        var finish = Epilogue(
            scale, shift, addend.unsafe_ptr(), groups, features, at.pixels(), scales, adds, low, high
        )
        var images = image.dim_size(0)
        convolve(result.unsafe_ptr(), image.unsafe_ptr(), filters.unsafe_ptr(), finish, at, images, groups, features)
        scale.unsafe_free()
        shift.unsafe_free()


@no_inline
def set_scales[
    T: DType,
    of_scale: Origin[mut=True],
    of_shift: Origin[mut=True],
    of_bias: Origin,
    of_mean: Origin,
    of_variance: Origin,
    of_norm_weight: Origin,
    of_norm_bias: Origin,
    of_has: Origin,
    //,
](
    scale: Pointer[Scalar[T], of_scale],
    shift: Pointer[Scalar[T], of_shift],
    count: Int,
    bias: Pointer[Scalar[T], of_bias],
    mean: Pointer[Scalar[T], of_mean],
    variance: Pointer[Scalar[T], of_variance],
    norm_weight: Pointer[Scalar[T], of_norm_weight],
    norm_bias: Pointer[Scalar[T], of_norm_bias],
    epsilon: Float64,
    has: Pointer[Scalar[DType.int64], of_has],
):
    """The bias and the batch norm as one multiplication and one sum for each filter; `has` says what there is."""
    for i in range(count):
        var factor = Scalar[T](1)
        var term = Scalar[T](0)
        if has[unsafe_offset=0] != 0:
            term = bias[unsafe_offset=i]
        if has[unsafe_offset=1] != 0:
            factor = 1 / sqrt(variance[unsafe_offset=i] + epsilon.cast[T]())
            if has[unsafe_offset=2] != 0:
                factor *= norm_weight[unsafe_offset=i]
            term = (term - mean[unsafe_offset=i]) * factor
            if has[unsafe_offset=3] != 0:
                term += norm_bias[unsafe_offset=i]
        scale[unsafe_offset=i] = factor
        shift[unsafe_offset=i] = term


@no_inline
def convolve[
    T: DType, F: Finish, of_result: Origin[mut=True], of_x: Origin, of_filters: Origin, //
](
    result: Pointer[Scalar[T], of_result],
    image: Pointer[Scalar[T], of_x],
    filters: Pointer[Scalar[T], of_filters],
    finish: F,
    at: Window,
    images: Int,
    groups: Int,
    features: Int,
):
    """The way that suits the geometry. Not part of the kernel, which is compiled for every shape."""
    var pixels = at.pixels()
    var depth = at.channels * at.taps()
    if pixels * images * groups * features == 0:
        return
    if features < FEW_FILTERS:
        Planes(result, image, filters, finish, at, features, groups).compute_all(images * groups * features)
    elif groups == 1 and images > 1 and pixels < FEW_PIXELS:
        var sums = unsafe_alloc[Scalar[T]](features * images * pixels, alignment=64)
        var across = images * pixels
        multiply_all[False](
            sums, across, filters, Windows[T](image, at), AsTheyAre(), 1, 1, features, across, depth
        )
        Together(result, sums, finish, images, features, pixels).move_all()
        sums.unsafe_free()
    elif at.is_plain():
        var q = Matrices[T, False](image, at.size(), pixels)
        multiply_all[False](result, pixels, filters, q, finish, images * groups, groups, features, pixels, depth)
    else:
        var q = Windows[T](image, at)
        multiply_all[False](result, pixels, filters, q, finish, images * groups, groups, features, pixels, depth)
