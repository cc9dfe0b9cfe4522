"""The op registry: one function per ATen op, registered by ``@map_to``.

Registering an overload decides three things at once: how it is lowered, that AOTAutograd does not decompose it,
and that it appears on the supported-ops page. Everything that lists ops is derived from here.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload, OpOverloadPacket

from torch_max_backend.aten_functions import load_families
from torch_max_backend.base.errors import RegistrationError

Check = Callable[..., str | None]
Messages = Callable[..., Sequence[str]]
F = TypeVar("F", bound=Callable[..., Any])

_OWN_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True)
class Lowering:
    """How one ATen overload becomes MAX graph ops.

    ``function`` receives the node's arguments under the names of the ATen schema: tensors as
    :class:`max.graph.TensorValue`, symbolic sizes as :class:`max.graph.Dim`, everything else as torch passes it.
    ``supports`` receives the same arguments with fake tensors in place of values and returns ``None``, or the limit
    that the node exceeds; it must not touch MAX. ``out_of_range`` receives them as well, and returns eager's message
    for each of the checks of indices that the lowering makes on a GPU; what it says may depend on ranks and numbers,
    and not on sizes. ``overload`` is a name, as ``str`` gives it, where the op was not defined yet when the lowering
    was registered.
    """

    overload: OpOverload | str
    function: Callable[..., Any]
    supports: Check | None = None
    limits: str = ""
    out_of_range: Messages | None = None
    modules: frozenset[str] = frozenset()
    """The modules of this package that took part in the registration: their code is part of the cache key."""

    @property
    def is_own(self) -> bool:
        """Whether the lowering belongs to this package (and not to the user)."""
        return (getattr(self.function, "__module__", "") or "").partition(".")[0] == _OWN_PACKAGE


@dataclass
class Registry:
    """All lowerings by overload, and the ops that stay with torch on purpose.

    ``load`` imports the package's own families. It runs before the first query, so that registering a lowering of
    one's own imports none of them.
    """

    load: Callable[[], None]
    _lowerings: dict[OpOverload | str, Lowering] = field(default_factory=dict)
    _torch_ops: dict[OpOverload, str] = field(default_factory=dict)
    _islands: dict[OpOverload, str] = field(default_factory=dict)

    @property
    def lowerings(self) -> dict[OpOverload | str, Lowering]:
        """Every lowering by its overload."""
        self.load()
        return self._lowerings

    @lowerings.setter
    def lowerings(self, lowerings: dict[OpOverload | str, Lowering]) -> None:
        self._lowerings = lowerings

    @property
    def torch_ops(self) -> dict[OpOverload, str]:
        """What torch runs by design, with the reason."""
        self.load()
        return self._torch_ops

    @property
    def islands(self) -> dict[OpOverload, str]:
        """What stays an island by decision, with the reason."""
        self.load()
        return self._islands

    def of_users(self) -> list[Lowering]:
        """The lowerings that users registered; the package's own need not be loaded for that."""
        return [low for low in self._lowerings.values() if not low.is_own]

    def add(self, lowering: Lowering) -> None:
        """Register; a second own lowering of one overload is an error, a user's replaces what was there."""
        known = self._lowerings.get(lowering.overload)
        if known is not None and lowering.is_own and not known.is_own:
            return  # the user registered before the families were loaded
        if known is not None and lowering.is_own and known.is_own:
            raise RegistrationError(
                f"{lowering.overload} is lowered by {known.function.__module__}.{known.function.__qualname__} already; "
                f"{lowering.function.__qualname__} cannot register it again"
            )
        self._lowerings[lowering.overload] = lowering

    def get(self, target: object) -> Lowering | None:
        """The lowering of an FX node's target, if it has one: under the overload itself, else under its name."""
        if not isinstance(target, OpOverload):
            return None
        return self.lowerings.get(target) or self.lowerings.get(str(target))

    def __contains__(self, target: object) -> bool:
        return self.get(target) is not None

    def __iter__(self) -> Iterator[Lowering]:
        return iter(sorted(self.lowerings.values(), key=lambda low: str(low.overload)))


aten_functions = Registry(load_families)
"""The registry that the backend uses."""


def can_stay_whole(op: OpOverload) -> bool:
    """Whether ``op`` is a composite and gives no views of its inputs: torch must see what a view consists of."""
    return op._can_decompose() and not any(a.alias_info for a in op._schema.arguments)


def defined(name: str) -> OpOverload | None:
    """The overload that has this name, if its library has defined it."""
    namespace, op, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), op, None), overload, None)


def overloads_of(op: Any) -> list[OpOverload]:
    """The functional overloads that ``op`` names: itself, or all of a packet but ``out=`` and in-place forms."""
    if isinstance(op, OpOverload):
        return [op]
    if isinstance(op, OpOverloadPacket):
        found = [getattr(op, name) for name in op.overloads()]
        return [o for o in found if not o._schema.is_mutable and not any(a.is_out for a in o._schema.arguments)]
    raise RegistrationError(
        "@map_to expects an op such as torch.ops.aten.add or torch.ops.aten.add.Tensor, or the name of an overload, "
        f"such as 'aten.add.Tensor', not {op!r}"
    )


def map_to(
    *ops: Any,
    supports: Check | None = None,
    limits: str = "",
    out_of_range: Messages | None = None,
) -> Callable[[F], F]:
    """Register the decorated function as the lowering of ``ops``.

    Args:
        ops: Ops of ``torch.ops``: overloads (``aten.add.Tensor``) or packets (``aten.add``: every functional overload).
            For an op of a library that may be imported later, or never, the name of the overload as a string.
        supports: Capability check; returns the limit that a node exceeds, or ``None``.
        limits: One line for the supported-ops page.
        out_of_range: Eager's messages for indices that are out of range, one for each check that the lowering makes.

    Warns that a user's lowering of a composite view (``aten.reshape``) has no effect; of other composite ops
    (``aten.linear``) it has one where no gradients are recorded.

    Raises:
        RegistrationError: ``ops`` is empty or not an ATen op, or the parameter count cannot take the schema's.
    """
    if not ops:
        raise RegistrationError("@map_to needs at least one op, for example @map_to(torch.ops.aten.add.Tensor)")

    def register(function: F) -> F:
        modules = _registering_modules()
        for op in ops:
            if isinstance(op, str) and op.count(".") == 2:
                # Nothing is checked: of a library's other version, calls that do not fit stay with torch.
                aten_functions.add(Lowering(defined(op) or op, function, supports, limits, out_of_range, modules))
                continue
            for overload in overloads_of(op):
                _check_signature(overload, function, strict=isinstance(op, OpOverload))
                lowering = Lowering(overload, function, supports, limits, out_of_range, modules)
                aten_functions.add(lowering)
                if not lowering.is_own and overload._can_decompose() and not can_stay_whole(overload):
                    warnings.warn(
                        f"{overload} is a view that torch takes apart before any backend sees it, so that this "
                        "lowering is never called. Register the ops that it consists of (TORCH_LOGS=aot_graphs shows "
                        "them).",
                        stacklevel=2,
                    )
        return function

    return register


def _registering_modules() -> frozenset[str]:
    """Modules of this package's families on the call stack: a table may be in one and its helper in another."""
    package = __name__.rpartition(".")[0] + "."
    found: set[str] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        name = frame.f_globals.get("__name__", "")
        if name.startswith(package) and name != __name__:
            found.add(name)
        frame = frame.f_back
    return frozenset(found)


def run_by_torch(*ops: OpOverload | OpOverloadPacket, reason: str) -> None:
    """Declare ops that torch runs by design (random numbers): they are no islands."""
    for op in ops:
        for overload in overloads_of(op):
            aten_functions._torch_ops[overload] = reason


def keep_as_island(*ops: OpOverload | OpOverloadPacket, reason: str) -> None:
    """Declare ops that stay islands, with the reason that the supported-ops page and strict errors show."""
    for op in ops:
        for overload in overloads_of(op):
            aten_functions._islands[overload] = reason


def _check_signature(overload: OpOverload, function: Callable[..., Any], *, strict: bool) -> None:
    """A lowering must take every argument of the schema: by its name if it is keyword-only, else by its place.

    Positional arguments may have another name: torch renames some from version to version.
    """
    unnamed = missing_names(overload, function)
    missing = [a.name for a in overload._schema.arguments if a.kwarg_only and a.name in unnamed]
    parameters = inspect.signature(function).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_all = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
    needed = [a for a in overload._schema.arguments if not a.kwarg_only]
    if (missing and strict) or (len(positional) < len(needed) and not takes_all):
        raise RegistrationError(
            f"{function.__qualname__}{inspect.signature(function)} does not take "
            f"{', '.join(missing) or 'all arguments'} of {overload._schema}"
        )


def missing_names(op: OpOverload | str, function: Callable[..., Any]) -> list[str]:
    """Arguments of the schema that are no parameters of ``function``; none while the op is not defined."""
    overload = defined(op) if isinstance(op, str) else op
    parameters = inspect.signature(function).parameters
    if overload is None or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return []
    return [a.name for a in overload._schema.arguments if a.name not in parameters]


def registered_overloads() -> list[OpOverload]:
    """Every overload that is not decomposed: lowered ones, and those that torch runs by design or as islands."""
    known = (defined(op) if isinstance(op, str) else op for op in aten_functions.lowerings)
    return [*(op for op in known if op is not None), *aten_functions.torch_ops, *aten_functions.islands]


aten = torch.ops.aten
