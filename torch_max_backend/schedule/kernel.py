"""Kernels as data: loops that share an outer index, in stages."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_max_backend.loops.index import Index, Var
from torch_max_backend.loops.program import Definition


@dataclass
class Stage:
    """Definitions that are computed in the same inner loops.

    Each has all variables of ``inner``, either among its own or reduced. ``outer`` ones are the kernel's.
    """

    inner: tuple[Var, ...]
    definitions: list[Definition] = field(default_factory=list)

    @property
    def reduced(self) -> tuple[Var, ...]:
        """The inner variables that some definition reduces; all definitions that reduce, reduce the same."""
        for d in self.definitions:
            if d.how is not None:
                return tuple(v for v in self.inner if v in d.reduced)
        return ()

    def __str__(self) -> str:
        lines = [f"  for {', '.join(f'{v}:{v.size}' for v in self.inner) or 'nothing'}"]
        return "\n".join([*lines, *(f"    {d}" for d in self.definitions)])


@dataclass
class Kernel:
    """Loops over ``outer`` that threads share, and stages one after the other inside."""

    outer: tuple[Var, ...]
    stages: list[Stage]

    @property
    def definitions(self) -> list[Definition]:
        """All definitions, in order."""
        return [d for s in self.stages for d in s.definitions]

    def __str__(self) -> str:
        head = f"kernel over {', '.join(f'{v}:{v.size}' for v in self.outer) or 'nothing'}"
        return "\n".join([head, *map(str, self.stages)])


@dataclass(frozen=True)
class Layout:
    """Where a tensor's elements lie: sizes and strides in elements."""

    sizes: tuple[Index, ...]
    strides: tuple[Index, ...]

    def address(self, index: tuple[Index, ...]) -> Index:
        """The place of an element, in elements from the first one."""
        place = Index.of(0)
        for i, stride in zip(index, self.strides, strict=True):
            place = place + i * stride
        return place
