"""What a program's collectives look like to other ranks: each op with what all ranks of its group must have alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torch_max_backend.aten_functions.torch_executed.collectives import STARTS
from torch_max_backend.loops.expr import SHORT
from torch_max_backend.loops.program import Call, Ref

_OWN_SHAPES = ("all_to_all_single",)
"""Ops in which each rank has sizes of its own."""


def collectives_of(steps: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    """The collectives among a program's steps, in order: the name of a group, and the op.

    Symbolic sizes are left out, as ``?``: ranks may name them as they like.
    """
    calls = [s for s in steps if isinstance(s, Call) and s.target in STARTS]
    return tuple((_group(call), _text(call)) for call in calls)


def _arguments(call: Call) -> dict[str, Any]:
    names = [a.name for a in call.target._schema.arguments]
    return {**dict(zip(names, call.args)), **call.kwargs}


def _group(call: Call) -> str:
    group = _arguments(call)["group_name"]
    return group if isinstance(group, str) else str(group.group_name)


def _text(call: Call) -> str:
    op = call.target._schema.name.partition("::")[2]
    dtypes = {r.name: r.dtype for r in call.results if r}
    if op in _OWN_SHAPES:
        return f"{op} of {', '.join(SHORT[d] for d in dtypes.values())}"
    rest = {k: v for k, v in _arguments(call).items() if k != "group_name"}
    leaves = [x for v in rest.values() for x in tree_leaves(v)]
    shapes = [_shape(x) for x in leaves if isinstance(x, Ref)]
    others = [str(x) for x in leaves if not isinstance(x, Ref | torch.Tensor)]
    return f"{op}({', '.join([*shapes, *others])}) of {SHORT[next(iter(dtypes.values()))]}"


def _shape(x: Ref) -> str:
    return f"[{', '.join(str(s) if s.is_constant else '?' for s in x.sizes)}]"
