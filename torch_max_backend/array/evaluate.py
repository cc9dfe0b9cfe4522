"""Values of recorded expressions: by a compiled program of their form, or by torch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from max._mlir_context import in_default_mlir_context  # imported by the thread that leaves it at its end

from torch_max_backend.array.expression import Node, in_order
from torch_max_backend.array.form import Form, Program, by_torch, key_of, with_sizes
from torch_max_backend.base.errors import MaxBackendError
from torch_max_backend.compile.pending import is_deferring, over, under_way
from torch_max_backend.ops.eager_call import Signature
from torch_max_backend.ops.kept_programs import OpProgram
from torch_max_backend.options import Options, resolve

log = logging.getLogger("torch_max_backend")

MOST_KEPT = 4096
"""Expressions, with their sizes, that are remembered."""


class _Programs:
    """Programs by form, and what to do for expressions of known sizes."""

    def __init__(self) -> None:
        self.options: Options | None = None
        self.calls: dict[Any, Program] = {}
        self.programs: dict[Signature, list[OpProgram]] = {}
        self.lock = threading.Lock()
        self.in_thread: set[Signature] = set()
        self.refused: set[Signature] = set()

    def choose(self, options: Options) -> None:
        """Take options, and forget programs made with others."""
        with self.lock:
            self.options = options
            self.calls, self.programs, self.refused = {}, {}, set()

    def known(self, key: Any, order: Sequence[Node], kept: Sequence[int], options: Options) -> Program | None:
        """The program of an expression; nothing where torch shall compute it."""
        form = Form(order, kept)
        with self.lock:
            if form.signature in self.refused:
                return None
            program = self._of(form)
            if program is None and options.compile == "background":
                if form.signature not in self.in_thread:
                    self.in_thread.add(form.signature)
                    _start(self, form, options)
                return None
            if program is None:
                program = self.compiled(form, options)
            if program is None:
                return None
            call = with_sizes(program, form.values)
            if len(self.calls) >= MOST_KEPT:
                self.calls.clear()
            self.calls[key] = call
            return call

    def _of(self, form: Form) -> OpProgram | None:
        return next((p for p in self.programs.get(form.signature, ()) if p.holds(form.values)), None)

    def compiled(self, form: Form, options: Options) -> OpProgram | None:
        """Compile a form; nothing if that can't be done, and torch is to compute it from now on."""
        try:
            program = form.program(options)
        except (MaxBackendError, RuntimeError) as error:
            if options.fallback == "error":
                raise
            log.warning("torch computes an array expression that could not be compiled: %s", error)
            self.refused.add(form.signature)
            return None
        if program is not None:
            self.programs.setdefault(form.signature, []).append(program)
        return program


_programs = _Programs()


def _start(programs: _Programs, form: Form, options: Options) -> None:
    """Compile a form in a thread."""
    pending = under_way()

    @in_default_mlir_context
    def work() -> None:
        try:
            programs.compiled(form, options)
        except Exception:  # nobody waits for it: torch computes the form, and says why
            log.exception("torch computes an array expression that could not be compiled")
            programs.refused.add(form.signature)
        finally:
            programs.in_thread.discard(form.signature)
            over(pending)

    threading.Thread(target=work, name="array expression", daemon=True).start()


def configure(**options: Any) -> None:
    """Options for array expressions from here on, by the names of ``torch.compile``'s ``options``.

    ``compile="background"`` lets torch compute while a form is compiled. Expressions of fewer ops than
    ``min_block_size`` are always torch's. ``fallback="error"`` raises where torch would have to take over.

    Raises:
        OptionError: An unknown option, or a value it can't have.
    """
    _programs.choose(resolve(options, None))


def options_in_use() -> Options:
    """The options of :func:`configure`, or those of the environment."""
    if _programs.options is None:
        _programs.options = resolve(None, None)
    return _programs.options


def values_of(nodes: Sequence[Node]) -> list[torch.Tensor]:
    """The values of nodes, which are leaves from here on, as is every array in use that was computed for them."""
    roots = list({id(x): x for x in nodes if x.value is None}.values())
    if roots:
        _evaluate(roots)
    return [_value(x) for x in nodes]


def _value(node: Node) -> torch.Tensor:
    assert node.value is not None
    return node.value


def _evaluate(roots: Sequence[Node]) -> None:
    order = in_order(roots)
    asked = {id(x) for x in roots}
    kept: list[int] = []
    count = 0
    is_empty = False
    for k, node in enumerate(order):
        is_empty = is_empty or 0 in node.shape
        if node.value is not None:
            continue
        assert node.op is not None
        count += not node.op.is_cheap
        if id(node) in asked or (not node.op.is_cheap and _is_held(node)):
            kept.append(k)
    options = options_in_use()
    program: Program | None = None
    leaves: list[torch.Tensor] = []
    if count >= options.min_block_size and not is_empty and not is_deferring():
        key, leaves = key_of(order, kept)
        program = _programs.calls.get(key) or _programs.known(key, order, kept, options)
    results = by_torch(order, kept) if program is None else program(leaves)
    for k, value in zip(kept, results, strict=True):
        order[k].take(value)


def _is_held(node: Node) -> bool:
    """Whether the program still has an array of the node."""
    owner = None if node.owner is None else node.owner()
    return owner is not None and owner._node is node


def evaluate(*arrays: Any) -> None:
    """Compute arrays now, in one program: those of the expressions that are still in use are computed with them."""
    values_of([x._node for x in _flat(arrays)])


def _flat(arrays: Iterable[Any]) -> list[Any]:
    return [x for a in arrays for x in (_flat(a) if isinstance(a, list | tuple) else [a])]
