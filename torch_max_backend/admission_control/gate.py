"""The gate of a compiled graph: it judges calls before they run, and says what runs instead of those that don't fit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_max_backend.admission_control import asking, device_memory, loaded
from torch_max_backend.admission_control.decision import Admit, Decision, Estimate, NotAdmittedError, Reject
from torch_max_backend.base import byte_sizes
from torch_max_backend.base.byte_sizes import in_words
from torch_max_backend.options import Options
from torch_max_backend.runtime.call_memory import CallMemory
from torch_max_backend.runtime.call_path import CallSpec
from torch_max_backend.runtime.constants import Constants
from torch_max_backend.runtime.grid_program import ALIGNMENT

log = logging.getLogger("torch_max_backend")

Call = Callable[[list[Any]], Any]
Sizes = tuple[Any, ...]
"""Values of a call path's symbolic sizes: integers, but for that of a jagged dimension, which is no number."""
MOST_SIZES = 4096
"""Sizes of one graph whose estimates are kept, and that are not judged again."""


@dataclass
class GraphAdmission:
    """What was judged of a graph, for reports: the latest estimates, and the first rejection of each kind."""

    estimates: tuple[Estimate, ...] = ()
    rejected: list[Reject] = field(default_factory=list)


class OpByOp:
    """The same graph as torch runs it, one op after the other: it keeps nothing longer than it is read.

    Args:
        path: Its call path, or what :meth:`CallSpec.dumps` made of it.
    """

    def __init__(self, path: CallSpec | bytes, memory: CallMemory) -> None:
        self.path, self.memory = path, memory
        self._call: Call | None = None

    def call(self, constants: Constants) -> Call:
        """The function, built once."""
        if self._call is None:
            path = CallSpec.loads(self.path) if isinstance(self.path, bytes) else self.path
            self._call = path.link([], constants=constants)
        return self._call


class MemoryGate:
    """Judges the calls of a graph.

    Args:
        name: Torch's name of the graph (``1/0``).
        memory: What a call allocates.
        op_by_op: What may run instead; nothing where that is not known.
        options: Of which the budget and ``fallback`` count.
        note: Where reports find what was judged.

    With a budget every call is judged, since other graphs have come or gone meanwhile; without one, the first call
    with new sizes.
    """

    def __init__(
        self, name: str, memory: CallMemory, op_by_op: OpByOp | None, options: Options, note: GraphAdmission
    ) -> None:
        self.name, self.note = name, note
        self._memory, self._op_by_op = memory, op_by_op
        self._budget = byte_sizes.parse(options.memory_budget) if options.memory_budget else None
        self._strict = options.fallback == "error"
        self._constants = Constants(())
        self._known: dict[tuple[Sizes, bool], tuple[Estimate, ...]] = {}
        self._scope: dict[str, Any] = {}
        self._lock = threading.Lock()
        asking.add(self)
        loaded.touch(self)

    # -- what a call path has of it ----------------------------------------------------------------------------
    def guard(self, scope: dict[str, Any], constants: Constants) -> None:
        """Have a call path, by its global names, ask here."""
        self._scope, self._constants = scope, constants
        scope["judge"] = self.judge
        self.forget()

    def reload_from(self, saved: bytes) -> None:
        """Where the constants are found once more, so that they may be given back."""
        self._constants.load = lambda: CallSpec.loads(saved).own_tensors()

    def forget(self) -> None:
        """Judge calls anew."""
        self._scope["admitted"] = set()

    def judge(self, sizes: Sizes, arguments: Sequence[Any]) -> Call | None:
        """Nothing for a call that is admitted, else what runs instead of it.

        Raises:
            NotAdmittedError: In strict mode, or where nothing fits a budget.
        """
        loaded.touch(self)
        estimates = self._estimates(sizes, arguments, self._memory)
        if asking.is_asking():
            raise asking.AskedError(self._decide(estimates, asks=True))
        decision = self._decide(estimates)
        self.note.estimates = estimates
        if isinstance(decision, Reject):
            return self._instead(decision, sizes, arguments)
        if self._budget is None:
            self._admit(sizes)
        return None

    def _admit(self, sizes: Sizes) -> None:
        """Don't judge calls with these sizes again."""
        admitted = self._scope["admitted"]
        if not self._memory.sizes:
            self._scope["admitted"] = None
        elif admitted is not None:
            if len(admitted) >= MOST_SIZES:
                admitted.clear()
            admitted.add(sizes)

    # -- what is held ------------------------------------------------------------------------------------------
    @property
    def holds(self) -> Mapping[str, int]:
        """Bytes of constants by device."""
        return self._memory.constants

    @property
    def is_loaded(self) -> bool:
        """Whether the constants are in memory."""
        return self._constants.are_loaded

    @property
    def can_unload(self) -> bool:
        """Whether the constants can be loaded again."""
        return self._constants.load is not None and bool(self.holds)

    @property
    def loads(self) -> int:
        """How often they were."""
        return self._constants.loads

    def unload(self) -> bool:
        """Give the constants back, if they can be loaded again."""
        return self._constants.unload()

    # -- judgement ---------------------------------------------------------------------------------------------
    def _estimates(self, sizes: Sizes, arguments: Sequence[Any], memory: CallMemory) -> tuple[Estimate, ...]:
        if not all(isinstance(size, int) for size in sizes):
            return ()
        key = (sizes, memory is self._memory)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_SIZES:
                self._known.clear()
            found = self._known[key] = estimates(memory, sizes, arguments)
        return found

    def _decide(self, estimates: Sequence[Estimate], *, asks: bool = False) -> Decision:
        """The decision for the device that is closest to its limit, or over it."""
        decisions = [self._of_device(e, asks) for e in estimates]
        worst = min(decisions, key=lambda d: (isinstance(d, Admit), d.free - d.needed), default=None)
        if worst is None:
            return Admit(0, 0, "cpu")
        kind = type(worst)
        if kind is Admit:
            return Admit(worst.needed, worst.free, worst.device, tuple(estimates))
        return Reject(worst.reason, worst.needed, worst.free, worst.device, tuple(estimates))  # type: ignore[union-attr]

    def _of_device(self, estimate: Estimate, asks: bool) -> Decision:
        device = estimate.device
        if self._budget is not None:
            budget = self._budget.of(device_memory.total(device))
            left = budget - self._others(estimate, that_stay=asks)
            if estimate.needed > left and not asks:
                loaded.make_room(self, device, estimate.needed - left)
                left = budget - self._others(estimate)
            if estimate.needed > left:
                reason = f"the call needs {estimate} on {device}, where the budget of {in_words(budget)} leaves"
                return Reject(f"{reason} {in_words(max(0, left))}", estimate.needed, max(0, left), device)
            return Admit(estimate.needed, left, device)
        free = device_memory.free(device)
        if estimate.allocated > free:
            reason = f"the call must allocate {in_words(estimate.allocated)} on {device}, which has"
            return Reject(f"{reason} {in_words(free)} free", estimate.allocated, free, device)
        return Admit(estimate.allocated, free, device)

    def _others(self, estimate: Estimate, *, that_stay: bool = False) -> int:
        """What counts against a budget beside the call: on a GPU all that torch has there, else other constants."""
        allocated = device_memory.allocated(estimate.device)
        if allocated is None:
            return loaded.held_by_others(self, estimate.device, that_stay=that_stay)
        own = estimate.constants if self.is_loaded else 0
        return max(0, allocated - estimate.arguments - own)

    def _instead(self, decision: Reject, sizes: Sizes, arguments: Sequence[Any]) -> Call | None:
        """What runs instead of a call that is rejected: the graph op by op, if that fits, or needs less."""
        if self._strict:
            raise NotAdmittedError(f"{decision.reason}{_ADVICE}", decision)
        path = self._op_by_op
        if path is None:
            if self._budget is not None:
                raise NotAdmittedError(f"{decision.reason}{_ADVICE}", decision)
            self._say(decision, "it runs all the same, since torch cannot run its ops one by one")
            return None
        other = self._decide(self._estimates(sizes, arguments, path.memory))
        if isinstance(other, Reject):
            if self._budget is not None:
                also = f"; op by op it needs {in_words(other.needed)}"
                raise NotAdmittedError(f"{decision.reason}{also}{_ADVICE}", decision)
            if other.needed >= decision.needed:
                self._say(decision, f"it runs all the same: op by op it needs {in_words(other.needed)}")
                return None
        self._say(decision, f"torch runs its ops one by one, which needs {in_words(other.needed)}")
        return path.call(self._constants)

    def _say(self, decision: Reject, consequence: str) -> None:
        """Once a graph."""
        with self._lock:
            first = not self.note.rejected
            if first:
                self.note.rejected.append(decision)
        if first:
            log.warning("Graph %s does not fit: %s; %s.", self.name, decision.reason, consequence)


_ADVICE = (
    ". Use smaller inputs, free memory, or raise the option 'memory_budget' "
    "(TORCH_MAX_BACKEND_MEMORY_BUDGET) if there is one"
)


def estimates(memory: CallMemory, sizes: Sizes, arguments: Sequence[Any]) -> tuple[Estimate, ...]:
    """What a call with these arguments needs, device by device.

    Args:
        sizes: The values of ``memory.sizes``.
    """
    given: dict[str, dict[int, int]] = {}
    moved: dict[str, int] = {}
    for x in arguments:
        if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.device.type not in ("cpu", "cuda"):
            continue
        storage, device = x.untyped_storage(), str(x.device)
        given.setdefault(device, {})[storage.data_ptr()] = storage.nbytes()
        if x.device.type == "cuda" and x.data_ptr() % ALIGNMENT:
            moved[device] = moved.get(device, 0) + x.numel() * x.element_size()
    allocated = memory.at(sizes)
    devices = dict.fromkeys([*given, *memory.constants, *allocated])
    found = []
    for device in devices:
        peak, results = allocated.get(device, (0, 0))
        copies = moved.get(device, 0)
        arguments_there = sum(given.get(device, {}).values())
        constants = memory.constants.get(device, 0)
        found.append(Estimate(device, arguments_there, constants, peak + copies, copies, results))
    return tuple(found)
