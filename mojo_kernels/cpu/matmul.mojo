"""Products of matrices on a CPU."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext

from .gemm import AsTheyAre, FewRows, Matrices, multiply_all, sum_type
from .embedding_gradient import Rows

comptime FEW = 8
"""Up to so many rows, copying a matrix into panels does not pay."""
comptime MANY = 256
"""From so many rows on, transposing the second matrix costs less than transposing the result."""


@extensibility.register("tmb_product")
struct Product[transposed: Bool]:
    """`a` `[count, rows, depth]` times `b` `[count, depth, columns]`, or `[count, columns, depth]` if transposed.

    The result is in the type in which products are summed.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=3, ...],
        a: InputTensor[rank=3, ...],
        b: InputTensor[dtype=a.dtype, rank=3, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target == "cpu", "tmb_product runs on CPUs"
        comptime assert result.dtype == sum_type[a.dtype](), "the result has the type of sums"
        multiply_matrices[Self.transposed](
            result.unsafe_ptr(),
            a.unsafe_ptr(),
            b.unsafe_ptr(),
            result.dim_size(0),
            result.dim_size(1),
            result.dim_size(2),
            a.dim_size(2),
        )


@extensibility.register("tmb_turned_product")
struct TurnedProduct:
    """The transpose of `a` `[depth, rows]` times the transpose of `b` `[columns, depth]`.

    So `a`, the larger one, is read where it is: it becomes panels, as the second factor of the result's transpose does.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=2, ...],
        a: InputTensor[rank=2, ...],
        b: InputTensor[dtype=a.dtype, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target == "cpu", "tmb_turned_product runs on CPUs"
        comptime assert result.dtype == sum_type[a.dtype](), "the result has the type of sums"
        multiply_turned(
            result.unsafe_ptr(), a.unsafe_ptr(), b.unsafe_ptr(), a.dim_size(1), b.dim_size(0), a.dim_size(0)
        )


@extensibility.register("tmb_turned_product_plus_rows")
struct TurnedProductPlusRows:
    """The same, and `updates[i]` is added to row `at[i]` of the result, for each `i`."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=2, ...],
        a: InputTensor[dtype=result.dtype, rank=2, ...],
        b: InputTensor[dtype=result.dtype, rank=2, ...],
        updates: InputTensor[dtype=result.dtype, rank=2, ...],
        at: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target == "cpu", "tmb_turned_product_plus_rows runs on CPUs"
        comptime assert result.dtype == sum_type[result.dtype](), "the result has the type of sums"
        var columns = result.dim_size(1)
        multiply_turned(result.unsafe_ptr(), a.unsafe_ptr(), b.unsafe_ptr(), a.dim_size(1), columns, a.dim_size(0))
        var rows = result.dim_size(0)
        Rows(result.unsafe_ptr(), updates.unsafe_ptr(), at.unsafe_ptr(), at.dim_size(0), rows, columns).add_all()


@no_inline
def multiply_turned[
    T: DType, W: DType, of_result: Origin[mut=True], of_a: Origin, of_b: Origin, //
](
    result: Pointer[Scalar[W], of_result],
    a: Pointer[Scalar[T], of_a],
    b: Pointer[Scalar[T], of_b],
    rows: Int,
    columns: Int,
    depth: Int,
):
    """Not part of the kernels, which are compiled for every shape."""
    if rows * columns == 0:
        return
    var panels = Matrices[T, False](a, depth * rows, rows)
    multiply_all[True](result, columns, b, panels, AsTheyAre(), 1, 1, columns, rows, depth)


@no_inline
def multiply_matrices[
    T: DType, W: DType, of_result: Origin[mut=True], of_a: Origin, of_b: Origin, //, transposed: Bool
](
    result: Pointer[Scalar[W], of_result],
    a: Pointer[Scalar[T], of_a],
    b: Pointer[Scalar[T], of_b],
    count: Int,
    rows: Int,
    columns: Int,
    depth: Int,
):
    """The way that is fastest for the number of rows. Not part of the kernel, which is compiled for every shape."""
    if count * rows * columns == 0:
        return
    if rows <= FEW:
        FewRows[transposed](result, a, b, rows, columns, depth).compute_all(count)
        return
    comptime if transposed:
        if rows < MANY:
            # The result's transpose: rows of `b` are read where they are, and the few rows of `a` become panels.
            var few = Matrices[T, True](a, rows * depth, depth)
            multiply_all[True](result, columns, b, few, AsTheyAre(), count, count, columns, rows, depth)
            return
    var q = Matrices[T, transposed](b, columns * depth, depth if transposed else columns)
    multiply_all[False](result, columns, a, q, AsTheyAre(), count, count, rows, columns, depth)
