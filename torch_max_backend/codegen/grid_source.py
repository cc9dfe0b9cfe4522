"""The Mojo source of a program's kernels for a GPU, and how they are launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch_max_backend.codegen.grid_kernel_writer import GridKernelWriter
from torch_max_backend.codegen.sorted_row_writer import SortedRowWriter
from torch_max_backend.codegen.source import KernelTexts, Slot
from torch_max_backend.loops.index import Index
from torch_max_backend.runtime.grid_program import KernelLaunch
from torch_max_backend.schedule.alike import Form
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.nest import Nest

PART = 12
"""Kernels that are worth a compiler of their own."""
NAMED, LONGEST = 3, 22
"""Ops in the name of a kernel and letters of them, at most: Mojo shortens names of more than 32 letters."""


def _ops(origins: Sequence[str]) -> str:
    """The last ops that a kernel computes, for its name in profiles."""
    found = [where.split(" at ")[0].split(".") for where in origins]
    names = dict.fromkeys(parts[1].strip("_") for parts in found if len(parts) > 1)
    return "".join(f"_{name}" for name in list(names)[-NAMED:])[:LONGEST].rstrip("_")


def in_parts(source: str, most: int) -> list[str]:
    """A source as up to ``most`` sources with different kernels of it, about equally long."""
    head, *kernels = source.rstrip("\n").split("\n\n\n")
    count = min(most, len(kernels) // PART)
    if count < 2:
        return [source]
    parts: list[list[str]] = [[] for _ in range(count)]
    for text in sorted(kernels, key=len, reverse=True):
        min(parts, key=lambda part: sum(map(len, part))).append(text)
    return ["\n\n\n".join([head, *part]) + "\n" for part in parts]


def _writer(nest: GridNest, slots: Mapping[str, Slot]) -> GridKernelWriter:
    return SortedRowWriter(nest, slots) if nest.sort is not None else GridKernelWriter(nest, slots)


class GridSource:
    """A kernel for each different nest. The launches of a segment take their parameters from one table, as it has."""

    def __init__(self, form: Callable[[Nest], Form | None]) -> None:
        self._texts = KernelTexts(_writer, form, _ops)  # type: ignore[arg-type]
        self.threads: dict[str, int] = {}
        """The threads of a block, by kernel."""
        self.clusters: dict[str, int] = {}
        """The blocks of a cluster, by kernel, where there are clusters."""
        self.resident: dict[str, int] = {}
        """How many blocks shall run on a multiprocessor at the same time, by kernel, where that is said."""

    @property
    def kernels(self) -> int:
        """How many different kernels there are."""
        return self._texts.kernels

    def add_segment(
        self, nests: Sequence[GridNest], slots: Mapping[str, Slot]
    ) -> tuple[tuple[KernelLaunch, ...], list[Index]]:
        """Launches of nests in order, and the numbers behind the addresses in their table.

        Args:
            slots: Where the table has the tensors, by name.
        """
        launches = []
        numbers: dict[Index, int] = {}

        def place(x: Index) -> int:
            return numbers.setdefault(x, len(slots) + len(numbers))

        for nest in nests:
            kernel = self._texts.add(nest, slots)
            self.threads[kernel.name] = nest.block
            parameters = [slots[n].number for n in kernel.tensors] + [place(x) for x in kernel.numbers]
            parts = nest.parts
            if parts.is_constant:
                blocks: int | tuple[int, int] = -(-parts.constant // nest.share) * nest.blocks
            else:  # a cluster has one outer index
                blocks = place(parts * nest.blocks), nest.share
            if nest.blocks > 1:
                self.clusters[kernel.name] = nest.blocks
            if nest.resident:
                self.resident[kernel.name] = nest.resident
            launches.append(KernelLaunch(kernel.name, blocks, nest.block, tuple(parameters)))
        return tuple(launches), list(numbers)

    def text(self) -> str:
        """All of it; empty if there is no kernel."""
        if not self.kernels:
            return ""
        kernels = [self._exported(text) for text in self._texts.texts()]
        return "\n\n\n".join(["from kernel import *", *kernels]) + "\n"

    def _exported(self, text: str) -> str:
        head, body = text.split("def kernel", 1)
        parameters, rest = body.split("):", 1)
        return f'{head}@export\ndef kernel{parameters}) abi("C"):{rest}'
