"""Tensors while a loop program is built: a shape, a dtype, and the scalar at an index."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from torch_max_backend.base.dtypes import FLOAT8
from torch_max_backend.base.errors import Unsupported
from torch_max_backend.base.index_sites import Site
from torch_max_backend.loops.expr import Load, Scalar, as_index, cast, checked, constant, from_index, rounded, widened
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.loops.program import Definition, Program, Reduction, Scan, Scatter, Sort
from torch_max_backend.loops.symbols import Symbols

Shape = tuple[Index, ...]
At = Callable[[Shape], Scalar]
PROMOTION = ELEMENTWISE_TYPE_PROMOTION_KIND


@dataclass(frozen=True)
class Tensor:
    """``at`` gives the scalar at an index, one :class:`Index` a dimension. A view is another ``at``: it is free."""

    shape: Shape
    dtype: torch.dtype
    at: At

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def dim(self, d: int) -> int:
        """A dimension counted from the front."""
        return d + self.rank if d < 0 else d


Operand = Tensor | bool | int | float | Index


class Builder:
    """Adds definitions to a program; rules reach the one at work by :func:`builder`.

    Args:
        is_for_gpu: Whether a GPU runs the program: torch's kernels for CPUs give other answers at some edges, and other
            ways to compute a result are quicker there.
    """

    def __init__(self, is_for_gpu: bool = False) -> None:
        self.is_for_gpu = is_for_gpu
        self.program = Program()
        self.symbols = Symbols()
        self.where, self.module = "", ""
        self.promise: Any = None
        """What torch promises for the op at work: its fake tensors; none where nobody promised."""
        self.wanted: frozenset[int] | None = None
        """Which results of the op at work are read, by number, if it has several; none if any may be."""
        self._count = 0

    def _fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def variable(self, prefix: str, size: Index) -> Var:
        """A new loop variable."""
        return sized(self._fresh(prefix), size)

    def name(self) -> str:
        """A new name of a tensor."""
        return self._fresh("t")

    def add(
        self,
        dtype: torch.dtype,
        variables: tuple[Var, ...],
        body: Scalar,
        how: Reduction | Scan | Sort | Scatter | None = None,
    ) -> Tensor:
        """Add a definition; its body is cast to ``dtype`` if it has another one."""
        if not isinstance(how, Reduction | Scan):
            body = rounded(body, dtype)
        name = self.name()
        self.program.steps.append(Definition(name, dtype, variables, body, how, self.where))
        self.program.modules[name] = self.module
        return named(name, tuple(Index.of(v.size) for v in variables), dtype)

    def site(self, message: str) -> int:
        """The number of a place that checks indices, with torch's words for one that is out of range."""
        op, _, line = self.where.partition(" at ")
        site = Site(op, message, (line,) if line else ())
        sites = self.program.sites
        if site not in sites:
            sites.append(site)
        return sites.index(site)


def sized(name: str, size: Index) -> Var:
    """A loop variable of a size."""
    return Var(name, size.constant if size.is_constant else size)


_builder: contextvars.ContextVar[Builder] = contextvars.ContextVar("builder")


def builder() -> Builder:
    """The builder at work."""
    return _builder.get()


@contextmanager
def building(is_for_gpu: bool = False) -> Iterator[Builder]:
    """Make a new builder the one at work."""
    token = _builder.set(Builder(is_for_gpu))
    try:
        yield _builder.get()
    finally:
        _builder.reset(token)


def named(name: str, shape: Shape, dtype: torch.dtype) -> Tensor:
    """The tensor of an input or a definition."""
    return Tensor(shape, dtype, lambda index: Load(name, index, dtype))


# -- definitions -------------------------------------------------------------------------------------------------------
def define(shape: Sequence[Index], dtype: torch.dtype, at: At) -> Tensor:
    """A tensor by the scalar at each index, as a definition of its own."""
    b = builder()
    variables = tuple(b.variable("i", size) for size in shape)
    return b.add(dtype, variables, at(tuple(map(Index.of, variables))))


def reduce(
    combiner: str,
    shape: Sequence[Index],
    over: Sequence[Index],
    at: Callable[[Shape, Shape], Scalar],
    dtype: torch.dtype | None = None,
) -> Tensor:
    """For each index of ``shape``, the combined scalars ``at(index, place)`` over all places of ``over``."""
    if all(size == 1 for size in over):  # nothing is combined
        return _of_one(combiner, shape, over, at, dtype)
    b = builder()
    variables = tuple(b.variable("i", size) for size in shape)
    places = tuple(b.variable("r", size) for size in over)
    body = at(tuple(map(Index.of, variables)), tuple(map(Index.of, places)))
    found = torch.int64 if combiner.startswith("arg") else body.dtype
    if all(place.size == 1 for place in places):  # one element is what it is combined to
        result = b.add(found, variables, constant(0, found) if combiner.startswith("arg") else body)
    else:
        result = b.add(found, variables, body, Reduction(combiner, places))
    return result if dtype in (None, found) else converted(result, dtype)


def _of_one(
    combiner: str,
    shape: Sequence[Index],
    over: Sequence[Index],
    at: Callable[[Shape, Shape], Scalar],
    dtype: torch.dtype | None,
) -> Tensor:
    place = (Index.of(0),) * len(over)
    if combiner.startswith("arg"):
        return define(shape, dtype or torch.int64, lambda index: constant(0, dtype or torch.int64))
    inner = at(tuple(Index.of(0) for _ in shape), place).dtype
    return define(shape, dtype or inner, lambda index: rounded(at(index, place), dtype or inner))


def checked_index(x: Scalar, size: Index, message: str, wraps: bool = False) -> Index:
    """An element of an index tensor as an index of one of ``size`` elements.

    Args:
        message: What torch says of one that is out of range, with ``{index}`` for it, and sizes as :func:`spelled`
            writes them.
        wraps: Whether a negative one counts from the end.
    """
    if size.bounds[0] < 1 or not size.is_fixed:
        raise Unsupported(f"indices into a number of elements that is not 0, not {size}")
    site = builder().site(message)
    if size.is_constant:
        return as_index(checked(cast(x, torch.int64), size.constant, site, wraps), 0, size.constant - 1)
    return as_index(checked(cast(x, torch.int64), size, site, wraps), 0)


def spelled(size: Index | int) -> str:
    """A size in a message: a number, or a formula in braces whose value is put there when the message is needed."""
    size = Index.of(size)
    return str(size) if size.is_constant else f"{{{size}}}"


def converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor rounded to a dtype between two ops."""
    return define(x.shape, dtype, lambda index: rounded(x.at(index), dtype))


# -- shapes ------------------------------------------------------------------------------------------------------------
def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape to which all are broadcast. Symbolic sizes must be spelled alike, or be 1."""
    rank = max(map(len, shapes), default=0)
    result = []
    for d in range(rank):
        sizes = [s[d - rank + len(s)] for s in shapes if d - rank + len(s) >= 0]
        wide = [s for s in sizes if s != 1]
        if any(s != wide[0] for s in wide):
            raise Unsupported(f"sizes that are broadcast must be spelled alike, not {', '.join(map(str, wide))}")
        result.append(wide[0] if wide else Index.of(1))
    return tuple(result)


def broadcast_at(x: Tensor, shape: Shape) -> At:
    """The scalar of ``x`` at an index of a shape that it is broadcast to."""
    missing = len(shape) - x.rank
    stays = [x.shape[d] == 1 for d in range(x.rank)]

    def at(index: Shape) -> Scalar:
        own = index[missing:]
        return x.at(tuple(Index.of(0) if one else i for one, i in zip(stays, own, strict=True)))

    return at


def expanded(x: Tensor, shape: Shape) -> Tensor:
    """``x`` broadcast to ``shape``."""
    return Tensor(shape, x.dtype, broadcast_at(x, shape))


# -- elementwise -------------------------------------------------------------------------------------------------------
def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which torch computes elements of ``dtype`` on every device: float32 for floats of 16 bits or 8."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) or dtype in FLOAT8 else dtype


@functools.cache
def _like(dtype: torch.dtype, has_dims: bool) -> torch.Tensor:
    return torch.empty((0,) if has_dims else (), dtype=dtype, device="meta")


def promoted(*operands: Operand | None, kind: Any = PROMOTION.DEFAULT) -> tuple[torch.dtype, torch.dtype]:
    """The dtype in which an elementwise op computes and the one of its result, by torch's type promotion."""
    likes = []
    for x in operands:
        if isinstance(x, Tensor):
            likes.append(_like(x.dtype, x.rank > 0))
        elif isinstance(x, Index):
            likes.append(1)
        elif x is not None:
            likes.append(x)
    found, result = elementwise_dtypes(*likes, type_promotion_kind=kind)
    return torch.float32 if found in FLOAT8 else found, result


def number(x: bool | int | float | Index, dtype: torch.dtype) -> Scalar:
    """A Python number or a symbolic one as a scalar."""
    return cast(from_index(x), dtype) if isinstance(x, Index) else constant(x, dtype)


def pointwise(
    formula: Callable[..., Scalar],
    *operands: Operand,
    kind: Any = PROMOTION.DEFAULT,
    dtype: torch.dtype | None = None,
    compute: torch.dtype | None = None,
    asks: bool = False,
) -> Tensor:
    """An elementwise op: operands are promoted and broadcast, ``formula`` gives an element, which is rounded.

    Args:
        formula: Takes a scalar of the computing dtype for each operand.
        kind: Torch's kind of type promotion.
        dtype: The result's dtype, if it is not what promotion says.
        compute: The dtype to compute in, if it is not what promotion says.
        asks: Whether the smallest difference of an operand may change all of a result, as that of a comparison, so that
            operands are rounded as torch rounds them.
    """
    found, result = promoted(*operands, kind=kind)
    inner = compute or found
    shape = broadcast_shapes(*(x.shape for x in operands if isinstance(x, Tensor)))
    ats = [broadcast_at(x, shape) if isinstance(x, Tensor) else x for x in operands]
    convert = widened if asks else cast

    def at(index: Shape) -> Scalar:
        args = [convert(x(index), inner) if callable(x) else number(x, inner) for x in ats]
        return formula(*args)

    return define(shape, dtype or result, at)


def is_number(x: object, value: float) -> bool:
    """Whether an operand is this Python number."""
    return isinstance(x, int | float) and not isinstance(x, bool) and x == value
