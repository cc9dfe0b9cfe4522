"""Batch norms in training on a CPU: all numbers of a channel by one kernel, compiled once for all sizes.

A channel is read twice for its mean and its variance, and once for the sums that gradients need. Sums of `PIECE` elements
are taken in the dtype of the results, and these are added up in float64.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.algorithm import sync_parallelize
from max.gpu.host import DeviceContext
from std.math import sqrt
from std.sys.info import simd_width_of

from .gemm import TASKS
from ..gpu.row_threads import Results, Values

comptime PIECE = 1024
"""Elements whose sum is taken in the dtype of the results, and up to twice as many."""
comptime FEW = 4
"""Lanes for the last of a plane's elements."""
comptime TASK = 1 << 15
"""Elements that are worth a task of their own."""

comptime SUM = 0
"""Of the elements."""
comptime SQUARES = 1
"""Of their distances to a centre."""
comptime PRODUCTS = 2
"""Of other elements, and of these times the distances."""


@fieldwise_init
struct Images(ImplicitlyCopyable):
    """The sizes of `[images, channels, pixels]`."""

    var images: Int
    var channels: Int
    var pixels: Int

    def count(self) -> Int:
        """Elements of a channel."""
        return self.images * self.pixels

    def tasks(self) -> Int:
        """In how many parts channels are shared out."""
        return min(max(self.channels * self.count() // TASK, 1), min(TASKS, self.channels))


@fieldwise_init
struct Sums[A: DType, w: Int](TrivialRegisterPassable):
    """Two sums, of which some kinds have one only."""

    var plain: SIMD[Self.A, Self.w]
    var along: SIMD[Self.A, Self.w]

    @always_inline
    def add[
        kind: Int, X: DType, G: DType
    ](mut self, x: Values[X], g: Values[G], i: Int, centre: Scalar[Self.A]):
        """Add what `w` elements from the `i`th on give."""
        var away = x.unsafe_load[width=Self.w](i).cast[Self.A]() - centre
        comptime if kind == SUM:
            self.plain += away
        elif kind == SQUARES:
            self.plain += away * away
        else:
            var grad = g.unsafe_load[width=Self.w](i).cast[Self.A]()
            self.plain += grad
            self.along += grad * away

    @always_inline
    def taken(mut self) -> SIMD[DType.float64, 2]:
        """Those of all lanes, which begin anew."""
        var plain, along = self.plain.reduce_add(), self.along.reduce_add()
        self.plain, self.along = 0, 0
        return SIMD[DType.float64, 2](plain.cast[DType.float64](), along.cast[DType.float64]())


@no_inline
def of_channel[
    X: DType, G: DType, //, kind: Int, A: DType
](x: Values[X], g: Values[G], of: Images, channel: Int, centre: Scalar[A]) -> SIMD[DType.float64, 2]:
    """The sums of a `kind` over a channel of `x`, and of `g` if it is of products."""
    comptime lanes = simd_width_of[A]()
    var all = SIMD[DType.float64, 2](0)
    var wide, plain = Sums[A, 4 * lanes](0, 0), Sums[A, lanes](0, 0)
    var few, one = Sums[A, FEW](0, 0), Sums[A, 1](0, 0)
    var held = 0
    for image in range(of.images):
        var i = (image * of.channels + channel) * of.pixels
        var end = i + of.pixels
        while i < end:
            var piece_end = min(i + PIECE, end)
            held += piece_end - i
            while i + 4 * lanes <= piece_end:
                wide.add[kind](x, g, i, centre)
                i += 4 * lanes
            while i + lanes <= piece_end:
                plain.add[kind](x, g, i, centre)
                i += lanes
            while i + FEW <= piece_end:
                few.add[kind](x, g, i, centre)
                i += FEW
            while i < piece_end:
                one.add[kind](x, g, i, centre)
                i += 1
            if held >= PIECE:
                all += wide.taken() + plain.taken() + few.taken() + one.taken()
                held = 0
    return all + wide.taken() + plain.taken() + few.taken() + one.taken()


@no_inline
def describe[
    X: DType, A: DType, //, is_scaled: Bool, is_shifted: Bool
](
    mean: Results[A],
    rstd: Results[A],
    scale: Results[A],
    shift: Results[A],
    moved_mean: Results[A],
    moved_variance: Results[A],
    x: Values[X],
    weight: Values[A],
    bias: Values[A],
    running_mean: Values[A],
    running_variance: Values[A],
    momentum: Scalar[A],
    epsilon: Scalar[A],
    of: Images,
):
    """What `ChannelStatistics` gives."""
    var tasks = of.tasks()

    def some(task: Int) {
        var mean,
        var rstd,
        var scale,
        var shift,
        var moved_mean,
        var moved_variance,
        var x,
        var weight,
        var bias,
        var running_mean,
        var running_variance,
        var momentum,
        var epsilon,
        var of,
        var tasks,
    }:
        var size = Float64(of.count())
        for c in range(of.channels * task // tasks, of.channels * (task + 1) // tasks):
            var centre = (of_channel[SUM, A](x, x, of, c, 0)[0] / size).cast[A]()
            var squares = of_channel[SQUARES, A](x, x, of, c, centre)[0]
            var root = (1 / sqrt(squares / size + epsilon.cast[DType.float64]())).cast[A]()
            var factor = root
            comptime if is_scaled:
                factor *= weight[unsafe_offset=c]
            var addend = -centre * factor
            comptime if is_shifted:
                addend += bias[unsafe_offset=c]
            mean[unsafe_offset=c] = centre
            rstd[unsafe_offset=c] = root
            scale[unsafe_offset=c] = factor
            shift[unsafe_offset=c] = addend
            var kept = 1 - momentum
            var unbiased = (squares / (size - 1)).cast[A]()
            moved_mean[unsafe_offset=c] = running_mean[unsafe_offset=c] * kept + centre * momentum
            moved_variance[unsafe_offset=c] = running_variance[unsafe_offset=c] * kept + unbiased * momentum

    sync_parallelize(some, tasks)


@extensibility.register("tmb_channel_statistics")
struct ChannelStatistics[is_scaled: Bool, is_shifted: Bool]:
    """The mean of each channel, 1 / the root of its variance, what to multiply it by, what to add then, and statistics.

    `x` is [images, channels, pixels], the others [channels]. The statistics are the running ones, moved by `momentum`
    towards the batch's. What is not given, `weight` or `bias`, is not read.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        mean: OutputTensor[rank=1, ...],
        rstd: OutputTensor[dtype=mean.dtype, rank=1, ...],
        scale: OutputTensor[dtype=mean.dtype, rank=1, ...],
        shift: OutputTensor[dtype=mean.dtype, rank=1, ...],
        moved_mean: OutputTensor[dtype=mean.dtype, rank=1, ...],
        moved_variance: OutputTensor[dtype=mean.dtype, rank=1, ...],
        x: InputTensor[rank=3, ...],
        weight: InputTensor[dtype=mean.dtype, rank=1, ...],
        bias: InputTensor[dtype=mean.dtype, rank=1, ...],
        running_mean: InputTensor[dtype=mean.dtype, rank=1, ...],
        running_variance: InputTensor[dtype=mean.dtype, rank=1, ...],
        momentum: Scalar[mean.dtype],
        epsilon: Scalar[mean.dtype],
        ctx: DeviceContext,
    ) raises:
        comptime assert target == "cpu", "tmb_channel_statistics runs on CPUs"
        describe[Self.is_scaled, Self.is_shifted](
            mean.unsafe_ptr(),
            rstd.unsafe_ptr(),
            scale.unsafe_ptr(),
            shift.unsafe_ptr(),
            moved_mean.unsafe_ptr(),
            moved_variance.unsafe_ptr(),
            x.unsafe_ptr().as_imm(),
            weight.unsafe_ptr().as_imm(),
            bias.unsafe_ptr().as_imm(),
            running_mean.unsafe_ptr().as_imm(),
            running_variance.unsafe_ptr().as_imm(),
            momentum,
            epsilon,
            Images(x.dim_size(0), x.dim_size(1), x.dim_size(2)),
        )


@no_inline
def describe_gradients[
    X: DType, G: DType, A: DType, //, is_scaled: Bool
](
    of_weight: Results[A],
    of_bias: Results[A],
    offset: Results[A],
    factor: Results[A],
    scale: Results[A],
    grad: Values[G],
    x: Values[X],
    mean: Values[A],
    rstd: Values[A],
    weight: Values[A],
    of: Images,
):
    """What `ChannelGradients` gives."""
    var tasks = of.tasks()

    def some(task: Int) {
        var of_weight,
        var of_bias,
        var offset,
        var factor,
        var scale,
        var grad,
        var x,
        var mean,
        var rstd,
        var weight,
        var of,
        var tasks,
    }:
        var size = Float64(of.count())
        for c in range(of.channels * task // tasks, of.channels * (task + 1) // tasks):
            var sums = of_channel[PRODUCTS, A](x, grad, of, c, mean[unsafe_offset=c])
            var root = rstd[unsafe_offset=c]
            var along = sums[1] * root.cast[DType.float64]()
            of_weight[unsafe_offset=c] = along.cast[A]()
            of_bias[unsafe_offset=c] = sums[0].cast[A]()
            offset[unsafe_offset=c] = (sums[0] / size).cast[A]()
            factor[unsafe_offset=c] = (along / size).cast[A]() * root
            comptime if is_scaled:
                root *= weight[unsafe_offset=c]
            scale[unsafe_offset=c] = root

    sync_parallelize(some, tasks)


@extensibility.register("tmb_channel_gradients")
struct ChannelGradients[is_scaled: Bool]:
    """A batch norm's gradients for its weight and bias, and three numbers for each channel.

    The gradient of its input is `(grad - offset + (mean - x) * factor) * scale`. `grad` and `x` are [images, channels,
    pixels], the others [channels]. `weight` is not read if there is none.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        of_weight: OutputTensor[rank=1, ...],
        of_bias: OutputTensor[dtype=of_weight.dtype, rank=1, ...],
        offset: OutputTensor[dtype=of_weight.dtype, rank=1, ...],
        factor: OutputTensor[dtype=of_weight.dtype, rank=1, ...],
        scale: OutputTensor[dtype=of_weight.dtype, rank=1, ...],
        grad: InputTensor[rank=3, ...],
        x: InputTensor[rank=3, ...],
        mean: InputTensor[dtype=of_weight.dtype, rank=1, ...],
        rstd: InputTensor[dtype=of_weight.dtype, rank=1, ...],
        weight: InputTensor[dtype=of_weight.dtype, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target == "cpu", "tmb_channel_gradients runs on CPUs"
        describe_gradients[Self.is_scaled](
            of_weight.unsafe_ptr(),
            of_bias.unsafe_ptr(),
            offset.unsafe_ptr(),
            factor.unsafe_ptr(),
            scale.unsafe_ptr(),
            grad.unsafe_ptr().as_imm(),
            x.unsafe_ptr().as_imm(),
            mean.unsafe_ptr().as_imm(),
            rstd.unsafe_ptr().as_imm(),
            weight.unsafe_ptr().as_imm(),
            Images(x.dim_size(0), x.dim_size(1), x.dim_size(2)),
        )
