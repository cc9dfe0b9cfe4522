"""A patched module is the same object with another class: a subclass that replaces one attribute.

So its parameters, buffers, hooks, children, flags and place in the model are untouched, and taking the patch back is an
assignment to ``__class__``. Patches nest: each is a subclass of the class before it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from torch_max_backend.patching.fx_pattern import Rewritten
from torch_max_backend.patching.rule import Rule


@dataclass(frozen=True)
class Applied:
    """A rule in the class of a patched module, and what it put there where that differs by module."""

    rule: Rule
    rewritten: Rewritten | None = None

    @property
    def runs(self) -> Callable[..., Any]:
        """The function that runs instead, with the module as its first argument."""
        return self.rule.replacement if self.rewritten is None else self.rewritten.function

    def __deepcopy__(self, memo: dict[int, Any]) -> Applied:
        return self


def is_patched(cls: type) -> bool:
    """Whether the class was made here; one that somebody derived from such a class was not."""
    return "_patch" in vars(cls)


def patches(cls: type) -> tuple[Applied, ...]:
    """The patches of a class, the first one first."""
    return (*patches(cls.__bases__[0]), cls._patch) if is_patched(cls) else ()  # type: ignore[attr-defined]


def original(cls: type) -> type:
    """The class without its patches."""
    return original(cls.__bases__[0]) if is_patched(cls) else cls


def with_patches(cls: type, applied: Iterable[Applied]) -> type:
    """The class with patches on top, the first one lowest."""
    return functools.reduce(_patched, applied, cls)


@functools.cache  # one class for all modules alike, so that Dynamo compiles a layer's code once
def _patched(base: type, patch: Applied) -> type:
    attribute = patch.rule.attribute
    names = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__reduce_ex__": _reduce,
        "_patch": patch,
        attribute: _instead_of(getattr(base, attribute), patch.runs),
    }
    return type(base)(base.__name__, (base,), names)


def _instead_of(before: Any, runs: Callable[..., Any]) -> Any:
    """``runs`` as a method or property in place of ``before``.

    The method takes the keywords of ``before``, which is called where ``runs`` has no form.
    """
    if isinstance(before, property):
        return property(runs, before.fset, before.fdel, before.__doc__)
    ours = dict(zip(_parameters(before), _parameters(runs)))

    @functools.wraps(before, updated=())
    def method(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = runs(self, *args, **{ours.get(name, name): value for name, value in kwargs.items()})
        return before(self, *args, **kwargs) if result is NotImplemented else result

    return method


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Names of the parameters that may be positions."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in positional]


def _reduce(self: nn.Module, protocol: int) -> tuple[Any, ...]:
    """For copies and pickles: the class has no name to import, so how it is made is written down."""
    cls = type(self)
    reduced: Any = object.__reduce_ex__(self, max(protocol, 2))
    _, (_, *arguments), *state = reduced
    return (_new, (original(cls), patches(cls), *arguments), *state)


def _new(cls: type, applied: tuple[Applied, ...], *arguments: Any) -> Any:
    patched = with_patches(cls, applied)
    return patched.__new__(patched, *arguments)
