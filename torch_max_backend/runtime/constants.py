"""The tensors that a compiled graph holds itself: what was folded, and lifted constants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch


class Constants:
    """Tensors that a call path asks for when a call begins; while they are unloaded, the next call loads them again.

    Args:
        tensors: The tensors, in the call path's order.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._held: tuple[torch.Tensor, ...] | None = tuple(tensors)
        self._lock = threading.Lock()
        self.load: Callable[[], Sequence[torch.Tensor]] | None = None
        """Gives the tensors once more; without it they stay."""
        self.loads = 0
        """How often they were loaded again."""

    def __call__(self) -> tuple[torch.Tensor, ...]:
        held = self._held
        return self._loaded() if held is None else held

    @property
    def are_loaded(self) -> bool:
        """Whether they are in memory."""
        return self._held is not None

    def unload(self) -> bool:
        """Forget them, if they can be loaded again. A call that is under way keeps its own until it is over."""
        with self._lock:
            if self.load is None or not self._held:
                return False
            self._held = None
            return True

    def _loaded(self) -> tuple[torch.Tensor, ...]:
        with self._lock:
            if self._held is None:
                assert self.load is not None
                self._held = tuple(self.load())
                self.loads += 1
            return self._held
