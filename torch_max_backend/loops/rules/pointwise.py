"""Elementwise ops: a formula of scalars each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeGuard

import torch

from torch_max_backend.base.dtypes import FLOAT8
from torch_max_backend.loops.expr import Const, Scalar, bitcast, cast, constant, op, select
from torch_max_backend.loops.rules.registry import LeftToLibrary, add_rule, aten, prims, rule
from torch_max_backend.loops.tensor import (
    PROMOTION,
    Operand,
    Shape,
    Tensor,
    broadcast_at,
    broadcast_shapes,
    builder,
    define,
    expanded,
    is_number,
    number,
    pointwise,
    promoted,
)

Formula = Callable[..., Scalar]


def _op(name: str) -> Formula:
    return lambda *args: op(name, *args)


def register_formulas(kind: Any, table: dict[Any, Formula], asks: bool = False) -> None:
    """Register pointwise ops of one kind of promotion, by their formulas; ``asks`` as for ``pointwise``."""
    for overload, formula in table.items():
        add_rule(lambda *operands, formula=formula: pointwise(formula, *operands, kind=kind, asks=asks), overload)


# -- formulas ----------------------------------------------------------------------------------------------------------
def clamp_to(x: Scalar, low: Scalar | float | None, high: Scalar | float | None) -> Scalar:
    """Torch's clamp: the upper limit wins, NaN stays."""
    for name, limit in (("maximum", low), ("minimum", high)):
        if limit is not None:
            x = op(name, x, limit if not isinstance(limit, int | float) else constant(limit, x.dtype))
    return x


def _square(x: Scalar) -> Scalar:
    return x * x


def _frac(x: Scalar) -> Scalar:
    return x - op("trunc", x)


def _float_only(formula: Formula) -> Formula:
    """For integers the op gives its operand."""
    return lambda x: formula(x) if x.dtype.is_floating_point else x


def _sign(x: Scalar) -> Scalar:
    if x.dtype is torch.bool:
        return x
    if x.dtype.is_floating_point:
        return op("sign", x)
    zero = constant(0, x.dtype)
    return cast(x > zero, x.dtype) - cast(x < zero, x.dtype)


def _absolute(x: Scalar) -> Scalar:
    return x if x.dtype is torch.bool or not x.dtype.is_signed else op("absolute", x)


# -- one operand -------------------------------------------------------------------------------------------------------
register_formulas(
    PROMOTION.DEFAULT,
    {
        aten.neg.default: _op("neg"),
        aten.square.default: _square,
    },
)
register_formulas(
    PROMOTION.DEFAULT,
    {
        aten.sign.default: _sign,
        aten.sgn.default: _sign,
        aten.floor.default: _float_only(_op("floor")),
        aten.ceil.default: _float_only(_op("ceil")),
        aten.trunc.default: _float_only(_op("trunc")),
        aten.round.default: _float_only(_op("round_even")),
        aten.frac.default: _frac,
    },
    asks=True,
)


# abs(Tensor self) -> Tensor
@rule(aten.abs.default)
def absolute(self: Tensor) -> Tensor:
    """Of floats of 8 bits the sign is taken from what is less than 0, and from nothing else."""
    if self.dtype not in FLOAT8:
        return pointwise(_absolute, self)

    def formula(x: Scalar) -> Scalar:
        without = bitcast(bitcast(x, torch.uint8) & constant(0x7F, torch.uint8), x.dtype)
        return select(cast(x, torch.float32) < 0, without, x)

    return pointwise(formula, self, compute=self.dtype, dtype=self.dtype)


_FUNCTIONS = """exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc
    erfinv sqrt lgamma digamma rsqrt reciprocal sigmoid"""
_ROUNDED_ONCE = ("sqrt", "rsqrt", "reciprocal")
"""Of integers these are the same bits from whoever computes them."""


def _function(name: str) -> Callable[..., Tensor]:
    def rule_of_function(self: Tensor) -> Tensor:
        if self.dtype is torch.bool:  # it has two values, which torch computes
            of_false, of_true = getattr(torch.ops.aten, name)(torch.tensor([False, True])).tolist()
            return where(self, of_true, of_false)
        if not self.dtype.is_floating_point and name not in _ROUNDED_ONCE:
            raise LeftToLibrary
        return pointwise(_op(name), self, kind=PROMOTION.INT_TO_FLOAT)

    return rule_of_function


# special_entr(Tensor self) -> Tensor
@rule(aten.special_entr.default)
def special_entr(self: Tensor) -> Tensor:
    if not self.dtype.is_floating_point:
        raise LeftToLibrary

    def formula(x: Scalar) -> Scalar:
        at_most_zero = select(x < 0, constant(-math.inf, x.dtype), constant(0, x.dtype))
        return select(op("is_nan", x), x, select(x > 0, op("neg", x * op("log", x)), at_most_zero))

    return pointwise(formula, self)


for _name in _FUNCTIONS.split():
    add_rule(_function(_name), getattr(aten, _name).default)
register_formulas(
    PROMOTION.ALWAYS_BOOL,
    {
        aten.isnan.default: lambda x: op("is_nan", x) if x.dtype.is_floating_point else constant(False, torch.bool),
        aten.isinf.default: lambda x: op("is_inf", x) if x.dtype.is_floating_point else constant(False, torch.bool),
        aten.isfinite.default: lambda x: (
            op("is_finite", x) if x.dtype.is_floating_point else constant(True, torch.bool)
        ),
        aten.logical_not.default: lambda x: ~cast(x, torch.bool),
        aten.signbit.default: lambda x: (
            op("copysign", constant(1, x.dtype), x) < 0 if x.dtype.is_floating_point else x < 0
        ),
    },
    asks=True,
)


# -- two operands ------------------------------------------------------------------------------------------------------
def _minimum(name: str) -> Formula:
    def formula(a: Scalar, b: Scalar) -> Scalar:
        if a.dtype is torch.bool:
            return a & b if name.endswith("min") or name == "minimum" else a | b
        return op(name if a.dtype.is_floating_point else {"fmin": "minimum", "fmax": "maximum"}.get(name, name), a, b)

    return formula


register_formulas(
    PROMOTION.DEFAULT,
    {
        aten.mul.Tensor: lambda a, b: a & b if a.dtype is torch.bool else a * b,
        aten.mul.Scalar: lambda a, b: a & b if a.dtype is torch.bool else a * b,
        aten.maximum.default: _minimum("maximum"),
        aten.minimum.default: _minimum("minimum"),
        aten.fmax.default: _minimum("fmax"),
        aten.fmin.default: _minimum("fmin"),
        aten.bitwise_and.Tensor: _op("bit_and"),
        aten.bitwise_and.Scalar: _op("bit_and"),
        aten.bitwise_or.Tensor: _op("bit_or"),
        aten.bitwise_or.Scalar: _op("bit_or"),
        aten.bitwise_xor.Tensor: _op("bit_xor"),
        aten.bitwise_xor.Scalar: _op("bit_xor"),
        aten.bitwise_not.default: _op("bit_not"),
        aten.bitwise_left_shift.Tensor: _op("shift_left"),
        aten.bitwise_left_shift.Tensor_Scalar: _op("shift_left"),
        aten.bitwise_right_shift.Tensor: _op("shift_right"),
        aten.bitwise_right_shift.Tensor_Scalar: _op("shift_right"),
        aten.__lshift__.Scalar: _op("shift_left"),
        aten.__lshift__.Tensor: _op("shift_left"),
        aten.__rshift__.Scalar: _op("shift_right"),
        aten.__rshift__.Tensor: _op("shift_right"),
        aten.clamp_min.Tensor: lambda x, low: clamp_to(x, low, None),
        aten.clamp_max.Tensor: lambda x, high: clamp_to(x, None, high),
    },
)
register_formulas(
    PROMOTION.INT_TO_FLOAT,
    {
        aten.atan2.default: _op("atan2"),
        aten.hypot.default: _op("hypot"),
        aten.copysign.Tensor: _op("copysign"),
        aten.copysign.Scalar: _op("copysign"),
        aten.xlogy.Tensor: lambda x, y: select(
            op("is_nan", y), y, select(x.equals(0), constant(0, x.dtype), x * op("log", y))
        ),
    },
)
register_formulas(
    PROMOTION.ALWAYS_BOOL,
    {
        getattr(getattr(aten, name), overload): _op(name)
        for name in ["eq", "ne", "lt", "le", "gt", "ge"]
        for overload in ("Tensor", "Scalar")
    }
    | {
        aten.logical_and.default: lambda a, b: cast(a, torch.bool) & cast(b, torch.bool),
        aten.logical_or.default: lambda a, b: cast(a, torch.bool) | cast(b, torch.bool),
        aten.logical_xor.default: lambda a, b: cast(a, torch.bool) ^ cast(b, torch.bool),
    },
    asks=True,
)
register_formulas(
    PROMOTION.DEFAULT,
    {
        aten.remainder.Tensor: _op("remainder"),
        aten.remainder.Scalar: _op("remainder"),
        aten.remainder.Scalar_Tensor: _op("remainder"),
        aten.fmod.Tensor: _op("fmod"),
        aten.fmod.Scalar: _op("fmod"),
        aten.floor_divide.default: _op("floor_div"),
    },
    asks=True,
)


# add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
@rule(aten.add.Tensor, aten.add.Scalar)
def add(self: Operand, other: Operand, alpha: Any = 1) -> Tensor:
    def formula(a: Scalar, b: Scalar) -> Scalar:
        b = b if is_number(alpha, 1) else b * number(alpha, b.dtype)
        return a | b if a.dtype is torch.bool else a + b

    return pointwise(formula, self, other)


# sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
@rule(aten.sub.Tensor, aten.sub.Scalar)
def sub(self: Operand, other: Operand, alpha: Any = 1) -> Tensor:
    return pointwise(lambda a, b: a - (b if is_number(alpha, 1) else b * number(alpha, b.dtype)), self, other)


# rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
@rule(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(self: Operand, other: Operand, alpha: Any = 1) -> Tensor:
    return (
        sub(other, self, alpha)
        if is_number(alpha, 1)
        else pointwise(lambda a, b: b - a * number(alpha, a.dtype), self, other)
    )


def _is_multiplied(divisor: Operand) -> TypeGuard[float]:
    """Whether torch's kernel multiplies by the reciprocal of a divisor: on a GPU, if it is a number."""
    return builder().is_for_gpu and isinstance(divisor, int | float)


def _times_reciprocal(a: Scalar, divisor: float) -> Scalar:
    one = torch.ones((), dtype=a.dtype, device="cpu")
    return a * constant(float(one / torch.full((), divisor, dtype=a.dtype, device="cpu")), a.dtype)


# div.Tensor(Tensor self, Tensor other) -> Tensor
@rule(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(self: Operand, other: Operand) -> Tensor:
    if _is_multiplied(other):
        divisor = other
        return pointwise(lambda a, _: _times_reciprocal(a, divisor), self, other, kind=PROMOTION.INT_TO_FLOAT)
    return pointwise(lambda a, b: a / b, self, other, kind=PROMOTION.INT_TO_FLOAT)


# div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor
@rule(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(self: Operand, other: Operand, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return div(self, other)

    _, result = promoted(self, other, kind=PROMOTION.DEFAULT)
    divisor = other if _is_multiplied(other) else None

    def formula(a: Scalar, b: Scalar) -> Scalar:
        if rounding_mode == "floor":
            return op("floor_div", a, b)
        if not a.dtype.is_floating_point:
            return op("trunc_div", a, b)
        if divisor is not None:
            return op("trunc", _times_reciprocal(a, divisor))
        return op("trunc", cast(cast(a / b, result), a.dtype))  # torch rounds a quotient of 16 bits first

    return pointwise(formula, self, other, asks=True)


# pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor
@rule(aten.pow.Tensor_Scalar)
def pow_scalar(self: Tensor, exponent: float) -> Tensor:
    for value, formula in _POWERS.items():
        if is_number(exponent, value) and (self.dtype.is_floating_point or value in (1.0, 2.0, 3.0)):
            return pointwise(lambda x, _, formula=formula: formula(x), self, exponent)
    return pow_tensor(self, exponent)


_POWERS: dict[float, Formula] = {
    1.0: lambda x: x,
    2.0: _square,
    3.0: lambda x: x * x * x,
    0.5: _op("sqrt"),
    -0.5: _op("rsqrt"),
    -1.0: _op("reciprocal"),
    -2.0: lambda x: op("reciprocal", x * x),
}


# pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor
@rule(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_tensor(self: Operand, exponent: Operand) -> Tensor:
    return pointwise(lambda x, y: op("pow", x, y) if x.dtype.is_floating_point else _integer_pow(x, y), self, exponent)


def _integer_pow(x: Scalar, y: Scalar) -> Scalar:
    """Products of squares for a number; else in a loop over the exponent's bits. A negative one gives 0, 1 or -1."""
    if x.dtype is torch.bool:
        return x | ~y
    if not isinstance(y, Const) or y.value < 0:
        return op("pow", x, y)
    result: Scalar = constant(1, x.dtype)
    left, square = int(y.value), x
    while left:
        if left % 2:
            result = square if isinstance(result, Const) else result * square
        left, square = left // 2, square * square
    return result


# -- more operands, and arguments that are no operands -----------------------------------------------------------------
# where.self(Tensor condition, Tensor self, Tensor other) -> Tensor
@rule(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(condition: Tensor, self: Operand, other: Operand) -> Tensor:
    return _chosen(condition, self, other, pointwise_dtype(self, other))


def _chosen(condition: Tensor, yes: Operand, no: Operand, dtype: torch.dtype) -> Tensor:
    shape = broadcast_shapes(*(x.shape for x in (condition, yes, no) if isinstance(x, Tensor)))
    ats = [broadcast_at(x, shape) if isinstance(x, Tensor) else x for x in (yes, no)]
    chosen = broadcast_at(condition, shape)

    def at(index: Shape) -> Scalar:
        a, b = (cast(x(index), dtype) if callable(x) else number(x, dtype) for x in ats)
        return select(cast(chosen(index), torch.bool), a, b)

    return define(shape, dtype, at)


def pointwise_dtype(*operands: Operand) -> torch.dtype:
    """The dtype that operands are promoted to."""
    return promoted(*operands)[1]


# masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor
@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(self: Tensor, mask: Tensor, value: Operand) -> Tensor:
    return _chosen(mask, value, self, self.dtype)


# clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor
@rule(aten.clamp.default, aten.clamp.Tensor)
def clamp(self: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    min, max = _limit(min, self.dtype), _limit(max, self.dtype)
    if min is not None and max is not None:
        return pointwise(clamp_to, self, min, max)
    if min is not None:
        return pointwise(lambda x, low: clamp_to(x, low, None), self, min)
    return pointwise(lambda x, high: clamp_to(x, None, high), self, max)  # type: ignore[arg-type]


def _limit(x: Operand | None, dtype: torch.dtype) -> Operand | None:
    """A whole number that others are clamped to, moved into the range of their dtype: as an operand it would wrap."""
    if not isinstance(x, int) or isinstance(x, bool) or dtype.is_floating_point or dtype is torch.bool:
        return x
    info = torch.iinfo(dtype)
    return sorted((info.min, x, info.max))[1]


# clamp_min(Tensor self, Scalar min) -> Tensor
@rule(aten.clamp_min.default)
def clamp_min(self: Tensor, min: float) -> Tensor:
    return clamp(self, min)


# clamp_max(Tensor self, Scalar max) -> Tensor
@rule(aten.clamp_max.default)
def clamp_max(self: Tensor, max: float) -> Tensor:
    return clamp(self, None, max)


# addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor
@rule(aten.addcmul.default)
def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any = 1) -> Tensor:
    scaled = (lambda a: a) if is_number(value, 1) else lambda a: a * number(value, a.dtype)
    return pointwise(lambda x, a, b: x + scaled(a) * b, self, tensor1, tensor2)


# addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor
@rule(aten.addcdiv.default)
def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any = 1) -> Tensor:
    scaled = (lambda a: a) if is_number(value, 1) else lambda a: a * number(value, a.dtype)
    return pointwise(lambda x, a, b: x + scaled(a) / b, self, tensor1, tensor2)


# lerp.Scalar(Tensor self, Tensor end, Scalar weight) -> Tensor
@rule(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(self: Tensor, end: Tensor, weight: Operand) -> Tensor:
    def formula(a: Scalar, b: Scalar, w: Scalar) -> Scalar:
        return select(op("absolute", w) < 0.5, a + w * (b - a), b - (b - a) * (1 - w))

    return pointwise(formula, self, end, weight)


# isclose(Tensor self, Tensor other, float rtol=1e-05, float atol=1e-08, bool equal_nan=False) -> Tensor
@rule(aten.isclose.default)
def isclose(self: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    def formula(a: Scalar, b: Scalar) -> Scalar:
        close = a.equals(b)
        if equal_nan and a.dtype.is_floating_point:
            close = close | (op("is_nan", a) & op("is_nan", b))
        if a.dtype is torch.bool or (rtol == 0 and atol == 0):
            return close
        inner = a.dtype if a.dtype.is_floating_point else torch.get_default_dtype()
        a, b = cast(a, inner), cast(b, inner)
        error = op("absolute", a - b)
        allowed = constant(atol, inner) + op("absolute", b * constant(rtol, inner))
        return close | (op("is_finite", error) & op("le", error, allowed))

    return pointwise(formula, self, other, kind=PROMOTION.ALWAYS_BOOL)


# nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor
@rule(aten.nan_to_num.default)
def nan_to_num(
    self: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    if not self.dtype.is_floating_point:
        return pointwise(lambda x: x, self)
    limits = torch.finfo(self.dtype)

    def formula(x: Scalar) -> Scalar:
        largest = constant(limits.max if posinf is None else posinf, x.dtype)
        least = constant(limits.min if neginf is None else neginf, x.dtype)
        finite = select(op("is_inf", x), select(x > 0, largest, least), x)
        return select(op("is_nan", x), constant(nan or 0.0, x.dtype), finite)

    return pointwise(formula, self)


# _to_copy(Tensor self, *, ScalarType? dtype=None, ...) -> Tensor
@rule(aten._to_copy.default)
def to_copy(self: Tensor, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    return define(self.shape, dtype or self.dtype, lambda index: cast(self.at(index), dtype or self.dtype))


# convert_element_type(Tensor a, ScalarType dtype) -> Tensor
@rule(prims.convert_element_type.default)
def convert_element_type(a: Tensor, dtype: torch.dtype) -> Tensor:
    return to_copy(a, dtype)


# clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor
@rule(aten.clone.default, aten.lift_fresh_copy.default)
def clone(self: Tensor, memory_format: Any = None) -> Tensor:
    return Tensor(self.shape, self.dtype, self.at)


# copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor
@rule(aten.copy.default)
def copy(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    wide = expanded(src, self.shape)
    return wide if src.dtype is self.dtype else to_copy(wide, self.dtype)
