"""What an op test is made of: a function, its inputs, and how closely it must agree with eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Maker = Callable[[torch.Generator], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One op test: ``function(*inputs)`` compiled in strict mode must equal the same call in eager.

    Args:
        name: Unique within its family.
        function: A plain function of tensors (and numbers); returns a tensor or a (nested) tuple of them. It may write
            into its inputs: they are compared as well.
        inputs: Tensors, numbers, or makers from this module, which draw fresh seeded values for every run.
        dynamic: Compile with ``dynamic=True``; then ``second`` (other sizes) must run without a new compile.
        second: Inputs of other sizes for a dynamic case.
        rtol, atol: Override the tolerance of the dtype; say why in ``why``.
        why: The reason of a tolerance of its own.
        exact: Bitwise equal values (NaN equals NaN).
        broken: Why the case is known to fail; it must then fail, until the reason is mended.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    dynamic: bool = False
    second: tuple[Any, ...] | None = None
    rtol: float | None = None
    atol: float | None = None
    why: str = ""
    exact: bool = False
    broken: str = ""

    def make(self, inputs: tuple[Any, ...] | None = None) -> list[Any]:
        """Fresh inputs, the same at every call."""
        generator = torch.Generator().manual_seed(0)
        drawn = (x(generator) if callable(x) else x for x in (self.inputs if inputs is None else inputs))
        return [x.clone() if isinstance(x, torch.Tensor) else x for x in drawn]


def randn(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Maker:
    """Normally distributed values."""
    return lambda g: (torch.randn(shape, generator=g) * scale).to(dtype)


def rand(*shape: int, dtype: torch.dtype = torch.float32, low: float = 0.0, high: float = 1.0) -> Maker:
    """Uniform values in [low, high)."""
    return lambda g: (torch.rand(shape, generator=g) * (high - low) + low).to(dtype)


def ints(*shape: int, low: int = -5, high: int = 6, dtype: torch.dtype = torch.int64) -> Maker:
    """Uniform integers in [low, high)."""
    return lambda g: torch.randint(low, high, shape, generator=g).to(dtype)


def bools(*shape: int) -> Maker:
    """Fair coins."""
    return lambda g: torch.rand(shape, generator=g) < 0.5


def on_device(x: torch.Tensor, device: str) -> torch.Tensor:
    """A copy on a device that keeps strides, gaps and the offset."""
    length = x.untyped_storage().nbytes() // x.element_size()
    memory = x.as_strided((length,), (1,), 0).to(device, copy=True)
    return memory.as_strided(x.shape, x.stride(), x.storage_offset())


def special(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """NaN, infinities, signed zeros, subnormals, halves for rounding, large and small values: 16 of them."""
    inf, nan = float("inf"), float("nan")
    values = [nan, inf, -inf, 0.0, -0.0, 1e-40, -1e-40, 0.5, -0.5, 1.5, 2.5, -1.5, 1e4, -1e4, 1e-3, -3.0]
    return torch.tensor(values).to(dtype)
