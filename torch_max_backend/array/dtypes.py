"""Data types of the standard: torch's own, their kinds, and which of them come together as which."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from torch_max_backend.base.errors import ArrayTypeError

bool = torch.bool
int8, int16, int32, int64 = torch.int8, torch.int16, torch.int32, torch.int64
uint8, uint16, uint32, uint64 = torch.uint8, torch.uint16, torch.uint32, torch.uint64
float32, float64 = torch.float32, torch.float64
complex64, complex128 = torch.complex64, torch.complex128

SIGNED = (int8, int16, int32, int64)
UNSIGNED = (uint8, uint16, uint32, uint64)
REAL_FLOATING = (float32, float64)
COMPLEX = (complex64, complex128)
STANDARD = (bool, *SIGNED, *UNSIGNED, *REAL_FLOATING, *COMPLEX)
"""The standard's data types."""
NAMES = {str(d).removeprefix("torch."): d for d in STANDARD}
_HALVES = (torch.float16, torch.bfloat16)

KINDS: dict[str, tuple[torch.dtype, ...]] = {
    "bool": (bool,),
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": SIGNED + UNSIGNED,
    "real floating": REAL_FLOATING + _HALVES,
    "complex floating": COMPLEX,
    "numeric": SIGNED + UNSIGNED + REAL_FLOATING + _HALVES + COMPLEX,
}
"""Data types of the standard's kinds. 16-bit floats are an addition of this library, and real floating."""


def _kind(dtype: torch.dtype) -> str:
    """The kinds "bool", "integral" or "floating": what may come together."""
    if dtype is bool:
        return "bool"
    if dtype.is_floating_point or dtype.is_complex:
        return "floating"
    return "integral"


@functools.cache
def promote(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The data type of what is computed from two others.

    Raises:
        ArrayTypeError: The standard doesn't define it: other kinds, or ``uint64`` with a signed integer.
    """
    if a is b:
        return a
    if _kind(a) != _kind(b):
        raise ArrayTypeError(f"{name(a)} and {name(b)} are of different kinds: convert one of them with astype")
    if _kind(a) == "floating":
        return torch.promote_types(a, b)
    if a.is_signed == b.is_signed:
        return a if a.itemsize > b.itemsize else b
    signed, unsigned = (a, b) if a.is_signed else (b, a)
    if unsigned is uint64:
        raise ArrayTypeError(f"no integer holds all of uint64 and {name(signed)}: convert one of them with astype")
    return signed if signed.itemsize > unsigned.itemsize else SIGNED[UNSIGNED.index(unsigned) + 1]


def name(dtype: torch.dtype) -> str:
    """A data type as the standard calls it."""
    return str(dtype).removeprefix("torch.")


def check(function: str, dtype: torch.dtype, kind: str) -> None:
    """Refuse what a function doesn't take.

    Args:
        kind: One of ``KINDS``, several of them with " or " between, "real numeric", "floating" or "all".

    Raises:
        ArrayTypeError: The data type isn't of the kind.
    """
    if kind != "all" and dtype not in _allowed(kind):
        raise ArrayTypeError(f"{function} takes {kind} data types, and got {name(dtype)}")


@functools.cache
def _allowed(kind: str) -> frozenset[torch.dtype]:
    if kind == "real numeric":
        return frozenset(KINDS["integral"] + KINDS["real floating"])
    if kind == "floating":
        return frozenset(KINDS["real floating"] + KINDS["complex floating"])
    return frozenset(d for part in kind.split(" or ") for d in KINDS[part])


def default_floating() -> torch.dtype:
    """Torch's default, ``float32`` unless the program has set another."""
    return torch.get_default_dtype()


def default_complex() -> torch.dtype:
    """The complex numbers of two default floats."""
    return complex128 if default_floating() is float64 else complex64


def of_scalar(value: object) -> torch.dtype:
    """The default data type of a Python number.

    Raises:
        ArrayTypeError: It is no number.
    """
    if value is True or value is False:
        return bool
    if isinstance(value, int):
        return int64
    if isinstance(value, float):
        return default_floating()
    if isinstance(value, complex):
        return default_complex()
    raise ArrayTypeError(f"expected an array or a number, got {type(value).__name__}")


def with_scalar(dtype: torch.dtype, value: object) -> torch.dtype:
    """The data type of an array together with a Python number, which takes the array's.

    Raises:
        ArrayTypeError: The number is of a kind that the array's data type doesn't hold.
        OverflowError: An integer lies outside the range of the array's data type.
    """
    if value is True or value is False:
        if dtype is not bool:
            raise ArrayTypeError(f"a Python bool and {name(dtype)} are of different kinds")
        return dtype
    if isinstance(value, int):
        if dtype is bool:
            raise ArrayTypeError("a Python int and bool are of different kinds")
        if _kind(dtype) == "integral":
            info = torch.iinfo(dtype)
            least, most = (info.min, 2 ** (8 * dtype.itemsize) - 1) if dtype in UNSIGNED else (info.min, info.max)
            if not least <= value <= most:
                raise OverflowError(f"{value} lies outside the range of {name(dtype)}")
        return dtype
    if isinstance(value, float):
        if _kind(dtype) != "floating":
            raise ArrayTypeError(f"a Python float and {name(dtype)} are of different kinds")
        return dtype
    if isinstance(value, complex):
        if _kind(dtype) != "floating":
            raise ArrayTypeError(f"a Python complex and {name(dtype)} are of different kinds")
        return dtype if dtype.is_complex else (complex128 if dtype is float64 else complex64)
    raise ArrayTypeError(f"expected an array or a number, got {type(value).__name__}")


@dataclass(frozen=True)
class FloatInfo:
    """What the standard's ``finfo`` tells of a floating-point data type."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: torch.dtype


@dataclass(frozen=True)
class IntInfo:
    """What the standard's ``iinfo`` tells of an integer data type."""

    bits: int
    max: int
    min: int
    dtype: torch.dtype


def float_info(dtype: torch.dtype) -> FloatInfo:
    """``finfo`` of a data type; of a complex one, that of its parts.

    Raises:
        ArrayTypeError: It isn't floating-point.
    """
    check("finfo", dtype, "floating")
    real = dtype.to_real()
    info = torch.finfo(real)
    return FloatInfo(info.bits, info.eps, info.max, info.min, info.smallest_normal, real)


def int_info(dtype: torch.dtype) -> IntInfo:
    """``iinfo`` of a data type.

    Raises:
        ArrayTypeError: It isn't an integer.
    """
    check("iinfo", dtype, "integral")
    bits = 8 * dtype.itemsize
    if dtype in UNSIGNED:
        return IntInfo(bits, 2**bits - 1, 0, dtype)
    return IntInfo(bits, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), dtype)
