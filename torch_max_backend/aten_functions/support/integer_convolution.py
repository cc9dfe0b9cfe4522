"""Convolutions of integers, which MAX has none of: one kernel for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from max.graph import Dim, TensorValue, ops

from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.tensor_ops import reshape

Ints = Sequence[int]


def convolve_integers(
    x: TensorValue,
    weight: TensorValue,
    bias: TensorValue | None,
    geometry: Mapping[str, Ints],
    groups: int,
    transposed: bool,
    shape: Sequence[Dim],
) -> TensorValue:
    """``x [N, C, *S]`` with ``weight`` to ``shape``; ``geometry`` has stride (s), padding (p) and dilation (d)."""
    more = 3 - (x.rank - 2)

    def volume(v: TensorValue) -> TensorValue:
        return reshape(v, [*v.shape[:2], *[1] * more, *v.shape[2:]])

    parameters: dict[str, int | bool] = {"transposed": transposed, "groups": groups}
    for name, values in geometry.items():
        one = 0 if name == "p" else 1
        parameters |= {name + axis: v for axis, v in zip("dhw", [one] * more + list(values), strict=True)}
    wide = [*shape[:2], *[Dim(1)] * more, *shape[2:]]
    (y,) = mojo_op("tmb_integer_convolution", [volume(x), volume(weight)], [(x.dtype, wide)], parameters)
    y = reshape(y, shape)
    return y if bias is None else ops.add(y, reshape(bias, [bias.shape[0], *[1] * (x.rank - 2)]))
