"""What a patch changed, what it left alone and why, and the way back."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType

from torch import nn

from torch_max_backend.base.errors import PatchError
from torch_max_backend.patching.patched_class import Applied, is_patched, original, patches, with_patches
from torch_max_backend.patching.rule import Rule, qualified_name


@dataclass(frozen=True)
class Change:
    """One patched module.

    Attributes:
        path: Where it is in the model; empty for the model itself.
        rule: The name of the rule.
        before: Qualified name of the class whose code ran.
        after: What runs now.
        share: Part of the model's parameters that this code reads, from 0 to 1.
    """

    path: str
    rule: str
    before: str
    after: str
    share: float


@dataclass(frozen=True)
class Skipped:
    """A module that a rule selects and is not applied to, and the reason."""

    path: str
    rule: str
    reason: str


@dataclass(frozen=True)
class Patched:
    """A patched module as the handle keeps it, for the way back."""

    path: str
    module: nn.Module
    applied: Applied

    def reason_against_undo(self, model: nn.Module) -> str | None:
        """What has been changed since, such that taking the patch back would not give what was there before."""
        where, cls = self.path or "the model", type(self.module)
        rule = self.applied.rule
        try:
            there = model.get_submodule(self.path)
        except AttributeError:
            return f"{where} is no longer in the model"
        if there is not self.module:
            return f"{where} has been replaced by a {qualified_name(original(type(there)))}"
        if self.applied not in patches(cls):
            if any(is_patched(c) for c in cls.__mro__) and not is_patched(cls):
                return f"the class of {where} has been changed to {qualified_name(cls)}"
            return f"{where} is not patched by {rule.name} any more"
        if rule.attribute in vars(self.module):
            return f"{rule.attribute} of {where} has been set on the instance"
        return None

    def class_without(self) -> type:
        """The module's class with the other patches that it has."""
        cls = type(self.module)
        return with_patches(original(cls), [a for a in patches(cls) if a != self.applied])


@dataclass
class Handle:
    """What :func:`patch` returns; also a context manager that undoes the patch at its end.

    Attributes:
        model: The patched model.
        changed: The patched modules in the order of ``named_modules``.
        skipped: The modules that a rule selects and is not applied to, with the reasons.
        unmatched: Names of the rules that select no module.
    """

    model: nn.Module = field(repr=False)
    changed: tuple[Change, ...]
    skipped: tuple[Skipped, ...]
    unmatched: tuple[str, ...]
    _patched: tuple[Patched, ...] = field(repr=False)
    _undone: bool = False

    @property
    def active(self) -> bool:
        """Whether the patch has not been undone."""
        return not self._undone

    def undo(self) -> None:
        """Give the modules the classes back that they had, less what other handles patched.

        Raises:
            PatchError: It was undone before, or something was changed since that this would break. The message names
                it, and nothing is undone.
        """
        if self._undone:
            raise PatchError("Handle.undo: this patch was undone before")
        told = [reason for p in self._patched if (reason := p.reason_against_undo(self.model)) is not None]
        if told:
            more = f"; and {len(told) - 3} more" if len(told) > 3 else ""
            raise PatchError(
                f"Handle.undo: {'; '.join(told[:3])}{more}. Nothing was undone. Put it back as it was while the "
                "patch was applied, or call torch_max_backend.patching.unpatch(model), which takes off all it finds"
            )
        for patched in self._patched:
            patched.module.__class__ = patched.class_without()
        self._undone = True

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._undone:
            self.undo()

    def __str__(self) -> str:
        share = sum(c.share for c in self.changed)
        state = "" if self.active else " (undone)"
        lines = [f"{len(self.changed)} modules patched, which read {share:.1%} of the parameters{state}"]
        alike: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
        for c in self.changed:
            alike[_alike(c.path), c.rule, f"{c.before.rsplit('.', 1)[-1]} -> {c.after}"].append(c.share)
        rows = [(*row, str(len(shares)), f"{sum(shares):.2%}") for row, shares in alike.items()]
        lines += _table(("module", "rule", "before -> after", "count", "share"), rows)
        left = Counter((_alike(s.path), s.rule, s.reason) for s in self.skipped)
        if left:
            lines += ["", f"{len(self.skipped)} left alone"]
            lines += _table(("module", "rule", "reason", "count"), [(*row, str(n)) for row, n in left.items()])
        if self.unmatched:
            few = len(self.unmatched) <= 5
            names = ", ".join(self.unmatched) if few else f"{len(self.unmatched)}, see handle.unmatched"
            lines += ["", f"rules that select nothing: {names}"]
        return "\n".join(lines)


def unpatch(model: nn.Module) -> int:
    """Take all patches off a model, such as a copy, to which no handle belongs.

    Returns:
        How many modules were patched.
    """
    patched = [m for m in model.modules() if is_patched(type(m))]
    for module in patched:
        module.__class__ = original(type(module))
    return len(patched)


def find(model: nn.Module, rules: Iterable[Rule]) -> tuple[str, str] | None:
    """The path of a module that one of the rules is applied to already, and the rule's name."""
    names = {rule.name for rule in rules}
    for path, module in model.named_modules():
        for applied in patches(type(module)):
            if applied.rule.name in names:
                return path, applied.rule.name
    return None


def _alike(path: str) -> str:
    """The path without the numbers of layers, by which rows are counted together."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path) or "(the model)"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return ["  " + "  ".join(text.ljust(w) for text, w in zip(row, widths)).rstrip() for row in [head, *rows]]
