"""``torch.compiler.save_cache_artifacts``: what a compiled graph needs of the store travels along.

Torch knows what it saves and loads by types, which must be registered before it loads. The entry point that torch
loads at the end of ``import torch`` does that, so this module imports nothing of the store: what was loaded waits here
until a store is opened.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

TYPE = "max_backend"
"""Torch's name for these artifacts; ``CacheInfo.max_backend_artifacts`` has their keys."""

_loaded: list[bytes] = []


def register() -> None:
    """Tell torch of the type, once; nothing where this torch has no such artifacts."""
    _artifact_type()


def note(key: str, bundle: Callable[[], bytes]) -> None:
    """Have torch save a bundle along with what it keeps itself.

    Args:
        key: Equal ones are saved once.
        bundle: Gives the bundle, when it is saved.
    """
    if _artifact_type() is not None:
        from torch.compiler._cache import CacheArtifactManager

        CacheArtifactManager.record_artifact(TYPE, key, bundle)


def take_loaded() -> list[bytes]:
    """The bundles that were loaded since the last call."""
    taken = _loaded[:]
    _loaded.clear()
    return taken


@functools.cache
def _artifact_type() -> type | None:
    try:
        from torch.compiler._cache import CacheArtifact, CacheArtifactFactory
    except ImportError:
        return None

    class GraphArtifact(CacheArtifact):
        """The compiled regions of a graph, as a bundle that is read from the store when torch saves it."""

        def __init__(self, key: str, content: bytes | Callable[[], bytes]) -> None:
            object.__setattr__(self, "key", key)
            object.__setattr__(self, "source", content)

        @property
        def content(self) -> bytes:
            source: Any = self.source
            return source() if callable(source) else source

        def __eq__(self, other: object) -> bool:
            return isinstance(other, GraphArtifact) and self.key == other.key

        def __hash__(self) -> int:
            return hash(self.key)

        @staticmethod
        def encode(content: Any) -> Any:
            return content

        @staticmethod
        def type() -> str:
            return TYPE

        def populate_cache(self) -> None:
            _loaded.append(self.content)

    return CacheArtifactFactory.register(GraphArtifact)
