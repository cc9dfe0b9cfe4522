"""Products of one row with a matrix that is computed from narrower elements, as loops.

A library reads a matrix as floats: unpacked weights have been written to memory and are read again. With one row, as
where a language model decodes, the product takes the time of reading its matrix, so a loop that unpacks each element
where it is used is as much faster as the elements are narrower. With more rows a library is better, since it reads an
element once for many of them.

A library's product of integers is faster than a loop. But where the matrix is also summed, as for activations that are
shifted to be unsigned, one loop for both reads it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from torch_max_backend.loops.expr import Load, Scalar, cast, loads, rewrite
from torch_max_backend.loops.index import Div, Index, Mod
from torch_max_backend.loops.program import Definition, Program
from torch_max_backend.loops.tensor import Tensor, broadcast_at, computed_in, define, reduce, sized

aten = torch.ops.aten


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
    return product_as_loops(args, kwargs)


# mm(Tensor self, Tensor mat2) -> Tensor
# addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor
PRODUCTS = (aten.mm.default, aten.addmm.default)


def product_as_loops(args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor | None:
    """What a product or a sum with one gives, with nothing else rounded; ``None`` for other factors than one."""
    *summands, rows, matrix = args
    if any(factor != 1 for factor in kwargs.values()):
        return None
    sums = _sums(rows, matrix, computed_in(rows.dtype))
    if not summands:
        return _rounded(sums, rows.dtype)
    bias = broadcast_at(summands[0], sums.shape)
    return define(sums.shape, rows.dtype, lambda index: sums.at(index) + cast(bias(index), sums.dtype))


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


def _sums(row: Tensor, matrix: Tensor, dtype: torch.dtype) -> Tensor:
    def at(index: tuple[Index, ...], over: tuple[Index, ...]) -> Scalar:
        return cast(row.at((index[0], over[0])), dtype) * cast(matrix.at((over[0], index[1])), dtype)

    return reduce("sum", (row.shape[0], matrix.shape[1]), (matrix.shape[0],), at)


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype is dtype else define(x.shape, dtype, x.at)


def _is_narrow(program: Program, matrix: Tensor) -> bool:
    """Whether reading what a matrix is computed from takes fewer bytes than reading the matrix."""
    variables = [sized(f"d{k}", size) for k, size in enumerate(matrix.shape)]
    scalar = matrix.at(tuple(map(Index.of, variables)))
    definitions = {s.name: s for s in program.steps if isinstance(s, Definition) and s.how is None}
    read, is_read = 0, False
    left = [scalar]
    while left:
        for x in loads(left.pop()):
            found = set().union(*(i.variables for i in x.index))
            if any(v.size != 1 and v not in found for v in variables):
                continue
            if x.source in definitions:
                d = definitions[x.source]
                left.append(rewrite(d.body, dict(zip(d.variables, x.index, strict=True))))
                continue
            is_read = True
            read += 0 if _is_of_a_group(x) else x.dtype.itemsize
    return is_read and read < matrix.dtype.itemsize


def _is_of_a_group(x: Load) -> bool:
    """Whether several neighbours read the same element: they divide an index and take no remainder of it."""
    atoms = [a for i in x.index for a in i.atoms]
    divided = {str(a.dividend) for a in atoms if isinstance(a, Div)}
    return bool(divided) and not divided <= {str(a.dividend) for a in atoms if isinstance(a, Mod)}
