"""Rules with an FX pattern: a module's ``forward`` is traced, and the pattern's graph in it replaced.

A trace follows one path and keeps plain attributes as constants. So a ``forward`` is left alone if its path may depend
on what a trace does not see: arguments that may be left out, comparisons by identity, ``isinstance``, writes to
attributes. Training and evaluation mode are traced each.
"""

from __future__ import annotations

import copy
import dis
import functools
import hashlib
import importlib
import inspect
import linecache
import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx, nn
from torch.fx.subgraph_rewriter import replace_pattern
from torch.utils._python_dispatch import TorchDispatchMode

from torch_max_backend.patching.rule import Rule

_UNSEEN = {"isinstance", "issubclass", "type", "hasattr", "getattr", "setattr", "id", "callable", "print", "input"}
_UNSEEN_OPS = {"IS_OP", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE", "STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL"}


class Untraceable(Exception):
    """The message is the reason why a ``forward`` is not rewritten."""


@dataclass(frozen=True)
class Imported:
    """A module that a rewritten ``forward`` names, for pickles."""

    name: str


@dataclass(frozen=True)
class Rewritten:
    """A rewritten ``forward``: its source for training and evaluation, and what the source names.

    Attributes of the module are read by name, so the same text serves modules that differ in nothing else.
    """

    training: str
    evaluation: str
    names: tuple[tuple[str, Any], ...]

    @property
    def function(self) -> Callable[..., Any]:
        """``forward(self, *inputs)``."""
        training, evaluation = (self._compiled(text) for text in (self.training, self.evaluation))
        if self.training == self.evaluation:
            return training

        def forward(module: nn.Module, *inputs: Any) -> Any:
            return training(module, *inputs) if module.training else evaluation(module, *inputs)

        return functools.wraps(training)(forward)

    def _compiled(self, text: str) -> Any:
        file = f"<patched forward {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # for tracebacks and Dynamo
        found = {n: importlib.import_module(v.name) if isinstance(v, Imported) else v for n, v in self.names}
        exec(compile(text, file, "exec"), found)
        return found["forward"]


def rewrite(rule: Rule, module: nn.Module) -> Rewritten | None:
    """The module's ``forward`` with the rule's pattern replaced, or None where the pattern is not in it.

    Raises:
        Untraceable: A trace may not have the meaning of the ``forward``.
    """
    if type(module).forward is nn.Module.forward:
        return None  # a container
    _check_forward(type(module).forward)
    texts: list[str] = []
    names: dict[str, Any] = {}
    for training in (True, False):
        traced = fx.GraphModule(module, _trace(module, training))
        if not replace_pattern(traced, rule.pattern, rule.replacement):
            return None
        for node in traced.graph.nodes:
            node.type = None  # hints are written in one way or another, and the text is compared
        code = traced.graph.python_code("self")
        texts.append(code.src)
        names |= code.globals
    words = set(re.findall(r"\w+", " ".join(texts)))
    kept = {n: Imported(v.__name__) if isinstance(v, types.ModuleType) else v for n, v in names.items() if n in words}
    return Rewritten(texts[0], texts[1], tuple(sorted(kept.items(), key=lambda item: item[0])))


def _check_forward(forward: Any) -> None:
    if not isinstance(forward, types.FunctionType) or hasattr(forward, "__wrapped__"):
        raise Untraceable("its forward is decorated or patched")
    parameters = list(inspect.signature(forward).parameters.values())[1:]
    odd = [str(p) for p in parameters if p.kind is not p.POSITIONAL_OR_KEYWORD or p.default is not p.empty]
    if odd:
        raise Untraceable(f"a trace of its forward may not hold for every call: {', '.join(odd)} may be left out")
    seen = _UNSEEN & set(forward.__code__.co_names)
    seen |= _UNSEEN_OPS & {instruction.opname for instruction in dis.get_instructions(forward)}
    if seen:
        raise Untraceable(f"a trace does not see what its forward does with {', '.join(sorted(seen))}")


def _trace(module: nn.Module, training: bool) -> fx.Graph:
    root = copy.copy(module)  # has the same tensors and children; a trace may set attributes
    root.training = training
    try:
        with _NoOwnComputation():
            return _Tracer().trace(root)
    except Untraceable:
        raise
    except Exception as error:  # of code that is not ours: the reason is told, and the module left alone
        raise Untraceable(f"torch.fx cannot trace its forward: {str(error).splitlines()[0]}") from error


class _Tracer(fx.Tracer):
    """Children are called, not entered."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


class _NoOwnComputation(TorchDispatchMode):
    """What a ``forward`` computes from other things than its inputs would become a constant of the trace."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise Untraceable(f"its forward runs {func} on other things than its inputs")
