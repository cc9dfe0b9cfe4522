"""The Mojo source of a program, against the kernel interface.

A source has a function for every different kernel, and one for each segment, a run of kernels that no library call
interrupts. A barrier stands before a kernel that touches memory which another one wrote. A segment's argument is one
table of words: the addresses of the tensors, by slot, and behind them the numbers that symbolic sizes give (lengths of
loops, steps in memory). They are arguments of the kernels, so that kernels are equal whatever their sizes are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from torch_max_backend.loops.expr import SHORT, Checked, Load, walk
from torch_max_backend.loops.index import Index
from torch_max_backend.schedule.alike import Form
from torch_max_backend.schedule.nest import Nest

ERRORS = "errors"
"""The name, as of a tensor, of the two int64 in which kernels note an index that is out of range."""


@dataclass(frozen=True)
class Slot:
    """A tensor's place in the table, and the dtype of its elements.

    A tensor is rough if all that is computed of it ends in 16 bits.
    """

    number: int
    dtype: torch.dtype
    is_rough: bool = False


Extent = tuple[Any, Index, Index]
"""Whose memory something is in, and its first and one-past-last byte there."""


@runtime_checkable
class Writer(Protocol):
    """What writes a kernel. ``text`` comes first: it finds what ``numbers`` the kernel takes."""

    tensors: list[str]
    numbers: dict[Index, str]

    def text(self) -> str:
        """The kernel as a function ``KERNEL`` of its tensors and its numbers."""


@dataclass(frozen=True)
class WrittenKernel:
    """A kernel's name, and what it takes: tensors, and behind them numbers. ``form`` is that of the nest it is of."""

    name: str
    tensors: tuple[str, ...]
    numbers: tuple[Index, ...]
    form: Form | None

    def of(self, form: Form) -> WrittenKernel:
        """The same for another nest of the form."""
        assert self.form is not None
        own = dict(zip(self.form.names, form.names, strict=True))
        return WrittenKernel(self.name, tuple(own.get(n, n) for n in self.tensors), self.numbers, form)


def _facts(slot: Slot | None) -> object:
    """What a kernel's text may depend on."""
    return None if slot is None else (slot.dtype, slot.is_rough)


def origins_of(nest: Nest) -> list[str]:
    """The ops and the user's lines that a nest comes from."""
    found = (s.where for stage in nest.stages for s in stage.statements if s.where)
    return [where.splitlines()[0][:150] for where in dict.fromkeys(found)]


class KernelTexts:
    """The different kernels of a program, by their text."""

    def __init__(
        self,
        writer: Callable[[Nest, Mapping[str, Slot]], Writer],
        form: Callable[[Nest], Form | None],
        suffix: Callable[[Sequence[str]], str] = lambda origins: "",
    ) -> None:
        self._writer, self._form, self._suffix = writer, form, suffix
        self._written: dict[tuple[Any, ...] | None, WrittenKernel] = {}
        self._kernels: dict[str, str] = {}
        self._origins: dict[str, dict[str, None]] = {}

    @property
    def kernels(self) -> int:
        """How many different kernels there are."""
        return len(self._kernels)

    def add(self, nest: Nest, slots: Mapping[str, Slot]) -> WrittenKernel:
        """The kernel of a nest: one that has been written for another one of its form, or a new one."""
        form, origins = self._form(nest), origins_of(nest)
        key = None if form is None else (form.key, *map(_facts, map(slots.get, form.names)))
        found = self._written.get(key)
        if found is None:
            kernel = self._writer(nest, slots)
            name = self._kernels.setdefault(kernel.text(), f"kernel{len(self._kernels)}{self._suffix(origins)}")
            found = WrittenKernel(name, tuple(kernel.tensors), tuple(kernel.numbers), form)
            if key is not None:
                self._written[key] = found
        self._origins.setdefault(found.name, {}).update(dict.fromkeys(origins))
        return found if form is None else found.of(form)

    def texts(self) -> list[str]:
        """The kernels' functions, with where they come from as comments."""
        parts = []
        for text, name in self._kernels.items():
            comments = "".join(f"# {where}\n" for where in list(self._origins[name])[:12])
            parts.append(comments + text.replace("def KERNEL(", f"def {name}(", 1))
        return parts


class Source:
    """The Mojo source of a program: a kernel for each different nest, and a function for each segment."""

    def __init__(
        self, writer: Callable[[Nest, Mapping[str, Slot]], Writer], form: Callable[[Nest], Form | None]
    ) -> None:
        self._texts = KernelTexts(writer, form)
        self._segments: list[str] = []

    @property
    def kernels(self) -> int:
        """How many different kernels there are."""
        return self._texts.kernels

    def add_segment(
        self, nests: Sequence[Nest], slots: Mapping[str, Slot], memory: Mapping[str, Extent]
    ) -> tuple[int, list[Index]]:
        """Add a function that runs nests in order; returns its own number, and the numbers behind the addresses.

        Args:
            slots: Where the table has the tensors, by name.
            memory: Where each tensor lies: two that overlap need a barrier between them.
        """
        lines: list[str] = []
        since: list[tuple[str, bool, bool]] = []
        numbers: dict[Index, int] = {}
        for nest in nests:
            kernel = self._texts.add(nest, slots)
            is_alone = not nest.outer  # the first thread runs it, and needs not wait for itself
            touches = [(tensor, writes, is_alone) for tensor, writes in touched(nest)]
            if any(_need_order(x, y) and _meet(memory[x[0]], memory[y[0]]) for x in since for y in touches):
                lines.append("    barrier()")
                since = []
            since += touches
            tensors = [f"t.pointer[{SHORT[slots[n].dtype]}]({slots[n].number})" for n in kernel.tensors]
            given = [f"t.int({numbers.setdefault(x, len(slots) + len(numbers))})" for x in kernel.numbers]
            lines.append(f"    {kernel.name}({', '.join([*tensors, *given])})")
        number = len(self._segments)
        body = "\n".join(lines)
        self._segments.append(f'@export\ndef segment{number}(t: Table) abi("C"):\n{body}\n')
        return number, list(numbers)

    def text(self) -> str:
        """All of it; empty if there is no segment."""
        if not self._segments:
            return ""
        return "\n\n\n".join(["from kernel import *", *self._texts.texts(), *self._segments])


def _meet(a: Extent, b: Extent) -> bool:
    """Whether two pieces of memory may have a byte in common."""
    return a[0] == b[0] and (b[2] - a[1]).bounds[1] > 0 and (a[2] - b[1]).bounds[1] > 0


def _need_order(x: tuple[str, bool, bool], y: tuple[str, bool, bool]) -> bool:
    """Whether one of two uses of memory writes, and the first thread does not do both."""
    return (x[1] or y[1]) and not (x[2] and y[2])


def touched(nest: Nest) -> list[tuple[str, bool]]:
    """The tensors in shared memory that a nest reads and writes, in order, and whether it writes them."""
    names: dict[str, bool] = {}
    for stage in nest.stages:
        for s in stage.statements:
            for x in walk(*s.expressions):
                if isinstance(x, Load) and x.index:
                    names.setdefault(x.source, False)
                elif isinstance(x, Checked):
                    names.setdefault(ERRORS, False)  # whoever is first may write, without a barrier
            if s.address is not None:
                names[s.name] = True
    return [(name, writes) for name, writes in names.items() if name not in {row.name for row in nest.own}]
