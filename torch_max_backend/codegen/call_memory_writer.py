"""What the call path of a plan allocates, line by line: a ``CallMemory``, from what torch promises of every node.

A program's peak is its own (``WrittenProgram.peaks``). Of a region that MAX compiles, whose memory is the engine's
affair, it is that of its ops one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx

from torch_max_backend.capture.fake_tensors import expr_of, sizes_of, storage_key, tensors_of, value_of
from torch_max_backend.codegen.library_workspaces import WITH_WORKSPACES, totals
from torch_max_backend.codegen.memory_ledger import Ledger
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.program import Call, Called, Ref
from torch_max_backend.partition.region import Region
from torch_max_backend.runtime.call_memory import CallMemory


@dataclass(frozen=True)
class Effect:
    """What a line of a call path does to memory.

    ``made`` are variables with the nodes whose results they hold, ``fresh`` whether these have memory of their own,
    whatever torch's fake tensors share. ``peaks`` are totals that the line reaches on ``device`` above what was there
    before it. ``held`` are variables that the line hands over: those that are dead behind it are freed by what it
    calls.
    """

    made: tuple[tuple[str, fx.Node], ...] = ()
    fresh: bool = False
    peaks: tuple[Any, ...] = ()
    device: str = "cpu"
    held: tuple[str, ...] = ()


NOTHING = Effect()


class CallMemoryWriter:
    """Follows a call path's variables.

    Args:
        freed: Arguments, by name, that nobody else holds, as what a backward gets of its forward.
        text: Gives the Python text of an expression in symbolic sizes.
        is_given: Whether an argument gives a symbol.
    """

    def __init__(
        self,
        freed: Iterable[tuple[str, fx.Node]],
        text: Callable[[sympy.Basic], str],
        is_given: Callable[[sympy.Basic], bool],
    ) -> None:
        self.ledgers: dict[str, Ledger] = {}
        self.text, self.is_given = text, is_given
        self.devices: dict[str, set[str]] = {}
        self.names: dict[fx.Node, str] = {}
        for name, node in freed:
            self.names[node] = name
            for t in tensors_of(value_of(node)):
                self._ledger(name, t).given(name, storage_bytes(t), storage_key(t))

    def note(self, effect: Effect, dead: Sequence[str]) -> None:
        """A line has run, and variables are deleted behind it."""
        for peak in effect.peaks:
            ledger = self.ledgers.setdefault(effect.device, Ledger())
            ledger.reach(ledger.now + peak)
        self._drop([name for name in dead if name in effect.held])
        for name, node in effect.made:
            self.names[node] = name
            for k, t in enumerate(tensors_of(value_of(node))):
                ledger = self._ledger(name, t)
                if effect.fresh:
                    ledger.take(name, tensor_bytes(t), ("of", name, k))
                    continue
                sources = [s for s in node.all_input_nodes if _shares(t, s)]
                for source in sources:
                    if source in self.names:
                        ledger.share(name, self.names[source])
                if not sources:
                    ledger.take(name, storage_bytes(t), ("of", name, storage_key(t) or k))
        self._drop(dead)

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            for device in self.devices.pop(name, ()):
                self.ledgers[device].drop(name)

    def memory(self, sizes: Sequence[str], constants: Iterable[torch.Tensor]) -> CallMemory:
        """What was noted; ``constants`` are tensors that the graph itself holds."""
        held: dict[str, int] = {}
        storages = {s._cdata: (str(t.device), s.nbytes()) for t, s in _storages(constants)}
        for device, size in storages.values():
            held[device] = held.get(device, 0) + size
        peaks = {device: tuple(map(self._text, ledger.peaks or [0])) for device, ledger in self.ledgers.items()}
        results = {device: self._text(ledger.now + ledger.given_up) for device, ledger in self.ledgers.items()}
        return CallMemory(tuple(sizes), peaks, results, held)

    def _ledger(self, name: str, tensor: torch.Tensor) -> Ledger:
        device = str(tensor.device)
        self.devices.setdefault(name, set()).add(device)
        return self.ledgers.setdefault(device, Ledger())

    def _text(self, total: Any) -> str:
        expr = sympy.sympify(total)
        unknown = {s: sympy.Integer(NO_HINT) for s in expr.free_symbols if not self.is_given(s)}
        return self.text(expr.xreplace(unknown))


NO_HINT = 256
"""What a size counts as that depends on data."""


def region_peaks(region: Region) -> tuple[Any, ...]:
    """The totals of a region's ops, run one after the other."""
    ledger = Ledger()
    given = {p.node for p in region.inputs}
    leaving = {p.node for p in region.outputs}
    last = {source: node for node in region.nodes for source in node.all_input_nodes}
    for node in region.nodes:
        for k, t in enumerate(tensors_of(value_of(node))):
            sources = [s for s in node.all_input_nodes if _shares(t, s)]
            for source in sources:
                if source not in given:
                    ledger.share(node, source)
            if not sources:
                ledger.take(node, storage_bytes(t), ("of", node, storage_key(t) or k))
        for source in {*node.all_input_nodes, node}:
            if last.get(source, node) is node and source not in leaving:
                ledger.drop(source)
    return tuple(ledger.peaks)


def node_peaks(node: fx.Node) -> tuple[Any, ...]:
    """The totals of what a node that torch runs on a CPU has allocated in between, where its sizes are known."""
    values = [value_of(node), *map(value_of, node.all_input_nodes)]
    tensors = [t for value in values for t in tensors_of(value)]
    if node.target not in WITH_WORKSPACES or not all(map(_is_known, tensors)):
        return ()
    result = value_of(node)
    results = [result] if isinstance(result, torch.Tensor) else list(result)  # type: ignore[call-overload]
    called = tuple(None if r is None else Called("", r.dtype, *_layout(r)) for r in results)
    args = tuple(Ref("", *_layout(value_of(a)), Index.of(0)) if _is_tensor(a) else a for a in node.args)
    return tuple(map(int, totals(Call("ATen", node.target, args, {}, called))))


def _is_tensor(arg: Any) -> bool:
    return isinstance(arg, fx.Node) and isinstance(value_of(arg), torch.Tensor)


def _is_known(t: torch.Tensor) -> bool:
    return t.device.type == "cpu" and all(isinstance(n, int) for n in (*t.shape, *t.stride()))


def _layout(value: Any) -> tuple[tuple[Index, ...], tuple[Index, ...]]:
    return tuple(map(Index.of, value.shape)), tuple(map(Index.of, value.stride()))


def tensor_bytes(value: torch.Tensor) -> Any:
    """The bytes of a fake tensor's elements: an integer where its sizes are known."""
    size = sympy.prod([sympy.Integer(value.dtype.itemsize), *sizes_of(value)])
    return int(size) if size.is_number else size


def storage_bytes(value: torch.Tensor) -> Any:
    """The bytes of the memory that a fake tensor lies in."""
    if storage_key(value) is None:
        return tensor_bytes(value)
    size = expr_of(value.untyped_storage().nbytes())
    return int(size) if size.is_number else size


def _shares(tensor: torch.Tensor, node: fx.Node) -> bool:
    key = storage_key(tensor)
    return key is not None and any(storage_key(t) == key for t in tensors_of(value_of(node)))


def _storages(tensors: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, Any]]:
    return [(t, t.untyped_storage()) for t in tensors if storage_key(t) is not None]
