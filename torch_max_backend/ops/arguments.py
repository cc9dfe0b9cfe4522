"""Shapes of an op's arguments as patterns, and the errors for arguments that do not fit.

A pattern is a text such as ``"... n"`` or ``"n 3"``. ``...`` stands for any number of leading dimensions, the same for
all arguments of a call; a name for a size, the same wherever it stands and at least 1; a number for itself; both, as
``2r``, for a multiple of a size. The pattern ``*`` is any shape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_max_backend.base.errors import MaxBackendError

BATCH, ANY = "...", "*"

Sizes = dict[str, Any]
"""What names in patterns are in a call; of ``...`` a tuple."""


class ArgumentError(MaxBackendError, ValueError):
    """An argument of a public op has a dtype, shape, device or value that the op does not take."""


@dataclass(frozen=True)
class Size:
    """A size in a pattern: so many times what a name stands for, or without a name the number itself."""

    times: int
    name: str

    def __str__(self) -> str:
        return self.name if self.times == 1 and self.name else f"{self.times}{self.name}"


def _size(word: str) -> Size:
    digits = re.match(r"\d*", word)
    assert digits is not None
    return Size(int(digits[0] or 1), word[digits.end() :])


@dataclass(frozen=True)
class Pattern:
    """A pattern, taken apart: whether it begins with ``...``, and the sizes behind that."""

    text: str
    has_batch: bool
    sizes: tuple[Size, ...]

    @classmethod
    def of(cls, text: str) -> Pattern:
        """Read a pattern's text."""
        words = text.split()
        has_batch = words[:1] == [BATCH]
        return cls(text, has_batch, tuple(map(_size, words[has_batch:])))

    @property
    def is_any(self) -> bool:
        """Whether any shape fits."""
        return self.text == ANY

    def shape(self, sizes: Sizes) -> tuple[Any, ...]:
        """The shape that the pattern means in a call."""
        own = tuple(s.times * sizes[s.name] if s.name else s.times for s in self.sizes)
        return (*sizes[BATCH], *own) if self.has_batch else own

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.text.split()))}]"


def bind(op: str, patterns: Mapping[str, Pattern], tensors: Mapping[str, torch.Tensor]) -> Sizes:
    """What the names of all patterns are in a call.

    Args:
        op: The op's name, for errors.
        tensors: The arguments that are given, by name.

    Raises:
        ArgumentError: A tensor does not fit its pattern, or two of them do not fit each other.
    """
    sizes: Sizes = {}
    source: dict[str, str] = {}
    for name, tensor in tensors.items():
        pattern, shape = patterns[name], tuple(tensor.shape)
        if pattern.is_any:
            continue
        count = len(pattern.sizes)
        if len(shape) < count or (len(shape) > count and not pattern.has_batch):
            least = "at least " if pattern.has_batch else ""
            plural = "" if count == 1 else "s"
            raise ArgumentError(
                f"{op}: {name} must have {least}{count} dimension{plural} {pattern}, got {len(shape)}: {_shown(shape)}"
            )
        if pattern.has_batch:
            _bind_batch(op, name, pattern, shape[: len(shape) - count], sizes, source)
        for size, value in zip(pattern.sizes, shape[len(shape) - count :], strict=True):
            limit = _bind_size(size, value, sizes, source)
            if limit is not None:
                raise ArgumentError(f"{op}: {name} must have the shape {pattern}{limit}, got {_shown(shape)}")
            if size.name and size.name not in sizes:
                sizes[size.name], source[size.name] = value // size.times, name
    return sizes


def _bind_batch(
    op: str, name: str, pattern: Pattern, batch: tuple[Any, ...], sizes: Sizes, source: dict[str, str]
) -> None:
    known = sizes.setdefault(BATCH, batch)
    first = source.setdefault(BATCH, name)
    if len(known) != len(batch) or any(a != b for a, b in zip(known, batch)):
        raise ArgumentError(
            f"{op}: the leading dimensions of {name}, {pattern}, must be {_shown(known)} as those of {first}, "
            f"got {_shown(batch)}"
        )


def _bind_size(size: Size, value: Any, sizes: Sizes, source: Mapping[str, str]) -> str | None:
    """The limit that a size breaks, if it does; empty where the pattern says all."""
    if not size.name:
        return None if value == size.times else ""
    if size.name in sizes:
        known = sizes[size.name]
        return None if value == size.times * known else f" with {size.name} = {known} as in {source[size.name]}"
    if value == 0:
        return f" with {size.name} at least 1"
    return None if size.times == 1 or value % size.times == 0 else f", a multiple of {size.times}"


def check_dtypes(op: str, allowed: Mapping[str, Sequence[torch.dtype]], tensors: Mapping[str, torch.Tensor]) -> None:
    """Check the tensors' dtypes; what is not in ``allowed`` has the dtype of the first tensor.

    Raises:
        ArgumentError: One has another dtype.
    """
    first = next(iter(tensors))
    for name, tensor in tensors.items():
        wanted = allowed.get(name, (tensors[first].dtype,))
        if tensor.dtype not in wanted:
            names = " or ".join(str(d).removeprefix("torch.") for d in wanted)
            why = "" if name in allowed else f" as {first}"
            got = str(tensor.dtype).removeprefix("torch.")
            raise ArgumentError(f"{op}: {name} must be {names}{why}, got {got}")


def check_devices(op: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Check that all tensors are on the device of the first one, which is a CPU or an NVIDIA GPU.

    Raises:
        ArgumentError: One is elsewhere.
    """
    first = next(iter(tensors))
    device = tensors[first].device
    if device.type not in ("cpu", "cuda", "meta"):
        raise ArgumentError(f"{op}: {first} must be on a cpu or cuda device, got {device}")
    for name, tensor in tensors.items():
        if tensor.device != device:
            raise ArgumentError(f"{op}: {name} must be on {device} as {first}, got {tensor.device}")
        if tensor.layout is not torch.strided:
            raise ArgumentError(f"{op}: {name} must be a dense tensor, got the layout {tensor.layout}")


def _shown(shape: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, shape))}]"
