"""Loop rules: what an ATen op means as loops, by overload.

A rule stands under its schema, as a lowering does, and takes the schema's arguments: tensors as
:class:`~torch_max_backend.loops.tensor.Tensor`, symbolic sizes as ``Index``, the rest as torch passes it. It returns a
tensor, or a tuple of them. What it does not cover raises ``Unsupported``, with the limit and the value received.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from torch_max_backend.base.errors import RegistrationError
from torch_max_backend.loops.tensor import Tensor

Rule = Callable[..., Any]
_rules: dict[OpOverload | str, Rule] = {}
_loaded = False

aten = torch.ops.aten
prims = torch.ops.prims


class LeftToLibrary(Exception):
    """A rule leaves its node to a library call, or to a decomposition if no library has one."""


def rule(*overloads: OpOverload | str) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of overloads; one that torch defines late is given by its name."""

    def register(function: Rule) -> Rule:
        add_rule(function, *overloads)
        return function

    return register


def add_rule(function: Rule, *overloads: OpOverload | str) -> None:
    """Register a rule, which no overload may have yet."""
    for overload in overloads:
        if not isinstance(overload, OpOverload) and not (isinstance(overload, str) and overload.count(".") == 2):
            raise RegistrationError(f"{overload} is no overload of an ATen op: write aten.add.Tensor, not aten.add")
        if overload in _rules:
            raise RegistrationError(f"{overload} has a rule already")
        _rules[overload] = function


def same_as(overload: OpOverload, *others: OpOverload) -> None:
    """Register the rule that an overload has for others, which take the same arguments."""
    add_rule(_rules[overload], *others)


def rules() -> dict[OpOverload | str, Rule]:
    """Every rule by its overload. The modules of this folder are imported when it is first asked for."""
    global _loaded
    if not _loaded:
        package = __package__ or ""
        path = importlib.import_module(package).__path__
        for module in sorted(m.name for m in pkgutil.iter_modules(path, f"{package}.")):
            importlib.import_module(module)
        _loaded = True  # only now: another thread shall not see a part of them
    return _rules


def rule_of(target: object) -> Rule | None:
    """The rule of a node's target, if it has one."""
    found = rules()
    return found.get(target) or found.get(str(target)) if isinstance(target, OpOverload) else None


__all__ = ["LeftToLibrary", "Tensor", "add_rule", "aten", "prims", "rule", "rule_of", "rules", "same_as"]
