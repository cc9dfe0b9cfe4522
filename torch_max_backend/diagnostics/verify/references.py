"""What a graph's values should be: in torch at their own precision, in float64, and with their rounding changed.

A graph that is run gives the values of all its nodes, by name. Nothing here draws from the generators of the program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from torch_max_backend.capture.fake_tensors import value_of
from torch_max_backend.capture.view_ops import BITS

UNITS = 8
"""Units in the last place by which a result may be wrong however exact eager's is.

Elementary functions are right to a few units (``docs/numerics.md``), and a region may fuse two or three of them."""

MULTIPLE = 8
"""How many times eager's own error a result's may be: what ``docs/numerics.md`` calls a right run."""

RUNS, SEED = 8, 20_250_101
"""How often a graph is run with its rounding changed, and from which seed."""

Values = dict[str, Any]


def values_in_torch(gm: fx.GraphModule, inputs: Sequence[Any]) -> Values:
    """The value of every node, as torch computes it."""
    return _run(gm, inputs, lambda node, args, kwargs: node.target(*args, **kwargs))


def values_in_float64(gm: fx.GraphModule, inputs: Sequence[Any]) -> Values:
    """The value of every node with all floating-point numbers in float64, which rounds nothing that matters."""
    return _run(gm, tree_map_only(torch.Tensor, _wide, list(inputs)), _in_float64)


def spreads(gm: fx.GraphModule, inputs: Sequence[Any], eager: Values) -> Values:
    """How far each element of each node's value moves, in float64, where every op rounds otherwise.

    Elements that an op computes without rounding stay as they are: only what is computed moves, and what depends on it.
    So a comparison of inputs has a spread of zero, and one of a long sum with its own average may have one.
    """
    found: Values = {}
    for run in range(RUNS):
        nudge = _Nudge(SEED + run)
        for name, value in _run(gm, inputs, nudge).items():
            if isinstance(value, torch.Tensor):
                moved = _distance(value, eager[name])
                found[name] = torch.maximum(found[name], moved) if name in found else moved
    return found


def _distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How far apart elements are; infinite where one of them is no number."""
    apart = (a.double() - b.double()).abs()
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, torch.zeros_like(apart), apart.nan_to_num(nan=torch.inf))


def unit(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A unit in the last place of float64 ``values`` if they were of ``dtype``; at most twice that, and never zero."""
    info = torch.finfo(dtype)
    return values.abs().nan_to_num(posinf=0.0) * info.eps + info.smallest_normal * info.eps


# -- running a graph -----------------------------------------------------------------------------------------------
Runs = Callable[[fx.Node, tuple[Any, ...], dict[str, Any]], Any]


def _run(gm: fx.GraphModule, inputs: Sequence[Any], run: Runs) -> Values:
    env: dict[fx.Node, Any] = dict(zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True))
    with torch.no_grad():
        for node in [n for n in gm.graph.nodes if n.op == "call_function"]:
            args, kwargs = (fx.node.map_arg(a, env.__getitem__) for a in (node.args, node.kwargs))
            env[node] = run(node, args, kwargs)
    return {node.name: value for node, value in env.items()}


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


def _is_floating(dtype: Any) -> bool:
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point


def _in_float64(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """A node's value from float64 operands: by the op in float64, or as it is where the op has no such form."""
    if node.target not in BITS:
        wide = tree_map_only(torch.dtype, lambda d: torch.float64 if _is_floating(d) else d, (args, kwargs))
        with contextlib.suppress(RuntimeError):  # torch's word for a dtype that an op does not take
            return tree_map_only(torch.Tensor, _wide, node.target(*wide[0], **wide[1]))
    own_args, own_kwargs = (_as_traced(a, given) for a, given in ((node.args, args), (node.kwargs, kwargs)))
    return tree_map_only(torch.Tensor, _wide, node.target(*own_args, **own_kwargs))


def _as_traced(arg: Any, given: Any) -> Any:
    """Values in the dtypes that nodes have, where ``given`` has them in float64."""
    if isinstance(arg, fx.Node):
        traced = value_of(arg)
        is_one = isinstance(given, torch.Tensor) and isinstance(traced, torch.Tensor)
        return given.to(traced.dtype) if is_one else given  # type: ignore[attr-defined]
    if isinstance(arg, dict):
        return {k: _as_traced(v, given[k]) for k, v in arg.items()}
    if isinstance(arg, list | tuple):
        return type(given)(map(_as_traced, arg, given))
    return given


class _Nudge:
    """Runs a node, and moves the elements of its result that were rounded.

    What is rounded is found by running the op in float64 too. A reduction gets operands that are moved as well, as a
    sum whose terms cancel is right if it is that of terms which differ in the last place.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generators: dict[torch.device, torch.Generator] = {}

    def __call__(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        result, given = node.target(*args, **kwargs), (args, kwargs)
        floating = [x for x in _tensors(result) if _is_floating(x.dtype)]
        if not floating or not isinstance(node.target, OpOverload) or node.target.is_view:
            return result
        pointwise = torch.Tag.pointwise in node.target.tags
        has_float64 = any(x.dtype is torch.float64 for x in _tensors((given, result)))
        tried = _narrow(given) if has_float64 else given  # rounding to float64 shows in nothing, to float32 it does
        if not pointwise:
            given, tried = self._operands(given), self._operands(tried)
        own = result if pointwise else node.target(*given[0], **given[1])
        low = node.target(*tried[0], **tried[1]) if has_float64 or pointwise else own
        high = _in_float64(node, *tree_map_only(torch.Tensor, _wide, tried))
        moved = [
            self._moved(x, new, a.double() - b.double(), torch.finfo(a.dtype).eps, has_float64 or not pointwise)
            if _is_floating(x.dtype)
            else x
            for x, new, a, b in zip(*map(_tensors, (result, own, low, high)), strict=True)
        ]
        left = iter(moved)
        return tree_map_only(torch.Tensor, lambda _: next(left), result)

    def _operands(self, given: Any) -> Any:
        return tree_map_only(torch.Tensor, lambda x: self._noisy(x) if _is_floating(x.dtype) else x, given)

    def _moved(
        self, x: torch.Tensor, new: torch.Tensor, error: torch.Tensor, eps: float, cancels: bool
    ) -> torch.Tensor:
        """``x`` where ``error`` is zero, else ``new``, by some units more or less.

        Args:
            error: What the op was wrong by, at a precision of ``eps``.
            cancels: Whether it may be wrong by that much anywhere, at the precision of ``x``: terms of a sum cancel,
                and float64 says nothing of errors of float64.
        """
        extra = torch.zeros((), dtype=torch.float64, device=x.device)
        if cancels and error.numel():
            worst = torch.where(error.isfinite(), error.abs(), torch.zeros_like(error)).max()
            extra = worst * (torch.finfo(x.dtype).eps / eps) * (MULTIPLE / 2)
        return torch.where((error != 0) & x.isfinite(), self._noisy(new, extra), x)

    def _noisy(self, x: torch.Tensor, extra: torch.Tensor | float = 0.0) -> torch.Tensor:
        """``x`` with each element moved by up to half of ``UNITS``, and by ``extra``."""
        if x.device not in self.generators:
            self.generators[x.device] = torch.Generator(x.device).manual_seed(self.seed)
        random = torch.rand(x.shape, dtype=torch.float64, device=x.device, generator=self.generators[x.device]) * 2 - 1
        reach = unit(x.double(), x.dtype) * (UNITS / 2) + extra
        return torch.where(x.isfinite(), x.double() + reach * random, x.double()).to(x.dtype)


def _narrow(given: Any) -> Any:
    """Operands of float64 in float32, and dtypes too."""
    given = tree_map_only(torch.Tensor, lambda x: x.float() if x.dtype is torch.float64 else x, given)
    return tree_map_only(torch.dtype, lambda d: torch.float32 if d is torch.float64 else d, given)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [x for x in torch.utils._pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
