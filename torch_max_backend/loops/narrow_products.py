"""Products of one row with a matrix that is computed from narrower elements, as loops.

A library reads a matrix as floats: unpacked weights have been written to memory and are read again. With one row, as
where a language model decodes, the product takes the time of reading its matrix, so a loop that unpacks each element
where it is used is as much faster as the elements are narrower. With more rows a library is better, since it reads an
element once for many of them.

For some rows torch has a kernel on a CPU that reads a matrix of int8 as it is packed. It is faster than unpacking up to
about a hundred rows, and needs no memory for what is unpacked. On a GPU a large matrix is unpacked part by part.

A library's product of integers is faster than a loop. But where the matrix is also summed, as for activations that are
shifted to be unsigned, one loop for both reads it once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from torch_max_backend.loops.expr import Load, Op, Scalar, cast, constant, loads, rewrite
from torch_max_backend.loops.index import Div, Index, Mod
from torch_max_backend.loops.program import Definition, Program, dense_strides
from torch_max_backend.loops.tensor import Tensor, broadcast_at, computed_in, define, named, reduce, sized
from torch_max_backend.runtime.packed_products import MM_OF_PACKED, PACKED

aten = torch.ops.aten

MOST_PACKED_ROWS = 256
"""Rows for which a matrix is not unpacked. At 32 that takes 0.75 of the time, at 197 1.2 times as long."""
LARGE = 2**22
"""Bytes that a matrix has unpacked from which on a GPU unpacks it part by part: some launches more, for memory."""


def product_of_a_row(
    program: Program, node: fx.Node, target: object, args: Sequence[Any], kwargs: dict[str, Any]
) -> Tensor | None:
    """What a product gives, if it has one row, and its matrix is read in fewer bytes than it has; else ``None``.

    A product of integers, if it has one row, and something besides ``node`` reads its matrix. The sum is in float32 for
    floats of up to 32 bits, and in int32 for integers.
    """
    if target is aten._int_mm.default:
        return _int_mm(*args) if node.target is target and _is_read_again(node) else None
    if target not in PRODUCTS or args[-2].shape[0] != 1 or not _is_narrow(program, args[-1]):
        return None
    return product_as_loops(args, kwargs) if all(factor == 1 for factor in kwargs.values()) else None


# mm(Tensor self, Tensor mat2) -> Tensor
# addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor
PRODUCTS = (aten.mm.default, aten.addmm.default)


def product_as_loops(args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """What a product of matrices, or of batches of them, or a sum with one gives, with nothing else rounded."""
    *summands, rows, matrix = args
    sums = _sums(rows, matrix, computed_in(rows.dtype))
    alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
    if not summands and alpha == 1:
        return _rounded(sums, rows.dtype)
    bias = broadcast_at(summands[0], sums.shape) if summands and beta != 0 else None

    def at(index: tuple[Index, ...]) -> Scalar:
        total = _times(sums.at(index), alpha)
        return total if bias is None else total + _times(cast(bias(index), sums.dtype), beta)

    return define(sums.shape, rows.dtype, at)


def _times(x: Scalar, factor: Any) -> Scalar:
    return x if factor == 1 else x * constant(factor, x.dtype)


# _int_mm(Tensor self, Tensor mat2) -> Tensor
def _int_mm(self: Tensor, mat2: Tensor) -> Tensor | None:
    return _sums(self, mat2, torch.int32) if self.shape[0] == 1 else None


def _is_read_again(product: fx.Node) -> bool:
    """Whether something else reads the matrix of a product, or what that is a view of."""
    matrix = product.args[1]
    while isinstance(matrix, fx.Node) and len(matrix.users) == 1 and matrix.target in _VIEWS:
        matrix = matrix.args[0]
    return isinstance(matrix, fx.Node) and len(matrix.users) > 1


_VIEWS = (aten.t.default, aten.transpose.int, aten.permute.default, aten.view.default)


def packed_product(program: Program, target: object, args: Sequence[Any]) -> tuple[Any, tuple[Tensor, ...]] | None:
    """On a CPU the call, and its arguments, that multiplies some rows with int8 that is only cast; else ``None``.

    The scales of ``_weight_int8pack_mm`` are ones: the product's own scales come after it, as ever.
    """
    if target is not aten.mm.default or args[0].dtype is not torch.bfloat16 or not _is_known(args):
        return None
    rows, matrix = args
    (count, length), features = (int(s.constant) for s in rows.shape), int(matrix.shape[1].constant)
    if not 2 <= count <= MOST_PACKED_ROWS or length % PACKED or features < PACKED:
        return None
    packed = _packed(program, matrix)
    if packed is None or packed.dtype is not torch.int8:
        return None
    if features % PACKED:
        return MM_OF_PACKED, (rows, packed)
    ones = define((matrix.shape[1],), rows.dtype, lambda _: constant(1, rows.dtype))
    return aten._weight_int8pack_mm.default, (rows, packed, ones)


def large_packed_product(program: Program, target: object, args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """On a GPU the arguments of ``MM_OF_PACKED``, for a large matrix of integers that is only cast; else ``None``."""
    if target is not aten.mm.default or args[0].dtype not in (torch.bfloat16, torch.float16) or not _is_known(args):
        return None
    rows, matrix = args
    if math.prod(int(s.constant) for s in matrix.shape) * matrix.dtype.itemsize < LARGE:
        return None
    packed = _packed(program, matrix)
    return None if packed is None else (rows, packed)


def _is_known(factors: Sequence[Tensor]) -> bool:
    """Whether all sizes are numbers."""
    return all(size.is_constant for x in factors for size in x.shape)


def _packed(program: Program, matrix: Tensor) -> Tensor | None:
    """The input of a program, of integers of 8 bits and without gaps, that is cast and transposed to ``matrix``."""
    along = tuple(Index.of(sized(f"d{k}", size)) for k, size in enumerate(matrix.shape))
    unpacked, plain = matrix.at(along), _plain_definitions(program)
    while isinstance(unpacked, Load) and unpacked.source in plain:
        unpacked = _computed(plain[unpacked.source], unpacked)
    packed = unpacked.operands[0] if isinstance(unpacked, Op) and unpacked.name == "cast" else None
    if not isinstance(packed, Load) or packed.dtype not in (torch.int8, torch.uint8) or packed.index != along[::-1]:
        return None
    source = program.inputs.get(packed.source)
    if source is None or source.strides != dense_strides(source.sizes):
        return None
    return named(packed.source, source.sizes, source.dtype)


def _sums(rows: Tensor, matrix: Tensor, dtype: torch.dtype) -> Tensor:
    def at(index: tuple[Index, ...], over: tuple[Index, ...]) -> Scalar:
        *batch, row, column = index
        return cast(rows.at((*batch, row, *over)), dtype) * cast(matrix.at((*batch, *over, column)), dtype)

    return reduce("sum", (*rows.shape[:-1], matrix.shape[-1]), (rows.shape[-1],), at)


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype is dtype else define(x.shape, dtype, x.at)


def _is_narrow(program: Program, matrix: Tensor) -> bool:
    """Whether reading what a matrix is computed from takes fewer bytes than reading the matrix."""
    variables = [sized(f"d{k}", size) for k, size in enumerate(matrix.shape)]
    scalar = matrix.at(tuple(map(Index.of, variables)))
    definitions = _plain_definitions(program)
    read, is_read = 0, False
    left = [scalar]
    while left:
        for x in loads(left.pop()):
            found = set().union(*(i.variables for i in x.index))
            if any(v.size != 1 and v not in found for v in variables):
                continue
            if x.source in definitions:
                left.append(_computed(definitions[x.source], x))
                continue
            is_read = True
            read += 0 if _is_of_a_group(x) else x.dtype.itemsize
    return is_read and read < matrix.dtype.itemsize


def _plain_definitions(program: Program) -> dict[str, Definition]:
    """What is computed element by element, by name."""
    return {s.name: s for s in program.steps if isinstance(s, Definition) and s.how is None}


def _computed(d: Definition, x: Load) -> Scalar:
    """What a definition computes for an element that is read."""
    return rewrite(d.body, dict(zip(d.variables, x.index, strict=True)))


def _is_of_a_group(x: Load) -> bool:
    """Whether several neighbours read the same element: they divide an index and take no remainder of it."""
    atoms = [a for i in x.index for a in i.atoms]
    divided = {str(a.dividend) for a in atoms if isinstance(a, Div)}
    return bool(divided) and not divided <= {str(a.dividend) for a in atoms if isinstance(a, Mod)}
