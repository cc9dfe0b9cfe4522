"""What an array is before it has a value: a node of a recorded expression.

A node has an op, the nodes it is computed from, sizes, and other arguments. Shape and data type are found when it is
recorded, by running the op on tensors without memory, once for each form of arguments.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_max_backend.base.errors import ArrayTypeError, ArrayValueError

Shape = tuple[int, ...]
_META = torch.device("meta")


@dataclass(frozen=True, eq=False)
class Op:
    """What a node computes, as a function of tensors in torch.

    ``function`` takes tensors, ``sizes=`` where a node has sizes, and the node's other arguments by name. It returns
    one tensor. ``is_cheap`` ops only look at memory in another way, or have no input: their results are not kept.
    """

    name: str
    function: Callable[..., torch.Tensor]
    is_cheap: bool = False


def _name(function: Callable[..., torch.Tensor]) -> str:
    return function.__name__.removeprefix("_").removesuffix("_of")


def op(function: Callable[..., torch.Tensor]) -> Op:
    """An op of a function, under its name without ``_of``."""
    return Op(_name(function), function)


def view_op(function: Callable[..., torch.Tensor]) -> Op:
    """An op that only looks at memory in another way, or has no input."""
    return Op(_name(function), function, is_cheap=True)


class Node:
    """A value, or what it is computed from. A node with a value has forgotten the rest."""

    __slots__ = ("depth", "device", "dtype", "inputs", "op", "owner", "shape", "sizes", "static", "value")

    def __init__(
        self,
        op: Op | None,
        inputs: tuple[Node, ...],
        sizes: Shape | None,
        static: tuple[tuple[str, Any], ...],
        shape: Shape,
        dtype: torch.dtype,
        device: torch.device,
        value: torch.Tensor | None = None,
    ) -> None:
        self.op, self.inputs, self.sizes, self.static = op, inputs, sizes, static
        self.shape, self.dtype, self.device, self.value = shape, dtype, device, value
        self.owner: weakref.ref[Any] | None = None
        """The array that has this node, while there is one."""
        self.depth: int = 1 + max([x.depth for x in inputs], default=0)

    def take(self, value: torch.Tensor) -> None:
        """Become a leaf."""
        self.value, self.op, self.inputs, self.static, self.depth = value, None, (), (), 1


def leaf(value: torch.Tensor) -> Node:
    """A node of a tensor."""
    return Node(None, (), None, (), tuple(value.shape), value.dtype, value.device, value)


def record(op: Op, inputs: Sequence[Node], device: torch.device, /, sizes: Shape | None = None, **static: Any) -> Node:
    """A node of an op.

    Args:
        device: Where the result is; all inputs are there.
        sizes: Integers that may differ between expressions of the same form.
        static: Hashable arguments that are part of the form.

    Raises:
        ArrayValueError: The op doesn't take these shapes.
        ArrayTypeError: The op doesn't take these data types, or an input is on another device.
    """
    for x in inputs:
        if x.device != device:
            raise ArrayTypeError(f"{op.name}: arrays on {device} and {x.device}: move one of them with to_device")
    items = tuple(static.items())
    shape, dtype = _inferred(op, tuple([(x.shape, x.dtype) for x in inputs]), sizes, items)
    return Node(op, tuple(inputs), sizes, items, shape, dtype, device)


@functools.lru_cache(maxsize=2**16)
def _inferred(
    op: Op, inputs: tuple[tuple[Shape, torch.dtype], ...], sizes: Shape | None, static: tuple[tuple[str, Any], ...]
) -> tuple[Shape, torch.dtype]:
    tensors = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in inputs]
    try:
        with torch.no_grad():
            result = run(op, tensors, sizes, static, _META)
    except (NotImplementedError, TypeError) as error:
        raise ArrayTypeError(f"{op.name}: {error}") from error
    except (RuntimeError, ValueError, IndexError) as error:
        raise ArrayValueError(f"{op.name}: {error}") from error
    return tuple(result.shape), result.dtype


def run(
    op: Op, tensors: Sequence[Any], sizes: Any, static: Sequence[tuple[str, Any]], device: torch.device | None = None
) -> torch.Tensor:
    """An op's function on tensors; ``sizes`` may be symbolic. What it creates is put on ``device`` if one is given."""
    others = dict(static)
    if device is not None and "device" in others:
        others["device"] = device
    return op.function(*tensors, **others) if sizes is None else op.function(*tensors, sizes=sizes, **others)


def in_order(roots: Sequence[Node]) -> list[Node]:
    """All nodes below some, leaves among them, each after what it is computed from."""
    order: list[Node] = []
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            if node.inputs:
                stack.append((node, True))
                stack.extend((x, False) for x in reversed(node.inputs))
            else:
                order.append(node)
    return order
