"""Device graphs of regions that MAX has compiled: it captures what each enqueues, once per shape, and plays it back.

``docs/cuda-graphs.md`` says what a user may rely on. In short: arguments whose memory does not move are used where
they are, the others are copied to memory of the recording first, and outputs are copies, so that they may be kept. The
first call of a shape runs as always, the second is recorded, later ones are played.

CUDA graphs recorded by torch around whole calls would leave less to the host, but MAX 26.7 refuses to run or replay
while a stream is capturing; a replay costs the host 4 microseconds, and 0.2 more per input.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from torch_max_backend.base.torch_logs import PERF_HINTS, show
from torch_max_backend.options import Options
from torch_max_backend.runtime.call_path import Artifact, CallSpec, Gate, bound
from torch_max_backend.runtime.cuda_graphs.output_copies import COPY_LIMIT, Output, bytes_of, hand_out, plan_outputs
from torch_max_backend.runtime.cuda_graphs.recorded_program import RecordedProgram, unrecordable
from torch_max_backend.runtime.cuda_graphs.turns import Turns
from torch_max_backend.runtime.program import ProgramSpec
from torch_max_backend.runtime.region_spec import Model, why_not_captured

log = logging.getLogger("torch_max_backend")

PATIENCE = 4
"""How many calls in a row may have arguments elsewhere that are too many to be copied. A backward's stay when its
forward is recorded."""

SHAPES = 16
"""Shapes of one graph that are recorded; each holds its intermediates' memory."""

PLAYS = 16
"""How often a recording must be played to have been worth it, which takes about a millisecond."""

WASTED = 4
"""How many recordings in a row of one shape may not be worth it before it is recorded no more."""

_PROGRAM = "it is a program, in a call path of which MAX has compiled a part"
Call = Callable[..., Any]
_keys = itertools.count(1)


def with_replay(spec: CallSpec, models: Sequence[Artifact], options: Options, gate: Gate | None = None) -> Call:
    """The function of a call path, which records and plays back if that was asked for and a region can be.

    ``gate`` admits calls. A call that is played back needs nothing that its recording does not have.
    """
    plain = spec.build(models, gate)
    if not options.device_graphs or not any(r.gpus for r in spec.regions):
        return plain
    of_programs = unrecordable(spec)
    if not of_programs:
        return RecordedProgram(spec, plain)
    if all(isinstance(r, ProgramSpec) for r in spec.regions):
        _not_recorded(of_programs)
        return plain
    reasons = [_PROGRAM if isinstance(r, ProgramSpec) else why_not_captured(r) for r in spec.regions]
    gpus = {index for r in spec.regions for index in r.gpus}
    if all(reasons) or len(gpus) > 1:
        _not_recorded(reasons[0] or "it runs on several GPUs")
        return plain
    call = Replayed(spec, models, plain, *gpus)
    call.source = plain.source  # type: ignore[attr-defined]
    return call


@dataclass
class _Shape:
    """What is known of one shape: where arguments were, which of them move, its recording and how it was used."""

    pointers: list[int | None]
    moving: set[int] = field(default_factory=set)
    played: int = 0
    wasted: int = 0
    waited: int = 0
    recording: _Recording | None = None
    given_up: bool = False


@dataclass(frozen=True, eq=False)
class _Recording:
    """One recorded shape.

    ``fixed`` are positions of arguments that are used where they are, at ``pointers`` (by position). ``copied`` are
    positions of those that are copied to ``own`` memory, ``written`` positions in these two lists of what is copied
    back. ``call`` runs the call path on ``regions``, and ``outputs`` says how each of its results leaves. ``lent`` are
    storages of those that left uncopied. A region is a ``ReplayRegion``, the module of which imports MAX.
    """

    fixed: list[int]
    pointers: list[int | None]
    copied: list[int]
    own: list[torch.Tensor]
    written: list[int]
    regions: list[Any]
    call: Call
    outputs: list[Output]
    lent: list[StorageWeakRef] = field(default_factory=list)

    def is_lent_out(self) -> bool:
        """Whether anybody still has what was lent to him, so that it must not be overwritten."""
        return not all(storage.expired() for storage in self.lent)

    def lend(self, results: Sequence[Any]) -> None:
        """Remember what was lent of the results that leave now."""
        lent = (r for r, output in zip(results, self.outputs, strict=True) if output.is_lent)
        self.lent[:] = [StorageWeakRef(tensor.untyped_storage()) for tensor in lent]

    def holds_for(self, args: list[Any]) -> bool:
        """Whether the arguments are where they were."""
        return _same_pointers(args, self.pointers, self.fixed)

    def run(self, args: list[Any]) -> tuple[Any, ...]:
        """Play it for these arguments."""
        used = args.copy()
        if self.own:
            _copy(self.own, [args[i] for i in self.copied])
            for i, own in zip(self.copied, self.own, strict=True):
                used[i] = own
        values = self.call(used)
        for k in self.written:
            args[self.copied[k]].copy_(self.own[k])
        results = hand_out(values, self.outputs, args)
        self.lend(results)
        return results

    def release(self) -> None:
        """Give the memory back to MAX, as soon as nobody has any of it."""
        _lenders.append(self)
        for each in [r for r in _lenders if not r.is_lent_out()]:
            _lenders.remove(each)
            _release_all(each.regions)


_lenders: list[_Recording] = []
"""Recordings to be released that have lent memory."""


class Replayed:
    """A call path whose regions are recorded per shape and played back.

    Args:
        spec: The call path.
        models: One model per region.
        plain: The function that runs it without recordings.
        index: The GPU that the regions run on.
    """

    _boxed_call = True

    def __init__(self, spec: CallSpec, models: Sequence[Artifact], plain: Call, index: int) -> None:
        self._spec, self._models, self._plain, self._index = spec, models, plain, index
        self._shapes: dict[Hashable, _Shape] = {}
        self._varying = spec.varying
        self._is_full = False
        self._lock = threading.RLock()
        self._turns = Turns(index)
        self._held: list[_Recording] = []
        weakref.finalize(self, _release_all, self._held).atexit = False

    def __call__(self, args: list[Any]) -> Any:
        with self._lock:
            self._turns.take()
            key = tuple([_symbolic(args[i]) for i in self._varying])
            shape = self._shapes.get(key)
            if shape is not None and shape.recording is not None and shape.recording.holds_for(args):
                if shape.recording.is_lent_out():  # as between two forwards, or after a backward that keeps its graph
                    return self._plain(args)
                shape.played += 1
                results = shape.recording.run(args)
                args.clear()
                return results
            return self._other(key, shape, args)

    def _other(self, key: Hashable, shape: _Shape | None, args: list[Any]) -> Any:
        """A call that cannot be played back: the first of its shape, one to be recorded, or one after memory moved."""
        pointers = [_pointer(a) for a in args]
        if shape is None:
            return self._first(key, pointers, args)
        if shape.given_up:
            return self._plain(args)
        if shape.recording is None:
            shape.moving = _changed(shape.pointers, pointers) - self._spec.static
        else:
            self._drop(shape, pointers)
        if shape.wasted > WASTED:
            return self._give_up(shape, f"the memory that it reads moved {WASTED} times after few calls", args)
        return self._record(key, shape, pointers, args)

    def _drop(self, shape: _Shape, pointers: list[int | None]) -> None:
        """Give up a recording because memory moved: for good, as with a new cache, or arguments that move often."""
        recording = shape.recording
        assert recording is not None
        self._held.remove(recording)
        recording.release()
        shape.recording = None
        if shape.played >= PLAYS:
            shape.wasted = 0
            return
        moving = shape.moving | (_changed(recording.pointers, pointers) - self._spec.static)
        shape.wasted += moving == shape.moving
        shape.moving = moving

    def _first(self, key: Hashable, pointers: list[int | None], args: list[Any]) -> Any:
        if len(self._shapes) >= SHAPES:
            if not self._is_full:
                self._is_full = True
                log.info("no more device graphs are recorded of a function that is called with over %d shapes", SHAPES)
            return self._plain(args)
        shape = self._shapes[key] = _Shape(pointers)
        passed = {id(a) for a in args}
        results = self._plain(args)
        copied = [r for k, r in enumerate(results) if k not in self._spec.saved and id(r) not in passed]
        size = bytes_of(r for r in copied if isinstance(r, torch.Tensor))
        if size > COPY_LIMIT:
            self._give_up(shape, f"its outputs, which would be copied, have {size >> 20} MB")
        return results

    def _give_up(self, shape: _Shape, reason: str, args: list[Any] | None = None) -> Any:
        shape.given_up = True
        _not_recorded(reason)
        return None if args is None else self._plain(args)

    def _record(self, key: Hashable, shape: _Shape, pointers: list[int | None], args: list[Any]) -> Any:
        """Run the call, in which each region is captured before it is played for the first time."""
        copied = sorted(shape.moving)
        size = bytes_of(args[i] for i in copied)
        if size > COPY_LIMIT and shape.waited < PATIENCE:
            shape.waited += 1
            shape.pointers = pointers
            return self._plain(args)
        if size > COPY_LIMIT:
            return self._give_up(shape, f"arguments that move, and would be copied, have {size >> 20} MB", args)
        if any(_shares_memory(args[i]) for i in copied):
            return self._give_up(shape, "an argument moves whose elements share memory", args)
        from torch_max_backend.runtime.cuda_graphs.captured_region import ReplayRegion  # imports MAX

        start = time.perf_counter()
        shape.played = 0
        own = [_own(args[i]) for i in copied]
        used = list(args)
        for i, tensor in zip(copied, own, strict=True):
            used[i] = tensor
        fixed = [i for i, p in enumerate(pointers) if p is not None and i not in shape.moving]
        stable = {used[i].untyped_storage().data_ptr() for i in [*fixed, *copied]}
        regions: list[ReplayRegion] = []
        every: list[Call] = []
        for spec, artifact in zip(self._spec.regions, self._models, strict=True):
            if isinstance(spec, ProgramSpec):
                every.append(bound(spec, artifact))
            else:
                regions.append(ReplayRegion(spec, cast(Model, artifact), next(_keys), stable))
                every.append(regions[-1])
        call = self._spec.link(every)
        try:
            values = call(list(used))
        except Exception:
            _release_all(regions)
            raise
        written = [k for k, i in enumerate(copied) if i in self._spec.written]
        for k in written:
            args[copied[k]].copy_(own[k])
        outputs = plan_outputs(values, used, self._spec.saved)
        results = hand_out(values, outputs, args)
        args.clear()
        refusals = [r.refusal for r in regions if r.refusal]
        if len(refusals) == len(regions):
            self._give_up(shape, refusals[0])
            return results
        shape.recording = _Recording(fixed, pointers, copied, own, written, regions, call, outputs)
        shape.recording.lend(results)
        self._held.append(shape.recording)
        log.info(
            "recorded %d of %d regions in %.0f ms; %d of %d tensors are copied in, %d results out; shape %s%s",
            len(regions) - len(refusals), len(regions), (time.perf_counter() - start) * 1e3,
            len(copied), len(copied) + len(fixed), sum(isinstance(v, torch.Tensor) for v in values), key,
            "".join(f"; {r}" for r in refusals),
        )  # fmt: skip
        return results


def _not_recorded(reason: str) -> None:
    log.info("no device graph is recorded: %s", reason)
    show(PERF_HINTS, "no device graph is recorded, so each call launches its kernels from the host: %s", reason)


def _copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    if len(targets) == 1:
        targets[0].copy_(sources[0])
    else:
        torch._foreach_copy_(targets, sources)


def _pointers_equal(args: list[Any], pointers: list[int | None], indices: list[int]) -> bool:
    return all(args[i].data_ptr() == pointers[i] for i in indices)


_same_pointers = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", _pointers_equal)


def _changed(old: list[int | None], new: list[int | None]) -> set[int]:
    return {i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b}


def _pointer(arg: Any) -> int | None:
    """The address of a tensor on a GPU. Others are handed on as they are: no recorded region reads them."""
    return arg.data_ptr() if isinstance(arg, torch.Tensor) and _is_on_gpu(arg) else None


def _is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda


def _symbolic(arg: Any) -> Hashable:
    """What of an argument a recording depends on, where sizes or the value vary."""
    return (arg.size(), arg.stride()) if isinstance(arg, torch.Tensor) else arg


def _shares_memory(tensor: torch.Tensor) -> bool:
    """Whether several elements are one in memory, as after ``expand``."""
    return any(step == 0 and size > 1 for size, step in zip(tensor.size(), tensor.stride(), strict=True))


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, which calls outside inference mode can write to as well."""
    with torch.inference_mode(False):
        own = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return own.copy_(tensor)


def _release_all(held: Iterable[Any]) -> None:
    for each in held:
        each.release()
