"""The block of memory that a program's intermediates share."""

from __future__ import annotations

from torch_max_backend.loops.index import Index

ALIGNMENT = 64
"""Bytes: a line of memory, and a vector."""


class Block:
    """A block that grows as tensors get room in it. Amounts are in bytes.

    ``extents`` has where tensors lie that have not been released, from the first byte to behind the last one.
    """

    def __init__(self) -> None:
        self.size = Index.of(0)
        self.extents: dict[str, tuple[Index, Index]] = {}
        self._free: list[tuple[Index, Index]] = []

    def place(self, name: str, size: Index) -> None:
        """Whole lines of memory: the first gap that is large enough for certain, else behind everything."""
        size = Index.of(1) if size == 0 else size
        size = (size + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT
        for k, (start, end) in enumerate(self._free):
            left = end - start - size
            if left.bounds[0] >= 0:
                self.extents[name] = start, start + size
                self._free[k : k + 1] = [(start + size, end)] if left != 0 else []
                return
        self.extents[name] = self.size, self.size + size
        self.size = self.size + size

    def release(self, name: str) -> None:
        """Give a tensor's room to those that come."""
        gaps = sorted([*self._free, self.extents.pop(name)], key=lambda gap: gap[0].typical)
        self._free = gaps[:1]
        for start, end in gaps[1:]:
            if start == self._free[-1][1]:
                self._free[-1] = (self._free[-1][0], end)
            else:
                self._free.append((start, end))
