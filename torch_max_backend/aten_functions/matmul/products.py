"""Matrix products.

On a CPU they are computed by a kernel of this project (`mojo_kernels/cpu/gemm.mojo`), which sums 16-bit floats in
float32: MAX's compiles for 25 s and more, and its batched one sums them in 16 bits. A second operand that is a permuted
``[N, K]`` weight is read as it is. On NVIDIA's GPUs the library that torch uses multiplies (`cublaslt_products.py`), on
others MAX's kernels, whose compiler folds the permute into the product.
"""

from __future__ import annotations

from dataclasses import dataclass

from max.dtype import DType
from max.graph import DeviceRef, TensorValue, ops

from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support.cublaslt_products import DTYPES as LIBRARY_DTYPES
from torch_max_backend.aten_functions.support.cublaslt_products import is_library_used, library_product
from torch_max_backend.aten_functions.support.dtypes import Operand, accumulator
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import out_dtype, out_shape, settings
from torch_max_backend.aten_functions.support.tensor_ops import (
    broadcast_to,
    cast,
    full,
    numel,
    permute,
    rebind,
    reshape,
    static,
    tensor,
    transpose_of,
)
from torch_max_backend.aten_functions.support.value_facts import Unfinished, mark_unfinished
from torch_max_backend.base.errors import Unsupported

HALVES = (DType.float16, DType.bfloat16)
FEW_COLUMNS = 16  # from here on, a transposed first factor may be read where it is
WIDE_ROW = 2048  # from here on, rows that are no multiple of 128 cost MAX's GPU kernels up to 7 times the time


# -- products that are right on every device -------------------------------------------------------------------------
def product(a: TensorValue, b: TensorValue) -> TensorValue:
    """``a @ b`` of matrices or equally batched matrices, in their dtype, accumulated in float32 for 16-bit floats."""
    return cast(wide_product(a, b), a.dtype) if a.device.is_cpu() else _multiply(a, b)


def wide_product(a: TensorValue, b: TensorValue) -> TensorValue:
    """``a @ b`` in the dtype it is accumulated in, for callers that go on computing before they round."""
    wide = accumulator(a.dtype)
    if is_library_used(a):
        check_product(a.dtype, a.device)
        return library_product(a, b, wide)
    if a.device.is_gpu():
        return cast(_multiply(a, b), wide)
    check_product(a.dtype, a.device)
    shape = [*a.shape[:-1], b.shape[-1]]
    if any(static(d) == 0 for d in (*shape, a.shape[-1])):
        return full(0, shape, wide, a.device)
    return _multiply_cpu(a, rebind(b, [*a.shape[:-2], a.shape[-1], b.shape[-1]]), wide)


def _multiply_cpu(a: TensorValue, b: TensorValue, wide: DType) -> TensorValue:
    turned = transpose_of(a) if a.rank == 2 else None
    rows, columns = static(a.shape[0]), static(b.shape[-1])
    if turned is not None and rows and columns and rows > columns >= FEW_COLUMNS:
        product = TurnedProduct(turned, permute(b, (1, 0)), wide)
        y = product.compute()
        mark_unfinished(y, product)
        return y
    source = transpose_of(b)
    second = b if source is None else source
    count = numel(a.shape[:-2])
    operands = [reshape(x, [count, *x.shape[-2:]]) for x in (a, second)]
    shape = [count, a.shape[-2], b.shape[-1]]
    (y,) = mojo_op("tmb_product", operands, [(wide, shape)], {"transposed": source is not None})
    return reshape(y, [*a.shape[:-1], b.shape[-1]])


@dataclass(frozen=True)
class TurnedProduct(Unfinished):
    """The transpose of ``a`` ``[K, M]`` times the transpose of ``b`` ``[N, K]``, in dtype ``result``, on a CPU.

    So is the gradient of a weight of more rows than columns, where ``a`` is what would take long to transpose.
    """

    a: TensorValue
    b: TensorValue
    result: DType

    def compute(self) -> TensorValue:
        """The product ``[M, N]``."""
        out = (self.result, [self.a.shape[1], self.b.shape[0]])
        return mojo_op("tmb_turned_product", [self.a, self.b], [out])[0]

    def plus_rows(self, updates: TensorValue, at: TensorValue) -> TensorValue | None:
        """The product, to whose rows ``at`` ``updates`` are added."""
        if not (self.a.dtype == self.result == updates.dtype):
            return None
        out = (self.result, [self.a.shape[1], self.b.shape[0]])
        return mojo_op("tmb_turned_product_plus_rows", [self.a, self.b, updates, at], [out])[0]


def check_product(dtype: DType, device: DeviceRef) -> None:
    """Refuse products that MAX would compute in less than torch's precision, or not at all.

    Raises:
        Unsupported: Names the limit and what was asked for.
    """
    if dtype == DType.bool:
        raise Unsupported("matrix products need numbers, got torch.bool")
    if not device.is_gpu():
        return
    if settings().gpu == "cuda":
        if dtype not in LIBRARY_DTYPES:
            raise Unsupported(f"on a GPU matrices of floating point numbers are multiplied, got {dtype}")
        return
    if dtype == DType.float32 and settings().float32_matmul_precision == "highest":
        raise Unsupported(
            "on a GPU MAX multiplies float32 matrices in TF32; "
            "limit: torch.set_float32_matmul_precision('high'), got 'highest'"
        )
    if dtype not in (*HALVES, DType.float32):
        raise Unsupported(f"on a GPU MAX multiplies float16, bfloat16 and float32 matrices, got {dtype}")


def _multiply(a: TensorValue, b: TensorValue) -> TensorValue:
    """A product on a GPU, in the dtype of its operands."""
    check_product(a.dtype, a.device)
    if is_library_used(a):
        return library_product(a, b)
    shape = [*a.shape[:-1], b.shape[-1]]
    if any(static(d) == 0 for d in (*shape, a.shape[-1])):
        return full(0, shape, a.dtype, a.device)
    b = rebind(b, [*a.shape[:-2], a.shape[-1], b.shape[-1]])
    if a.dtype in HALVES:
        return _multiply_aligned(a, b)
    return ops.matmul(a, b)


def _multiply_aligned(a: TensorValue, b: TensorValue) -> TensorValue:
    """A 16-bit product on a GPU: rows of odd width are silently wrong there, so such a ``b`` is padded by columns.

    The columns are cut off by a kernel of ours: a slice of MAX's own would be fused into the product's store, which
    is as wrong as no padding.
    """
    columns, width = b.shape[-1], static(b.shape[-1])
    if width is not None and (width % 2 == 0 if width < WIDE_ROW else width % 128 == 0):
        return ops.matmul(a, b)
    multiple = 128 if width is not None and width >= WIDE_ROW else 8
    padded = (columns + (multiple - 1)) // multiple * multiple
    zeros = full(0, [*b.shape[:-1], padded - columns], b.dtype, b.device)
    wide = rebind(ops.concat([b, zeros], axis=-1), [*b.shape[:-1], padded])
    rows = ops.matmul(a, wide)
    flat = reshape(rows, [numel(rows.shape[:-1]), padded])
    (cut,) = mojo_op("tmb_first_columns", [flat], [(a.dtype, [flat.shape[0], columns])])
    return reshape(cut, [*a.shape[:-1], columns])


def _is(scalar: Operand, value: int) -> bool:
    return not isinstance(scalar, TensorValue) and scalar == value


def _plus_row(self: TensorValue, a: TensorValue, b: TensorValue, beta: Operand, alpha: Operand) -> TensorValue | None:
    """``self + a @ b`` by the kernel that multiplies, where ``self`` is a row that it can add."""
    check_product(a.dtype, a.device)
    is_row = self.rank == 1 or (self.rank == 2 and self.shape[0] == 1)
    if not is_library_used(a) or not is_row or self.shape[-1] != b.shape[-1] or b.shape[-1] == 1:
        return None
    if not (_is(beta, 1) and _is(alpha, 1)) or a.dtype == DType.float64 or not a.dtype == self.dtype == out_dtype():
        return None
    return library_product(a, b, bias=self)


def _blend(self: TensorValue, prod: TensorValue, beta: Operand, alpha: Operand) -> TensorValue:
    """``beta * self + alpha * prod``, rounded once; as in BLAS, a factor of zero drops its operand, NaN and all."""
    if _is(alpha, 0):
        prod = full(0, prod.shape, prod.dtype, prod.device)
    elif not _is(alpha, 1):
        prod = ops.mul(prod, tensor(alpha, prod.dtype, prod.device))
    if _is(beta, 0):
        return cast(prod, out_dtype())
    base = broadcast_to(cast(self, prod.dtype), prod.shape)
    if not _is(beta, 1):
        base = ops.mul(base, tensor(beta, prod.dtype, prod.device))
    return cast(ops.add(base, prod), out_dtype())


# -- plain products --------------------------------------------------------------------------------------------------
# mm(Tensor self, Tensor mat2) -> Tensor
# bmm(Tensor self, Tensor mat2) -> Tensor
@map_to(aten.mm.default, aten.bmm.default, limits="AMD's GPUs: float32 only at precision 'high' or 'medium'")
def mm(self: TensorValue, mat2: TensorValue) -> TensorValue:
    return product(self, mat2)


# mm.dtype(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor
# bmm.dtype(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor
@map_to(aten.mm.dtype, aten.bmm.dtype)
def mm_dtype(self: TensorValue, mat2: TensorValue, out_dtype: object) -> TensorValue:
    return _product_into(self, mat2)


def _product_into(a: TensorValue, b: TensorValue) -> TensorValue:
    """A product of 16-bit floats in float32. TF32 holds 16-bit floats exactly, so a GPU may use it for this."""
    wide = out_dtype()
    if is_library_used(a):
        return cast(wide_product(a, b), wide)
    if a.device.is_gpu() and a.dtype in HALVES and static(b.shape[-1]) != 0 and static(a.shape[-1]) != 0:
        return ops.matmul(cast(a, wide), rebind(cast(b, wide), [*a.shape[:-2], a.shape[-1], b.shape[-1]]))
    return cast(wide_product(a, b), wide)


# _int_mm(Tensor self, Tensor mat2) -> Tensor
@map_to(aten._int_mm.default, limits="CPU")
def _int_mm(self: TensorValue, mat2: TensorValue) -> TensorValue:
    return product(cast(self, DType.int32), cast(mat2, DType.int32))


# mv(Tensor self, Tensor vec) -> Tensor
@map_to(aten.mv.default)
def mv(self: TensorValue, vec: TensorValue) -> TensorValue:
    return cast(_times_vector(self, vec), out_dtype())


def _times_vector(mat: TensorValue, vec: TensorValue) -> TensorValue:
    return reshape(wide_product(mat, reshape(vec, [vec.shape[0], 1])), [mat.shape[0]])


# linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor
@map_to(aten.linear.default)
def linear(input: TensorValue, weight: TensorValue, bias: TensorValue | None = None) -> TensorValue:
    rows = reshape(input, [numel(input.shape[:-1]), input.shape[-1]])
    right = permute(weight, [1, 0]) if weight.rank == 2 else reshape(weight, [weight.shape[0], 1])
    if bias is None:
        return reshape(product(rows, right), out_shape())
    whole = _plus_row(bias, rows, right, 1, 1)
    if whole is not None:
        return reshape(whole, out_shape())
    return reshape(_blend(bias, wide_product(rows, right), 1, 1), out_shape())


# -- products added to a tensor --------------------------------------------------------------------------------------
# addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor
@map_to(aten.addmm.default)
def addmm(
    self: TensorValue, mat1: TensorValue, mat2: TensorValue, *, beta: Operand = 1, alpha: Operand = 1
) -> TensorValue:
    whole = _plus_row(self, mat1, mat2, beta, alpha)
    return _blend(self, wide_product(mat1, mat2), beta, alpha) if whole is None else whole


# addmm.dtype(Tensor self, Tensor mat1, Tensor mat2, ScalarType out_dtype, *, Scalar beta=1, Scalar alpha=1) -> Tensor
@map_to(aten.addmm.dtype)
def addmm_dtype(
    self: TensorValue,
    mat1: TensorValue,
    mat2: TensorValue,
    out_dtype: object,
    *,
    beta: Operand = 1,
    alpha: Operand = 1,
) -> TensorValue:
    return _blend(self, _product_into(mat1, mat2), beta, alpha)


# baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor
@map_to(aten.baddbmm.default)
def baddbmm(
    self: TensorValue, batch1: TensorValue, batch2: TensorValue, *, beta: Operand = 1, alpha: Operand = 1
) -> TensorValue:
    return _blend(self, wide_product(batch1, batch2), beta, alpha)


# baddbmm.dtype(Tensor self, Tensor batch1, Tensor batch2, ScalarType out_dtype, *, Scalar beta=1, Scalar alpha=1)
#   -> Tensor
@map_to(aten.baddbmm.dtype)
def baddbmm_dtype(
    self: TensorValue,
    batch1: TensorValue,
    batch2: TensorValue,
    out_dtype: object,
    *,
    beta: Operand = 1,
    alpha: Operand = 1,
) -> TensorValue:
    return _blend(self, _product_into(batch1, batch2), beta, alpha)


# addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor
@map_to(aten.addmv.default)
def addmv(
    self: TensorValue, mat: TensorValue, vec: TensorValue, *, beta: Operand = 1, alpha: Operand = 1
) -> TensorValue:
    return _blend(self, _times_vector(mat, vec), beta, alpha)


# addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor
@map_to(aten.addbmm.default)
def addbmm(
    self: TensorValue, batch1: TensorValue, batch2: TensorValue, *, beta: Operand = 1, alpha: Operand = 1
) -> TensorValue:
    # The sum over the batch is one product with the batch folded into the inner dimension.
    batch, rows, inner = batch1.shape
    left = reshape(permute(batch1, [1, 0, 2]), [rows, batch * inner])
    right = reshape(batch2, [batch * inner, batch2.shape[-1]])
    return _blend(self, wide_product(left, right), beta, alpha)
