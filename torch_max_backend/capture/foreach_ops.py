"""``aten._foreach_*``, which optimizers use, taken apart: one op on lists is the same op on each of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten
Op = Callable[..., torch.Tensor]


def _addcdiv(self: torch.Tensor, tensor1: torch.Tensor, tensor2: torch.Tensor, value: Any = 1) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return self + value * (tensor1 / tensor2)
    return torch.addcdiv(self, tensor1, tensor2, value=value)


def _addcmul(self: torch.Tensor, tensor1: torch.Tensor, tensor2: torch.Tensor, value: Any = 1) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return self + value * (tensor1 * tensor2)
    return torch.addcmul(self, tensor1, tensor2, value=value)


def _copy(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return aten.copy.default(self, src, non_blocking)


def _norm(self: torch.Tensor, ord: int | float = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.linalg.vector_norm(self, ord, dtype=dtype)


_ONE: dict[str, Op] = {
    "addcdiv": _addcdiv,
    "addcmul": _addcmul,
    "copy": _copy,
    "maximum": lambda self, other: torch.clamp(self, min=other),  # also takes numbers; gives NaN for NaN too
    "minimum": lambda self, other: torch.clamp(self, max=other),
    "norm": _norm,
    "zero": torch.zeros_like,
}
"""The op on one tensor, where it is not ``torch``'s function of the same name and arguments."""


def foreach_decompositions() -> Iterator[tuple[OpOverload, Callable[..., list[torch.Tensor]]]]:
    """Every functional overload that there is a one-tensor op for."""
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::_foreach_"):
            continue
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(aten, packet), overload or "default")
        one = _ONE.get(packet.removeprefix("_foreach_")) or getattr(torch, packet.removeprefix("_foreach_"), None)
        returns = [str(r.type) for r in op._schema.returns]
        if one is not None and not op._schema.is_mutable and returns == ["List[Tensor]"]:
            yield op, _for_each(op, one)


def _for_each(op: OpOverload, one: Op) -> Callable[..., list[torch.Tensor]]:
    """``one`` with lists in the place of tensors: what the schema calls a list has an element for each call."""
    arguments = op._schema.arguments
    # "scalars" may be a tensor of numbers.
    in_lists = {a.name for a in arguments if str(a.type).startswith("List[") or a.name == "scalars"}

    def decomposed(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        given = dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
        count = max(len(given[a.name]) for a in arguments if a.name in in_lists and a.name in given)
        results = []
        for i in range(count):
            positional, named = [], {}
            for argument in arguments:
                if argument.name not in given:
                    continue
                value = given[argument.name][i] if argument.name in in_lists else given[argument.name]
                if argument.kwarg_only:
                    named[argument.name] = value
                else:
                    positional.append(value)
            results.append(one(*positional, **named))
        return results

    return decomposed
