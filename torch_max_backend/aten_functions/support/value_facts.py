"""What the lowerings of one graph know about its values, beside what MAX knows: where each came from.

A lowering that makes a value notes here what it made it from, and one that reads it may start from that instead, which
saves a transpose, a copy or a conversion. No fact changes what a value is: without any, every lowering is right.

A fact belongs to the Python object and not to MAX's value behind it. ``TensorValue(x)`` is ``x`` under a name of which
nothing is known, and what an operator of MAX gives has no facts until somebody notes them. The record is the lowering
walk's (``lowering/graph_builder.py``): it is made for one graph and forgotten with the walk. Outside of a walk nothing
is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from max.graph import Dim, TensorValue


class Unfinished:
    """What an op may ask for in the place of a value that it reads: the value and more, computed by one kernel.

    Each answer is ``None`` where there is no such kernel.
    """

    def activated(self, activation: str) -> TensorValue | None:
        """The value behind an activation."""
        return None

    def piece(self, axis: int, start: int, size: int) -> TensorValue | None:
        """Elements ``start`` to ``start + size`` along an axis."""
        return None

    def added_to(self, x: TensorValue) -> TensorValue | None:
        """The sum with ``x``."""
        return None

    def plus_rows(self, updates: TensorValue, at: TensorValue) -> TensorValue | None:
        """The value ``[M, N]``, to whose rows ``at`` ``updates`` are added."""
        return None

    def reshaped(self, shape: Sequence[Dim]) -> Unfinished | None:
        """The same of the value in another shape."""
        return None

    def permuted(self, dims: Sequence[int]) -> Unfinished | None:
        """The same of the value with its dimensions in another order."""
        return None


@dataclass
class Facts:
    """What is known of one value; ``None`` where nothing is.

    Facts are noted where a value is made, and hold as long as the walk does, since values never change; only
    ``unfinished`` ends earlier.
    """

    permuted_from: tuple[TensorValue, tuple[int, ...]] | None = None
    """The value that this one is a permutation of, and the order of its dimensions: ``source.permute(order)``.

    Set by ``permute``. Read through ``permuted_from``, ``in_memory`` and ``memory_order`` by what moves a permutation
    behind itself (casts, rebinds, slices, dropped axes), by what asks for the order in memory (images with channels
    last, attention), and by ``stored``, which lets a kernel write a transpose.
    """

    transpose_of: Callable[[], TensorValue] | None = None
    """Makes the value whose matrices, the last two dimensions, are those of this one transposed.

    It is a function, because a reshape or rebind of the transpose asks for the same of its source, which costs an
    operator if nobody reads it. Set by ``permute`` and ``written_transpose``, and handed on by ``reshape`` and
    ``rebind`` where they leave the matrices alone. Read by products, whose kernels take an operand either way, and by
    ``permute``, for which two transposes are none.
    """

    reshaped_from: TensorValue | None = None
    """The value that this one is a reshape of, with its elements in the same order.

    Set by ``reshape``. Read through ``reshapes_of``: by ``reshape``, which goes back to a shape that there was, by
    ``cast`` and ``converted_from``, by products that look for their padding, and by
    ``lowering/elementwise_shapes.py``, which chooses the shape that a GPU computes in.
    """

    expanded_from: TensorValue | None = None
    """The value that this one was broadcast from.

    Set by ``broadcast_to``. Read through ``narrow`` by attention, whose kernels need not have all of a mask in memory.
    """

    columns_of: tuple[TensorValue, int] | None = None
    """The matrix that this value is columns of, and from which on, if all but two dimensions of both are flattened.

    Set by ``remember_columns`` for slices and handed on by ``reshape`` where rows stay rows. Read by attention, which
    takes queries, keys and values from where one product wrote them.
    """

    unfinished: Unfinished | None = None
    """What an op that reads this value may ask for in its place.

    Set by ``mark_unfinished`` for products and gradients of embeddings, and handed on by ``reshape`` and ``permute``.
    Read by sums, activations and slices; ``reshape``, ``cast`` and ``lowering/elementwise_shapes.py`` leave such a
    value as it is. True until the walk finds that the value itself is needed, as an output of the region or by several
    readers, and calls ``finish``.
    """

    padded: TensorValue | None = None
    """The wider matrix of which this value is the first columns, with zeros in all others.

    Set by ``without_zeros``, for the gradient of a likelihood that only products read. Read by products on a GPU, which
    would add such zeros themselves.
    """


class GraphFacts:
    """The facts about the values of one graph. It keeps the values alive, so that no two have one identity."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[TensorValue, Facts]] = {}

    def of(self, x: TensorValue) -> Facts:
        """What is known of ``x``, to read and to write."""
        return self._of.setdefault(id(x), (x, Facts()))[1]


_of_walk: ContextVar[GraphFacts | None] = ContextVar("torch_max_backend_facts", default=None)


@contextmanager
def remembering(facts: GraphFacts) -> Iterator[None]:
    """Keep what is noted inside the block in ``facts``."""
    token = _of_walk.set(facts)
    try:
        yield
    finally:
        _of_walk.reset(token)


def facts_of(x: TensorValue) -> Facts:
    """What is known of ``x``, to read and to write; outside of a walk nothing is, and what is written is lost."""
    facts = _of_walk.get()
    return Facts() if facts is None else facts.of(x)


def mark_unfinished(x: TensorValue, unfinished: Unfinished | None) -> None:
    """Note on a value what an op that reads it may ask for in its place; see `cublaslt_products.py`."""
    if unfinished is not None:
        facts_of(x).unfinished = unfinished


def finish(x: TensorValue) -> None:
    """Forget what :func:`mark_unfinished` noted: the value itself is needed."""
    facts_of(x).unfinished = None


def unfinished_of(x: Any) -> Unfinished | None:
    """What :func:`mark_unfinished` noted; ``None`` if nothing, or if ``x`` is no tensor."""
    return facts_of(x).unfinished if isinstance(x, TensorValue) else None
