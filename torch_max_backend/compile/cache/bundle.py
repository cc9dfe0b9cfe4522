"""Bundles: compiled regions in one file, to carry to another machine of the same architecture.

A bundle is an uncompressed tar archive with the files of the store below ``keys/`` and ``blobs/``.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from torch_max_backend.base.errors import BundleError
from torch_max_backend.compile.cache.store import Record, Store

KEY = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Imported:
    """What was taken from a bundle: its entries, and the architectures that they were compiled for."""

    entries: int
    targets: frozenset[str]


def export_bundle(store: Store, file: Path | io.BytesIO, records: Sequence[Record] | None = None) -> int:
    """Write entries of ``store`` (by default all) with their artifacts to ``file``.

    Returns:
        The number of entries written; those whose artifact is missing or damaged are left out.

    Raises:
        OSError: The file cannot be written.
    """
    chosen = [r for r in (store.records() if records is None else records) if store.get(r.key) is not None]
    with _opened(file, "w") as bundle:
        for sha in sorted({r.sha for r in chosen}):
            _add(bundle, f"blobs/{sha}.mef", store.blob_path(sha).read_bytes())
        for record in chosen:
            _add(bundle, f"keys/{record.key}.json", record.text())
    return len(chosen)


def digest_of(file: Path) -> str:
    """The SHA-256 of a bundle, by which who imports it can tell that it is the one that was exported.

    Raises:
        OSError: The file cannot be read.
    """
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def import_bundle(store: Store, file: Path | io.BytesIO) -> Imported:
    """Add the entries of a bundle to ``store``. Nothing is added unless all of the bundle is sound.

    Raises:
        BundleError: The file is no bundle, a part of it is damaged or missing, or the store cannot be written.
        OSError: The file cannot be read.
    """
    name = file if isinstance(file, Path) else "what was loaded"
    blobs: dict[str, bytes] = {}
    records: list[Record] = []
    try:
        with _opened(file, "r") as bundle:
            for member in bundle:
                source = bundle.extractfile(member)
                if source is None:
                    continue
                path, data = PurePosixPath(member.name), source.read()
                if path.suffix == ".mef":
                    blobs[hashlib.sha256(data).hexdigest()] = data
                elif path.suffix == ".json":
                    if not KEY.fullmatch(path.stem):
                        raise ValueError(f"{member.name} is named by no key")
                    records.append(Record.parse(path.stem, data))
    except (tarfile.TarError, ValueError) as error:
        raise BundleError(f"{name} is not a bundle of compiled regions, or is damaged: {error}") from error
    missing = [r.key for r in records if r.sha not in blobs]
    if missing or not records:
        what = f"the artifacts of {len(missing)} entries are missing or damaged" if missing else "it has no entries"
        raise BundleError(f"{name} cannot be imported: {what}")
    for sha, data in blobs.items():
        mine = [r for r in records if r.sha == sha]
        store.put(data, {r.key: r.graph for r in mine}, {r.key: r.parts for r in mine})
    lost = [r.key for r in records if store.get(r.key) is None]
    if lost:
        raise BundleError(f"{len(lost)} of {len(records)} entries could not be written to {store.folder}")
    return Imported(len(records), frozenset(r.parts.get("target", "") for r in records))


def _opened(file: Path | io.BytesIO, mode: Literal["r", "w"]) -> tarfile.TarFile:
    return tarfile.open(file, mode) if isinstance(file, Path) else tarfile.open(fileobj=file, mode=mode)


def _add(bundle: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    bundle.addfile(member, io.BytesIO(data))
