"""The form of an expression, and its program: what is compiled once, whatever the sizes.

A size that an expression has several times is one name, and 0 and 1 are no names. So two expressions are of one form
where ops, data types, the order in memory, and which sizes are equal, 1, short or long agree.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_max_backend.array.expression import Node, Op, run
from torch_max_backend.base.errors import ArrayTypeError, MaxBackendError
from torch_max_backend.ops.arguments import Size
from torch_max_backend.ops.eager_call import SHORT, Layout, Signature, layout_of
from torch_max_backend.ops.kept_programs import OpProgram, kept_program, parts_of
from torch_max_backend.options import Options

log = logging.getLogger("torch_max_backend")

NAME = "an array expression"

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Step:
    """A node of a form: its op, the positions of its inputs, its sizes by name (or as they are), other arguments."""

    op: Op
    inputs: tuple[int, ...]
    sizes: tuple[int | str, ...] | None
    static: tuple[tuple[str, Any], ...]


def key_of(order: Sequence[Node], kept: Sequence[int]) -> tuple[Key, list[torch.Tensor]]:
    """All that decides what an expression does with given leaves, exactly, and its leaves.

    Args:
        order: The nodes, each after its inputs.
        kept: Positions of those whose values are asked for.
    """
    position: dict[int, int] = {}
    parts: list[Any] = []
    leaves: list[torch.Tensor] = []
    for k, node in enumerate(order):
        position[id(node)] = k
        value = node.value
        if value is not None:
            parts.append((value.shape, value.stride(), value.dtype, value.device))
            leaves.append(value)
        else:
            parts.append((node.op, tuple([position[id(x)] for x in node.inputs]), node.sizes, node.static))
    return (*parts, tuple(kept)), leaves


class Form:
    """The form of one expression, with the sizes of that expression."""

    def __init__(self, order: Sequence[Node], kept: Sequence[int]) -> None:
        self.kept = tuple(kept)
        self.values: dict[str, int] = {}
        self._names: dict[int, str] = {}
        position = {id(node): k for k, node in enumerate(order)}
        layouts: list[Layout] = []
        self.steps: list[Step | None] = []
        others: list[Any] = []
        for node in order:
            if node.value is not None:
                x = node.value
                named = [Size(1, self._name(size)) for size in x.shape]
                layouts.append(layout_of(x, x.shape, x.stride(), named, self.values))
                self.steps.append(None)
                others.append(None)
                continue
            sizes = None if node.sizes is None else tuple(map(self._code, node.sizes))
            assert node.op is not None
            step = Step(node.op, tuple(position[id(x)] for x in node.inputs), sizes, node.static)
            self.steps.append(step)
            others.append((node.op.name, step.inputs, step.sizes, node.static))
        self.signature = Signature(tuple(layouts), (*others, self.kept))
        self.layouts = layouts

    def _name(self, size: int) -> str:
        return self._names.setdefault(size, f"n{len(self._names)}")

    def _code(self, size: int) -> int | str:
        """The name of a size of a node, or the size itself where it is 0, 1 or negative."""
        if size < 2:
            return size
        name = self._name(size)
        name = f"{name} short" if size < SHORT else name
        self.values[name] = size
        return name

    def program(self, options: Options) -> OpProgram | None:
        """The program of the form, from the store or compiled; nothing while compiles are put off.

        Raises:
            CompileError: Mojo refuses the kernels.
        """
        text = repr(self.signature)
        kept = kept_program(parts_of(NAME, text, options), options)
        if kept is not None and kept.holds(self.values):
            return kept
        from torch_max_backend.ops.tracing import compiled_program

        traced = functools.partial(compiled_program, self._run, self.layouts, self.values, NAME, text, options)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*torch runs", category=UserWarning)
            try:
                program = traced()
            except (MaxBackendError, RuntimeError, ValueError) as error:
                log.info("an array expression is traced with its own sizes: %s", error)
                program = None
            if program is None or not program.holds(self.values):
                program = traced(as_they_are=True)
        return program

    def _run(self, sizes: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The expression on fake tensors."""
        known = dict(zip(self.values, sizes, strict=True))
        given = iter(tensors)
        values: list[torch.Tensor] = []
        for step in self.steps:
            if step is None:
                values.append(next(given))
                continue
            own = None if step.sizes is None else tuple(known[c] if isinstance(c, str) else c for c in step.sizes)
            values.append(run(step.op, [values[k] for k in step.inputs], own, step.static))
        results: list[torch.Tensor] = []
        taken = {x.untyped_storage()._cdata for x in tensors}
        for k in self.kept:
            x, step = values[k], self.steps[k]
            assert step is not None
            if step.op.is_cheap or x.untyped_storage()._cdata in taken:  # a program's results own their memory
                x = x.clone(memory_format=torch.contiguous_format)
            taken.add(x.untyped_storage()._cdata)
            results.append(x)
        return results


def by_torch(order: Sequence[Node], kept: Sequence[int]) -> list[torch.Tensor]:
    """The values of an expression, each node by torch."""
    values: dict[int, torch.Tensor] = {}
    last: dict[int, int] = {id(x): k for k, node in enumerate(order) for x in node.inputs}
    wanted = {id(order[k]) for k in kept}
    with torch.no_grad():
        for k, node in enumerate(order):
            if node.value is not None:
                values[id(node)] = node.value
                continue
            assert node.op is not None
            try:
                values[id(node)] = run(node.op, [values[id(x)] for x in node.inputs], node.sizes, node.static)
            except NotImplementedError as error:
                raise ArrayTypeError(f"{node.op.name}: {error}") from error
            for x in node.inputs:
                if last[id(x)] == k and id(x) not in wanted:
                    values.pop(id(x), None)
    return [values[id(order[k])] for k in kept]


Program = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def with_sizes(program: OpProgram, values: dict[str, int]) -> Program:
    """A program as a function of the leaves alone."""
    call = functools.partial(program.call, *(values[name] for name in program.names))
    return lambda leaves: call(*leaves)
