"""The extension ``fft``: torch's library calls, made at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_max_backend.array import dtypes
from torch_max_backend.array.array_object import Array
from torch_max_backend.array.creation import as_device
from torch_max_backend.array.declaration import AT_ONCE, LAZY, function
from torch_max_backend.array.expression import leaf
from torch_max_backend.array.manipulation import roll
from torch_max_backend.array.operands import axes_in, axis_in, node_of
from torch_max_backend.base.errors import ArrayTypeError, ArrayValueError

__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]

SECTION = "fft"


def _checked(name: str, x: Any, kind: str) -> torch.Tensor:
    dtypes.check(f"fft.{name}", node_of(x).dtype, kind)
    return x.to_torch()


def _along_one(name: str, kind: str) -> Callable[..., Array]:
    run = getattr(torch.fft, name)

    def transform(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
        value = _checked(name, x, kind)
        try:
            return Array(leaf(run(value, n=n, dim=axis_in(axis, value.dim()), norm=norm).resolve_conj()))
        except RuntimeError as error:
            raise ArrayValueError(f"fft.{name}: {error}") from error

    transform.__name__ = transform.__qualname__ = name
    transform.__doc__ = f"The standard's ``fft.{name}``, of {kind} data types."
    return function(SECTION, AT_ONCE, "fft")(transform)


def _along_several(name: str, kind: str) -> Callable[..., Array]:
    run = getattr(torch.fft, name)

    def transform(
        x: Any, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
    ) -> Array:
        value = _checked(name, x, kind)
        dims = None if axes is None else axes_in(tuple(axes), value.dim())
        try:
            return Array(leaf(run(value, s=s, dim=dims, norm=norm)))
        except RuntimeError as error:
            raise ArrayValueError(f"fft.{name}: {error}") from error

    transform.__name__ = transform.__qualname__ = name
    transform.__doc__ = f"The standard's ``fft.{name}``, of {kind} data types."
    return function(SECTION, AT_ONCE, "fft")(transform)


fft = _along_one("fft", "floating")
ifft = _along_one("ifft", "floating")
rfft = _along_one("rfft", "real floating")
irfft = _along_one("irfft", "floating")
hfft = _along_one("hfft", "floating")
ihfft = _along_one("ihfft", "real floating")
fftn = _along_several("fftn", "floating")
ifftn = _along_several("ifftn", "floating")
rfftn = _along_several("rfftn", "real floating")
irfftn = _along_several("irfftn", "floating")


def _frequencies(name: str) -> Callable[..., Array]:
    run = getattr(torch.fft, name)

    def frequencies(n: int, /, *, d: float = 1.0, dtype: torch.dtype | None = None, device: Any = None) -> Array:
        if dtype is not None and dtype not in dtypes.KINDS["real floating"]:
            raise ArrayTypeError(f"fft.{name} makes real floating data types, not {dtypes.name(dtype)}")
        return Array(leaf(run(n, d=d, dtype=dtype or dtypes.default_floating(), device=as_device(device))))

    frequencies.__name__ = frequencies.__qualname__ = name
    frequencies.__doc__ = f"The standard's ``fft.{name}``."
    return function(SECTION, AT_ONCE, "fft")(frequencies)


fftfreq = _frequencies("fftfreq")
rfftfreq = _frequencies("rfftfreq")


def _shifted(x: Any, axes: Any, forward: bool) -> Array:
    dims = axes_in(axes, len(node_of(x).shape))
    shifts = [x.shape[d] // 2 if forward else -(x.shape[d] // 2) for d in dims]
    return roll(x, tuple(shifts), axis=dims)


@function(SECTION, LAZY, "fft")
def fftshift(x: Any, /, *, axes: Any = None) -> Array:
    """The zero frequency in the middle."""
    return _shifted(x, axes, True)


@function(SECTION, LAZY, "fft")
def ifftshift(x: Any, /, *, axes: Any = None) -> Array:
    """The zero frequency first, as before ``fftshift``."""
    return _shifted(x, axes, False)
