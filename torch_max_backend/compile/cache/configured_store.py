"""Which store the options mean. What ``torch.compiler.load_cache_artifacts`` gave is in it before anybody looks."""

from __future__ import annotations

import atexit
import io
import logging
from pathlib import Path

from torch_max_backend.base.cache_artifacts import take_loaded
from torch_max_backend.base.errors import BundleError
from torch_max_backend.compile.cache.bundle import import_bundle
from torch_max_backend.compile.cache.store import Store, default_folder
from torch_max_backend.compile.scratch_folder import ScratchFolder
from torch_max_backend.options import Options

log = logging.getLogger("torch_max_backend")

_stores: dict[Path, Store] = {}
_scratch: ScratchFolder | None = None


def store_for(options: Options) -> Store:
    """The store of the options; without a cache, a folder that ends with the process."""
    if not options.cache:
        global _scratch
        if _scratch is None:
            _scratch = ScratchFolder()
            atexit.register(_scratch.delete)
        folder = _scratch.path
    else:
        folder = Path(options.cache_dir).expanduser() if options.cache_dir else default_folder()
    store = _stores.setdefault(folder, Store(folder))
    store.limit = options.cache_limit * 1_000_000
    for bundle in take_loaded():
        try:
            import_bundle(store, io.BytesIO(bundle))
        except BundleError as error:
            log.warning("compiled regions among torch's cache artifacts are left out: %s", error)
    return store
