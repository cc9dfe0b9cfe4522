"""What straight-line code has allocated, step by step: which totals may be its peak."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import sympy

from torch_max_backend.loops.index import Index


class Ledger:
    """Storages by the names that hold them. Amounts are integers, indices of symbolic sizes, or torch's expressions.

    ``now`` is what is allocated, from ``zero`` on; ``peaks`` are the totals so far of which none is certain to be below
    another; ``given_up`` is what was there before and has been freed.
    """

    def __init__(self, zero: Any = 0) -> None:
        self.now: Any = zero
        self.given_up: Any = zero
        self.peaks: list[Any] = []
        self._given: set[Hashable] = set()
        self._storages: dict[Hashable, set[Hashable]] = {}
        self._holders: dict[Hashable, set[Hashable]] = {}
        self._sizes: dict[Hashable, Any] = {}

    def take(self, name: Hashable, size: Any, storage: Hashable = None) -> None:
        """A name gets a new storage; without an identity, it is the name's own."""
        storage = ("of", name) if storage is None else storage
        self._sizes[storage] = size
        self._hold(name, storage)
        self.now = self.now + size
        self.reach(self.now)

    def given(self, name: Hashable, size: Any, storage: Hashable) -> None:
        """A name holds a storage that was there before, and that ends with it."""
        self._given.add(storage)
        self._sizes[storage] = size
        self._hold(name, storage)

    def share(self, name: Hashable, other: Hashable) -> None:
        """A name holds what another one does, as a view."""
        for storage in self._storages.get(other, ()):
            self._hold(name, storage)

    def drop(self, name: Hashable) -> None:
        """A name is deleted; what nothing else holds is freed."""
        for storage in self._storages.pop(name, ()):
            self._holders[storage].discard(name)
            if not self._holders[storage]:
                self.now = self.now - self._sizes[storage]
                if storage in self._given:
                    self.given_up = self.given_up + self._sizes[storage]

    def reach(self, total: Any) -> None:
        """Note a total that is allocated at a time."""
        if any(_covers(peak, total) for peak in self.peaks):
            return
        self.peaks = [*(peak for peak in self.peaks if not _covers(total, peak)), total]

    def _hold(self, name: Hashable, storage: Hashable) -> None:
        self._storages.setdefault(name, set()).add(storage)
        self._holders.setdefault(storage, set()).add(name)


def _covers(a: Any, b: Any) -> bool:
    """Whether ``a`` is certain to be at least ``b``."""
    difference = a - b
    if isinstance(difference, int):
        return difference >= 0
    if isinstance(difference, Index):
        return difference.bounds[0] >= 0
    return bool(sympy.sympify(difference).is_nonnegative)
