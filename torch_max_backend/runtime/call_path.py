"""The call path of a compiled graph as plain data: enough to build the function again in another process."""

from __future__ import annotations

import io
import linecache
import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from torch_max_backend.runtime.call_memory import CallMemory
from torch_max_backend.runtime.constants import Constants
from torch_max_backend.runtime.frozen import Frozen
from torch_max_backend.runtime.grid_program import GridLibrary
from torch_max_backend.runtime.index_reports import raise_reported
from torch_max_backend.runtime.profiler_ranges import profiler_range
from torch_max_backend.runtime.program import Library, ProgramSpec
from torch_max_backend.runtime.region_spec import Model, RegionSpec

Artifact = Model | Library | GridLibrary | None
"""What a region needs to run: a model, or a program's library of kernels if it has any."""


@runtime_checkable
class Gate(Protocol):
    """What admits calls, and refuses those for which memory does not suffice."""

    def guard(self, scope: dict[str, Any], constants: Constants) -> None:
        """Give a call path with these tensors of its own, by its global names, ``admitted`` and ``judge``.

        ``admitted`` has the sizes of calls that are not judged again; with ``None`` no call is.
        ``judge(sizes, arguments)`` returns nothing for a call that is admitted, else what is called instead of it with
        a list of the arguments.
        """


class NotSavableError(Exception):
    """A graph uses a value that cannot be written to a file; the message names it."""


@dataclass(frozen=True)
class CallSpec:
    """The text of a graph's call path and what its names mean.

    ``regions`` are ``region0``, ``region1``, … of the text, ``values`` its torch ops and constants by name.
    ``profiled`` gives the names that get a profiler range, and the range's name. ``static`` are the positions of
    arguments whose memory stays from call to call, ``varying`` of those with a symbol in their shape or value,
    ``written`` of those that are written in place. ``saved`` are the positions of results that are kept for a backward,
    and that nobody writes to. ``plain`` are the numbers of arguments and results where every argument is only read and
    every result is a tensor with memory of its own: then the text has a second function, ``direct``, which takes the
    arguments one by one. ``results`` is the number of results. ``unrecordable`` is why torch's CUDA graphs cannot hold
    the call; empty if they can. ``memory`` is what a call allocates. ``constants`` are the names of those values that
    are tensors of the graph's own.
    """

    source: str
    regions: tuple[RegionSpec | ProgramSpec, ...]
    values: dict[str, Any] = field(default_factory=dict)
    profiled: dict[str, str] = field(default_factory=dict)
    static: frozenset[int] = frozenset()
    varying: tuple[int, ...] = ()
    written: frozenset[int] = frozenset()
    saved: frozenset[int] = frozenset()
    plain: tuple[int, int] | None = None
    results: int = 0
    unrecordable: str = ""
    memory: CallMemory = field(default_factory=CallMemory)

    constants: tuple[str, ...] = ()

    def build(self, models: Sequence[Artifact], gate: Gate | None = None) -> Callable[[list[Any]], Any]:
        """The function, which takes a list of arguments and empties it, on one model or library per region."""
        return self.link([bound(s, m) for s, m in zip(self.regions, models, strict=True)], gate)

    def link(
        self,
        regions: Sequence[Callable[..., Any]],
        gate: Gate | None = None,
        constants: Constants | None = None,
    ) -> Callable[[list[Any]], Any]:
        """The function on regions that are there already.

        Args:
            gate: What admits calls; without one, all are.
            constants: The graph's own tensors, where another call path of the graph has them.
        """
        values = {name: value for name, value in self.values.items() if name not in self.constants}
        constants = constants or Constants(self.own_tensors())
        scope: dict[str, Any] = {"torch": torch, "math": math, "restride": restride, "view_of": view_of, **values}
        scope |= {"admitted": None, "constants": constants, "raise_reported": raise_reported}
        if gate is not None:
            gate.guard(scope, constants)
        scope |= {f"region{i}": region for i, region in enumerate(regions)}
        for name, label in self.profiled.items():
            scope[name] = _profiled(label, scope[name])
        name = f"<max_backend {id(scope):x}>"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(True), name)
        exec(compile(self.source, name, "exec"), scope)  # the text is ours: names, numbers and calls
        call = scope["call"]
        call._boxed_call = True
        call.source = self.source
        call.direct = scope.get("direct")
        return call

    @property
    def frozen(self) -> Frozen | None:
        """What is computed from the parameters once, if anything is."""
        return next((value for value in self.values.values() if isinstance(value, Frozen)), None)

    def own_tensors(self) -> list[torch.Tensor]:
        """The tensors that the graph itself holds."""
        return [self.values[name] for name in self.constants]

    def dumps(self) -> bytes:
        """The specification as bytes.

        Raises:
            NotSavableError: A value cannot be written.
        """
        buffer = io.BytesIO()
        try:
            with unset_fake_temporarily():  # constants may be on a GPU, and torch traces
                _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(self)
        except NotSavableError:
            raise
        except Exception as error:  # what a value's own reduction raises
            raise NotSavableError(str(error)) from error
        return buffer.getvalue()

    @staticmethod
    def loads(data: bytes) -> CallSpec:
        """What :meth:`dumps` wrote. Raises whatever a missing op or a foreign file leads to."""
        return pickle.loads(data)


class _Pickler(pickle.Pickler):
    """Writes ops by name, and refuses what holds code or has no value of its own."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch._ops.OpOverload):
            return _op_named, (obj._schema.name, obj._overloadname)
        if isinstance(obj, torch.nn.Module | torch._ops.HigherOrderOperator | torch.SymInt | torch.SymFloat):
            raise NotSavableError(f"a {type(obj).__name__} is part of the call path")
        if isinstance(obj, torch.Tensor) and type(obj) not in (torch.Tensor, torch.nn.Parameter):
            raise NotSavableError(f"a constant is a {type(obj).__name__}")
        return NotImplemented


def _op_named(name: str, overload: str) -> Any:
    namespace, _, op = name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), op), overload or "default")


def restride(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A copy of ``tensor`` with the given strides, for values that torch promises with gaps or repeats in memory."""
    result = target = torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)
    for dim, step in enumerate(stride):
        if step == 0 and size[dim] > 1:  # all elements along it are one in memory
            tensor, target = tensor.narrow(dim, 0, 1), target.narrow(dim, 0, 1)
    target.copy_(tensor)
    return result


def view_of(base: torch.Tensor, size: Sequence[int], stride: Sequence[int], shift: int) -> torch.Tensor:
    """A view of ``base``'s memory, ``shift`` elements after its first one."""
    return base.as_strided(size, stride, base.storage_offset() + shift)


def bound(spec: RegionSpec | ProgramSpec, artifact: Artifact) -> Callable[..., Any]:
    """A region as a function of its inputs, on its model or library."""
    if isinstance(spec, ProgramSpec):
        return spec.bind(cast(Library | GridLibrary | None, artifact))
    from torch_max_backend.runtime.region_call import RegionCall  # imports MAX

    return RegionCall(spec, cast(Model, artifact))


def _profiled(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with profiler_range(name):
            return function(*args, **kwargs)

    return call
