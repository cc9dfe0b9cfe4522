"""Gradients of convolutions of planes with a filter of their own each, on a CPU.

Planes are laid out for all taps at once (`cpu/depthwise_convolution.mojo`), small ones turned, so that vectors hold channels
(`cpu/small_depthwise_convolution.mojo`). Zeros that are multiplied make NaN of infinities: where that may be, sums are taken one by one.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.algorithm import sync_parallelize
from max.gpu.host import DeviceContext
from std.math import ceildiv
from std.memory import stack_allocation
from std.memory.alloc import unsafe_alloc
from std.sys.info import simd_width_of

from .gemm import FEW_TASK, TASKS, plus_product
from .depthwise_convolution import CHEAP, Axis, Grid, are_finite, weighted_sums
from .small_depthwise_convolution import Small, is_small


@fieldwise_init
struct Gradients[T: DType, of_result: Origin[mut=True], of_grad: Origin, of_other: Origin, //](
    Deinitable, ImplicitlyCopyable
):
    """Gradients of images or filters, of `channels` that have a filter each."""

    var result: Pointer[Scalar[Self.T], Self.of_result]
    var grad: Pointer[Scalar[Self.T], Self.of_grad]
    var other: Pointer[Scalar[Self.T], Self.of_other]
    """The filters, or the images."""
    var at: Grid
    var images: Int
    var channels: Int

    @no_inline
    def images_of(self, channel: Int):
        """The gradient of a channel of all images: of each phase, sums over the taps that read it."""
        var at = self.at
        var apart = at.room[Self.T]()
        var taps = self.other.unsafe_offset(channel * at.taps())
        var is_finite = are_finite(taps, at.taps())
        var sums = unsafe_alloc[Scalar[Self.T]](apart, alignment=64)
        var room = unsafe_alloc[Scalar[Self.T]](2 * apart, alignment=64)
        var weights = unsafe_alloc[Scalar[Self.T]](at.taps())
        var places = unsafe_alloc[Int](at.taps())
        for image in range(self.images):
            var plane = image * self.channels + channel
            var grad = self.grad.unsafe_offset(plane * at.pixels())
            var result = self.result.unsafe_offset(plane * at.size())
            for i in range(at.size()):
                result[unsafe_offset=i] = 0
            if not is_finite:
                for pixel in range(at.pixels()):
                    for tap in range(at.taps()):
                        var source = at.source(pixel, tap)
                        if source >= 0:
                            result[unsafe_offset=source] += grad[unsafe_offset=pixel] * taps[unsafe_offset=tap]
                continue
            at.spread(room, grad)
            for phase in range(at.phases()):
                var count = 0
                for tap in range(at.taps()):
                    if at.phase(tap) == phase:
                        weights[unsafe_offset=count] = taps[unsafe_offset=tap]
                        places[unsafe_offset=count] = apart - at.shift(tap)
                        count += 1
                weighted_sums(sums, room, weights, places, count, at.elements())
                at.gather(result, phase, sums)
        sums.unsafe_free()
        room.unsafe_free()
        weights.unsafe_free()
        places.unsafe_free()

    @no_inline
    def filters_of(self, channel: Int):
        """The gradient of a channel's filter."""
        comptime lanes = simd_width_of[Self.T]()
        var at = self.at
        var apart = at.room[Self.T]()
        var room = unsafe_alloc[Scalar[Self.T]]((2 + at.phases()) * apart, alignment=64)
        var sums = unsafe_alloc[SIMD[Self.T, lanes]](at.taps(), alignment=64)
        for tap in range(at.taps()):
            sums[unsafe_offset=tap] = 0
        for image in range(self.images):
            var plane = image * self.channels + channel
            at.spread(room, self.grad.unsafe_offset(plane * at.pixels()))
            at.lay_out(room.unsafe_offset(2 * apart), self.other.unsafe_offset(plane * at.size()))
            for tap in range(at.taps()):
                var source = room.unsafe_offset((2 + at.phase(tap)) * apart + at.shift(tap))
                var grad = room.unsafe_offset(apart)
                var some = stack_allocation[2, SIMD[Self.T, lanes]]()
                some[unsafe_offset=0] = sums[unsafe_offset=tap]
                some[unsafe_offset=1] = 0
                for i in range(0, at.length(), 2 * lanes):
                    comptime for j in range(2):
                        var g = grad.unsafe_load[width=lanes](i + j * lanes)
                        var x = source.unsafe_load[width=lanes](i + j * lanes)
                        some[unsafe_offset=j] = plus_product(some[unsafe_offset=j], g, x)
                sums[unsafe_offset=tap] = some[unsafe_offset=0] + some[unsafe_offset=1]
        var result = self.result.unsafe_offset(channel * at.taps())
        for tap in range(at.taps()):
            result[unsafe_offset=tap] = sums[unsafe_offset=tap].reduce_add()
        if not are_finite(result, at.taps()):
            for tap in range(at.taps()):
                var total = Scalar[Self.T](0)
                for image in range(self.images):
                    var plane = image * self.channels + channel
                    for pixel in range(at.pixels()):
                        var source = at.source(pixel, tap)
                        if source >= 0:
                            var x = self.other[unsafe_offset = plane * at.size() + source]
                            total += self.grad[unsafe_offset = plane * at.pixels() + pixel] * x
                result[unsafe_offset=tap] = total
        room.unsafe_free()
        sums.unsafe_free()

    @no_inline
    def images_of_small(self, first: Int):
        """The gradients of all images' channels from `first` on, as many as a vector holds."""
        var small = Small[Self.T](self.at)
        var count = min(self.channels - first, small.lanes)
        small.read_filters(self.other.unsafe_offset(first * self.at.taps()), count)
        for image in range(self.images):
            var plane = image * self.channels + first
            small.read_result(self.grad.unsafe_offset(plane * self.at.pixels()), count)
            small.spread()
            small.write_image(self.result.unsafe_offset(plane * self.at.size()), count)
        small^.free()

    @no_inline
    def filters_of_small(self, first: Int):
        """The gradients of the filters of channels from `first` on, as many as a vector holds."""
        var small = Small[Self.T](self.at)
        var count = min(self.channels - first, small.lanes)
        small.clear_filters()
        for image in range(self.images):
            var plane = image * self.channels + first
            small.read_result(self.grad.unsafe_offset(plane * self.at.pixels()), count)
            small.read_image(self.other.unsafe_offset(plane * self.at.size()), count)
            small.correlate()
        small.write_filters(self.result.unsafe_offset(first * self.at.taps()), count)
        small^.free()

    @no_inline
    def all[of_filters: Bool](self):
        """Those of all channels, in tasks. Not part of the op, which is compiled for every shape."""
        comptime lanes = simd_width_of[Self.T]()
        var job = self
        var work = self.images * self.at.pixels() * self.at.taps()
        if is_small[Self.T](self.at, self.channels):
            var blocks = ceildiv(self.channels, lanes)
            var few = min(max(self.channels * work // (CHEAP * FEW_TASK), 1), min(TASKS, blocks))

            def vectors(task: Int) {var job, var blocks, var few}:
                for block in range(blocks * task // few, blocks * (task + 1) // few):
                    comptime if of_filters:
                        job.filters_of_small(block * lanes)
                    else:
                        job.images_of_small(block * lanes)

            sync_parallelize(vectors, few)
            return
        var tasks = min(max(self.channels * work // (CHEAP * FEW_TASK), 1), min(TASKS, self.channels))

        def some(task: Int) {var job, var tasks}:
            for channel in range(job.channels * task // tasks, job.channels * (task + 1) // tasks):
                comptime if of_filters:
                    job.filters_of(channel)
                else:
                    job.images_of(channel)

        sync_parallelize(some, tasks)


@extensibility.register("tmb_depthwise_image_gradient")
struct ImageGradient:
    """The gradient `[N, C, H, W]` of images that filters `[C, 1, KH, KW]` of their channels saw, from the result's.

    `numbers` has the strides, the paddings in front and the dilations of H and W.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=4, ...],
        grad: InputTensor[dtype=result.dtype, rank=4, ...],
        filters: InputTensor[dtype=result.dtype, rank=4, ...],
        numbers: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target == "cpu", "tmb_depthwise_image_gradient runs on CPUs"
        var n = numbers.unsafe_ptr()
        var at = Grid(
            axis_of(result.dim_size(2), grad.dim_size(2), filters.dim_size(2), n),
            axis_of(result.dim_size(3), grad.dim_size(3), filters.dim_size(3), n.unsafe_offset(1)),
        )
        var images, channels = result.dim_size(0), result.dim_size(1)
        Gradients(result.unsafe_ptr(), grad.unsafe_ptr(), filters.unsafe_ptr(), at, images, channels).all[False]()


@extensibility.register("tmb_depthwise_filter_gradient")
struct FilterGradient:
    """The gradient `[C, 1, KH, KW]` of filters of the channels of `image` [N, C, H, W], from the result's.

    `numbers` is as that of `tmb_depthwise_image_gradient`.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=4, ...],
        grad: InputTensor[dtype=result.dtype, rank=4, ...],
        image: InputTensor[dtype=result.dtype, rank=4, ...],
        numbers: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target == "cpu", "tmb_depthwise_filter_gradient runs on CPUs"
        var n = numbers.unsafe_ptr()
        var at = Grid(
            axis_of(image.dim_size(2), grad.dim_size(2), result.dim_size(2), n),
            axis_of(image.dim_size(3), grad.dim_size(3), result.dim_size(3), n.unsafe_offset(1)),
        )
        var images, channels = image.dim_size(0), image.dim_size(1)
        Gradients(result.unsafe_ptr(), grad.unsafe_ptr(), image.unsafe_ptr(), at, images, channels).all[True]()


def axis_of[of: Origin, //](size: Int, out_size: Int, taps: Int, numbers: Pointer[Int64, of]) -> Axis:
    """The axis whose stride, padding and dilation are the first, third and fifth of `numbers`."""
    var stride, pad, dilation = numbers[unsafe_offset=0], numbers[unsafe_offset=2], numbers[unsafe_offset=4]
    return Axis(size, out_size, taps, Int(stride), Int(pad), Int(dilation))
