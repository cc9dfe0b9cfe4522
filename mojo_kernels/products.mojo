"""Products of matrices on a CPU."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext

from .gemm import AsTheyAre, FewRows, Matrices, multiply_all, sum_type

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
