"""Parts of floats: mantissa and exponent, the next number, and the angle in the complex plane."""

from __future__ import annotations

import math

import torch

from torch_max_backend.loops.expr import Scalar, bitcast, cast, constant, op, select
from torch_max_backend.loops.rules.registry import aten, rule
from torch_max_backend.loops.tensor import PROMOTION, Tensor, computed_in, pointwise

_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
_MANTISSA = {torch.float32: 23, torch.float64: 52}
"""Bits behind the point."""


# frexp.Tensor(Tensor self) -> (Tensor mantissa, Tensor exponent)
@rule(aten.frexp.Tensor)
def frexp(self: Tensor) -> tuple[Tensor, Tensor]:
    """``self = mantissa * 2**exponent``, the mantissa's size in [0.5, 1); of what is not finite, itself and 0."""
    compute = computed_in(self.dtype)
    mantissa = pointwise(lambda x: _parts(x)[0], self, compute=compute, dtype=self.dtype)
    return mantissa, pointwise(lambda x: _parts(x)[1], self, compute=compute, dtype=torch.int32)


def _parts(x: Scalar) -> tuple[Scalar, Scalar]:
    digits = _MANTISSA[x.dtype]
    bias = 126 if x.dtype is torch.float32 else 1022
    subnormal = op("absolute", x) < torch.finfo(x.dtype).tiny
    bits = bitcast(select(subnormal, x * 2.0 ** (digits + 1), x), _BITS[x.dtype])
    above = constant(digits, bits.dtype)
    exponent = op("shift_right", bits, above) & constant(2 * bias + 3, bits.dtype)
    exponent = cast(exponent, torch.int32) - select(
        subnormal, *(constant(bias + n, torch.int32) for n in (digits + 1, 0))
    )
    low = constant((1 << digits) - 1, bits.dtype)
    mantissa = bitcast((bits & low) | constant(bias << digits, bits.dtype), x.dtype)
    plain = op("is_finite", x) & op("ne", x, constant(0, x.dtype))
    return select(plain, op("copysign", mantissa, x), x), select(plain, exponent, constant(0, torch.int32))


# nextafter(Tensor self, Tensor other) -> Tensor
@rule(aten.nextafter.default)
def nextafter(self: Tensor, other: Tensor) -> Tensor:
    def formula(x: Scalar, y: Scalar) -> Scalar:
        bits = bitcast(x, _BITS[x.dtype])
        one, zero = constant(1, bits.dtype), constant(0, x.dtype)
        away = (y > x) ^ (x < zero)  # from zero
        next_ = bitcast(bits + select(away, one, constant(-1, bits.dtype)), x.dtype)
        next_ = select(x.equals(zero), op("copysign", bitcast(one, x.dtype), y), next_)
        return select(op("is_nan", x) | op("is_nan", y), x + y, select(x.equals(y), y, next_))

    return pointwise(formula, self, other, compute=self.dtype, dtype=self.dtype)


# angle(Tensor self) -> Tensor
@rule(aten.angle.default)
def angle(self: Tensor) -> Tensor:
    """Of real numbers: pi if negative, else 0; NaN of NaN."""

    def formula(x: Scalar) -> Scalar:
        found = select(x < 0, constant(math.pi, x.dtype), constant(0, x.dtype))
        return select(op("is_nan", x), x, found)

    return pointwise(formula, self, kind=PROMOTION.INT_TO_FLOAT)
