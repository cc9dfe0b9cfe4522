"""Sampling of volumes at given places."""

from __future__ import annotations

from collections.abc import Sequence

from max.dtype import DType
from max.graph import TensorValue

from torch_max_backend.aten_functions.common import cast, full, mojo_op
from torch_max_backend.aten_functions.context import is_used
from torch_max_backend.aten_functions.dtypes import accumulator
from torch_max_backend.aten_functions.registry import aten, map_to
from torch_max_backend.aten_functions.resize import _check_grid, _sampler
from torch_max_backend.errors import Unsupported


# grid_sampler_3d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor
@map_to(aten.grid_sampler_3d.default, how="mojo")
def grid_sampler_3d(
    input: TensorValue, grid: TensorValue, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> TensorValue:
    _check_grid(input, grid)
    shape = [*input.shape[:2], *grid.shape[1:4]]
    parameters = _sampler(interpolation_mode, padding_mode, align_corners)
    return mojo_op("tmb_grid_sampler_3d", [input, grid], [(input.dtype, shape)], parameters)[0]


# grid_sampler_3d_backward(Tensor grad_output, Tensor input, Tensor grid, int interpolation_mode, int padding_mode,
#   bool align_corners, bool[2] output_mask) -> (Tensor, Tensor)
@map_to(aten.grid_sampler_3d_backward.default, how="mojo", limits="linear and nearest")
def grid_sampler_3d_backward(
    grad_output: TensorValue,
    input: TensorValue,
    grid: TensorValue,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> list[TensorValue | None]:
    _check_grid(input, grid)
    if interpolation_mode == 2:
        raise Unsupported("gradients of linear and nearest sampling, got bicubic")
    wide = accumulator(input.dtype)
    grad, image, places = (cast(x, wide) for x in (grad_output, input, grid))
    parameters = _sampler(interpolation_mode, padding_mode, align_corners)
    results: list[TensorValue | None] = [None, None]
    if output_mask[0] and is_used(0):
        outputs = [(DType.bool, input.shape[:2]), (wide, input.shape)]
        results[0] = mojo_op("tmb_grid_sampler_3d_image_gradient", [grad, places], outputs, parameters)[1]
    if is_used(1) and interpolation_mode == 1:
        results[1] = full(0, grid.shape, wide, grid.device)
    elif is_used(1):
        del parameters["mode"]
        values = [grad, image, places]
        results[1] = mojo_op("tmb_grid_sampler_3d_grid_gradient", values, [(wide, grid.shape)], parameters)[0]
    return [None if r is None else cast(r, input.dtype) for r in results]
