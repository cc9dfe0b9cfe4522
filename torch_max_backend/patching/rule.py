"""A rule: which modules it selects, what they run instead, and how that is known to be the same."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from torch_max_backend.base.errors import PatchError


@dataclass(frozen=True)
class Rule:
    """One replacement. A module is selected if it passes each of ``types``, ``names``, ``where`` and ``pattern`` given.

    Args:
        name: What the handle calls it; unique among the rules of a model.
        replacement: A function ``(module, *inputs)`` with the outputs of the module's ``forward``. It may return
            ``NotImplemented`` for inputs that it has no form for: then the module's own code runs. With ``pattern``: a
            function of the pattern's parameters. For an ``attribute`` that is a property: what gets it.
        after: What runs instead, for the handle's table.
        types: One or several classes, or their qualified names (``transformers.models.*RMSNorm``): shell patterns, or
            compiled regular expressions, which must match the whole name. A subclass is selected too.
        names: One or several paths of modules in the model, in the same two forms.
        where: Selects by structure.
        pattern: A function that ``torch.fx`` traces: selects modules whose ``forward`` contains its graph.
        attribute: The attribute of the class that is replaced.
        reads: Paths of children whose weights the replacement reads without calling them.
        fits: The reason why the replacement does not mean the same for a selected module, or None.
        sample: Inputs, on the CPU, for a copy of the module with small random parameters. On them the replacement is
            compared with the module's own code before it is applied; without them the rule's author vouches for it.

    Raises:
        PatchError: The declaration has no name, selects by nothing, or a part of it has a wrong type.
    """

    name: str
    replacement: Callable[..., Any]
    after: str
    types: Any = ()
    names: Any = ()
    where: Callable[[nn.Module], bool] | None = None
    pattern: Callable[..., Any] | None = None
    attribute: str = "forward"
    reads: tuple[str, ...] = ()
    fits: Callable[[nn.Module], str | None] | None = None
    sample: Callable[[nn.Module], tuple[Any, ...]] | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise PatchError("Rule: name must be a text that is not empty, got ''")
        if not (self.types or self.names or self.where or self.pattern):
            raise PatchError(f"Rule {self.name!r}: it must select by types, names, where or pattern; none is given")
        for argument, allowed in (("types", (str, re.Pattern, type)), ("names", (str, re.Pattern))):
            given = getattr(self, argument)
            selectors = tuple(given) if isinstance(given, (tuple, list)) else (given,)
            for selector in selectors:
                if not isinstance(selector, allowed):
                    wanted = ", ".join(t.__name__ for t in allowed)
                    raise PatchError(f"Rule {self.name!r}: {argument} must hold {wanted}, got {selector!r}")
            object.__setattr__(self, argument, selectors)
        if self.pattern is not None and self.attribute != "forward":
            raise PatchError(f"Rule {self.name!r}: pattern rewrites forward, but attribute is {self.attribute!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        """A rule of the package is pickled by its name, another by its parts."""
        from torch_max_backend.patching.rules import RULES  # which imports this module

        if any(rule is self for rule in RULES):
            return _rule_of_the_package, (self.name,)
        return Rule, tuple(getattr(self, field.name) for field in fields(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Rule:
        """Itself: the copy of a patched module is patched by the same rule."""
        return self

    def recognised(self, path: str, module: nn.Module, cls: type) -> type | None:
        """The class by which the module is selected, ``cls`` or one that it derives from; None if it is not selected.

        Args:
            path: Where the module is in the model.
            cls: The module's class without any patches.
        """
        if self.names and not any(_matches(path, n) for n in self.names):
            return None
        if self.where is not None and not self.where(module):
            return None
        if not self.types:
            return cls
        return next((c for c in cls.__mro__ if any(_is_of(c, t) for t in self.types)), None)


def qualified_name(cls: type) -> str:
    """Module and name of a class, such as ``torch.nn.modules.normalization.LayerNorm``."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _is_of(cls: type, selector: str | re.Pattern[str] | type) -> bool:
    if isinstance(selector, type):
        return cls is selector
    return _matches(qualified_name(cls), selector)


def _matches(text: str, selector: str | re.Pattern[str]) -> bool:
    if isinstance(selector, re.Pattern):
        return selector.fullmatch(text) is not None
    return fnmatch.fnmatchcase(text, selector)


def _rule_of_the_package(name: str) -> Rule:
    from torch_max_backend.patching.rules import RULES

    return next(rule for rule in RULES if rule.name == name)
