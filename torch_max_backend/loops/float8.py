"""Floats of 8 bits, by their bits: kernels carry them as ``uint8``, and compute with them in float32.

torch converts by way of float32, to the nearest number, ties to even. What lies beyond the greatest number is that
number in ``float8_e4m3fn`` (NaN in older versions of torch), infinite in ``float8_e5m2``, else NaN. The ``fnuz`` dtypes
have one zero and one NaN, of the bits that would be minus zero. ``float8_e8m0fnu`` is a power of two, or NaN: no zero
and no sign; a tie goes up.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from torch_max_backend.base.dtypes import FLOAT8
from torch_max_backend.loops.expr import Op, Scalar, bitcast, cast, constant, op, select

_EXPONENT = 23
"""The place of float32's exponent, which is the number of its digits behind the point."""
_SCALES = torch.float8_e8m0fnu


@dataclass(frozen=True)
class _Format:
    """``digits`` behind the point, the exponent's ``bias``, and the bits of what is no number.

    ``beyond`` is the least number that has no place in it, and ``overflow`` what that becomes; ``one_zero`` says
    whether the bits of minus zero are NaN, and ``infinite`` whether ``overflow`` means that.
    """

    digits: int
    bias: int
    beyond: float
    overflow: int
    nan: int
    one_zero: bool = False
    infinite: bool = False


_FORMATS = {
    torch.float8_e4m3fn: _Format(3, 7, 464.0, 0x7E, 0x7F),
    torch.float8_e5m2: _Format(2, 15, 65536.0, 0x7C, 0x7F, infinite=True),
    torch.float8_e4m3fnuz: _Format(3, 8, 256.0, 0x80, 0x80, one_zero=True),
    torch.float8_e5m2fnuz: _Format(2, 16, 65536.0, 0x80, 0x80, one_zero=True),
}
_UNSATURATED = _Format(3, 7, 480.0, 0x7F, 0x7F)
"""``float8_e4m3fn`` in older versions of torch, of which 2.11 is one."""
assert {*_FORMATS, _SCALES} == FLOAT8


@functools.cache
def _saturates() -> bool:
    """Whether the installed torch makes of a number beyond those of ``float8_e4m3fn`` the greatest of them."""
    with unset_fake_temporarily():  # kernels are written while torch traces
        beyond = torch.tensor(1e6, device="cpu").to(torch.float8_e4m3fn)
        return not bool(beyond.to(torch.float32).isnan())


def encoded(x: Scalar, dtype: torch.dtype) -> Scalar:
    """A number of any other dtype as a float of 8 bits."""
    bits = bitcast(cast(x, torch.float32), torch.int32)
    if dtype is _SCALES:
        found = _scale(bits)
    elif dtype is torch.float8_e4m3fn and not _saturates():
        found = _encoded(bits, _UNSATURATED)
    else:
        found = _encoded(bits, _FORMATS[dtype])
    return bitcast(cast(found, torch.uint8), dtype)


def decoded(x: Scalar) -> Scalar:
    """A float of 8 bits as a float32; exact. What GPUs have an instruction for, the kernel interface converts."""
    if x.dtype is torch.float8_e4m3fn:
        return Op("cast", (x,), torch.float32)
    if x.dtype is torch.float8_e5m2:  # but for its digits, a float16
        bits = op("shift_left", cast(bitcast(x, torch.uint8), torch.int16), constant(8, torch.int16))
        return cast(bitcast(bits, torch.float16), torch.float32)
    bits = cast(bitcast(x, torch.uint8), torch.int32)
    if x.dtype is _SCALES:
        number = select(bits.equals(0), _int(1 << (_EXPONENT - 1)), _left(bits, _EXPONENT))
        return bitcast(select(bits.equals(0xFF), _bits_of(float("nan")), number), torch.float32)
    return _decoded(bits, _FORMATS[x.dtype])


def is_held(dtype: torch.dtype, by: torch.dtype) -> bool:
    """Whether a dtype has all numbers of a float of 8 bits."""
    return dtype is not _SCALES and by in (torch.bfloat16, torch.float16)


def _decoded(bits: Scalar, of: _Format) -> Scalar:
    size = bits & _int(0x7F)
    step = 2.0 ** (1 - of.bias - of.digits)  # between the numbers that are too small for an exponent
    small = cast(size, torch.float32) * step
    shift = _EXPONENT - of.digits
    large = bitcast(_left(size, shift) + _int((127 - of.bias) << _EXPONENT), torch.float32)
    number = select(size < (1 << of.digits), small, large)
    sign = _left(bits & _int(0x80), 24)
    signed = bitcast(bitcast(number, torch.int32) | sign, torch.float32)
    if of.one_zero:
        return select(bits.equals(of.nan), constant(float("nan"), torch.float32), signed)
    nan = bitcast(sign | _bits_of(float("nan")), torch.float32)
    if of.infinite:
        infinite = bitcast(sign | _bits_of(float("inf")), torch.float32)
        signed = select(size.equals(of.overflow), infinite, signed)
        return select(size > of.overflow, nan, signed)
    return select(size.equals(of.nan), nan, signed)


def _encoded(bits: Scalar, of: _Format) -> Scalar:
    size = bits & _int(0x7FFFFFFF)
    shift = _EXPONENT - of.digits
    odd = op("shift_right", size, _int(shift)) & _int(1)
    down = _int(((of.bias - 127) << _EXPONENT) + (1 << (shift - 1)) - 1)
    large = op("shift_right", size + down + odd, _int(shift))
    addend = 2.0 ** (1 - of.bias - of.digits + _EXPONENT)  # its last digit is the step between small numbers
    small = bitcast(bitcast(size, torch.float32) + addend, torch.int32) - _bits_of(addend)
    found = select(size < _bits_of(2.0 ** (1 - of.bias)), small, large)
    found = select(size >= _bits_of(of.beyond), _int(of.overflow), found)
    if of.nan != of.overflow:
        found = select(size > _bits_of(float("inf")), _int(of.nan), found)
    sign = op("shift_right", bits, _int(24)) & _int(0x80)
    if of.one_zero:
        return select(found.equals(0), _int(0), found | sign)
    return found | sign


def _scale(bits: Scalar) -> Scalar:
    """The exponent of the nearest power of two; a tie goes up, but for the one of what has no exponent, 2**-128."""
    exponent = op("shift_right", bits, _int(_EXPONENT)) & _int(0xFF)
    rest, half = bits & _int((1 << _EXPONENT) - 1), _int(1 << (_EXPONENT - 1))
    up = (rest > half) | (rest.equals(half) & (exponent > 0))
    return exponent + select(up & (exponent < 0xFF), _int(1), _int(0))


def _int(x: int) -> Scalar:
    return constant(x, torch.int32)


def _left(x: Scalar, n: int) -> Scalar:
    return op("shift_left", x, _int(n))


def _bits_of(x: float) -> Scalar:
    return _int(int(torch.tensor(x, dtype=torch.float32).view(torch.int32)))
