"""Layer norms on a CPU whose statistics are kept, and their gradients, by kernels that are compiled for all sizes."""

from __future__ import annotations

from dataclasses import dataclass

from max.dtype import DType
from max.graph import DeviceRef, TensorValue, ops

from torch_max_backend.aten_functions.support.dtypes import accumulator
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.tensor_ops import before_widening, cast


@dataclass(frozen=True)
class LayerNormed:
    """``y`` [rows, columns] in the dtype asked for; ``mean`` and ``rstd`` [rows] in that which is computed with."""

    y: TensorValue
    mean: TensorValue
    rstd: TensorValue


def layer_norm(
    x: TensorValue, weight: TensorValue | None, bias: TensorValue | None, eps: float, dtype: DType
) -> LayerNormed:
    """The norm of the rows of ``x`` [rows, columns], in ``dtype``; weight and bias are [columns].

    Statistics are in float32 for 16-bit inputs, in the dtype of ``x`` else.
    """
    x, computed = before_widening(x), accumulator(x.dtype)
    vectors = [x if v is None else before_widening(v) for v in (weight, bias)]
    parameters = {"is_scaled": weight is not None, "is_shifted": bias is not None}
    out = [(dtype, x.shape), (computed, x.shape[:1]), (computed, x.shape[:1])]
    epsilon = ops.constant(eps, computed, DeviceRef.CPU())
    return LayerNormed(*mojo_op("tmb_layer_norm", [x, *vectors, epsilon], out, parameters))


def layer_norm_in_front(
    grad: TensorValue,
    x: TensorValue,
    mean: TensorValue,
    rstd: TensorValue,
    weight: TensorValue | None,
    dtype: DType,
    has_sums: bool,
) -> tuple[TensorValue, TensorValue, TensorValue]:
    """Gradients of ``x``, in ``dtype``, and of weight and bias, which without ``has_sums`` mean nothing.

    Args:
        grad: [rows, columns] as ``x``; ``mean`` and ``rstd`` are [rows] and ``weight`` is [columns].
    """
    computed = accumulator(x.dtype)
    grad, x = before_widening(grad), before_widening(x)
    vectors = [cast(mean, computed), cast(rstd, computed), x if weight is None else before_widening(weight)]
    columns = x.shape[1:] if has_sums else [1]
    out = [(dtype, x.shape), (computed, columns), (computed, columns)]
    parameters = {"is_scaled": weight is not None, "has_sums": has_sums}
    found = mojo_op("tmb_layer_norm_gradients", [grad, x, *vectors], out, parameters)
    return found[0], found[1], found[2]
