"""Orthogonal polynomials: recurrences in a Mojo kernel, closed forms where torch takes them."""

from __future__ import annotations

from collections.abc import Callable

from max.dtype import DType
from max.graph import TensorValue, ops

from torch_max_backend.aten_functions.pointwise.arithmetic import arithmetic_operands, rounded
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.support import float64_math
from torch_max_backend.aten_functions.support.dtypes import Operand
from torch_max_backend.aten_functions.support.elementary import number
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.node_context import out_shape
from torch_max_backend.aten_functions.support.tensor_ops import broadcast_to, cast

Polynomial = Callable[[TensorValue, TensorValue], TensorValue]


# -- closed forms of Chebyshev polynomials -------------------------------------------------------------------------
# For large degrees torch computes cos(n * acos(x)) and its like, in the dtype of x: n times the rounding error of the
# angle is in the result, so the angle is rounded here as it is there.
def _in_dtype(function: Callable[[TensorValue], TensorValue], x: TensorValue) -> TensorValue:
    return cast(function(cast(x, DType.float64)), x.dtype)


def _plus(x: TensorValue, term: float) -> TensorValue:
    return ops.add(x, number(term, x))


def _half(x: TensorValue) -> TensorValue:
    return ops.mul(x, number(0.5, x))


def _closed_t(n: TensorValue, angle: TensorValue) -> TensorValue:
    return _in_dtype(float64_math.cos, ops.mul(n, angle))


def _closed_u(n: TensorValue, angle: TensorValue) -> TensorValue:
    return ops.div(_in_dtype(float64_math.sin, ops.mul(_plus(n, 1.0), angle)), _in_dtype(float64_math.sin, angle))


def _closed_v(n: TensorValue, angle: TensorValue) -> TensorValue:
    value = ops.div(
        _in_dtype(float64_math.cos, ops.mul(_plus(n, 0.5), angle)), _in_dtype(float64_math.cos, _half(angle))
    )
    at_end = ops.equal(_in_dtype(float64_math.sin, _half(angle)), number(1, angle))
    return ops.where(at_end, ops.mul(_parity(n), _plus(ops.add(n, n), 1.0)), value)


def _closed_w(n: TensorValue, angle: TensorValue) -> TensorValue:
    value = ops.div(
        _in_dtype(float64_math.sin, ops.mul(_plus(n, 0.5), angle)), _in_dtype(float64_math.sin, _half(angle))
    )
    return ops.where(_at_upper_end(angle), _plus(ops.add(n, n), 1.0), value)


def _closed_shifted_w(n: TensorValue, angle: TensorValue) -> TensorValue:
    """As torch: next to the upper end it has the value of the lower one."""
    return ops.where(_at_upper_end(angle), _parity(n), _closed_w(n, angle))


def _at_upper_end(angle: TensorValue) -> TensorValue:
    return ops.equal(_in_dtype(float64_math.cos, _half(angle)), number(1, angle))


def _parity(n: TensorValue) -> TensorValue:
    """1 for even, -1 for odd whole numbers."""
    odd = ops.not_equal(ops.trunc(_half(n)), _half(n))
    return ops.where(odd, number(-1, n), number(1, n))


def _chebyshev(kind: str, shifted: bool, closed_above: int, closed: Polynomial) -> Polynomial:
    def polynomial(x: TensorValue, n: TensorValue) -> TensorValue:
        point = _plus(ops.add(x, x), -1.0) if shifted else x
        angle = _in_dtype(float64_math.acos, point)
        values = [point, n, closed(ops.trunc(n), angle)]
        parameters = {"kind": kind, "closed_above": closed_above}
        return mojo_op("tmb_chebyshev_polynomial", values, [(x.dtype, x.shape)], parameters)[0]

    return polynomial


def _recurrence(kind: str) -> Polynomial:
    def polynomial(x: TensorValue, n: TensorValue) -> TensorValue:
        return mojo_op("tmb_orthogonal_polynomial", [x, n], [(x.dtype, x.shape)], {"kind": kind})[0]

    return polynomial


# name(Tensor x, Tensor n) -> Tensor
# name.x_scalar(Scalar x, Tensor n) -> Tensor
# name.n_scalar(Tensor x, Scalar n) -> Tensor
def _register(name: str, polynomial: Polynomial) -> None:
    packet = getattr(aten, f"special_{name}")

    def lowering(x: Operand, n: Operand) -> TensorValue:
        shape = out_shape()
        return rounded(polynomial(*(broadcast_to(v, shape) for v in arithmetic_operands(x, n, wide=True))))

    lowering.__name__ = lowering.__qualname__ = name
    map_to(packet.default, packet.x_scalar, packet.n_scalar)(lowering)


for _name, _polynomial in (
    ("chebyshev_polynomial_t", _chebyshev("t", False, 6, _closed_t)),
    ("chebyshev_polynomial_u", _chebyshev("u", False, 8, _closed_u)),
    ("chebyshev_polynomial_v", _chebyshev("v", False, 8, _closed_v)),
    ("chebyshev_polynomial_w", _chebyshev("w", False, 8, _closed_w)),
    ("shifted_chebyshev_polynomial_t", _chebyshev("t", True, 6, _closed_t)),
    ("shifted_chebyshev_polynomial_u", _chebyshev("u", True, 6, _closed_u)),
    ("shifted_chebyshev_polynomial_v", _chebyshev("v", True, 6, _closed_v)),
    ("shifted_chebyshev_polynomial_w", _chebyshev("w", True, 4, _closed_shifted_w)),
    ("hermite_polynomial_h", _recurrence("h")),
    ("hermite_polynomial_he", _recurrence("he")),
    ("laguerre_polynomial_l", _recurrence("l")),
    ("legendre_polynomial_p", _recurrence("p")),
):
    _register(_name, _polynomial)
