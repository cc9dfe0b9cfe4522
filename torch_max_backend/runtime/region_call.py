"""Calling one compiled region: bind inputs, execute, hand out results. This is the hot path."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from max.driver import Buffer

from torch_max_backend.base.errors import ExecutionError, OutOfRangeError
from torch_max_backend.runtime.index_reports import reports_of
from torch_max_backend.runtime.region_spec import ALIGNMENT, Model, RegionSpec
from torch_max_backend.runtime.tensor_interop import in_order, number, size_carrier, to_buffer, to_tensor


@dataclass(frozen=True)
class _Bound:
    """Buffers of static inputs, and the numbers of those in ``static`` that are copied in every call."""

    pointers: list[int]
    buffers: list[Any]
    copied: list[int]


class RegionCall:
    """A compiled region as a function of torch tensors.

    Inputs come in two groups: *static* ones (parameters, buffers, constants), whose MAX buffers are made once and
    again only when a tensor's memory moves; and *dynamic* ones, wrapped at each call. Their shapes, dtypes and strides
    are what Dynamo guards.
    """

    def __init__(self, spec: RegionSpec, model: Model) -> None:
        self.model = model
        self.execute = model._execute_device_tensors
        self._count = len(spec.orders)
        self.static = [k for k in range(self._count) if k in spec.static]
        self.dynamic = [k for k in range(self._count) if k not in spec.static]
        self._orders = spec.orders
        self._flat = spec.flat
        self._listed = spec.flat and not spec.gpus
        self._mutable = spec.mutable
        self._sites, self._reporting = spec.sites, spec.reporting
        self._host_end = self._count + spec.host_values
        self._total = self._host_end + len(spec.reporting)
        self._bound: _Bound | None = None
        self._may_alias = list(spec.may_alias)
        self._checked = False
        self._order = in_order(spec.gpus)
        self._aligns = bool(spec.gpus)

    def __call__(
        self,
        static: Sequence[torch.Tensor],
        dynamic: Sequence[torch.Tensor],
        sizes: Sequence[int] = (),
        scalars: Sequence[float] = (),
    ) -> list[torch.Tensor]:
        """Run the region.

        Args:
            static: Tensors for the positions in ``self.static``.
            dynamic: Tensors for the positions in ``self.dynamic``.
            sizes: Values of the carriers.
            scalars: Values of the SymFloat inputs.

        Returns:
            One tensor per output port, contiguous in the port's memory order.
        """
        kept: list[torch.Tensor] = []
        written: list[tuple[torch.Tensor, torch.Tensor]] = []
        buffers = self.buffers_for(static, dynamic, sizes, scalars, kept, written)
        try:
            if self._order is None:
                results = [to_tensor(b) for b in self.execute(buffers)]
            else:
                with self._order:
                    results = [to_tensor(b) for b in self.execute(buffers)]
        except Exception as error:  # the engine raises ValueError and others for what a kernel raised
            raise execution_error(error) from error
        for original, dense in written:
            original.copy_(dense)
        if self._may_alias or not self._checked:
            self._separate(results, [*static, *kept])
        return results

    def buffers_for(
        self,
        static: Sequence[torch.Tensor],
        dynamic: Sequence[torch.Tensor],
        sizes: Sequence[int] = (),
        scalars: Sequence[float] = (),
        kept: list[torch.Tensor] | None = None,
        written: list[tuple[torch.Tensor, torch.Tensor]] | None = None,
    ) -> list[Buffer]:
        """The engine's arguments. Appends to ``kept`` what was wrapped, to ``written`` copies to be written back."""
        pointers = [t.data_ptr() for t in static]
        bound = self._bound
        if bound is None or bound.pointers != pointers:
            bound = self._bind(static, pointers)
        buffers = bound.buffers.copy()
        wrapped = zip(self.dynamic, dynamic, strict=True)
        for k, tensor in [*wrapped, *((self.static[i], static[i]) for i in bound.copied)] if bound.copied else wrapped:
            physical = self._physical(k, tensor)
            if not self._is_readable(physical):
                dense = physical.clone(memory_format=torch.contiguous_format)
                if k in self._mutable and written is not None:
                    written.append((physical, dense))
                physical = dense
            if kept is not None:
                kept.append(physical)
            buffers[k] = self._handed(physical)
        if self._listed:
            return [to_buffer(torch.tensor(buffers, dtype=torch.int64))]
        if sizes or scalars:
            buffers[self._count : self._host_end] = [*map(size_carrier, sizes), *map(number, scalars)]
        return buffers

    def _handed(self, physical: torch.Tensor) -> Buffer | tuple[int, int]:
        """What stands for a tensor: a buffer, or its row in the table."""
        if self._listed:
            return physical.data_ptr(), physical.numel()
        return to_buffer(physical.view(-1) if self._flat else physical)

    def _bind(self, static: Sequence[torch.Tensor], pointers: list[int]) -> _Bound:
        old = self._bound
        buffers: list[Any] = [None] * self._total
        copied = []
        for i, (k, tensor) in enumerate(zip(self.static, static, strict=True)):
            physical = self._physical(k, tensor)
            if not self._is_readable(physical):
                copied.append(i)
            elif old is not None and old.pointers[i] == pointers[i]:
                buffers[k] = old.buffers[k]
            else:
                buffers[k] = self._handed(physical)
        for k, gpu in enumerate(self._reporting, self._host_end):
            buffers[k] = to_buffer(reports_of(gpu).report_for(self._sites))
        self._bound = bound = _Bound(pointers, buffers, copied)
        return bound

    def _physical(self, k: int, tensor: torch.Tensor) -> torch.Tensor:
        """Input ``k`` with its dimensions in the order in which the region wants it contiguous."""
        order = self._orders[k]
        return tensor if order is None else tensor.permute(order)

    def _is_readable(self, physical: torch.Tensor) -> bool:
        """Whether MAX can read the tensor where it is."""
        return physical.is_contiguous() and not (self._aligns and physical.data_ptr() % ALIGNMENT)

    def _separate(self, results: list[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """Copy results that lie in an input's memory, or in another result's: torch promises fresh memory for them.

        Every output is looked at in the first call, and those that MAX might alias in each.
        """
        found = overlapping(results, inputs, self._may_alias if self._checked else range(len(results)))
        for k in found:
            results[k] = results[k].clone()
        self._may_alias = sorted({*self._may_alias, *found})  # found in the first call: so it will be in every one
        self._checked = True


def overlapping(results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], chosen: Iterable[int]) -> list[int]:
    """Which of the ``chosen`` results must be copied, so that none shares memory with an input or another result."""
    looked_at = sorted((*_span(results[k]), k) for k in chosen)
    numbers = {k for _, _, k in looked_at}
    others = sorted([*map(_span, inputs), *(_span(r) for k, r in enumerate(results) if k not in numbers)])
    others = [(low, high) for low, high in others if low < high]
    lows = [low for low, _ in others]
    reach = list(itertools.accumulate((high for _, high in others), max))  # where the first of them end at the latest
    found, end = [], 0
    for low, high, k in looked_at:
        before = bisect.bisect_left(lows, high)
        if low < high and (low < end or (before and low < reach[before - 1])):
            found.append(k)
        else:
            end = max(end, high)
    return found


def execution_error(error: Exception) -> ExecutionError:
    """The error for what went wrong in a kernel, of the kind that torch raises."""
    text = " ".join(str(error).split())
    words = text.lower()
    kind = OutOfRangeError if "out of bound" in words or "out of range" in words else ExecutionError
    return kind(f"a compiled region failed: {text}")


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """First and one-past-last byte of a dense tensor."""
    start = tensor.data_ptr()
    return start, start + tensor.numel() * tensor.element_size()
