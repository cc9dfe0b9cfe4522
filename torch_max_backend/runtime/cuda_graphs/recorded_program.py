"""Programs in device graphs: torch's own CUDA graph trees record a whole call path and replay it in one launch.

``docs/cuda-graphs.md`` says what a user may rely on. Trees keep intermediates of all recordings in one pool of torch's
allocator, know what a forward lends its backward, copy arguments that move, and record again where memory has moved.
What they do not give is results that may be kept: those are copied here, behind the replay.
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
    return "it does not run on one GPU alone" if len(gpus) != 1 else spec.unrecordable


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
        self._lent: list[Any] = []
        self._is_given_up = False
        self.source = plain.source  # type: ignore[attr-defined]
        self.direct: Call | None = None if spec.plain is None else self._direct

    def _direct(self, *args: Any) -> Any:
        return self(list(args))

    def __call__(self, args: list[Any]) -> Any:
        if self._is_given_up or not _has_trees():
            return self._without_trees(args)
        if self._spec.given and not self._is_lent_to(args):
            self._is_given_up = self._tree is None
            return self._without_trees(args)
        if any(map(_is_live, self._lent)):  # two forwards before a backward, or a backward that keeps its graph
            return self._plain(args)
        self._turns.take()
        if self._checks_indices:
            raise_reported()
        if self._tree is None:
            self._tree = self._begun(args)
        numbers = tuple([args[i] for i in self._spec.varying if not isinstance(args[i], torch.Tensor)])
        values = self._tree(args)
        if self._spec.saved:
            self._lent = _lent(self._index, self._spec.saved)
        return self._handed_out(values, numbers)

    def _without_trees(self, args: list[Any]) -> Any:
        if self._spec.given:
            _end_of_forward(self._index)
        return self._plain(args)

    def _is_lent_to(self, args: Sequence[Any]) -> bool:
        """Whether what a forward has saved for this backward lies in a recording."""
        from torch._inductor.cudagraph_trees import get_manager

        manager = get_manager(self._index, create_if_none_exists=False)
        node = None if manager is None else manager.current_node
        given = [args[i] for i in self._spec.given if i not in self._spec.static]
        tensors = [x for x in given if isinstance(x, torch.Tensor) and x.is_cuda]
        return node is not None and any(map(node._is_cuda_graph_recorded_tensor, tensors))

    def _begun(self, args: Sequence[Any]) -> Call:
        from torch._inductor.cudagraph_trees import cudagraphify_impl
        from torch._inductor.cudagraph_utils import PlaceholderInfo

        spec = self._spec
        names = [f"argument {k}" for k in range(len(args))]
        log.info("recorded by PyTorch's CUDA graph trees: a graph of %d arguments", len(args))
        return cudagraphify_impl(
            self._plain,
            list(args),
            sorted(spec.static | spec.given),
            device_index=self._index,
            is_backward=bool(spec.given),
            is_inference=not spec.given and not spec.saved,
            stack_traces=[None] * spec.results,
            placeholders=tuple(PlaceholderInfo(name, None, [], None) for name in names),
            mutated_input_idxs=tuple(sorted(spec.written)),
        )

    def _handed_out(self, values: Sequence[Any], numbers: tuple[Any, ...]) -> tuple[Any, ...]:
        """The results, those that a caller keeps as copies."""
        results = list(values)
        own = [k for k in range(len(results)) if k not in self._spec.saved]
        kept = [results[k] for k in own]
        if numbers not in self._outputs:
            self._outputs[numbers] = plan_outputs(kept, ())
        for k, copy in zip(own, hand_out(kept, self._outputs[numbers], ()), strict=True):
            results[k] = copy
        return tuple(results)


def _has_trees() -> bool:
    """Whether the current thread has trees: torch makes them where they are imported, and autograd takes them over."""
    from torch._inductor import cudagraph_trees as trees

    return hasattr(trees.local, "tree_manager_containers") or torch._C._is_key_in_tls("tree_manager_containers")


def _lent(index: int, saved: Sequence[int] | frozenset[int]) -> list[Any]:
    """References to the memory of what the call that just ended has saved."""
    from torch._inductor.cudagraph_trees import get_manager

    manager = get_manager(index, create_if_none_exists=False)
    node = None if manager is None else manager.current_node
    return [] if node is None else [node.outputs_weakrefs[k] for k in saved if k < len(node.outputs_weakrefs)]


def _is_live(reference: Any) -> bool:
    return reference is not None and reference() is not None


def _end_of_forward(index: int) -> None:
    """Tell the trees that a backward begins which they do not see."""
    from torch._inductor.cudagraph_trees import get_manager

    manager = get_manager(index, create_if_none_exists=False)
    if manager is not None:
        manager.set_to_running_backward()
