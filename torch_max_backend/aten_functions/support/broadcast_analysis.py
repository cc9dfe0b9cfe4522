"""What a graph under construction says of its values: their shapes, and which of them MAX may treat as broadcasts."""

from __future__ import annotations

from typing import Any

from max.graph import Dim, TensorValue

COMBINING = frozenset(
    f"{name}Op"
    for name in (
        *("Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow", "Max", "Min", "And", "Or", "Xor", "Select"),
        *("Equal", "NotEqual", "Greater", "GreaterEqual", "BroadcastTo"),
    )
)
"""MAX graph ops that broadcast their operands."""
CHECKS = frozenset({"tmb_index", "tmb_index_from_either_end"})
"""Kernels of ours that MAX computes inside those that read their results, as its elementwise ops."""
LOOKED_AT = 200
"""So many values :func:`may_be_broadcast` looks at, at most."""


def operands_of(value: Any) -> list[Any]:
    """The values (of MLIR) that the op which makes ``value`` takes; none for an input of the graph."""
    return [getattr(o, "value", o) for o in getattr(value.owner, "operands", [])]


def is_index_check(operation: Any) -> bool:
    """Whether an op (of MLIR) checks indices, and else gives its first operand."""
    return getattr(operation, "symbol", "") in CHECKS


def shape_of(value: Any) -> list[Dim] | None:
    """The shape of a value of MLIR; ``None`` if it is no tensor but, say, a chain."""
    try:
        return list(TensorValue(value).shape)
    except (AssertionError, TypeError, ValueError):
        return None


def may_be_broadcast(x: TensorValue) -> bool:
    """Whether ``x`` is computed element by element from nothing of its own shape but broadcasts and constants."""
    seen: dict[Any, bool] = {}
    shape = list(x.shape)

    def visit(value: Any) -> bool:
        if value in seen or len(seen) >= LOOKED_AT:
            return seen.get(value, True)
        name = type(value.owner).__name__
        sources = [(o, s) for o in operands_of(value) if (s := shape_of(o)) is not None]
        seen[value] = "Constant" in name
        if name in COMBINING or (len(sources) == 1 and sources[0][1] == shape):
            seen[value] = all(s != shape or visit(o) for o, s in sources)
        return seen[value]

    return visit(x._mlir_value)
