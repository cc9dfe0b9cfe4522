"""Facts about fake tensors: sizes as sympy expressions, physical order, storage identity."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from sympy import Expr
from torch import fx


def expr_of(size: int | torch.SymInt | torch.SymFloat) -> Expr:
    """A size as a simplified sympy expression (an Integer when static)."""
    if isinstance(size, torch.SymInt | torch.SymFloat):
        return sympy.sympify(size.node.expr)
    return sympy.Integer(size) if isinstance(size, int) else sympy.Float(size)


def sizes_of(value: torch.Tensor) -> tuple[Expr, ...]:
    """The sizes of a fake tensor as expressions."""
    return tuple(expr_of(s) for s in value.shape)


def hint(size: int | torch.SymInt) -> int:
    """The size as seen when the graph was traced; 2 for data-dependent sizes, so that they are neither 0 nor 1."""
    if isinstance(size, int):
        return size
    if size.node.expr.is_number:
        return int(size.node.expr)
    try:
        found = size.node.hint
    except Exception:  # an unbacked symbol has no hint; torch raises different types for it in different versions
        found = None
    return int(found) if found is not None else 2


def physical_order(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...] | None:
    """The permutation that makes a dense tensor contiguous: the identity if it is, ``None`` if it is not dense.

    Dimensions of size 1 may have any stride, as in ``torch.Tensor.is_contiguous``.
    """
    identity = tuple(range(len(shape)))
    if any(s == 0 for s in shape) or _contiguous(shape, stride, identity):
        return identity
    order = tuple(sorted(identity, key=lambda d: (-stride[d], d)))
    return order if _contiguous(shape, stride, order) else None


def _contiguous(shape: Sequence[int], stride: Sequence[int], order: Sequence[int]) -> bool:
    expected = 1
    for d in reversed(order):
        if shape[d] == 1:
            continue
        if stride[d] != expected:
            return False
        expected *= shape[d]
    return True


def order_of(value: torch.Tensor) -> tuple[int, ...] | None:
    """:func:`physical_order` of a fake tensor, decided on its hints."""
    return physical_order([hint(s) for s in value.shape], [hint(s) for s in value.stride()])


def is_plain(value: object) -> bool:
    """Whether the value is an ordinary dense tensor that MAX can see: strided, not quantized, no lazy conj or neg."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not value.is_quantized
        and not value.is_nested
        and not value.is_conj()
        and not value.is_neg()
    )


def storage_key(value: torch.Tensor) -> int | None:
    """An identity of the storage behind a fake tensor; ``None`` where there is none to compare."""
    if value.layout is not torch.strided:
        return None
    try:
        return value.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None


def value_of(node: fx.Node) -> object:
    """What torch promises for the node: a fake tensor, a number, or a (nested) tuple of them."""
    return node.meta.get("val")


def tensor_of(node: fx.Node) -> torch.Tensor:
    """The fake tensor that the node gives, the first one of several."""
    return tensors_of(value_of(node))[0]


def tensors_of(value: object) -> list[torch.Tensor]:
    """All tensors inside a node's value."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for v in value for t in tensors_of(v)]
    return []


def symbols_of(value: object) -> set[sympy.Symbol]:
    """The symbols in a number, or in the sizes and strides of all tensors inside a node's value."""
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return set(expr_of(value).free_symbols)
    return {
        symbol
        for tensor in tensors_of(value)
        if tensor.layout is torch.strided and tensor._has_symbolic_sizes_strides
        for size in (*tensor.shape, *tensor.stride(), tensor.storage_offset())
        for symbol in expr_of(size).free_symbols
    }


def user_line(node: fx.Node) -> str:
    """Where in the user's program the node comes from: ``file:line, in function: code``, or an empty string."""
    lines = [ln.strip() for ln in (node.meta.get("stack_trace") or "").strip().splitlines()]
    for i in range(len(lines) - 1, -1, -1):
        if lines[i].startswith("File "):
            code = lines[i + 1] if i + 1 < len(lines) else ""
            where = lines[i][5:].replace('"', "").replace(", line ", ":")
            return f"{where}: {code}" if code else where
    return ""


def user_module(node: fx.Node) -> str:
    """The path of the user's module in which a node, or the node whose gradient it computes, is: ``layers.0.act``.

    An empty string where it is in none but the outermost, or torch does not know.
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    path, _ = next(reversed(stack.values()), ("", None))
    return str(path).partition("'].")[2].replace("_modules['", "").replace("']", "")
