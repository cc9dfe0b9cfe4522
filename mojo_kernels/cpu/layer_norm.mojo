"""Layer norms of the rows of a matrix on a CPU, with what their gradients need, and these gradients.

MAX compiles a reduction for every shape, and a norm with its statistics has two of them and four other kernels; these are
compiled once for all sizes. Sums of `PIECE` elements of a row, or of `BLOCK` rows, are taken in the dtype of the
statistics, and these are added up in float64.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.algorithm import sync_parallelize
from max.gpu.host import DeviceContext
from std.math import sqrt
from std.memory.alloc import unsafe_alloc
from std.sys.info import simd_width_of

from .batch_norm import PIECE, TASK, Sums
from .gemm import TASKS
from ..gpu.row_threads import Results, Values

comptime BLOCK = 32
"""Rows whose share in the gradients of weight and bias is added up in the dtype of the statistics."""


@fieldwise_init
struct Matrix(ImplicitlyCopyable):
    """The sizes of `[rows, columns]`."""

    var rows: Int
    var columns: Int

    def tasks(self) -> Int:
        """In how many parts rows are shared out, at least one."""
        return max(min(self.rows * self.columns // TASK, min(TASKS, self.rows)), 1)


@always_inline
def total[
    X: DType, A: DType, //, is_squared: Bool
](x: Values[X], start: Int, columns: Int, centre: Scalar[A]) -> Float64:
    """The sum of a row's distances to `centre`, or of their squares."""
    comptime lanes = simd_width_of[A]()
    comptime wide = 4 * lanes

    @always_inline
    def away[width: Int](column: Int) {imm} -> SIMD[A, width]:
        var distance = x.unsafe_load[width=width](start + column).cast[A]() - centre
        comptime if is_squared:
            distance *= distance
        return distance

    var all = Float64(0)
    var column = 0
    while column < columns:
        var end = min(column + PIECE, columns)
        var sums = SIMD[A, wide](0)
        while column + wide <= end:
            sums += away[wide](column)
            column += wide
        var rest = Scalar[A](0)
        while column < end:
            rest += away[1](column)
            column += 1
        all += (sums.reduce_add() + rest).cast[DType.float64]()
    return all


@always_inline
def normalize[
    X: DType, Y: DType, W: DType, S: DType, A: DType, //, width: Int, is_scaled: Bool, is_shifted: Bool
](
    y: Results[Y],
    x: Values[X],
    weight: Values[W],
    bias: Values[S],
    start: Int,
    column: Int,
    centre: Scalar[A],
    root: Scalar[A],
):
    """Write `width` elements of the row that begins at `start`."""
    var normal = (x.unsafe_load[width=width](start + column).cast[A]() - centre) * root
    comptime if is_scaled:
        normal *= weight.unsafe_load[width=width](column).cast[A]()
    comptime if is_shifted:
        normal += bias.unsafe_load[width=width](column).cast[A]()
    y.unsafe_store(start + column, normal.cast[Y]())


@no_inline
def norm_rows[
    X: DType, Y: DType, W: DType, S: DType, A: DType, //, is_scaled: Bool, is_shifted: Bool
](
    y: Results[Y],
    mean: Results[A],
    rstd: Results[A],
    x: Values[X],
    weight: Values[W],
    bias: Values[S],
    epsilon: Scalar[A],
    of: Matrix,
):
    """What `LayerNorm` gives."""
    var tasks = of.tasks()

    def some(task: Int) {var y, var mean, var rstd, var x, var weight, var bias, var epsilon, var of, var tasks}:
        comptime lanes = simd_width_of[A]()
        var size = Float64(of.columns)
        for row in range(of.rows * task // tasks, of.rows * (task + 1) // tasks):
            var start = row * of.columns
            var centre = (total[False](x, start, of.columns, Scalar[A](0)) / size).cast[A]()
            var squares = total[True](x, start, of.columns, centre)
            var root = (1 / sqrt(squares / size + epsilon.cast[DType.float64]())).cast[A]()
            mean[unsafe_offset=row] = centre
            rstd[unsafe_offset=row] = root
            var whole = of.columns // lanes * lanes
            for column in range(0, whole, lanes):
                normalize[lanes, is_scaled, is_shifted](y, x, weight, bias, start, column, centre, root)
            for column in range(whole, of.columns):
                normalize[1, is_scaled, is_shifted](y, x, weight, bias, start, column, centre, root)

    sync_parallelize(some, tasks)


@extensibility.register("tmb_layer_norm")
struct LayerNorm[is_scaled: Bool, is_shifted: Bool]:
    """`y` is `(x - mean) * rstd * weight + bias`, with the mean of each row and 1 / the root of its variance.

    `x` and `y` are [rows, columns], `weight` and `bias` [columns], `mean` and `rstd` [rows], in the dtype that is
    computed with. What is not given, `weight` or `bias`, is not read.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        y: OutputTensor[rank=2, ...],
        mean: OutputTensor[rank=1, ...],
        rstd: OutputTensor[dtype=mean.dtype, rank=1, ...],
        x: InputTensor[rank=2, ...],
        weight: InputTensor[...],
        bias: InputTensor[...],
        epsilon: Scalar[mean.dtype],
        ctx: DeviceContext,
    ) raises:
        comptime assert target == "cpu", "tmb_layer_norm runs on CPUs"
        norm_rows[Self.is_scaled, Self.is_shifted](
            y.unsafe_ptr(),
            mean.unsafe_ptr(),
            rstd.unsafe_ptr(),
            x.unsafe_ptr().as_imm(),
            weight.unsafe_ptr().as_imm(),
            bias.unsafe_ptr().as_imm(),
            epsilon,
            Matrix(x.dim_size(0), x.dim_size(1)),
        )


@always_inline
def add_up[
    G: DType, X: DType, W: DType, A: DType, //, width: Int, is_scaled: Bool, has_sums: Bool
](
    mut sums: Sums[A, width],
    of_weight: Results[A],
    of_bias: Results[A],
    grad: Values[G],
    x: Values[X],
    weight: Values[W],
    start: Int,
    column: Int,
    centre: Scalar[A],
    root: Scalar[A],
):
    """Add `width` elements of a row to the row's sums, and to those of their columns."""
    var g = grad.unsafe_load[width=width](start + column).cast[A]()
    var normal = (x.unsafe_load[width=width](start + column).cast[A]() - centre) * root
    comptime if has_sums:
        of_weight.unsafe_store(column, of_weight.unsafe_load[width=width](column) + g * normal)
        of_bias.unsafe_store(column, of_bias.unsafe_load[width=width](column) + g)
    comptime if is_scaled:
        g *= weight.unsafe_load[width=width](column).cast[A]()
    sums.plain += g
    sums.along += g * normal


@always_inline
def in_front[
    D: DType, G: DType, X: DType, W: DType, A: DType, //, width: Int, is_scaled: Bool
](
    dx: Results[D],
    grad: Values[G],
    x: Values[X],
    weight: Values[W],
    start: Int,
    column: Int,
    centre: Scalar[A],
    root: Scalar[A],
    away: Scalar[A],
    slope: Scalar[A],
):
    """Write `width` elements of the gradient of a row."""
    var g = grad.unsafe_load[width=width](start + column).cast[A]()
    var normal = (x.unsafe_load[width=width](start + column).cast[A]() - centre) * root
    comptime if is_scaled:
        g *= weight.unsafe_load[width=width](column).cast[A]()
    dx.unsafe_store(start + column, ((g - away - normal * slope) * root).cast[D]())


@no_inline
def rows_in_front[
    D: DType, G: DType, X: DType, W: DType, A: DType, //, is_scaled: Bool, has_sums: Bool
](
    dx: Results[D],
    of_weight: Results[A],
    of_bias: Results[A],
    grad: Values[G],
    x: Values[X],
    mean: Values[A],
    rstd: Values[A],
    weight: Values[W],
    of: Matrix,
    first: Int,
    last: Int,
):
    """Gradients of rows [first, last); what they add to weight and bias is added to these."""
    comptime lanes = simd_width_of[A]()
    var size = Float64(of.columns)
    for row in range(first, last):
        var centre, root = mean[unsafe_offset=row], rstd[unsafe_offset=row]
        var start = row * of.columns
        var all = SIMD[DType.float64, 2](0)
        var wide, one = Sums[A, lanes](0, 0), Sums[A, 1](0, 0)
        var column = 0
        while column < of.columns:
            var end = min(column + PIECE, of.columns)
            while column + lanes <= end:
                add_up[lanes, is_scaled, has_sums](
                    wide, of_weight, of_bias, grad, x, weight, start, column, centre, root
                )
                column += lanes
            while column < end:
                add_up[1, is_scaled, has_sums](one, of_weight, of_bias, grad, x, weight, start, column, centre, root)
                column += 1
            all += wide.taken() + one.taken()
        var away, slope = (all[0] / size).cast[A](), (all[1] / size).cast[A]()
        var whole = of.columns // lanes * lanes
        for column in range(0, whole, lanes):
            in_front[lanes, is_scaled](dx, grad, x, weight, start, column, centre, root, away, slope)
        for column in range(whole, of.columns):
            in_front[1, is_scaled](dx, grad, x, weight, start, column, centre, root, away, slope)


@no_inline
def gradients_of_rows[
    D: DType, G: DType, X: DType, W: DType, A: DType, //, is_scaled: Bool, has_sums: Bool
](
    dx: Results[D],
    of_weight: Results[A],
    of_bias: Results[A],
    grad: Values[G],
    x: Values[X],
    mean: Values[A],
    rstd: Values[A],
    weight: Values[W],
    of: Matrix,
):
    """What `LayerNormGradients` gives."""
    var tasks = of.tasks()
    var wide = 2 * of.columns if has_sums else 0
    var totals = unsafe_alloc[Float64](max(tasks * wide, 1))

    def some(task: Int) {
        var dx, var grad, var x, var mean, var rstd, var weight, var of, var tasks, var wide, var totals
    }:
        var of_block = unsafe_alloc[Scalar[A]](max(wide, 1))
        var block = of_block.unsafe_origin_cast[MutAnyOrigin]()
        var mine = totals.unsafe_offset(task * wide)
        for i in range(wide):
            mine[unsafe_offset=i] = 0
        var last = of.rows * (task + 1) // tasks
        for first in range(of.rows * task // tasks, last, BLOCK):
            for i in range(wide):
                block[unsafe_offset=i] = 0
            rows_in_front[is_scaled, has_sums](
                dx,
                block,
                block.unsafe_offset(of.columns),
                grad,
                x,
                mean,
                rstd,
                weight,
                of,
                first,
                min(first + BLOCK, last),
            )
            for i in range(wide):
                mine[unsafe_offset=i] += block[unsafe_offset=i].cast[DType.float64]()
        of_block.unsafe_free()

    sync_parallelize(some, tasks)
    comptime if has_sums:
        for i in range(of.columns):
            var both = SIMD[DType.float64, 2](0)
            for task in range(tasks):
                var mine = totals.unsafe_offset(task * wide)
                both += SIMD[DType.float64, 2](mine[unsafe_offset=i], mine[unsafe_offset=of.columns + i])
            of_weight[unsafe_offset=i] = both[0].cast[A]()
            of_bias[unsafe_offset=i] = both[1].cast[A]()
    totals.unsafe_free()


@extensibility.register("tmb_layer_norm_gradients")
struct LayerNormGradients[is_scaled: Bool, has_sums: Bool]:
    """What is in front of a layer norm, `dx`, and what its weight and bias get.

    `dx`, `grad` and `x` are [rows, columns], `mean` and `rstd` [rows], the others [columns]. `weight` is not read if there
    is none, and without sums `of_weight` and `of_bias` are not written.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        dx: OutputTensor[rank=2, ...],
        of_weight: OutputTensor[rank=1, ...],
        of_bias: OutputTensor[dtype=of_weight.dtype, rank=1, ...],
        grad: InputTensor[rank=2, ...],
        x: InputTensor[rank=2, ...],
        mean: InputTensor[dtype=of_weight.dtype, rank=1, ...],
        rstd: InputTensor[dtype=of_weight.dtype, rank=1, ...],
        weight: InputTensor[...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target == "cpu", "tmb_layer_norm_gradients runs on CPUs"
        gradients_of_rows[Self.is_scaled, Self.has_sums](
            dx.unsafe_ptr(),
            of_weight.unsafe_ptr(),
            of_bias.unsafe_ptr(),
            grad.unsafe_ptr().as_imm(),
            x.unsafe_ptr().as_imm(),
            mean.unsafe_ptr().as_imm(),
            rstd.unsafe_ptr().as_imm(),
            weight.unsafe_ptr().as_imm(),
            Matrix(x.dim_size(0), x.dim_size(1)),
        )
