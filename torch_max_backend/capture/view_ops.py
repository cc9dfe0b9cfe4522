"""Ops that move elements and compute nothing: views, by what they do to the elements of one tensor, and copies.

That an op may be a view is said by its schema, whose argument and result share memory: ``Tensor(a) self -> Tensor(a)``.
Overloads, those that look at the bits as another dtype, and those that give several tensors, are told by schemas too.
What a schema can't tell is written here, once: which elements of the tensor a view has, and in which order (``t``,
``squeeze`` and ``alias`` have one schema), and which ops copy.

In none of the sets are views that lowerings compute by gathering: ``diagonal``, ``unfold``, ``as_strided``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch._ops import OpOverload

aten = torch.ops.aten


def _overloads(name: str) -> Iterator[OpOverload]:
    """The overloads of an op that give tensors and write into none; TorchScript has others, of lists and strings."""
    packet = getattr(aten, name, None)
    for overload in packet.overloads() if packet is not None else ():
        op = getattr(packet, overload)
        results = {str(r.type) for r in op._schema.returns}
        if results in ({"Tensor"}, {"List[Tensor]"}) and not op._schema.is_mutable:
            yield op


def _views(*names: str) -> frozenset[OpOverload]:
    """Views of these names, and the same ops under the name ``unsafe``.

    An ``unsafe_split`` is a ``split``. Its schema does not say that it is a view, so that autograd lets the results be
    written to.
    """
    found = {op for name in names for op in _overloads(name) if op.is_view}
    return frozenset(found.union(*(_overloads(f"{how}unsafe_{name}") for name in names for how in ("", "_"))))


def _arguments(op: OpOverload) -> list[str]:
    return [a.name for a in op._schema.arguments]


# -- what a view does to the elements --------------------------------------------------------------------------------
BITS = frozenset(op for op in _views("view") if "dtype" in _arguments(op))
"""All elements in their places, as another dtype of the same bits."""

RESHAPES = _views("view", "reshape", "unsqueeze", "squeeze") - BITS
"""All elements, in the same order, in another shape."""

PERMUTES = _views("permute", "transpose", "t")
"""All elements, with the dimensions in another order."""

CUTS = _views("slice", "select", "split", "split_with_sizes", "unbind")
"""Some of the elements, in the same order, as one tensor or several."""

EXPANDS = _views("expand")
"""All elements, some of them several times."""

ALIASES = _views("alias", "detach")
"""The tensor itself."""


# -- what passes ask for ---------------------------------------------------------------------------------------------
VIEWS_OF_SIZES = frozenset(op for op in RESHAPES if _arguments(op) == ["self", "size"])
"""``view``: a reshape that takes sizes alone, and fails where the strides do not allow it.

AOTAutograd hands over every reshape as one of them, and a dimension of size 1 added or dropped as itself.
"""

PIECES = frozenset(op for op in CUTS if str(op._schema.returns[0].type) == "Tensor")
"""Cuts that give one tensor."""

FREE_VIEWS = RESHAPES | PERMUTES | PIECES | EXPANDS | ALIASES | BITS
"""One tensor seen as one tensor: their lowerings are views as well, or next to free."""

COPIES = frozenset(
    op
    for name in ("_to_copy", "cat", "clone", "contiguous", "copy", "lift_fresh_copy", "repeat")
    for op in _overloads(name)
)
"""Fresh memory by their schemas, but for ``contiguous``, which is a view of what is contiguous already."""

MOVEMENT = FREE_VIEWS | CUTS | COPIES
"""Movement of data without arithmetic: of all these MAX may make a view of their input."""
