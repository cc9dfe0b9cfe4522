"""``patch``: which rule goes to which module is decided for the whole model before anything is changed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from torch_max_backend.base.errors import PatchError
from torch_max_backend.patching.check import Checks
from torch_max_backend.patching.eligibility import reason_against
from torch_max_backend.patching.fx_pattern import Untraceable, rewrite
from torch_max_backend.patching.handle import Change, Handle, Patched, Skipped, find
from torch_max_backend.patching.patched_class import Applied, original, with_patches
from torch_max_backend.patching.rule import Rule, qualified_name
from torch_max_backend.patching.rules import RULES


def patch(model: Any, rules: Any = None, *, strict: bool = False) -> Handle:
    """Have modules of a model compute the same in a form that compilers fuse well, until the handle is undone.

    A patched module stays the same object, with its parameters, hooks and flags; its class becomes a subclass that
    replaces one attribute. No module of a library is changed, so other models are not concerned, unless they share
    modules with this one.

    Args:
        model: A ``torch.nn.Module`` that is not scripted.
        rules: Rules, or names of the package's own, one or several; by default all of the package's. Where several fit
            a module, the first is applied.
        strict: Whether a rule that selects no module is an error; otherwise the handle lists it.

    Returns:
        What was changed, what was left alone and why, and the way back.

    Raises:
        PatchError: An argument is wrong, or a rule is applied to the model already. Nothing has been changed.
    """
    _check_model(model)
    chosen = _resolved(rules)
    found = find(model, chosen)
    if found is not None:
        where = found[0] or "the model"
        raise PatchError(f"patch: rules has {found[1]!r}, which is applied to {where} already; undo that patch first")
    plan = _Plan(model, chosen)
    if strict and plan.unmatched:
        names = ", ".join(plan.unmatched)
        raise PatchError(f"patch: strict=True, but these of rules select no module of {type(model).__name__}: {names}")
    plan.apply()
    return Handle(model, tuple(plan.changed), tuple(plan.skipped), plan.unmatched, tuple(plan.patched))


class _Plan:
    """What is to be changed, module by module."""

    def __init__(self, model: nn.Module, rules: tuple[Rule, ...]) -> None:
        self.changed: list[Change] = []
        self.skipped: list[Skipped] = []
        self.patched: list[Patched] = []
        self._rules = rules
        self._matched: set[str] = set()
        self._checks = Checks()
        self._total = max(1, sum(p.numel() for p in model.parameters()))
        for path, module in model.named_modules():
            self._plan(path, module)

    @property
    def unmatched(self) -> tuple[str, ...]:
        """Names of the rules that select nothing."""
        return tuple(rule.name for rule in self._rules if rule.name not in self._matched)

    def apply(self) -> None:
        """Change the classes, all or none."""
        done: list[tuple[nn.Module, type]] = []
        try:
            for patched in self.patched:
                before = type(patched.module)
                patched.module.__class__ = with_patches(before, [patched.applied])
                done.append((patched.module, before))
        except TypeError as error:  # Python refuses a class whose instances lie in memory in another way
            for module, before in done:
                module.__class__ = before
            raise PatchError(f"patch: the class of {patched.path or 'the model'} cannot be changed: {error}") from error

    def _plan(self, path: str, module: nn.Module) -> None:
        """One rule for each attribute of the module; why others were not taken is told where none was."""
        cls = original(type(module))
        taken: set[str] = set()
        skipped: list[tuple[Rule, str]] = []
        for rule in self._rules:
            if rule.attribute in taken:
                continue
            recognised = rule.recognised(path, module, cls)
            if recognised is None:
                continue
            applied = self._applied(rule, module, recognised)
            if applied is None:
                continue
            self._matched.add(rule.name)
            if isinstance(applied, str):
                skipped.append((rule, applied))
                continue
            taken.add(rule.attribute)
            before = f"{cls.__module__}.{cls.__qualname__}"
            self.changed.append(Change(path, rule.name, before, rule.after, self._share(rule, module)))
            self.patched.append(Patched(path, module, applied))
        self.skipped += [Skipped(path, rule.name, reason) for rule, reason in skipped if rule.attribute not in taken]

    def _applied(self, rule: Rule, module: nn.Module, recognised: type) -> Applied | str | None:
        """The rule as it is applied to the module, the reason why not, or None where its pattern is not there."""
        rewritten = None
        if rule.pattern is not None:
            try:
                rewritten = rewrite(rule, module)
            except Untraceable as error:
                return str(error)
            if rewritten is None:
                return None
        applied = Applied(rule, rewritten)
        told = reason_against(rule, module, recognised) or self._checks.reason_against(applied, module)
        return told or applied

    def _share(self, rule: Rule, module: nn.Module) -> float:
        read = [module, *(module.get_submodule(path) for path in rule.reads)]
        return sum(p.numel() for m in read for p in m.parameters(recurse=False)) / self._total


def _check_model(model: Any) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        raise PatchError(f"patch: model must not be scripted, traced or frozen by torch.jit, got {_told(model)}")
    if not isinstance(model, nn.Module):
        raise PatchError(f"patch: model must be a torch.nn.Module, got {_told(model)}")


def _told(value: Any) -> str:
    return f"{value!r}" if isinstance(value, type) else f"a {qualified_name(type(value))}"


def _resolved(rules: Any) -> tuple[Rule, ...]:
    given = RULES if rules is None else (rules,) if isinstance(rules, (Rule, str)) else rules
    if not isinstance(given, Iterable):
        raise PatchError(f"patch: rules must be rules or names of rules, got {_told(rules)}")
    chosen = tuple(_rule(rule) for rule in given)
    names = [rule.name for rule in chosen]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise PatchError(f"patch: rules must have names of their own, got {twice!r} twice")
    return chosen


def _rule(rule: Any) -> Rule:
    if isinstance(rule, Rule):
        return rule
    own = {r.name: r for r in RULES}
    if not isinstance(rule, str):
        raise PatchError(f"patch: rules must hold rules or names of rules, got {_told(rule)}")
    if rule not in own:
        near = difflib.get_close_matches(rule, own, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(own)}"
        raise PatchError(f"patch: rules has an unknown name {rule!r}{hint}")
    return own[rule]
