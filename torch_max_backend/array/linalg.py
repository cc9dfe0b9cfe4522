"""The extension ``linalg``. Decompositions are torch's library calls, made at once; the rest is recorded."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import torch

from torch_max_backend.array import dtypes
from torch_max_backend.array.array_object import Array
from torch_max_backend.array.carriers import carried
from torch_max_backend.array.declaration import AT_ONCE, function
from torch_max_backend.array.elementwise import multiply
from torch_max_backend.array.evaluate import values_of
from torch_max_backend.array.expression import Op, leaf, record
from torch_max_backend.array.manipulation import expand_dims, matrix_transpose
from torch_max_backend.array.operands import axes_in, axis_in, broadcast, cast, node_of, together
from torch_max_backend.array.products import matmul, tensordot, vecdot
from torch_max_backend.array.statistics import summed_dtype
from torch_max_backend.base.errors import ArrayValueError

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]

SECTION = "linalg"
_lazy = function(SECTION, namespace="linalg")
_library_call = function(SECTION, AT_ONCE, "linalg")
for _shared in (matmul, matrix_transpose, tensordot, vecdot):
    _lazy(_shared)


def _computed(run: Callable[..., Any], *arrays: Any, kind: str = "floating") -> Any:
    """What torch's library makes of matrices: an array, or several.

    Raises:
        ArrayTypeError: The data types are not of the kind.
        ArrayValueError: The shapes don't fit, or the library finds no result.
    """
    nodes, _ = together("linalg", arrays, kind)
    for x, node in zip(arrays, nodes, strict=True):
        if len(node.shape) < 2 and x is arrays[0]:
            raise ArrayValueError(f"a matrix has two dimensions at least, and the shape is {node.shape}")
    try:
        result = run(*values_of(nodes))
    except (RuntimeError, torch.linalg.LinAlgError) as error:
        raise ArrayValueError(str(error)) from error
    if isinstance(result, torch.Tensor):
        return Array(leaf(result))
    return [Array(leaf(x)) for x in result]


EighResult = namedtuple("EighResult", ["eigenvalues", "eigenvectors"])
"""What ``eigh`` returns."""


QRResult = namedtuple("QRResult", ["Q", "R"])
"""What ``qr`` returns."""


SlogdetResult = namedtuple("SlogdetResult", ["sign", "logabsdet"])
"""What ``slogdet`` returns."""


SVDResult = namedtuple("SVDResult", ["U", "S", "Vh"])
"""What ``svd`` returns."""


@_library_call
def cholesky(x: Any, /, *, upper: bool = False) -> Array:
    """Cholesky factors of symmetric positive-definite matrices.

    Raises:
        ArrayValueError: A matrix isn't positive-definite.
    """
    return _computed(lambda m: torch.linalg.cholesky(m, upper=upper), x)


@_library_call
def det(x: Any, /) -> Array:
    """Determinants of square matrices."""
    return _computed(torch.linalg.det, x)


@_library_call
def eigh(x: Any, /) -> EighResult:
    """Eigenvalues in ascending order, and eigenvectors, of symmetric or Hermitian matrices."""
    return EighResult(*_computed(torch.linalg.eigh, x))


@_library_call
def eigvalsh(x: Any, /) -> Array:
    """Eigenvalues in ascending order of symmetric or Hermitian matrices."""
    return _computed(torch.linalg.eigvalsh, x)


@_library_call
def inv(x: Any, /) -> Array:
    """Inverses of square matrices."""
    return _computed(torch.linalg.inv, x)


@_library_call
def matrix_power(x: Any, n: int, /) -> Array:
    """Square matrices times themselves, ``n`` times."""
    return _computed(lambda m: torch.linalg.matrix_power(m, n), x)


@_library_call
def matrix_rank(x: Any, /, *, rtol: Any = None) -> Array:
    """Ranks: numbers of singular values above a part of the largest."""
    if isinstance(rtol, Array):
        rtol = rtol.to_torch()
    return _computed(lambda m: torch.linalg.matrix_rank(m, rtol=rtol), x)


@_library_call
def pinv(x: Any, /, *, rtol: Any = None) -> Array:
    """Moore–Penrose pseudo-inverses."""
    if isinstance(rtol, Array):
        rtol = rtol.to_torch()
    return _computed(lambda m: torch.linalg.pinv(m, rtol=rtol), x)


@_library_call
def qr(x: Any, /, *, mode: str = "reduced") -> QRResult:
    """QR factors; ``mode`` is "reduced" or "complete"."""
    return QRResult(*_computed(lambda m: torch.linalg.qr(m, mode=mode), x))


@_library_call
def slogdet(x: Any, /) -> SlogdetResult:
    """Signs, and logarithms of absolute values, of determinants."""
    return SlogdetResult(*_computed(torch.linalg.slogdet, x))


@_library_call
def solve(x1: Any, x2: Any, /) -> Array:
    """Solutions of ``x1 @ x = x2``; ``x2`` is a vector if it has one dimension."""
    node = node_of(x2)
    if len(node.shape) == 1:
        return _computed(lambda a, b: torch.linalg.solve(a, b.unsqueeze(-1)).squeeze(-1), x1, x2)
    batch = broadcast(node_of(x1).shape[:-2], node.shape[:-2])
    return _computed(
        lambda a, b: torch.linalg.solve(a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])), x1, x2
    )


@_library_call
def svd(x: Any, /, *, full_matrices: bool = True) -> SVDResult:
    """Singular value decompositions."""
    return SVDResult(*_computed(lambda m: torch.linalg.svd(m, full_matrices=full_matrices), x))


@_library_call
def svdvals(x: Any, /) -> Array:
    """Singular values in descending order."""
    return _computed(torch.linalg.svdvals, x)


@_library_call
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """Norms of matrices: "fro", "nuc", 1, 2, inf, or the negatives of these numbers."""
    return _computed(lambda m: torch.linalg.matrix_norm(m, ord, keepdim=keepdims), x)


# -- recorded ------------------------------------------------------------------------------------------------------
def _norm_over(x: torch.Tensor, *, axes: tuple[int, ...], keepdims: bool, ord: float) -> torch.Tensor:
    if not axes:
        return torch.abs(x)
    size = torch.abs(x) if x.is_complex() else x
    return torch.linalg.vector_norm(size, ord, axes, keepdim=keepdims)


_vector_norm = Op("vector_norm", _norm_over)


@_lazy
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Array:
    """Norms of vectors along axes, or of all elements."""
    node = node_of(x)
    dtypes.check("vector_norm", node.dtype, "floating")
    axes = axes_in(axis, len(node.shape))
    return Array(record(_vector_norm, (node,), node.device, axes=axes, keepdims=bool(keepdims), ord=ord))


def _cross_of(a: torch.Tensor, b: torch.Tensor, *, axis: int) -> torch.Tensor:
    return torch.linalg.cross(*torch.broadcast_tensors(a, b), dim=axis)


_cross = Op("cross", carried(_cross_of))


@_lazy
def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """Cross products along an axis of size 3.

    Raises:
        ArrayValueError: The axis is of another size.
    """
    nodes, _ = together("cross", (x1, x2), "numeric")
    ndim = len(broadcast(*[x.shape for x in nodes]))
    place = axis_in(axis, ndim) - ndim
    for x in nodes:
        if -place > len(x.shape) or x.shape[place] != 3:
            raise ArrayValueError(f"cross along {axis} of the shape {x.shape}: the size must be 3")
    return Array(record(_cross, nodes, nodes[0].device, axis=place))


_diagonal = Op("diagonal", lambda x, *, offset: torch.diagonal(x, offset, -2, -1), is_cheap=True)


@_lazy
def diagonal(x: Any, /, *, offset: int = 0) -> Array:
    """Diagonals of matrices."""
    node = node_of(x)
    if len(node.shape) < 2:
        raise ArrayValueError(f"a matrix has two dimensions at least, and the shape is {node.shape}")
    return Array(record(_diagonal, (node,), node.device, offset=int(offset)))


@_lazy
def outer(x1: Any, x2: Any, /) -> Array:
    """The outer product of two vectors."""
    for x in (x1, x2):
        if len(node_of(x).shape) != 1:
            raise ArrayValueError(f"outer takes vectors, and got the shape {x.shape}")
    return multiply(expand_dims(x1, axis=1), expand_dims(x2, axis=0))


@_lazy
def trace(x: Any, /, *, offset: int = 0, dtype: torch.dtype | None = None) -> Array:
    """Sums of diagonals."""
    from torch_max_backend.array.statistics import sum

    node = node_of(x)
    dtypes.check("trace", node.dtype, "numeric")
    found = summed_dtype(node.dtype) if dtype is None else dtype
    return sum(diagonal(Array(cast(node, found)), offset=offset), axis=-1, dtype=found)
