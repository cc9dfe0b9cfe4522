"""A region that is captured as a device graph: its inputs have fixed addresses, its results are the same tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from max.driver import Buffer

from torch_max_backend.runtime.region_call import RegionCall, execution_error, overlapping
from torch_max_backend.runtime.region_spec import ALIGNMENT, Model, RegionSpec, why_not_captured
from torch_max_backend.runtime.tensor_interop import end_capture, to_tensor


class ReplayRegion(RegionCall):
    """A region that MAX captures in its first call and replays in later ones.

    MAX keeps the memory of a captured graph's intermediates for it. The results are the same tensors every time.

    Args:
        key: Names the captured graph; no two regions of a process have the same.
        stable: Addresses of storages that keep their place. Inputs elsewhere are copied to memory of the region.
    """

    def __init__(self, spec: RegionSpec, model: Model, key: int, stable: set[int]) -> None:
        super().__init__(spec, model)
        self.refusal = why_not_captured(spec)
        self._key, self._stable = key, stable
        self._gpu = spec.gpus[0] if spec.gpus else 0
        self._own: list[torch.Tensor | None] = []
        self._buffers: list[Buffer] = []
        self._results: list[torch.Tensor] = []
        self._kept: list[torch.Tensor] = []
        self._shared: list[int] | None = None
        self._host: tuple[tuple[int, ...], tuple[float, ...]] = ((), ())

    def __call__(
        self,
        static: Sequence[torch.Tensor],
        dynamic: Sequence[torch.Tensor],
        sizes: Sequence[int] = (),
        scalars: Sequence[float] = (),
    ) -> list[torch.Tensor]:
        """Run the region; see :class:`RegionCall`. With other host values than the captured ones, it runs as always."""
        if not self._buffers and not self.refusal:
            return self._capture(static, dynamic, sizes, scalars)
        if self.refusal or (tuple(sizes), tuple(scalars)) != self._host:
            return super().__call__(static, dynamic, sizes, scalars)
        for tensor, own in zip(dynamic, self._own, strict=True):
            if own is not None:
                own.copy_(tensor)
        self._replay()
        return self._finish(static, dynamic)

    def _capture(
        self,
        static: Sequence[torch.Tensor],
        dynamic: Sequence[torch.Tensor],
        sizes: Sequence[int],
        scalars: Sequence[float],
    ) -> list[torch.Tensor]:
        for k, tensor in zip(self.static, static, strict=True):
            if self._is_readable(self._physical(k, tensor)):
                continue
            self.refusal = (
                f"its input {k}, a parameter of shape {tuple(tensor.shape)} and strides {tensor.stride()} that begins "
                f"{tensor.data_ptr() % ALIGNMENT} bytes after a multiple of {ALIGNMENT}, is copied in every call"
            )
            return super().__call__(static, dynamic, sizes, scalars)
        self._own = [self._place(k, t) for k, t in zip(self.dynamic, dynamic, strict=True)]
        placed = [_unowned(t) if own is None else own for t, own in zip(dynamic, self._own, strict=True)]
        buffers = self.buffers_for(static, placed, sizes, scalars, self._kept)
        try:
            with self._order:  # type: ignore[union-attr]  # a region on the CPU is never recorded
                outputs = self.model._capture([self._key], buffers)
        except Exception as error:  # the engine names no type for what it cannot capture
            end_capture(self._gpu)
            self.refusal = f"MAX cannot capture a region: {' '.join(str(error).split())[:160]}"
            return super().__call__(static, dynamic, sizes, scalars)
        self._buffers, self._host = buffers, (tuple(sizes), tuple(scalars))
        self._results = [to_tensor(b) for b in outputs]
        self._stable |= {r.untyped_storage().data_ptr() for r in self._results}
        self._replay()
        return self._finish(static, dynamic)

    def _place(self, k: int, tensor: torch.Tensor) -> torch.Tensor | None:
        """Memory of the region's own for an input, filled with it; none if the input may stay where it is."""
        order, physical = self._orders[k], self._physical(k, tensor)
        if self._is_readable(physical) and tensor.untyped_storage().data_ptr() in self._stable:
            return None
        with torch.inference_mode(False):  # so that later calls may write to it in any mode
            own = torch.empty(physical.shape, dtype=tensor.dtype, device=tensor.device)
        if order is not None:
            own = own.permute([order.index(d) for d in range(len(order))])
        return own.copy_(tensor)

    def _replay(self) -> None:
        try:
            with self._order:  # type: ignore[union-attr]
                self.model._replay([self._key], self._buffers)
        except Exception as error:
            raise execution_error(error) from error

    def _finish(self, static: Sequence[torch.Tensor], dynamic: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        for k, tensor, own in zip(self.dynamic, dynamic, self._own, strict=True):
            if own is not None and k in self._mutable:
                tensor.copy_(own)
        results = list(self._results)
        if self._shared is None:  # these lie where they do in every playback
            self._shared = overlapping(results, [*static, *self._kept], range(len(results)))
        for k in self._shared:
            results[k] = results[k].clone()
        return results

    def release(self) -> None:
        """Give the captured graph's memory back to MAX."""
        self._results, self._kept = [], []
        if self._buffers:
            self._buffers = []
            self.model._release_captured_graph([self._key])


def _unowned(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements in the same memory, which this does not keep.

    Who plays a recording passes in what lies there. Kept, what a forward lends its backward would never be given back.
    """
    whole = tensor.untyped_storage()
    memory = torch._C._construct_storage_from_data_pointer(whole.data_ptr(), tensor.device, whole.nbytes())
    with torch.inference_mode(False):
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(memory, tensor.storage_offset(), tensor.size(), tensor.stride())
