"""Programs in device graphs: torch's own CUDA graph trees record a whole call path and replay it in one launch.

``docs/cuda-graphs.md`` says what a user may rely on. Trees keep intermediates of all recordings in one pool of torch's
allocator, copy arguments that move, and record again where memory has moved. What they do not give is results that may
be kept: those are copied here, behind the replay.

A forward that saves tensors for its backward is not recorded, nor is the backward: trees take the memory of what is
saved back when the next forward runs, so that two forwards before a backward, or a backward that runs twice, fail.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_max_backend.runtime.call_path import CallSpec
from torch_max_backend.runtime.cuda_graphs.output_copies import Output, hand_out, plan_outputs
from torch_max_backend.runtime.cuda_graphs.turns import Turns
from torch_max_backend.runtime.index_reports import raise_reported
from torch_max_backend.runtime.program import ProgramSpec

log = logging.getLogger("torch_max_backend")

Call = Callable[..., Any]


def unrecordable(spec: CallSpec) -> str:
    """Why trees do not record a call path; empty if they may."""
    gpus = {gpu for region in spec.regions for gpu in region.gpus}
    if not all(isinstance(region, ProgramSpec) for region in spec.regions):
        return "MAX has compiled a part of it"
    return spec.unrecordable if len(gpus) == 1 else f"it runs on {len(gpus)} GPUs, not on one"


class RecordedProgram:
    """A call path that runs, is recorded and is replayed by torch's CUDA graph trees.

    Args:
        spec: The call path, of which :func:`unrecordable` says nothing.
        plain: The function that runs it.
    """

    _boxed_call = True

    def __init__(self, spec: CallSpec, plain: Call) -> None:
        self._spec, self._plain = spec, plain
        (self._index,) = {gpu for region in spec.regions for gpu in region.gpus}
        self._turns = Turns(self._index)
        self._checks_indices = any(r.sites for r in spec.regions)
        self._tree: Call | None = None
        self._outputs: dict[tuple[Any, ...], list[Output]] = {}
        self.source = plain.source  # type: ignore[attr-defined]
        self.direct: Call | None = None if spec.plain is None else self._as_function()

    def _as_function(self) -> Call:
        """The call with its arguments one by one: a function, since who gets it puts attributes on it."""

        def direct(*args: Any) -> Any:
            return self(list(args))

        return direct

    def __call__(self, args: list[Any]) -> Any:
        if not _has_trees():
            return self._plain(args)
        self._turns.take()
        if self._checks_indices:
            raise_reported()
        if self._tree is None:
            self._tree = self._begun(args)
        numbers = tuple([args[i] for i in self._spec.varying if not isinstance(args[i], torch.Tensor)])
        return self._handed_out(self._tree(args), numbers)

    def _begun(self, args: Sequence[Any]) -> Call:
        from torch._inductor.cudagraph_trees import cudagraphify_impl
        from torch._inductor.cudagraph_utils import PlaceholderInfo

        spec = self._spec
        log.info("recorded by PyTorch's CUDA graph trees: a graph of %d arguments", len(args))
        return cudagraphify_impl(
            self._plain,
            list(args),
            sorted(spec.static),
            device_index=self._index,
            is_backward=False,
            is_inference=True,
            stack_traces=[None] * spec.results,
            placeholders=tuple(PlaceholderInfo(f"argument {k}", None, [], None) for k in range(len(args))),
            mutated_input_idxs=tuple(sorted(spec.written)),
        )

    def _handed_out(self, values: Sequence[Any], numbers: tuple[Any, ...]) -> tuple[Any, ...]:
        """The results as copies, which a caller may keep."""
        if numbers not in self._outputs:
            self._outputs[numbers] = plan_outputs(values, ())
        return hand_out(values, self._outputs[numbers], ())


def _has_trees() -> bool:
    """Whether the current thread has trees: torch makes them where they are imported, and autograd takes them over."""
    from torch._inductor import cudagraph_trees as trees

    return hasattr(trees.local, "tree_manager_containers") or torch._C._is_key_in_tls("tree_manager_containers")
