"""Matrix products on NVIDIA GPUs, by cuBLASLt: see `mojo_kernels/nvidia/cublaslt.mojo`.

MAX 26.7 has kernels of its own there, but they are silently wrong for rows of odd width, take two thirds longer with
weights stored ``[K, N]``, compute float32 in TF32, and each shape compiles for half a minute.

A product can do more while it writes its result than its own node asks for. So a result is *unfinished*: it knows its
operands, and an op that follows, such as an activation or the cut into queries, keys and values, may ask for another
product in its place. What nobody reads then, MAX removes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import settings
from torch_max_backend.aten_functions.support.tensor_ops import (
    full,
    is_in_memory,
    numel,
    permute,
    rebind,
    reshape,
    reshapes_of,
    static,
    transpose_of,
)
from torch_max_backend.aten_functions.support.value_facts import Unfinished, facts_of, mark_unfinished

HALVES = (DType.bfloat16, DType.float16)
DTYPES = (*HALVES, DType.float32, DType.float64)
STEP = 8
"""Elements in 16 bytes of a 16-bit type. Rows that do not begin at multiples of it take the library 5 times as long."""
WIDE, HIGH = 256, 64
"""From so many columns and rows on, writing the product once more costs less than that."""


def is_library_used(x: TensorValue) -> bool:
    """Whether products of ``x`` are the library's."""
    return x.device.is_gpu() and settings().gpu == "cuda"


@dataclass(frozen=True)
class Product:
    """``activation(a @ b + bias)`` of batches of matrices, as they are stored.

    ``a`` is ``[A, M, K]`` or, if transposed, ``[A, K, M]``; ``b`` is ``[B, K, N]`` or ``[B, N, K]``; ``A`` and ``B``
    are the number of products or 1. ``bias`` has ``N`` elements. The result has the dtype ``result``.
    """

    a: TensorValue
    b: TensorValue
    a_is_transposed: bool
    b_is_transposed: bool
    bias: TensorValue | None
    result: DType
    activation: str = "none"

    @property
    def rows(self) -> Dim:
        """M."""
        return self.a.shape[2 if self.a_is_transposed else 1]

    @property
    def columns(self) -> Dim:
        """N."""
        return self.b.shape[1 if self.b_is_transposed else 2]

    def compute(self, pieces: int = 1) -> TensorValue:
        """The products ``[max(A, B), M, N]``, or ``[pieces, M, N / pieces]`` of one whose columns are cut evenly."""
        wide = self._aligned() if pieces == 1 else self
        if wide is not self:
            y = wide.compute()
            y = reshape(y, y.shape[1:])
            y = y if wide.rows == self.rows else y[: int(self.rows)]
            return reshape(y, [1, *y.shape]) if wide.columns == self.columns else self._without_padding(y)
        count = Dim(pieces) if pieces > 1 else (self.b if self.a.shape[0] == 1 else self.a).shape[0]
        columns = self.columns // pieces if pieces > 1 else self.columns
        parameters = {
            "transposed_a": self.a_is_transposed,
            "transposed_b": self.b_is_transposed,
            "has_bias": self.bias is not None,
            "tf32": self.a.dtype == DType.float32 and settings().float32_matmul_precision != "highest",
            "activation": self.activation,
            "pads": pieces == 1 and self.is_odd,
        }
        bias = _rows_of(self.a) if self.bias is None else reshape(self.bias, [pieces, columns])  # some tensor is needed
        width = (columns + (STEP - 1)) // STEP * STEP if parameters["pads"] else columns
        out = [(self.result, [count, self.rows, width])]
        (y,) = mojo_op("tmb_library_product", [self.a, self.b, bias], out, parameters)
        return self._without_padding(reshape(y, y.shape[1:])) if parameters["pads"] else y

    def _aligned(self) -> Product:
        """The product with zeros behind rows that do not begin at multiples of 16 bytes; it may be larger.

        A product of few rows or columns does little more than read its larger operand, once: it is left as it is.
        """
        a, b = self.a, self.b
        if self.bias is not None or not (_is_odd(a) or _is_odd(b)):
            return self
        if any(size is not None and size < HIGH for size in (static(self.rows), static(self.columns))):
            return self
        if (_is_odd(a) and not self.a_is_transposed) or (_is_odd(b) and self.b_is_transposed):
            a, b = _padded(a, 1 if self.a_is_transposed else 2), _padded(b, 2 if self.b_is_transposed else 1)
        if self.a_is_transposed and _is_odd(a):
            a = _padded(a, 2)
        if not self.b_is_transposed and _is_odd(b):
            b = _padded(b, 2)
        return replace(self, a=a, b=b)

    @property
    def is_odd(self) -> bool:
        """Whether the result's rows begin where the library's fast kernels cannot write, and are worth a copy."""
        rows, columns = static(self.rows), static(self.columns)
        if self.result not in HALVES or columns is None or columns % STEP == 0 or columns < WIDE:
            return False
        return static(self.a.shape[0]) == 1 and static(self.b.shape[0]) == 1 and rows is not None and rows >= HIGH

    def _without_padding(self, y: TensorValue) -> TensorValue:
        columns = int(self.columns)
        out = [(self.result, [self.rows * columns])]
        (flat,) = mojo_op("tmb_without_padding", [y], out, {"columns": columns})
        return reshape(flat, [1, self.rows, columns])


def library_product(
    a: TensorValue, b: TensorValue, result: DType | None = None, bias: TensorValue | None = None
) -> TensorValue:
    """``a @ b + bias``, in the dtype ``result``, by default that of ``a``.

    Args:
        a: ``[*batch, M, K]``.
        b: ``[*batch, K, N]``.
        bias: ``N`` elements of the dtype ``result``, which is not float64; for single products.
    """
    result = result or a.dtype
    shape = [*a.shape[:-1], b.shape[-1]]
    if any(static(d) == 0 for d in (*shape, a.shape[-1])):
        zeros = full(0, shape, result, a.device)
        return zeros if bias is None else ops.add(zeros, bias)
    b = rebind(b, [*a.shape[:-2], a.shape[-1], b.shape[-1]])
    left, right = transpose_of(a), transpose_of(b)
    first, second = a if left is None else left, b if right is None else right
    count = numel(a.shape[:-2])
    first, second = (reshape(x, [count, *x.shape[-2:]]) for x in (first, second))
    product = Product(first, second, left is not None, right is not None, bias, result)
    y = product.compute()
    if a.rank == 2:
        mark_unfinished(y, UnfinishedProduct(product, (Dim(1), shape[0]), (shape[1],)))
    return reshape(y, shape)


def _is_odd(x: TensorValue) -> bool:
    """Whether the rows of ``x`` [1, rows, columns] begin where the library reads slowly, and are worth a copy."""
    count, rows, columns = (static(d) for d in x.shape)
    if x.dtype not in HALVES or count != 1 or rows is None or columns is None:
        return False
    return columns % STEP > 0 and columns >= WIDE and rows >= HIGH


def padded_width(x: TensorValue, dtype: DType) -> Dim:
    """How wide rows like those of ``x`` [rows, columns] should be, in ``dtype``, for a product that will read them."""
    rows, columns = static(x.shape[0]), static(x.shape[1])
    if not is_library_used(x) or dtype not in HALVES or rows is None or columns is None:
        return x.shape[1]
    return Dim(-(-columns // STEP) * STEP) if columns >= WIDE and rows >= HIGH else x.shape[1]


def without_zeros(x: TensorValue, columns: Dim) -> TensorValue:
    """The first columns of a matrix whose others hold zeros. A product that would add those finds them there."""
    result = x[:, : int(columns)]
    facts_of(result).padded = x
    return result


def _padded(x: TensorValue, axis: int) -> TensorValue:
    """``x`` [1, rows, columns] with zeros behind it along ``axis``, up to a multiple of what 16 bytes hold."""
    if axis == 2:
        for value in reshapes_of(x):
            wide = facts_of(value).padded
            if wide is not None and value.shape[-2:] == x.shape[-2:]:
                return reshape(wide, [1, *wide.shape])
    missing = -int(x.shape[axis]) % STEP
    if missing and axis == 2 and is_in_memory(x):
        out = [(x.dtype, [*x.shape[:2], x.shape[2] + missing])]
        return mojo_op("tmb_with_padding", [x], out)[0]
    zeros = full(0, [Dim(missing) if i == axis else d for i, d in enumerate(x.shape)], x.dtype, x.device)
    return ops.concat([x, zeros], axis=axis) if missing else x


def _rows_of(x: TensorValue) -> TensorValue:
    """``[A, M, K]`` as ``[A * M, K]``."""
    return reshape(x, [x.shape[0] * x.shape[1], x.shape[2]])


# -- what a product may still become -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class UnfinishedProduct(Unfinished):
    """A product ``[M, N]`` that is seen as ``[*lead, *tail]``, permuted by ``order``."""

    product: Product
    lead: tuple[Dim, ...]
    tail: tuple[Dim, ...]
    order: tuple[int, ...] | None = None
    made: dict[int, TensorValue] = field(default_factory=dict)

    def activated(self, activation: str) -> TensorValue | None:
        """The product behind an activation; ``None`` if the library cannot."""
        if self.product.activation != "none" or self.product.result == DType.float64:
            return None
        if activation == "gelu" and self.product.result != DType.bfloat16:
            return None  # the library's tanh is not exact enough for more digits
        return self._seen(replace(self.product, activation=activation).compute(), self.tail)

    def piece(self, axis: int, start: int, size: int) -> TensorValue | None:
        """Elements ``start`` to ``start + size`` along an axis, as a tensor that is dense by itself; ``None`` where the
        pieces are not equal parts of the columns."""
        if (axis if self.order is None else self.order[axis]) != len(self.lead):
            return None
        length = static(self.tail[0])
        if not length or not 0 < size < length or length % size or start % size:
            return None
        pieces = length // size
        if pieces not in self.made:
            self.made[pieces] = self.product.compute(pieces)
        one = ops.squeeze(self.made[pieces][start // size : start // size + 1], 0)
        return self._seen(one, (Dim(size), *self.tail[1:]))

    def _seen(self, product: TensorValue, tail: Sequence[Dim]) -> TensorValue:
        x = reshape(product, [*self.lead, *tail])
        return x if self.order is None else permute(x, self.order)

    def reshaped(self, shape: Sequence[Dim]) -> UnfinishedProduct | None:
        """The same product seen in another shape, if that keeps rows and columns apart."""
        if self.order is not None:
            return None
        for k in reversed(range(len(shape) + 1)):  # of one row, the lead is as long as may be
            if numel(shape[:k]) == numel(self.lead) and numel(shape[k:]) == numel(self.tail):
                return replace(self, lead=tuple(shape[:k]), tail=tuple(shape[k:]))
        return None

    def permuted(self, dims: Sequence[int]) -> UnfinishedProduct:
        """The same product with its dimensions in another order."""
        order = range(len(self.lead) + len(self.tail)) if self.order is None else self.order
        return replace(self, order=tuple(order[d] for d in dims))
