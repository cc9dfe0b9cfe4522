"""Element-wise functions of the standard, as tables: a function of torch, and the data types it takes.

Shapes are broadcast, data types promoted as the standard says; a Python number takes the array's data type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_max_backend.array import dtypes
from torch_max_backend.array.array_object import Array
from torch_max_backend.array.carriers import carried, floor_divide_unsigned, shift_right_unsigned
from torch_max_backend.array.declaration import function
from torch_max_backend.array.expression import Op, record
from torch_max_backend.array.operands import cast, node_of, scalar, together
from torch_max_backend.base.errors import ArrayTypeError

Tensors = Callable[..., torch.Tensor]
SECTION = "element-wise"


def _same_if_integer(of_floats: Tensors) -> Tensors:
    return lambda x: of_floats(x) if x.is_floating_point() else x.clone()


def _same_if_unsigned(of_signed: Tensors) -> Tensors:
    return lambda x: of_signed(x) if x.dtype not in dtypes.UNSIGNED else x.clone()


def _sign(x: torch.Tensor) -> torch.Tensor:
    if x.dtype in dtypes.UNSIGNED:
        return (x != 0).to(x.dtype)
    result = torch.sign(x)
    return torch.where(torch.isnan(x), x, result) if x.is_floating_point() else result


def _floor_divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.dtype is torch.uint64:
        return floor_divide_unsigned(a.view(torch.int64), b.view(torch.int64)).view(torch.uint64)
    return carried(torch.floor_divide)(a, b)


def _remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.dtype is torch.uint64:
        x, y = a.view(torch.int64), b.view(torch.int64)
        return (x - floor_divide_unsigned(x, y) * y).view(torch.uint64)
    result = carried(torch.remainder)(a, b)
    if not a.is_floating_point():
        return result
    return torch.where(
        result == 0, torch.copysign(torch.zeros_like(result), b), result
    )  # a zero has the divisor's sign


def _shift_right(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.dtype is torch.uint64:
        return shift_right_unsigned(a.view(torch.int64), b.view(torch.int64)).view(torch.uint64)
    return carried(torch.bitwise_right_shift)(a, b)


def _of_real(complex_too: Tensors, of_reals: Tensors) -> Tensors:
    return lambda x: complex_too(x) if x.is_complex() else of_reals(x)


def _false(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x, dtype=torch.bool)


def _true(x: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(x, dtype=torch.bool)


def _of_inexact(of_floats: Tensors, of_others: Tensors) -> Tensors:
    return lambda x: of_floats(x) if x.is_floating_point() or x.is_complex() else of_others(x)


UNARY: dict[str, tuple[Tensors, str]] = {
    "abs": (_same_if_unsigned(torch.abs), "numeric"),
    "acos": (torch.acos, "floating"),
    "acosh": (torch.acosh, "floating"),
    "asin": (torch.asin, "floating"),
    "asinh": (torch.asinh, "floating"),
    "atan": (torch.atan, "floating"),
    "atanh": (torch.atanh, "floating"),
    "bitwise_invert": (carried(torch.bitwise_not), "bool or integral"),
    "ceil": (_same_if_integer(torch.ceil), "real numeric"),
    "conj": (_of_real(torch.conj_physical, torch.clone), "numeric"),
    "cos": (torch.cos, "floating"),
    "cosh": (torch.cosh, "floating"),
    "exp": (torch.exp, "floating"),
    "expm1": (torch.expm1, "floating"),
    "floor": (_same_if_integer(torch.floor), "real numeric"),
    "imag": (lambda x: torch.view_as_real(x)[..., 1], "complex floating"),
    "isfinite": (_of_inexact(torch.isfinite, _true), "numeric"),
    "isinf": (_of_inexact(torch.isinf, _false), "numeric"),
    "isnan": (_of_inexact(torch.isnan, _false), "numeric"),
    "log": (torch.log, "floating"),
    "log1p": (torch.log1p, "floating"),
    "log2": (torch.log2, "floating"),
    "log10": (torch.log10, "floating"),
    "logical_not": (torch.logical_not, "bool"),
    "negative": (carried(torch.neg), "numeric"),
    "real": (_of_real(lambda x: torch.view_as_real(x)[..., 0], torch.clone), "numeric"),
    "reciprocal": (torch.reciprocal, "floating"),
    "round": (
        _of_real(lambda x: torch.complex(x.real.round(), x.imag.round()), _same_if_integer(torch.round)),
        "numeric",
    ),
    "sign": (_of_real(torch.sgn, _sign), "numeric"),
    "signbit": (torch.signbit, "real floating"),
    "sin": (torch.sin, "floating"),
    "sinh": (torch.sinh, "floating"),
    "sqrt": (torch.sqrt, "floating"),
    "square": (carried(torch.square), "numeric"),
    "tan": (torch.tan, "floating"),
    "tanh": (torch.tanh, "floating"),
    "trunc": (_same_if_integer(torch.trunc), "real numeric"),
}
"""Functions of one array: the function of torch, and the kinds of data types."""

BINARY: dict[str, tuple[Tensors, str]] = {
    "add": (carried(torch.add), "numeric"),
    "atan2": (torch.atan2, "real floating"),
    "bitwise_and": (carried(torch.bitwise_and), "bool or integral"),
    "bitwise_left_shift": (carried(torch.bitwise_left_shift), "integral"),
    "bitwise_or": (carried(torch.bitwise_or), "bool or integral"),
    "bitwise_right_shift": (_shift_right, "integral"),
    "bitwise_xor": (carried(torch.bitwise_xor), "bool or integral"),
    "copysign": (torch.copysign, "real floating"),
    "divide": (torch.true_divide, "floating"),
    "equal": (carried(torch.eq, back=False), "all"),
    "floor_divide": (_floor_divide, "real numeric"),
    "greater": (carried(torch.gt, ordered=True, back=False), "real numeric"),
    "greater_equal": (carried(torch.ge, ordered=True, back=False), "real numeric"),
    "hypot": (torch.hypot, "real floating"),
    "less": (carried(torch.lt, ordered=True, back=False), "real numeric"),
    "less_equal": (carried(torch.le, ordered=True, back=False), "real numeric"),
    "logaddexp": (torch.logaddexp, "real floating"),
    "logical_and": (torch.logical_and, "bool"),
    "logical_or": (torch.logical_or, "bool"),
    "logical_xor": (torch.logical_xor, "bool"),
    "maximum": (carried(torch.maximum, ordered=True), "real numeric"),
    "minimum": (carried(torch.minimum, ordered=True), "real numeric"),
    "multiply": (carried(torch.mul), "numeric"),
    "nextafter": (torch.nextafter, "real floating"),
    "not_equal": (carried(torch.ne, back=False), "all"),
    "pow": (carried(torch.pow), "numeric"),
    "remainder": (_remainder, "real numeric"),
    "subtract": (carried(torch.sub), "numeric"),
}
"""Functions of two arrays, or of an array and a Python number."""

_EXPONENTS = (2, 3, 0.5, -1, -0.5, -2)
"""Exponents that a program does better to know."""


def _unary(name: str) -> Callable[[Any], Array]:
    run, kind = UNARY[name]
    op = Op(name, run)

    def apply(x: Any, /) -> Array:
        node = node_of(x)
        dtypes.check(name, node.dtype, kind)
        return Array(record(op, (node,), node.device))

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"The standard's ``{name}``, of {kind} data types."
    return function(SECTION)(apply)


def _binary(name: str) -> Callable[[Any, Any], Array]:
    run, kind = BINARY[name]
    op = Op(name, run)

    def apply(x1: Any, x2: Any, /) -> Array:
        nodes, _ = together(name, (x1, x2), kind)
        return Array(record(op, nodes, nodes[0].device))

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"The standard's ``{name}``, of {kind} data types."
    return function(SECTION)(apply)


_pow_to = Op("pow_to", lambda x, *, exponent: torch.pow(x, exponent))
_pow_of_two = _binary("pow")


def pow(x1: Any, x2: Any, /) -> Array:
    """The standard's ``pow``, of numeric data types."""
    if isinstance(x1, Array) and isinstance(x2, int | float) and not isinstance(x2, bool) and x2 in _EXPONENTS:
        dtype = dtypes.with_scalar(x1.dtype, x2)
        if dtype.is_floating_point:
            return Array(record(_pow_to, (x1._node,), x1.device, exponent=x2))
    return _pow_of_two(x1, x2)


@function(SECTION)
def positive(x: Any, /) -> Array:
    """The standard's ``positive``: the same elements."""
    node = node_of(x)
    dtypes.check("positive", node.dtype, "numeric")
    return Array(cast(node, node.dtype)) if node.owner is None else Array(record(_copy, (node,), node.device))


_copy = Op("copy", torch.clone)


def _clamped(x: torch.Tensor, *bounds: torch.Tensor, has_min: bool, has_max: bool) -> torch.Tensor:
    low = bounds[0] if has_min else None
    high = bounds[-1] if has_max else None
    if low is not None:
        x = torch.maximum(x, low)
    return torch.minimum(x, high) if high is not None else x


_clip = Op("clip", carried(_clamped, ordered=True))


@function(SECTION)
def clip(x: Any, /, min: Any = None, max: Any = None) -> Array:
    """The standard's ``clip``: bounds are arrays or numbers; the result has the data type of ``x``.

    Raises:
        ArrayTypeError: A bound is of another kind of data type.
    """
    node = node_of(x)
    dtypes.check("clip", node.dtype, "real numeric")
    bounds = [b for b in (min, max) if b is not None]
    for b in bounds:
        if isinstance(b, Array):
            dtypes.promote(node.dtype, b.dtype)
        else:
            _check_bound(node.dtype, b)
    if not bounds:
        return positive(x)
    dtype = node.dtype
    arrays = [b for b in bounds if isinstance(b, Array)]
    for b in arrays:
        dtype = dtypes.promote(dtype, b.dtype)
    nodes = [cast(b._node, dtype) if isinstance(b, Array) else scalar(b, dtype, node.device) for b in bounds]
    result = record(_clip, [cast(node, dtype), *nodes], node.device, has_min=min is not None, has_max=max is not None)
    return Array(cast(result, node.dtype))


def _check_bound(dtype: torch.dtype, bound: Any) -> None:
    if not isinstance(bound, int | float) or isinstance(bound, bool):
        raise ArrayTypeError(f"a bound of clip is an array or a real number, got {type(bound).__name__}")
    dtypes.with_scalar(dtype, bound)


abs = _unary("abs")
acos = _unary("acos")
acosh = _unary("acosh")
add = _binary("add")
asin = _unary("asin")
asinh = _unary("asinh")
atan = _unary("atan")
atan2 = _binary("atan2")
atanh = _unary("atanh")
bitwise_and = _binary("bitwise_and")
bitwise_invert = _unary("bitwise_invert")
bitwise_left_shift = _binary("bitwise_left_shift")
bitwise_or = _binary("bitwise_or")
bitwise_right_shift = _binary("bitwise_right_shift")
bitwise_xor = _binary("bitwise_xor")
ceil = _unary("ceil")
conj = _unary("conj")
copysign = _binary("copysign")
cos = _unary("cos")
cosh = _unary("cosh")
divide = _binary("divide")
equal = _binary("equal")
exp = _unary("exp")
expm1 = _unary("expm1")
floor = _unary("floor")
floor_divide = _binary("floor_divide")
greater = _binary("greater")
greater_equal = _binary("greater_equal")
hypot = _binary("hypot")
imag = _unary("imag")
isfinite = _unary("isfinite")
isinf = _unary("isinf")
isnan = _unary("isnan")
less = _binary("less")
less_equal = _binary("less_equal")
log = _unary("log")
log10 = _unary("log10")
log1p = _unary("log1p")
log2 = _unary("log2")
logaddexp = _binary("logaddexp")
logical_and = _binary("logical_and")
logical_not = _unary("logical_not")
logical_or = _binary("logical_or")
logical_xor = _binary("logical_xor")
maximum = _binary("maximum")
minimum = _binary("minimum")
multiply = _binary("multiply")
negative = _unary("negative")
nextafter = _binary("nextafter")
not_equal = _binary("not_equal")
real = _unary("real")
reciprocal = _unary("reciprocal")
remainder = _binary("remainder")
round = _unary("round")
sign = _unary("sign")
signbit = _unary("signbit")
sin = _unary("sin")
sinh = _unary("sinh")
sqrt = _unary("sqrt")
square = _unary("square")
subtract = _binary("subtract")
tan = _unary("tan")
tanh = _unary("tanh")
trunc = _unary("trunc")
