"""Device graphs: what a compiled graph enqueues is recorded once per shape and played back in one launch.

``docs/device_graphs.md`` says what a user may rely on. In short: arguments whose memory does not move are used where
they are, the others are copied to memory of the recording before each playback, and outputs are copies, so that they
may be kept. The first call of a shape runs as always, the second is recorded, later ones are played.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch

from torch_max_backend.options import Options
from torch_max_backend.runtime.call_path import CallSpec
from torch_max_backend.runtime.hand_out import Output, bytes_of, hand_out, plan_outputs
from torch_max_backend.runtime.region_call import Model
from torch_max_backend.runtime.replay_region import NotRecordedError, ReplayRegion

log = logging.getLogger("torch_max_backend")

COPY_LIMIT = 32 << 20
"""Bytes of arguments and outputs that may be copied per call. Where there are more, the kernels take long enough to
hide the host's work, and copies would cost what playing back saves."""

SHAPES = 16
"""Shapes of one graph that are recorded; each holds its intermediates' memory."""

MOVES = 4
"""How often one shape is recorded again because memory that seemed to stay has moved."""

Call = Callable[[list[Any]], Any]
_keys = itertools.count(1)


@runtime_checkable
class Recorder(Protocol):
    """Something that records what is enqueued on a device."""

    def record(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Call ``function`` without running what it enqueues; gives what plays that back, and the result."""


class CudaRecorder:
    """Records with CUDA graphs. All recordings of one compiled graph share memory: they never run at once."""

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """See :class:`Recorder`."""
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.device(self._device),
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
        ):
            result = function()
        return graph.replay, result


def with_replay(spec: CallSpec, models: Sequence[Model], options: Options) -> Call:
    """The function of a call path, which records and plays back device graphs if that was asked for and can be done."""
    plain = spec.build(models)
    if not options.device_graphs or not any(r.gpus for r in spec.regions):
        return plain
    reason = _unsuitable(spec)
    if reason:
        log.info("no device graph is recorded: %s", reason)
        return plain
    (index,) = spec.regions[0].gpus
    call = Replayed(spec, models, plain, CudaRecorder(index), torch.device("cuda", index))
    call.source = plain.source  # type: ignore[attr-defined]
    return call


def _unsuitable(spec: CallSpec) -> str:
    if len({r.gpus for r in spec.regions}) > 1 or any(len(r.gpus) != 1 for r in spec.regions):
        return "it does not run on one GPU alone"
    if any(r.on_host for r in spec.regions) or any(
        isinstance(v, torch.Tensor) and v.device.type == "cpu" for v in spec.values.values()
    ):
        return "a part of it runs on the processor"
    return ""


@dataclass
class _Shape:
    """What is known of one shape: where arguments were, which of them move, its recording."""

    pointers: list[int | None]
    moving: set[int] = field(default_factory=set)
    recorded: int = 0
    recording: _Recording | None = None
    given_up: bool = False


@dataclass(frozen=True)
class _Recording:
    """One recorded shape.

    ``fixed`` are positions of arguments that are used where they are, at ``pointers`` (by position); ``copied`` pairs
    positions with the recording's own memory, ``written`` those that are copied back. ``play`` enqueues the work;
    ``results`` are then in ``values``, and ``outputs`` says how each leaves.
    """

    fixed: list[int]
    pointers: list[int | None]
    copied: list[tuple[int, torch.Tensor]]
    written: list[tuple[int, torch.Tensor]]
    play: Callable[[], None]
    values: Sequence[Any]
    outputs: list[Output]
    regions: list[ReplayRegion]

    def holds_for(self, args: list[Any]) -> bool:
        """Whether the arguments are where they were."""
        return _same_pointers(args, self.pointers, self.fixed)

    def run(self, args: list[Any]) -> tuple[Any, ...]:
        """Play it for these arguments."""
        for i, own in self.copied:
            own.copy_(args[i])
        self.play()
        for i, own in self.written:
            args[i].copy_(own)
        return hand_out(self.values, self.outputs, args)

    def release(self) -> None:
        """Give the memory back to MAX."""
        _release_all(self.regions)


class Replayed:
    """A call path that is recorded per shape and played back.

    Args:
        spec: The call path.
        models: One model per region.
        plain: The function that runs it without recordings.
        recorder: Records what a call enqueues.
        device: The GPU that everything runs on.
    """

    _boxed_call = True

    def __init__(self, spec: CallSpec, models: Sequence[Model], plain: Call, recorder: Recorder, device: torch.device):
        self._spec, self._models, self._plain = spec, models, plain
        self._recorder, self._device = recorder, device
        self._shapes: dict[Hashable, _Shape] = {}
        self._varying = spec.varying
        self._is_full = False
        self._lock = threading.RLock()
        self._stream: Any = None
        self._held: list[_Recording] = []
        weakref.finalize(self, _release_all, self._held)

    def __call__(self, args: list[Any]) -> Any:
        with self._lock:
            self._order()
            key = tuple(map(_symbolic, map(args.__getitem__, self._varying))) if self._varying else ()
            shape = self._shapes.get(key)
            if shape is not None and shape.recording is not None and shape.recording.holds_for(args):
                results = shape.recording.run(args)
                args.clear()
                return results
            return self._other(key, shape, args)

    def _order(self) -> None:
        """Have this stream wait for the one that the last call was on: recordings share memory."""
        if self._device.type != "cuda":
            return
        handle = torch._C._cuda_getCurrentRawStream(self._device.index)
        if self._stream is None or self._stream.cuda_stream != handle:
            stream = torch.cuda.current_stream(self._device)
            if self._stream is not None and not torch.cuda.is_current_stream_capturing():
                stream.wait_stream(self._stream)
            self._stream = stream

    def _other(self, key: Hashable, shape: _Shape | None, args: list[Any]) -> Any:
        """A call that cannot be played back: the first of its shape, one to be recorded, or one after memory moved."""
        pointers = [_pointer(a) for a in args]
        if shape is None:
            return self._first(key, pointers, args)
        if shape.given_up or _is_being_captured(self._device):
            return self._plain(args)
        before = shape.pointers if shape.recording is None else shape.recording.pointers
        moved = {i for i, (old, new) in enumerate(zip(before, pointers, strict=True)) if old != new}
        shape.moving |= moved - self._spec.static
        if shape.recording is not None:
            self._drop(shape)
            if shape.recorded > MOVES:
                return self._give_up(shape, f"memory that it reads moved {MOVES} times", args)
        return self._record(key, shape, pointers, args)

    def _first(self, key: Hashable, pointers: list[int | None], args: list[Any]) -> Any:
        if len(self._shapes) >= SHAPES:
            if not self._is_full:
                self._is_full = True
                log.info("no more device graphs are recorded of a function that is called with over %d shapes", SHAPES)
            return self._plain(args)
        shape = self._shapes[key] = _Shape(pointers)
        given = [a for a in args if isinstance(a, torch.Tensor)]
        if any(a.device != self._device for a in given):
            return self._give_up(shape, "an argument is not on the GPU", args)
        results = self._plain(args)
        passed = {id(a) for a in given}
        size = bytes_of(r for r in results if isinstance(r, torch.Tensor) and id(r) not in passed)
        if size > COPY_LIMIT:
            self._give_up(shape, f"its outputs, which would be copied, have {size >> 20} MB")
        return results

    def _give_up(self, shape: _Shape, reason: str, args: list[Any] | None = None) -> Any:
        shape.given_up = True
        log.info("no device graph is recorded: %s", reason)
        return None if args is None else self._plain(args)

    def _drop(self, shape: _Shape) -> None:
        if shape.recording is not None:
            self._held.remove(shape.recording)
            shape.recording.release()
            shape.recording = None

    def _record(self, key: Hashable, shape: _Shape, pointers: list[int | None], args: list[Any]) -> Any:
        """Run the call such that its regions are captured, then record all that it enqueues."""
        moving = sorted(i for i in shape.moving if pointers[i] is not None)
        size = bytes_of(args[i] for i in moving)
        if size > COPY_LIMIT:
            return self._give_up(shape, f"arguments that move, and would be copied, have {size >> 20} MB", args)
        if any(_shares_memory(args[i]) for i in moving):
            return self._give_up(shape, "an argument moves whose elements share memory", args)
        start = time.perf_counter()
        shape.recorded += 1
        with torch.no_grad(), torch.inference_mode(False):
            copied = [(i, _own(args[i])) for i in moving]
            used = list(args)
            for i, own in copied:
                used[i] = own
            stable = {t.untyped_storage().data_ptr() for t in used if isinstance(t, torch.Tensor)}
            regions = [
                ReplayRegion(spec, model, next(_keys), stable)
                for spec, model in zip(self._spec.regions, self._models, strict=True)
            ]
            call = self._spec.link(regions)
            written = [(i, own) for i, own in copied if i in self._spec.written]
            try:
                values = call(list(used))
            except Exception:
                _release_all(regions)
                raise
            for i, own in written:
                args[i].copy_(own)
            try:
                outputs = plan_outputs(values, used)
                results = hand_out(values, outputs, args)
                refused = next((r.refusal for r in regions if r.refusal), "")
                if refused:
                    raise NotRecordedError(refused)
                play, values = self._recorder.record(lambda: call(list(used)))
            except (RuntimeError, ValueError, NotRecordedError) as error:  # torch's and MAX's words for "cannot"
                _release_all(regions)
                self._give_up(shape, " ".join(str(error).split())[:200])
                args.clear()
                return results
        fixed = [i for i, p in enumerate(pointers) if p is not None and i not in shape.moving]
        shape.recording = _Recording(fixed, pointers, copied, written, play, values, outputs, regions)
        self._held.append(shape.recording)
        args.clear()
        log.info(
            "recorded a device graph in %.0f ms: %d regions, %d of %d tensors copied, %d outputs; shape %s",
            (time.perf_counter() - start) * 1e3, len(regions), len(copied), len(copied) + len(fixed), len(outputs), key,
        )  # fmt: skip
        return results


def _pointers_equal(args: list[Any], pointers: list[int | None], indices: list[int]) -> bool:
    return all(args[i].data_ptr() == pointers[i] for i in indices)


_same_pointers = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", _pointers_equal)


def _pointer(arg: Any) -> int | None:
    return arg.data_ptr() if isinstance(arg, torch.Tensor) else None


def _symbolic(arg: Any) -> Hashable:
    """What of an argument a recording depends on, where sizes or the value vary."""
    return (arg.size(), arg.stride()) if isinstance(arg, torch.Tensor) else arg


def _shares_memory(tensor: torch.Tensor) -> bool:
    """Whether several elements are one in memory, as after ``expand``."""
    return any(step == 0 and size > 1 for size, step in zip(tensor.size(), tensor.stride(), strict=True))


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _is_being_captured(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _release_all(held: Iterable[_Recording] | Iterable[ReplayRegion]) -> None:
    for each in held:
        each.release()
