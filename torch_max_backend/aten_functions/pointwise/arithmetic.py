"""Arithmetic, elementary functions, rounding, selection and clamping, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from max.dtype import DType
from max.graph import TensorValue, ops
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support import elementary, float64_math
from torch_max_backend.aten_functions.support.dtypes import Operand, accumulator
from torch_max_backend.aten_functions.support.elementary import either, in_accumulator, less, number
from torch_max_backend.aten_functions.support.node_context import out_dtype, promise
from torch_max_backend.aten_functions.support.tensor_ops import cast, constant, promote, tensor
from torch_max_backend.aten_functions.support.value_facts import unfinished_of

Number = bool | int | float
Unary = Callable[[TensorValue], TensorValue]


# -- operands ------------------------------------------------------------------------------------------------------
def promised(x: Operand) -> TensorValue:
    """``x`` in the dtype and on the device that torch promises for the output."""
    return tensor(x, out_dtype(), promise().device)


def arithmetic_operands(*operands: Operand, wide: bool = False) -> list[TensorValue]:
    """Operands in the dtype that torch computes in.

    That is the output's, but float32 for 16-bit floats if ``wide``, or if an operand is a number or a 0-d tensor of
    another dtype: torch does not round those to 16 bits first.
    """
    dtype, device = out_dtype(), promise().device
    wide = wide or any(not isinstance(x, TensorValue) or (not x.rank and x.dtype != dtype) for x in operands)
    # One operand given twice stays one value, so that elementary.difference sees it.
    once = {id(x): tensor(x, accumulator(dtype) if wide else dtype, device) for x in operands}
    return [once[id(x)] for x in operands]


def rounded(x: TensorValue) -> TensorValue:
    """A result in the promised dtype."""
    return cast(x, out_dtype())


# -- sums and products ---------------------------------------------------------------------------------------------
def _scaled_sum(op: Callable[..., TensorValue], self: Operand, other: Operand, alpha: Operand) -> TensorValue:
    if isinstance(alpha, bool | int | float) and alpha == 1:
        return rounded(op(*arithmetic_operands(self, other)))
    x, y, factor = arithmetic_operands(self, other, alpha)
    return rounded(op(x, elementary.product(y, factor)))


# add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
# add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
@map_to(aten.add.Tensor, aten.add.Scalar)
def add(self: Operand, other: Operand, alpha: Operand = 1) -> TensorValue:
    """``self + alpha * other``; of booleans, their union."""
    if out_dtype() == DType.bool:
        return ops.logical_or(*promote(self, other, dtype=DType.bool))
    if isinstance(alpha, int | float) and alpha == 1:
        for x, y in ((self, other), (other, self)):
            source = unfinished_of(y)
            fused = None if source is None or not isinstance(x, TensorValue) else source.added_to(x)
            if fused is not None:
                return fused
    return _scaled_sum(ops.add, self, other, alpha)


def _difference(x: TensorValue, y: TensorValue) -> TensorValue:
    """``x - y``. MAX rewrites ``0 - y`` to a negation, which it then refuses for unsigned integers."""
    return ops.add(x, negated(y)) if y.dtype.is_unsigned_integral() else elementary.difference(x, y)


def negated(x: TensorValue) -> TensorValue:
    """``-x``; of unsigned integers the product with all ones, which is the same."""
    return ops.mul(x, number(-1, x)) if x.dtype.is_unsigned_integral() else ops.negate(x)


# sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
# sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
@map_to(aten.sub.Tensor, aten.sub.Scalar)
def sub(self: Operand, other: Operand, alpha: Operand = 1) -> TensorValue:
    """``self - alpha * other``."""
    return _scaled_sum(_difference, self, other, alpha)


# rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
# rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
@map_to(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(self: Operand, other: Operand, alpha: Operand = 1) -> TensorValue:
    """``other - alpha * self``."""
    return _scaled_sum(_difference, other, self, alpha)


# mul.Tensor(Tensor self, Tensor other) -> Tensor
# mul.Scalar(Tensor self, Scalar other) -> Tensor
@map_to(aten.mul.Tensor, aten.mul.Scalar)
def mul(self: Operand, other: Operand) -> TensorValue:
    """The product; of booleans, their intersection."""
    if out_dtype() == DType.bool:
        return ops.logical_and(*promote(self, other, dtype=DType.bool))
    numbers = [x for x in (self, other) if isinstance(x, bool | int | float)]
    op = ops.mul if numbers and all(numbers) else elementary.product
    return rounded(op(*arithmetic_operands(self, other)))


# div.Tensor(Tensor self, Tensor other) -> Tensor
# div.Scalar(Tensor self, Scalar other) -> Tensor
# true_divide.Tensor(Tensor self, Tensor other) -> Tensor
@map_to(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(self: Operand, other: Operand) -> TensorValue:
    """The true quotient, of integers too."""
    return rounded(elementary.quotient(*arithmetic_operands(self, other)))


# -- one float in, one float out -----------------------------------------------------------------------------------
def unary(op: OpOverload, function: Unary, integers: bool | Unary = True) -> None:
    """Register a function of floats.

    Of a boolean it has two values: torch computes them while the graph is built. Of integers it is computed in float64
    and rounded once, which is what torch's accurate kernels give. Where its kernel rounds in another way, ``integers``
    is a function of the converted integers that takes the same steps, or ``False``: integers are left to torch.
    """

    def result(x: TensorValue) -> TensorValue:
        if x.dtype.is_float():
            return in_accumulator(function)(x)
        if x.dtype == DType.bool:
            with _disable_current_modes():  # torch is tracing: these values are real
                of_false, of_true = op(torch.tensor([False, True])).tolist()
            choices = (constant(v, out_dtype(), x.device) for v in (of_true, of_false))
            return ops.where(x, *choices)
        if callable(integers):
            return integers(cast(x, out_dtype()))
        return rounded(function(cast(x, DType.float64)))

    def of_self(self: TensorValue) -> TensorValue:
        return result(self)

    def of_x(x: TensorValue) -> TensorValue:
        return result(x)

    lowering = of_x if op._schema.arguments[0].name == "x" else of_self
    lowering.__name__ = lowering.__qualname__ = str(op).split(".")[1]
    limits = {} if integers else {"supports": _only_floats, "limits": "floats and booleans"}
    map_to(op, **limits)(lowering)  # type: ignore[arg-type]


def _only_floats(self: torch.Tensor) -> str | None:
    if self.is_floating_point() or self.dtype == torch.bool:
        return None
    return f"an integer argument, whose result torch rounds in its own way; got {self.dtype}"


def reciprocal(x: TensorValue) -> TensorValue:
    """1/x."""
    return ops.div(number(1, x), x)


# name(Tensor self) -> Tensor
unary(aten.exp.default, elementary.exp)
unary(aten.tanh.default, elementary.tanh)
unary(aten.sigmoid.default, elementary.sigmoid, integers=False)
unary(aten.reciprocal.default, reciprocal)
for _op, _function in (
    (aten.log.default, elementary.log),
    (aten.log1p.default, ops.log1p),
    (aten.sin.default, float64_math.sin),
    (aten.sqrt.default, ops.sqrt),
    (aten.erf.default, ops.erf),
    (aten.atanh.default, ops.atanh),
):
    unary(_op, _function)
unary(aten.cos.default, float64_math.cos, integers=False)
unary(aten.rsqrt.default, ops.rsqrt, integers=lambda x: reciprocal(ops.sqrt(x)))


# -- sign ----------------------------------------------------------------------------------------------------------
# neg(Tensor self) -> Tensor
@map_to(aten.neg.default)
def neg(self: TensorValue) -> TensorValue:
    """``-self``; unsigned integers wrap around."""
    return negated(self)


# abs(Tensor self) -> Tensor
@map_to(aten.abs.default)
def absolute(self: TensorValue) -> TensorValue:
    """The size; the lowest integer stays itself."""
    return self if self.dtype == DType.bool or self.dtype.is_unsigned_integral() else ops.abs(self)


# sign(Tensor self) -> Tensor
# sgn(Tensor self) -> Tensor
@map_to(aten.sign.default, aten.sgn.default)
def sign(self: TensorValue) -> TensorValue:
    """-1, 0 or 1; 0 for NaN."""
    if self.dtype == DType.bool:
        return self
    zero = number(0, self)
    positive = cast(ops.greater(self, zero), self.dtype)
    return positive if self.dtype.is_unsigned_integral() else ops.sub(positive, cast(less(self, zero), self.dtype))


# -- rounding ------------------------------------------------------------------------------------------------------
def rounding(op: object, function: Unary) -> None:
    """Register a rounding function; integers are what they are."""

    def lowering(self: TensorValue) -> TensorValue:
        return in_accumulator(function)(self) if self.dtype.is_float() else self

    lowering.__name__ = lowering.__qualname__ = str(op).split(".")[1]
    map_to(op)(lowering)


# name(Tensor self) -> Tensor
for _op, _function in (
    (aten.ceil.default, ops.ceil),
    (aten.floor.default, ops.floor),
    (aten.trunc.default, ops.trunc),
    (aten.round.default, ops.round),
):
    rounding(_op, _function)


# round.decimals(Tensor self, *, int decimals) -> Tensor
@map_to(aten.round.decimals)
def round_decimals(self: TensorValue, decimals: int) -> TensorValue:
    """To a number of decimal places, half to even after scaling, as torch."""
    if not self.dtype.is_float() or decimals == 0:
        return self if not self.dtype.is_float() else ops.round(self)
    scale = number(10.0 ** abs(decimals), self)
    if decimals > 0:
        return ops.div(ops.round(ops.mul(self, scale)), scale)
    return ops.mul(ops.round(ops.div(self, scale)), scale)


# -- selection -----------------------------------------------------------------------------------------------------
# where.self(Tensor condition, Tensor self, Tensor other) -> Tensor
@map_to(aten.where.self)
def where(condition: TensorValue, self: Operand, other: Operand) -> TensorValue:
    """``self`` where ``condition``, else ``other``."""
    return ops.where(tensor(condition, DType.bool, promise().device), promised(self), promised(other))


# masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor
# masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> Tensor
@map_to(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(self: TensorValue, mask: TensorValue, value: Operand) -> TensorValue:
    """``value`` where ``mask``, else ``self``."""
    return ops.where(tensor(mask, DType.bool, promise().device), promised(value), self)


# -- clamping ------------------------------------------------------------------------------------------------------
def _raised(x: TensorValue, low: Operand | None) -> TensorValue:
    if low is None:
        return x
    if isinstance(low, float) and math.isnan(low):
        return ops.broadcast_to(number(low, x), x.shape)
    bound = promised(low)
    return elementary.at_least(x, bound) if not isinstance(low, TensorValue) else elementary.maximum(x, bound)


def _lowered(x: TensorValue, high: Operand | None) -> TensorValue:
    if high is None:
        return x
    if isinstance(high, float) and math.isnan(high):
        return ops.broadcast_to(number(high, x), x.shape)
    bound = promised(high)
    return elementary.at_most(x, bound) if not isinstance(high, TensorValue) else elementary.minimum(x, bound)


# clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor
# clamp.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor
@map_to(aten.clamp.default, aten.clamp.Tensor)
def clamp(self: TensorValue, min: Operand | None = None, max: Operand | None = None) -> TensorValue:
    """``minimum(maximum(self, min), max)``: ``max`` wins where the bounds cross, NaN anywhere gives NaN."""
    return _lowered(_raised(promised(self), min), max)


# clamp_min(Tensor self, Scalar min) -> Tensor
# clamp_min.Tensor(Tensor self, Tensor min) -> Tensor
@map_to(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(self: TensorValue, min: Operand) -> TensorValue:
    """At least ``min``."""
    return _raised(promised(self), min)


# clamp_max(Tensor self, Scalar max) -> Tensor
# clamp_max.Tensor(Tensor self, Tensor max) -> Tensor
@map_to(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(self: TensorValue, max: Operand) -> TensorValue:
    """At most ``max``."""
    return _lowered(promised(self), max)


# -- special values ------------------------------------------------------------------------------------------------
# nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor
@map_to(aten.nan_to_num.default)
def nan_to_num(
    self: TensorValue, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> TensorValue:
    """NaN and infinities replaced by numbers: 0 and the largest finite ones unless given."""
    if not self.dtype.is_float():
        return self
    largest = _LARGEST[self.dtype]
    for condition, value in (
        (ops.is_nan(self), 0.0 if nan is None else nan),
        (ops.equal(self, number(math.inf, self)), largest if posinf is None else posinf),
        (ops.equal(self, number(-math.inf, self)), -largest if neginf is None else neginf),
    ):
        self = ops.where(condition, number(value, self), self)
    return self


_LARGEST = {
    DType.float16: 65504.0,
    DType.bfloat16: (2 - 2**-7) * 2.0**127,
    DType.float32: (2 - 2**-23) * 2.0**127,
    DType.float64: (2 - 2**-52) * 2.0**1023,
}


# xlogy.Tensor(Tensor self, Tensor other) -> Tensor
# xlogy.Scalar_Self(Scalar self, Tensor other) -> Tensor
# xlogy.Scalar_Other(Tensor self, Scalar other) -> Tensor
@map_to(aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)
def xlogy(self: Operand, other: Operand) -> TensorValue:
    """``self * log(other)``, 0 where ``self`` is 0, NaN where ``other`` is."""
    return rounded(_times_log(elementary.log, *arithmetic_operands(self, other, wide=True)))


# special_xlog1py(Tensor self, Tensor other) -> Tensor
# special_xlog1py.self_scalar(Scalar self, Tensor other) -> Tensor
# special_xlog1py.other_scalar(Tensor self, Scalar other) -> Tensor
@map_to(aten.special_xlog1py.default, aten.special_xlog1py.self_scalar, aten.special_xlog1py.other_scalar)
def special_xlog1py(self: Operand, other: Operand) -> TensorValue:
    """``self * log1p(other)``, 0 where ``self`` is 0, NaN where ``other`` is."""
    return rounded(_times_log(ops.log1p, *arithmetic_operands(self, other, wide=True)))


def _times_log(log: Unary, x: TensorValue, y: TensorValue) -> TensorValue:
    zero = number(0, x)
    product = ops.mul(x, log(y))
    return elementary.keep_nan(y, ops.where(ops.equal(x, zero), zero, product))


# addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor
@map_to(aten.addcmul.default)
def addcmul(self: TensorValue, tensor1: Operand, tensor2: Operand, value: Operand = 1) -> TensorValue:
    """``self + value * tensor1 * tensor2``, rounded once."""
    x, a, b, factor = arithmetic_operands(self, tensor1, tensor2, value, wide=True)
    return rounded(ops.add(x, elementary.product(elementary.product(factor, a), b)))


# addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor
@map_to(aten.addcdiv.default)
def addcdiv(self: TensorValue, tensor1: Operand, tensor2: Operand, value: Operand = 1) -> TensorValue:
    """``self + value * tensor1 / tensor2``, rounded once."""
    x, a, b, factor = arithmetic_operands(self, tensor1, tensor2, value, wide=True)
    return rounded(ops.add(x, ops.div(ops.mul(factor, a), b)))


# lerp.Scalar(Tensor self, Tensor end, Scalar weight) -> Tensor
# lerp.Tensor(Tensor self, Tensor end, Tensor weight) -> Tensor
@map_to(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(self: TensorValue, end: Operand, weight: Operand) -> TensorValue:
    """``self + weight * (end - self)``, computed from the nearer end, so that weight 1 gives ``end`` exactly."""
    x, y, w = arithmetic_operands(self, end, weight, wide=True)
    one, distance = number(1, x), elementary.difference(y, x)
    from_start = ops.add(x, ops.mul(w, distance))
    from_end = ops.sub(y, ops.mul(distance, ops.sub(one, w)))
    near_start = less(ops.abs(w), number(0.5, x))
    return rounded(ops.where(near_start, from_start, from_end))


# heaviside(Tensor self, Tensor values) -> Tensor
@map_to(aten.heaviside.default)
def heaviside(self: TensorValue, values: TensorValue) -> TensorValue:
    """0 below zero, ``values`` at it, 1 above; NaN gives 0 as in torch."""
    zero, one = number(0, self), number(1, self)
    if self.dtype == DType.bool:
        return either(self, values)
    step = ops.where(ops.greater(self, zero), one, zero)
    return ops.where(ops.equal(self, zero), values, step)
