"""What depends on parameters alone: computed at the first call, and again when a parameter has changed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Value:
    """A value of :class:`Steps`, by its number."""

    number: int


@dataclass(frozen=True)
class Step:
    """An op and its arguments, in which :class:`Value` stands for a tensor."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Steps:
    """Ops in order. Values are numbered: the given tensors first, then what each op returns.

    ``results`` are the numbers of what is wanted, and ``size`` is what they take in bytes, as if nothing was packed.
    """

    given: int
    ops: tuple[Step, ...]
    results: tuple[int, ...]
    size: int = 0

    def run(self, tensors: Sequence[torch.Tensor], changed: Collection[int]) -> dict[int, torch.Tensor]:
        """Those results, by position, that depend on any of the given tensors whose numbers are in ``changed``."""
        reached = set(changed)
        for number, step in enumerate(self.ops, self.given):
            if not reached.isdisjoint(_read(step)):
                reached.add(number)
        wanted = {k: number for k, number in enumerate(self.results) if number in reached}
        needed = set(wanted.values())
        for number in reversed(range(self.given, self.given + len(self.ops))):
            if number in needed:
                needed.update(_read(self.ops[number - self.given]))
        values: dict[int, Any] = dict(enumerate(tensors))
        with torch.inference_mode(False), torch.no_grad():
            for number, step in enumerate(self.ops, self.given):
                if number in needed:
                    args, kwargs = pytree.tree_map_only(Value, lambda v: values[v.number], (step.args, step.kwargs))
                    values[number] = step.op(*args, **kwargs)
        return {k: values[number] for k, number in wanted.items()}


def _read(step: Step) -> list[int]:
    return [v.number for v in pytree.tree_leaves((step.args, step.kwargs)) if isinstance(v, Value)]


class _Seen:
    """Parameters as they were, and what was computed from them. It ends when one of these tensors does."""

    def __init__(
        self, parameters: Sequence[torch.Tensor], versions: tuple[int, ...], results: tuple[torch.Tensor, ...]
    ) -> None:
        self.versions, self.places, self.results = versions, tuple(map(_address, parameters)), results
        self.is_over = False
        self._alive = [weakref.ref(p, self._end) for p in parameters]

    def has_any_of(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether one of these tensors is one of its own."""
        own = {id(reference()) for reference in self._alive}
        return any(id(p) in own for p in parameters)

    def _end(self, reference: weakref.ref[torch.Tensor]) -> None:
        self.is_over = True  # first: other memory may now get this address
        self.results = ()


MODELS = 4
"""Sets of parameters that one graph keeps results for: models of one class share the graph."""


class Frozen:
    """Gives the results of :class:`Steps` for the graph's parameters, as they are now.

    A parameter counts as changed if torch's version counter, which every in-place op raises, is another one. Other
    memory is another set of parameters, of which the latest :data:`MODELS` are kept while all of their tensors live.
    Tensors made under ``torch.inference_mode`` have no counter: of these, results are computed in every call. A write
    through ``.data``, NumPy or DLPack is not seen.
    """

    __name__ = "frozen"  # torch.fx asks every target

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.runs = 0
        """How often results were computed."""
        self._kept: tuple[_Seen, ...] = ()
        self._lock = threading.Lock()

    def __call__(self, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        try:
            versions = tuple(map(_version, parameters))
        except RuntimeError:  # "Inference tensors do not track version counter."
            return tuple(self._run(parameters, range(len(parameters))).values())
        places = tuple(map(_address, parameters))
        for seen in self._kept:
            results = seen.results
            if versions == seen.versions and places == seen.places and not seen.is_over:
                return results
        with self._lock:
            return self._computed(parameters, versions, places)

    @property
    def holds(self) -> int:
        """Bytes of the results that are kept now; a packed weight counts as what it was packed from."""
        return self.steps.size * sum(not seen.is_over for seen in self._kept)

    def _computed(
        self, parameters: Sequence[torch.Tensor], versions: tuple[int, ...], places: tuple[int, ...]
    ) -> tuple[torch.Tensor, ...]:
        """The results, of which those stay whose parameters are as they were."""
        kept = [seen for seen in self._kept if not seen.is_over]
        old = next((seen for seen in kept if seen.places == places), None)
        if old is None:
            results = tuple(self._run(parameters, range(len(parameters))).values())
        elif old.versions == versions:  # another thread has computed them
            return old.results
        else:
            again = self._run(parameters, [k for k, v in enumerate(versions) if v != old.versions[k]])
            results = tuple(again.get(k, result) for k, result in enumerate(old.results))
        others = [seen for seen in kept if not seen.has_any_of(parameters)]  # whose memory may be another tensor's now
        self._kept = (_Seen(parameters, versions, results), *others)[:MODELS]
        return results

    def _run(self, parameters: Sequence[torch.Tensor], changed: Collection[int]) -> dict[int, torch.Tensor]:
        self.runs += 1
        return self.steps.run(parameters, changed)

    def __repr__(self) -> str:
        return f"frozen({len(self.steps.results)} of {self.steps.given} parameters)"

    def __reduce__(self) -> Any:
        return Frozen, (self.steps,)

    def __deepcopy__(self, memo: Any) -> Frozen:
        return Frozen(self.steps)


_version = attrgetter("_version")
_address = torch.Tensor.data_ptr
