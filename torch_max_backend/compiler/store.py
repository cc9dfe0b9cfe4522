"""The store: compiled regions on disk, addressed by content.

Layout below the store's folder::

    v1/keys/<key[:2]>/<key>.json    one entry per region: which blob, which graph in it, the named parts of the key
    v1/blobs/<sha[:2]>/<sha>.mef    a compiled artifact, named by the SHA-256 of its bytes; may hold several graphs

Files are written under a temporary name and renamed, so a reader never sees half of one. An entry whose blob is
missing or does not match its name is a miss.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

log = logging.getLogger("torch_max_backend")

FORMAT = "v1"


def default_folder() -> Path:
    """The user's cache folder of this package (XDG on Linux)."""
    return Path(platformdirs.user_cache_dir("torch-max-backend", appauthor=False))


@dataclass(frozen=True)
class Entry:
    """Where a compiled region is: the artifact and the name of the graph inside it."""

    blob: Path
    graph: str
    sha: str


class Store:
    """Compiled regions below ``folder``; never raises for what the file system does, only warns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._warned = False

    def _key_path(self, key: str) -> Path:
        return self.folder / FORMAT / "keys" / key[:2] / f"{key}.json"

    def _blob_path(self, sha: str) -> Path:
        return self.folder / FORMAT / "blobs" / sha[:2] / f"{sha}.mef"

    def get(self, key: str) -> Entry | None:
        """The entry of ``key``, verified against its checksum; ``None`` if there is none that can be used."""
        path = self._key_path(key)
        try:
            record = json.loads(path.read_text())
            sha, graph = record["blob"], record["graph"]
            if not (isinstance(sha, str) and isinstance(graph, str)):
                raise TypeError("not an entry of this store")
            blob = self._blob_path(sha)
            found = hashlib.sha256(blob.read_bytes()).hexdigest()
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("cache entry %s cannot be read (%s): compiling again", path, error)
            return None
        if found != sha:
            log.warning("cache entry %s is corrupt: compiling again", blob)
            return None
        return Entry(blob, graph, sha)

    def put(self, blob: bytes, graphs: dict[str, str], parts: dict[str, dict[str, str]]) -> None:
        """Save an artifact under several keys.

        Args:
            blob: The bytes of the artifact.
            graphs: Key of each region to the name of its graph in the artifact.
            parts: Key of each region to the named parts its key was made of.
        """
        sha = hashlib.sha256(blob).hexdigest()
        try:
            target = self._blob_path(sha)
            if not _has(target, len(blob)) or hashlib.sha256(target.read_bytes()).hexdigest() != sha:
                _write(target, blob)
            for key, graph in graphs.items():
                record = {"blob": sha, "graph": graph, "parts": parts.get(key, {})}
                _write(self._key_path(key), json.dumps(record, indent=1).encode())
        except OSError as error:
            if not self._warned:
                log.warning("the cache folder %s cannot be written (%s): going on without it", self.folder, error)
            self._warned = True

    def usage(self) -> tuple[int, int]:
        """Number of entries and total bytes."""
        root = self.folder / FORMAT
        files = [p for p in root.rglob("*") if p.is_file()] if root.is_dir() else []
        return sum(p.suffix == ".json" for p in files), sum(p.stat().st_size for p in files)


def _has(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
