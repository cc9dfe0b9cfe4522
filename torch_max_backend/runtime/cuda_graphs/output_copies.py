"""Results of a recording as a caller gets them: copies, because the next playback overwrites the recording's memory.

What a forward saves for its backward is lent instead: it is gone when the backward has run, and until then there is no
playback.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.dlpack import to_dlpack

COPY_LIMIT = 1 << 30
"""Bytes of arguments and outputs that may be copied per call: the gradients of 270 million parameters. Where there are
more, the kernels take long enough to hide the host's work, and copies would cost what playing back saves."""


@dataclass(frozen=True)
class Output:
    """How one result leaves.

    ``argument`` is the position of the argument that it is, or is a view of. ``group`` numbers the results that share
    memory: they are views of one copy. Neither: a number, or a tensor that nothing else shares memory with.
    ``shift`` is the distance of its first element from the argument's or the group's. One that ``is_lent`` is the
    recording's memory itself.
    """

    argument: int | None = None
    group: int | None = None
    shift: int = 0
    is_view: bool = False
    is_lent: bool = False


def plan_outputs(values: Sequence[Any], args: Sequence[Any], lent: Collection[int] = ()) -> list[Output]:
    """How each of ``values`` leaves; ``args`` are the arguments that the recording used, ``lent`` positions."""
    by_identity = {id(a): i for i, a in enumerate(args)}
    by_storage = {a.untyped_storage()._cdata: i for i, a in enumerate(args) if isinstance(a, torch.Tensor)}
    sharing: dict[int, list[int]] = {}
    for k, value in enumerate(values):
        if isinstance(value, torch.Tensor) and k not in lent:
            sharing.setdefault(value.untyped_storage()._cdata, []).append(k)
    groups = [members for members in sharing.values() if len(members) > 1 or not _is_dense(values[members[0]])]
    group_of = {k: g for g, members in enumerate(groups) for k in members}
    lowest = [min(values[k].storage_offset() for k in members) for members in groups]
    planned = []
    for k, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            planned.append(Output())
        elif id(value) in by_identity:
            planned.append(Output(argument=by_identity[id(value)]))
        elif (i := by_storage.get(value.untyped_storage()._cdata)) is not None:
            planned.append(Output(i, shift=value.storage_offset() - args[i].storage_offset(), is_view=True))
        elif k in lent:
            planned.append(Output(is_lent=True))
        elif k in group_of:
            planned.append(Output(group=group_of[k], shift=value.storage_offset() - lowest[group_of[k]]))
        else:
            planned.append(Output())
    return planned


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements lie side by side in some order of the dimensions: ``clone`` then keeps the strides."""
    expected = 1
    for step, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size == 0:
            return False
        if size > 1 and step != expected:
            return False
        expected *= size
    return True


def hand_out(values: Sequence[Any], outputs: Sequence[Output], args: Sequence[Any]) -> tuple[Any, ...]:
    """The results for a caller who gave ``args``."""
    copies: dict[int, torch.Tensor] = {}
    handed = list(values)
    alone = []
    for k, (value, output) in enumerate(zip(values, outputs, strict=True)):
        if output.argument is not None:
            arg = args[output.argument]
            if output.is_view:
                arg = arg.as_strided(value.size(), value.stride(), arg.storage_offset() + output.shift)
            handed[k] = arg
        elif output.is_lent:
            handed[k] = torch.from_dlpack(to_dlpack(value))  # with a storage of its own, which tells when it is gone
        elif output.group is not None:
            if output.group not in copies:
                members = [v for v, o in zip(values, outputs, strict=True) if o.group == output.group]
                copies[output.group] = _copy_of_span(members)
            handed[k] = copies[output.group].as_strided(value.size(), value.stride(), output.shift)
        elif isinstance(value, torch.Tensor):
            alone.append(k)
    if len(alone) < 3:
        for k in alone:
            handed[k] = values[k].clone()
    else:  # one kernel for many, and less work for the host
        fresh = [torch.empty_like(values[k]) for k in alone]
        torch._foreach_copy_(fresh, [values[k] for k in alone])
        for k, tensor in zip(alone, fresh, strict=True):
            handed[k] = tensor
    return tuple(handed)


def _copy_of_span(members: Sequence[torch.Tensor]) -> torch.Tensor:
    """A flat copy of the memory from the first element of any member to the last of any. They have one dtype."""
    low = min(m.storage_offset() for m in members)
    high = max(m.storage_offset() + _span(m) for m in members)
    return members[0].as_strided((high - low,), (1,), low).clone()


def _span(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(tensor.size(), tensor.stride(), strict=True))


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes of all elements."""
    return sum(t.numel() * t.element_size() for t in tensors)
