"""What torch's CPU allocator gives out while something runs, byte by byte, from the profiler's records of memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.profiler import profile


@dataclass
class Allocations:
    """The changes in order, in bytes. ``peak`` is the most that was there at once beyond what was there before."""

    changes: list[int] = field(default_factory=list)

    @property
    def peak(self) -> int:
        """The most bytes at once."""
        return max(itertools.accumulate(self.changes), default=0)


@contextmanager
def allocations() -> Iterator[Allocations]:
    """Record what happens inside of the block. Memory that was there before counts if it is freed, too, where it was
    allocated in an earlier block."""
    found = Allocations()
    with profile(profile_memory=True) as running:
        yield found
    events: list[Any] = [e for e in running.kineto_results.events() if e.name() == "[memory]"]
    found.changes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]


def bytes_of(*values: Any) -> int:
    """The bytes of the memory behind tensors in nested lists, dictionaries and modules, each storage once."""
    storages: dict[int, int] = {}

    def visit(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, torch.nn.Module):
            visit([*value.parameters(), *value.buffers()])
        elif isinstance(value, dict):
            visit(list(value.values()))
        elif isinstance(value, list | tuple):
            for v in value:
                visit(v)

    visit(list(values))
    return sum(storages.values())
