"""What a compiled graph needs of the store, for ``torch.compiler.save_cache_artifacts``."""

from __future__ import annotations

import io
from collections.abc import Sequence

from torch_max_backend.base import cache_artifacts
from torch_max_backend.base.digests import digest
from torch_max_backend.compile.cache.bundle import export_bundle
from torch_max_backend.compile.cache.configured_store import store_for
from torch_max_backend.compile.cache.store import Store
from torch_max_backend.options import Options


def note(keys: Sequence[str], options: Options) -> None:
    """Have torch save the regions with these keys, if it is asked to; they are read from the store only then."""
    wanted = tuple(filter(None, keys))
    if wanted and options.cache:
        store = store_for(options)
        cache_artifacts.note(digest("\n".join(wanted)), lambda: _bundle(store, wanted))


def _bundle(store: Store, keys: Sequence[str]) -> bytes:
    buffer = io.BytesIO()
    export_bundle(store, buffer, [r for r in map(store.record, dict.fromkeys(keys)) if r is not None])
    return buffer.getvalue()
