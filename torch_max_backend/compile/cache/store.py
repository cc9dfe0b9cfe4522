"""The store: compiled regions on disk, addressed by content.

Layout below the store's folder::

    v1/keys/<key[:2]>/<key>.json    one entry per region: which blob, which graph in it, the named parts of the key
    v1/blobs/<sha[:2]>/<sha>.mef    a compiled artifact, named by the SHA-256 of its bytes; may hold several graphs
    v1/regions/<hash[:2]>/<hash>    the keys of a region, one a line
    v1/sizes                        bytes of all artifacts when they were last counted, and of each written since
    v1/locks/<key>.lock             held by the process that compiles the region
    v1/lookups.jsonl                the latest lookups, a JSON line each: when, key, hit or why not
    v1/compiles.jsonl               the latest compiles: seconds, number of different ops, API

Files are written under a temporary name and renamed, so a reader never sees half of one; what a killed writer left is
deleted by a later one. An entry whose blob is
missing or does not match its name is a miss. A blob's modification time is when it was last used; with a limit, those
that were not used for longest are deleted first.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from torch_max_backend.base.torch_logs import CACHE, show
from torch_max_backend.base.waiting import waiting

log = logging.getLogger("torch_max_backend")

FORMAT = "v1"
LOOKUPS_KEPT = 1 << 20
"""Bytes of the list of lookups."""
COUNTED = 1000
"""Artifacts that are written before what all of them take is counted again."""
LOOK_S, LOOK_AT_MOST_S = 0.05, 0.5
"""Between two looks at a lock that another process has: a tenth of what was waited already, within these limits."""
ABANDONED_S = 600.0
"""A temporary file of this age has no writer any more: writing takes less than a second."""


def default_folder() -> Path:
    """The user's cache folder of this package (XDG on Linux)."""
    import platformdirs  # not needed where a folder is given, and a warm start counts milliseconds

    return Path(platformdirs.user_cache_dir("torch-max-backend", appauthor=False))


@dataclass(frozen=True)
class Entry:
    """Where a compiled region is: the artifact and the name of the graph inside it."""

    blob: Path
    graph: str
    sha: str


@dataclass(frozen=True)
class Record:
    """A key as it stands in the store: which blob it names and what it was made of."""

    key: str
    sha: str
    graph: str
    parts: dict[str, str]

    @classmethod
    def parse(cls, key: str, text: str | bytes) -> Record:
        """Read an entry's file.

        Raises:
            ValueError: It is not an entry of this store.
        """
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("not an entry of this store")
        sha, graph, parts = fields.get("blob"), fields.get("graph"), fields.get("parts", {})
        if not (isinstance(sha, str) and isinstance(graph, str) and isinstance(parts, dict)):
            raise ValueError("not an entry of this store")
        record = cls(key, sha, graph, parts)
        if fields.get("check", record.check()) != record.check():
            raise ValueError("its checksum does not fit")
        return record

    def check(self) -> str:
        """A checksum of the entry: one bit decides which graph of an artifact it names."""
        text = "\n".join([self.key, self.sha, self.graph, json.dumps(self.parts, sort_keys=True)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def text(self) -> bytes:
        """The entry's file."""
        fields = {"blob": self.sha, "graph": self.graph, "parts": self.parts, "check": self.check()}
        return json.dumps(fields, indent=1).encode()


class Store:
    """Compiled regions below ``folder``; never raises for what the file system does, only warns.

    ``limit`` is the size in bytes above which the artifacts that were not used for longest are deleted; 0 means none.
    """

    def __init__(self, folder: Path, limit: int = 0) -> None:
        self.folder, self.limit = folder, limit
        self._warned = False

    def _key_path(self, key: str) -> Path:
        return self.folder / FORMAT / "keys" / key[:2] / f"{key}.json"

    def blob_path(self, sha: str) -> Path:
        """Where the artifact with this checksum is, or would be."""
        return self.folder / FORMAT / "blobs" / sha[:2] / f"{sha}.mef"

    def get(self, key: str) -> Entry | None:
        """The entry of ``key``, verified against its checksum; ``None`` if there is none that can be used."""
        path = self._key_path(key)
        try:
            record = Record.parse(key, path.read_bytes())
            blob = self.blob_path(record.sha)
            found = hashlib.sha256(blob.read_bytes()).hexdigest()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("cache entry %s cannot be read (%s): compiling again", path, error)
            return None
        if found != record.sha:
            log.warning("cache entry %s is corrupt: compiling again", blob)
            return None
        with suppress(OSError):  # a folder that is only read keeps its times
            os.utime(blob)
        return Entry(blob, record.graph, record.sha)

    def record(self, key: str) -> Record | None:
        """What stands in the store under ``key``, whether its artifact is sound or not."""
        with suppress(OSError, ValueError):
            return Record.parse(key, self._key_path(key).read_bytes())
        return None

    def put(self, blob: bytes, graphs: dict[str, str], parts: dict[str, dict[str, str]]) -> None:
        """Save an artifact under several keys.

        Args:
            blob: The bytes of the artifact.
            graphs: Key of each region to the name of its graph in the artifact.
            parts: Key of each region to the named parts its key was made of.
        """
        sha = hashlib.sha256(blob).hexdigest()
        try:
            target = self.blob_path(sha)
            if not _has(target, len(blob)) or hashlib.sha256(target.read_bytes()).hexdigest() != sha:
                self._write(target, blob)
            for key, graph in graphs.items():
                self._write(self._key_path(key), Record(key, sha, graph, parts.get(key, {})).text())
                self._note_region(key, parts.get(key, {}))
            self.remove_abandoned()
            if self.limit:
                self._make_room(len(blob), sha)
        except OSError as error:
            self._warn(error)

    def _write(self, path: Path, data: bytes) -> None:
        folder = self.folder / FORMAT / "tmp"
        folder.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    def remove_abandoned(self, age: float = ABANDONED_S) -> int:
        """Delete temporary files older than ``age`` seconds, whose writers were killed; returns how many."""
        removed = 0
        for path in (self.folder / FORMAT / "tmp").glob("*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > age:
                    path.unlink()
                    removed += 1
        return removed

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            log.warning("the cache folder %s cannot be written (%s): going on without it", self.folder, error)
        self._warned = True

    @contextmanager
    def locked(self, keys: Iterable[str], wait: bool = True) -> Iterator[None]:
        """Hold the locks of ``keys`` against other processes (and other threads); wait for those that have them.

        A key is not waited for any longer once its entry was written: it is not locked then. The operating system
        frees the locks of a process that dies. Without a folder that can be written, or on a file system without
        locks, nothing is locked: the same region may then be compiled twice.

        Raises:
            filelock.Timeout: Without ``wait``, if another one has a lock.
        """
        with ExitStack() as stack:
            for key in sorted(keys):  # in one order everywhere, so that no two wait for each other
                lock = FileLock(self.folder / FORMAT / "locks" / f"{key}.lock", thread_local=False)
                before = _stamp(self._key_path(key))
                try:
                    Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
                    is_taken = _is_taken(lock)
                    if not is_taken and wait:
                        log.info("waiting for another process that compiles the same region")
                        with waiting("Waiting for another process that compiles the same"):
                            self._wait_for(lock, key, before)
                except (OSError, NotImplementedError) as error:
                    self._warn(error)
                    break
                if not is_taken and not wait:
                    raise Timeout(lock.lock_file)
                stack.callback(lock.release)
            yield

    def _wait_for(self, lock: FileLock, key: str, before: tuple[int, int] | None) -> None:
        """Until the lock is taken, or the entry of ``key`` is another than ``before``.

        A thousand ranks that wait must not take the lock one after the other, when all that they want is there.
        """
        begin = time.monotonic()
        while _stamp(self._key_path(key)) == before and not _is_taken(lock):
            time.sleep(min(LOOK_AT_MOST_S, max(LOOK_S, (time.monotonic() - begin) / 10)))

    # -- why a key missed -----------------------------------------------------------------------------------------
    def _region_path(self, parts: dict[str, str]) -> Path | None:
        """The list of a region's keys: a miss must not read all entries of a large store."""
        region = hashlib.sha256(parts["region"].encode()).hexdigest() if "region" in parts else ""
        return self.folder / FORMAT / "regions" / region[:2] / region if region else None

    def _note_region(self, key: str, parts: dict[str, str]) -> None:
        path = self._region_path(parts)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(f"{key}\n")

    def _of_region(self, parts: dict[str, str]) -> list[Record]:
        """The entries of a region that can be read, by key."""
        path, keys = self._region_path(parts), set[str]()
        if path is not None:
            with suppress(OSError):
                keys = {*path.read_text(errors="replace").split()}
        return [record for key in sorted(keys) if (record := self.record(key)) is not None]

    def why_missing(self, parts: dict[str, str]) -> str:
        """Why no entry has a key made of ``parts``: the parts in which the nearest entry of that region differs."""
        same_region = [r for r in self._of_region(parts) if r.parts.get("region") == parts.get("region")]
        if not same_region:
            return "no such region was compiled yet"
        differences = [[n for n in parts if r.parts.get(n) != parts[n]] for r in same_region]
        nearest = min(range(len(same_region)), key=lambda i: len(differences[i]))
        record, differs = same_region[nearest], differences[nearest]
        if not differs:
            return "its artifact is missing or damaged"
        return "differs in " + ", ".join(
            f"{n} ({_brief(parts[n])}, was {_brief(record.parts.get(n))})" for n in differs
        )

    def note_lookup(self, key: str, answer: str) -> None:
        """Append to the list of lookups; what does not fit into :data:`LOOKUPS_KEPT` bytes is forgotten."""
        show(CACHE, "region %s in %s: %s", key[:12], self.folder, answer)
        self._append("lookups.jsonl", {"pid": os.getpid(), "key": key, "answer": answer})

    def lookups(self) -> list[dict[str, Any]]:
        """The latest lookups, oldest first: ``time`` (seconds since 1970), ``pid``, ``key``, ``answer``."""
        return self._lines("lookups.jsonl")

    def note_compile(self, seconds: float, kinds: int, api: str) -> None:
        """Append to the list of compiles on this machine, from which later ones are estimated."""
        self._append("compiles.jsonl", {"seconds": round(seconds, 2), "kinds": kinds, "api": api})

    def compiles(self) -> list[dict[str, Any]]:
        """The latest compiles, oldest first: ``time``, ``seconds``, ``kinds`` of ops, and the GPUs' ``api`` if any."""
        return self._lines("compiles.jsonl")

    def _append(self, name: str, fields: dict[str, Any]) -> None:
        path = self.folder / FORMAT / name
        line = json.dumps({"time": round(time.time(), 3), **fields})
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and path.stat().st_size > LOOKUPS_KEPT:
                self._write(path, b"".join(path.read_bytes().splitlines(keepends=True)[-LOOKUPS_KEPT // 400 :]))
            with path.open("a") as file:
                file.write(line + "\n")

    def _lines(self, name: str) -> list[dict[str, Any]]:
        found = []
        with suppress(OSError):
            for line in (self.folder / FORMAT / name).read_text(errors="replace").splitlines():
                with suppress(ValueError):
                    found.append(json.loads(line))
        return [fields for fields in found if isinstance(fields, dict)]

    # -- the whole store ------------------------------------------------------------------------------------------
    def records(self) -> list[Record]:
        """All entries that can be read, by key."""
        found = []
        for path in sorted((self.folder / FORMAT / "keys").rglob("*.json")):
            with suppress(OSError, ValueError):
                found.append(Record.parse(path.stem, path.read_bytes()))
        return found

    def blobs(self) -> dict[str, os.stat_result]:
        """The checksums of all artifacts, with their sizes and times; those not used for longest come first."""
        found = {}
        for path in (self.folder / FORMAT / "blobs").rglob("*.mef"):
            with suppress(OSError):
                found[path.stem] = path.stat()
        return dict(sorted(found.items(), key=lambda item: item[1].st_mtime))

    def _make_room(self, size: int, keep: str) -> None:
        """Note that ``size`` bytes were written, and evict if that may be too much.

        What all artifacts take is counted now and then; a file has the last count, and what was written since.
        """
        counts: list[int] = []
        with suppress(OSError, ValueError):
            counts = [int(line) for line in self._sizes.read_text().split()]
        if not 0 < len(counts) < COUNTED or sum(counts) + size > self.limit:
            self.evict(self.limit, keep)
            return
        with self._sizes.open("a") as file:
            file.write(f"{size}\n")

    @property
    def _sizes(self) -> Path:
        return self.folder / FORMAT / "sizes"

    def evict(self, limit: int, keep: str = "") -> int:
        """Delete artifacts, and the entries that name them, until all take at most ``limit`` bytes.

        Args:
            keep: Checksum of an artifact that stays, however large.

        Returns:
            How many artifacts were deleted.
        """
        blobs = self.blobs()
        size = sum(stat.st_size for stat in blobs.values())
        gone = set()
        for sha, stat in blobs.items():
            if size <= limit:
                break
            if sha != keep:
                gone.add(sha)
                size -= stat.st_size
        if gone:
            for record in self.records():
                if record.sha in gone:
                    self._key_path(record.key).unlink(missing_ok=True)
            for sha in gone:
                self.blob_path(sha).unlink(missing_ok=True)
        if blobs:
            self._write(self._sizes, f"{size}\n".encode())
        return len(gone)

    def clear(self) -> int:
        """Delete every entry and artifact; returns how many entries there were. Compiled functions stay usable."""
        records = self.records()
        for name in ("keys", "blobs", "locks", "regions", "tmp"):
            shutil.rmtree(self.folder / FORMAT / name, ignore_errors=True)
        for name in ("lookups.jsonl", "sizes"):
            (self.folder / FORMAT / name).unlink(missing_ok=True)
        return len(records)

    def usage(self) -> tuple[int, int]:
        """Number of entries and total bytes."""
        root = self.folder / FORMAT
        files = [p for p in root.rglob("*") if p.is_file() and p.suffix in (".json", ".mef")] if root.is_dir() else []
        return sum(p.suffix == ".json" for p in files), sum(p.stat().st_size for p in files)


def _is_taken(lock: FileLock) -> bool:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


def _stamp(path: Path) -> tuple[int, int] | None:
    """What tells a file from the one that replaces it; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _brief(part: str | None) -> str:
    return "nothing" if not part else part if len(part) < 40 else f"{part[:12]}…"


def _has(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False
