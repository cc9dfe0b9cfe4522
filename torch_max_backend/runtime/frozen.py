"""What depends on parameters alone: computed at the first call, and again when a parameter has changed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
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

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The results for ``tensors``, which no later result shares memory with."""
        values: list[Any] = list(tensors)
        with torch.inference_mode(False), torch.no_grad():
            for step in self.ops:
                args, kwargs = pytree.tree_map_only(Value, lambda v: values[v.number], (step.args, step.kwargs))
                values.append(step.op(*args, **kwargs))
        return tuple(values[number] for number in self.results)


@dataclass(frozen=True)
class _Seen:
    """Parameters as they were, and what was computed from them; ``alive`` keeps the references that watch them."""

    versions: tuple[int, ...]
    places: tuple[int, ...]
    results: tuple[torch.Tensor, ...]
    alive: tuple[weakref.ref[torch.Tensor], ...]


class Frozen:
    """Gives the results of :class:`Steps` for the graph's parameters, as they are now.

    A parameter counts as changed if torch's version counter, which every in-place op raises, is another one, if its
    memory is another one, or if one of the tensors is gone. Tensors made under ``torch.inference_mode`` have no such
    counter: of these, results are computed in every call. A write through ``.data``, NumPy or DLPack is not seen.
    """

    __name__ = "frozen"  # torch.fx asks every target

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.runs = 0
        """How often the results were computed."""
        self._seen: _Seen | None = None
        self._lock = threading.Lock()

    def __call__(self, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        try:
            versions = tuple(map(_version, parameters))
        except RuntimeError:  # "Inference tensors do not track version counter."
            return self._computed(parameters)
        places = tuple(map(_address, parameters))
        seen = self._seen
        if seen is not None and versions == seen.versions and places == seen.places:
            return seen.results
        with self._lock:
            seen = self._seen
            if seen is None or versions != seen.versions or places != seen.places:
                alive = tuple(weakref.ref(p, self._gone) for p in parameters)
                self._seen = seen = _Seen(versions, places, self._computed(parameters), alive)
            return seen.results

    @property
    def holds(self) -> int:
        """Bytes of the results that are kept now; a packed weight counts as what it was packed from."""
        return self.steps.size if self._seen is not None else 0

    def _computed(self, parameters: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        self.runs += 1
        return self.steps.run(parameters)

    def _gone(self, reference: weakref.ref[torch.Tensor]) -> None:
        seen = self._seen
        if seen is not None and any(r is reference for r in seen.alive):
            self._seen = None

    def __repr__(self) -> str:
        return f"frozen({len(self.steps.results)} of {self.steps.given} parameters)"

    def __reduce__(self) -> Any:
        return Frozen, (self.steps,)

    def __deepcopy__(self, memo: Any) -> Frozen:
        return Frozen(self.steps)


_version = attrgetter("_version")
_address = torch.Tensor.data_ptr
