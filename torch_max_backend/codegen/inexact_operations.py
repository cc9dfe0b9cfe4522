"""Which operations of a GPU kernel need not be exact: those on the way to results of 16 bits."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence

import torch

from torch_max_backend.loops.expr import Load, Op, Scalar, walk
from torch_max_backend.schedule.nest import Nest

_EXACT = ("floor", "ceil", "trunc", "round_even", "floor_div", "trunc_div", "remainder", "fmod")
_NEARLY = ("div", "exp", "log", "log1p", "sigmoid", "tanh", "erf", "one_plus_erf")


def computed_nearly(nest: Nest, rough: Container[str] = frozenset()) -> set[Scalar]:
    """Operations on float32 on the way to results of 16 bits only, where nothing on the way asks for exact numbers.

    They have a form that is fast, and right to 17 bits and more. What is kept between stages, such as a row's sum, is
    on the way to what is computed of it, and so are ``rough`` tensors. Comparisons, and what becomes an integer, ask
    for exact numbers.
    """
    exact = _exact(nest, rough)
    return {x for x in _operations(nest) if x.name in _NEARLY and x not in exact}


def divided_closely(nest: Nest, rough: Container[str] = frozenset()) -> set[Scalar]:
    """Quotients in float32 of an exponential and a sum that has been kept, unless they are computed nearly, or ask for
    exact numbers: what is divided by one number for many is soon divided to half a unit in the last place.

    With more, all shares of a sum would be off by the same, as their sum is then: gradients of a softmax are made of
    what that is less than one.
    """
    exact = _exact(nest, rough, of_floats=False)
    shares: set[Scalar] = {x for x in _operations(nest) if _is_share(x) and x not in exact}
    return shares - computed_nearly(nest, rough)


def _operations(nest: Nest) -> list[Op]:
    """Those on float32."""
    every = {x for stage in nest.stages for s in stage.statements for x in walk(*s.expressions)}
    return [x for x in every if isinstance(x, Op) and x.dtype is torch.float32]


def _is_share(x: Op) -> bool:
    """Whether it is an exponential over a number that has been kept; over another one it may be 1 to the bit."""
    return x.name == "div" and isinstance(x.args[0], Op) and x.args[0].name == "exp" and isinstance(x.args[1], Load)


def rough_tensors(nests: Sequence[Nest], exact: Collection[str]) -> frozenset[str]:
    """Tensors of which nests, in the order in which they run, compute nothing but results of 16 bits.

    Args:
        exact: Tensors that somebody else reads.
    """
    needed, rough = set(exact), set[str]()
    for nest in reversed(nests):
        stored = {s.name for stage in nest.stages for s in stage.statements if s.address is not None}
        rough |= stored - needed
        needed |= {x.source for x in _exact(nest, rough) if isinstance(x, Load) and x.index}
    return frozenset(rough - needed)


def _exact(nest: Nest, rough: Container[str], of_floats: bool = True) -> set[Scalar]:
    """What is computed in a nest and must be exact: for results in float32, if ``of_floats``, and for what asks."""
    statements = [s for stage in nest.stages for s in stage.statements]
    exact: set[Scalar] = set()
    names: set[str] = set()
    """Results that must be exact."""
    for s in reversed(statements):  # readers first
        kept = (s.address is None or s.name in rough) and s.place is None
        short = s.dtype in (torch.float16, torch.bfloat16) or (s.dtype is torch.float32 and not of_floats)
        coarse = (short or kept) and s.name not in names
        roots = [x for e in s.expressions for x in ([e] if not coarse or e is not s.body else _asking(e))]
        needed = set(walk(*roots))
        exact |= needed
        names |= {x.source for x in needed if isinstance(x, Load) and not x.index}
    return exact


def _asking(root: Scalar) -> list[Scalar]:
    """The operations within an expression that ask for exact numbers."""
    return [x for x in walk(root) if isinstance(x, Op) and (x.name in _EXACT or not x.dtype.is_floating_point)]
