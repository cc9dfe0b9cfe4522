"""GELU that a model writes out: ``0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`` is one op again.

A product's kernel on a GPU can compute it before it writes its result, which saves reading and writing the widest
activations of a transformer. In 16-bit floats it is also closer to the exact value than the seven rounded steps. In the
graph of forward and backward together its gradient is one op too, and all that is saved for that is ``x``.

Autocast raises to powers in float32. The steps after that are float32 as well, even if whatever reads the result rounds
it to the dtype of ``x``. So does the gradient arrive rounded, and the ops are then 16-bit.

Steps are known by what they compute: torch evaluates them at a few points, in float64 and without their roundings. That
finds every order of factors and terms, which are the model's for GELU and autograd's for its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from torch_max_backend.capture.fake_tensors import expr_of, sizes_of, tensor_of, value_of
from torch_max_backend.capture.user_controlled_ops import is_taken
from torch_max_backend.capture.view_ops import PERMUTES, RESHAPES

aten = torch.ops.aten

SCALE, CUBIC = math.sqrt(2 / math.pi), 0.044715

MOST_TRIED = 16
"""How many nodes around ``tanh`` may be tried as an end of the steps."""

MOST_IN_A_ROW = 24
"""How many steps may depend on each other; GELU and its gradient have 13."""

_STEPS = {
    aten._to_copy.default,
    aten.add.Tensor,
    aten.mul.Scalar,
    aten.mul.Tensor,
    aten.pow.Tensor_Scalar,
    aten.tanh.default,
    aten.tanh_backward.default,
}
_VIEWS = RESHAPES | PERMUTES


@dataclass(frozen=True)
class Gelu:
    """GELU as found: ``y`` is that of ``x``, and ``grad_x`` the gradient if the graph has it, of ``grad_y``.

    ``steps`` are all nodes that the ops replace.
    """

    x: fx.Node
    y: fx.Node
    grad_y: fx.Node | None
    grad_x: fx.Node | None
    steps: set[fx.Node]

    @property
    def is_mixed(self) -> bool:
        """Whether a 16-bit ``x`` has a float32 result."""
        return tensor_of(self.x).dtype.itemsize == 2 and tensor_of(self.y).dtype == torch.float32


def recognize_gelu(gm: fx.GraphModule) -> None:
    """Replace the written-out form on a GPU, with its gradient, where nothing else reads their steps."""
    if is_taken(aten.gelu.default, aten.gelu_backward.default, *_STEPS):
        return
    nodes = [n for n in gm.graph.find_nodes(op="call_function", target=aten.tanh.default) if tensor_of(n).is_cuda]
    for tanh in nodes:
        with _disable_current_modes():
            gelu = _find(tanh)
        if gelu is not None and _is_whole(gelu):
            _replace(gm, gelu)
    if nodes:
        gm.graph.eliminate_dead_code()


# -- what steps compute ----------------------------------------------------------------------------------------------
def _find(tanh: fx.Node) -> Gelu | None:
    """The GELU that ``tanh`` is a step of."""
    points = torch.linspace(-3, 3, 16, dtype=torch.float64, device="cpu")
    slopes = torch.linspace(1, 2, 16, dtype=torch.float64, device="cpu").square()
    (inner,) = tanh.args
    x = _first(_before(inner), lambda n: _compute(inner, {n: points}), SCALE * (points + CUBIC * points**3))
    if x is None:
        return None
    known = {x: points}
    y = _first(_after(tanh), lambda n: _compute(n, known), aten.gelu(points, approximate="tanh"))
    if y is None:
        return None
    steps = _steps(y, {x})
    backward = [n for n in tanh.users if n.target is aten.tanh_backward.default]
    if not backward:
        return Gelu(x, y, None, None, steps)
    outer = backward[0].args[0]
    grad_y = _first(_before(outer), lambda n: _compute(outer, {**known, n: slopes}), slopes * points / 2)
    if grad_y is None:
        return None
    known[grad_y] = slopes
    gradient = aten.gelu_backward(slopes, points, approximate="tanh")
    grad_x = _first(_after(backward[0]), lambda n: _compute(n, known), gradient)
    return None if grad_x is None else Gelu(x, y, grad_y, grad_x, steps | _steps(grad_x, {x, grad_y}))


def _first(
    nodes: list[fx.Node], compute: Callable[[fx.Node], torch.Tensor | None], expected: torch.Tensor
) -> fx.Node | None:
    """The first node with which the computation gives what is expected."""
    for node in nodes:
        found = compute(node)
        if found is not None and torch.allclose(found, expected, rtol=1e-6, atol=1e-6):
            return node
    return None


def _compute(node: fx.Node, known: dict[fx.Node, torch.Tensor], left: int = MOST_IN_A_ROW) -> torch.Tensor | None:
    """What ``node`` computes, unless that takes more than steps of known values. Those made are known from then on."""
    if node not in known:
        if node.target not in _STEPS or not left:
            return None
        args: list[Any] = []
        for arg in node.args:
            args.append(_compute(arg, known, left - 1) if isinstance(arg, fx.Node) else arg)
            if args[-1] is None:
                return None
        known[node] = args[0] if node.target is aten._to_copy.default else node.target(*args, **node.kwargs)
    return known[node]


def _before(node: fx.Node) -> list[fx.Node]:
    return _nearest(node, lambda n: n.all_input_nodes if n.target in _STEPS else [])


def _after(node: fx.Node) -> list[fx.Node]:
    return _nearest(node, lambda n: [user for user in n.users if user.target in _STEPS])


def _nearest(node: fx.Node, neighbours: Callable[[fx.Node], Iterable[fx.Node]]) -> list[fx.Node]:
    """``node`` and what lies beyond it, the nearest first."""
    found = [node]
    for each in found:
        found += [n for n in neighbours(each) if n not in found]
        if len(found) >= MOST_TRIED:
            break
    return found[:MOST_TRIED]


def _steps(node: fx.Node, given: set[fx.Node]) -> set[fx.Node]:
    """``node`` and all that it is computed by of what is given."""
    steps, rest = set(given), [node]
    while rest:
        each = rest.pop()
        if each not in steps:
            steps.add(each)
            rest += each.all_input_nodes
    return steps - given


# -- what becomes of them --------------------------------------------------------------------------------------------
def _is_whole(gelu: Gelu) -> bool:
    """Whether only the two results are read outside, and no step changes the shape or has a dtype of its own."""
    results, x, y = {gelu.y, gelu.grad_x}, tensor_of(gelu.x), tensor_of(gelu.y)
    values = [tensor_of(n) for n in (gelu.x, gelu.grad_y, *gelu.steps) if n is not None]
    is_alike = all(sizes_of(v) == sizes_of(x) and v.dtype in (x.dtype, y.dtype) for v in values)
    return is_alike and all(gelu.steps.issuperset(n.users) for n in gelu.steps - results)


def _replace(gm: fx.GraphModule, gelu: Gelu) -> None:
    """Read the ops instead of the results, unless dtypes or strides would differ for what reads them."""
    x, grad_y = gelu.x, gelu.grad_y
    dtype = tensor_of(x).dtype
    views, readers = _readers(gelu)
    if gelu.is_mixed:
        if not all(_is_cast(n, torch.float32, dtype) for n in readers):
            return
        grad_y = None if grad_y is None else _unwidened(gm, grad_y, dtype)
    if gelu.grad_x is not None and grad_y is None:
        return
    pairs = [(gelu.y, _put(gm, aten.gelu.default, (x,), gelu.y))]
    if gelu.grad_x is not None:
        pairs.append((gelu.grad_x, _put(gm, aten.gelu_backward.default, (grad_y, x), gelu.grad_x)))
    dtypes = {tensor_of(n).dtype for n in (x, grad_y, gelu.grad_x, None if gelu.is_mixed else gelu.y) if n is not None}
    if dtypes != {dtype} or any(_layout(old) != _layout(new) for old, new in pairs):
        return
    for old, new in pairs:
        old.replace_all_uses_with(new)
    if gelu.is_mixed:
        for view in views:
            _infer(view)
        for reader in readers:
            reader.replace_all_uses_with(reader.args[0])


def _readers(gelu: Gelu) -> tuple[list[fx.Node], list[fx.Node]]:
    """The views of GELU's result, and what reads it or any of them."""
    views = [gelu.y]
    readers: list[fx.Node] = []
    for node in views:
        for user in node.users.keys() - gelu.steps:
            (views if user.target in _VIEWS else readers).append(user)
    return views[1:], readers


def _unwidened(gm: fx.GraphModule, node: fx.Node, dtype: torch.dtype) -> fx.Node | None:
    """The tensor of this dtype that ``node`` has the values of, in float32 and through views."""
    views = []
    while node.target in _VIEWS:
        views.append(node)
        node = node.args[0]
    if not _is_cast(node, dtype, torch.float32):
        return None
    source = node.args[0]
    for view in reversed(views):
        with gm.graph.inserting_after(view):
            copy = gm.graph.node_copy(view)
        copy.replace_input_with(view.args[0], source)
        source = _infer(copy)
    return source


def _is_cast(node: fx.Node, source: torch.dtype, target: torch.dtype) -> bool:
    """Whether ``node`` turns one dtype into the other and changes nothing else."""
    if node.target is not aten._to_copy.default:
        return False
    old, new = tensor_of(node.args[0]), tensor_of(node)
    is_same = old.device == new.device and _layout(node.args[0]) == _layout(node)
    return is_same and (old.dtype, new.dtype) == (source, target)


def _put(gm: fx.GraphModule, op: Any, args: tuple[Any, ...], place: fx.Node) -> fx.Node:
    """An op before ``place``, with what torch notes of that: whether it is computed again, say."""
    with gm.graph.inserting_before(place):
        node = gm.graph.call_function(op, args, {"approximate": "tanh"})
    node.meta.update(place.meta)
    return _infer(node)


def _infer(node: fx.Node) -> fx.Node:
    """Give the node the value that follows from its arguments."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), value_of)
    node.meta.pop("tensor_meta", None)
    with tensor_of(node).fake_mode:
        node.meta["val"] = node.target(*args, **kwargs)
    return node


def _layout(node: fx.Node) -> Any:
    value = tensor_of(node)
    return sizes_of(value), [expr_of(s) for s in value.stride()]
