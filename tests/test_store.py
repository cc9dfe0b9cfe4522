"""The store of compiled regions: what is kept, what counts as a miss, and what a broken disk does (nothing)."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from pathlib import Path

import pytest

from torch_max_backend.compiler.store import FORMAT, Store, default_folder

KEY, OTHER = "ab" * 32, "cd" * 32
BLOB = bytes(range(256)) * 16


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "torch_max_backend")
    return caplog


def entry_file(store: Store, key: str) -> Path:
    return store.folder / FORMAT / "keys" / key[:2] / f"{key}.json"


def blob_file(store: Store, blob: bytes) -> Path:
    sha = hashlib.sha256(blob).hexdigest()
    return store.folder / FORMAT / "blobs" / sha[:2] / f"{sha}.mef"


# -- what is kept --------------------------------------------------------------------------------------------------
def test_round_trip(store: Store) -> None:
    assert store.get(KEY) is None
    assert store.usage() == (0, 0)
    store.put(BLOB, {KEY: "region_a"}, {KEY: {"max": "26.7.0", "region": "x"}})
    entry = store.get(KEY)
    assert entry is not None
    assert (entry.graph, entry.sha) == ("region_a", hashlib.sha256(BLOB).hexdigest())
    assert entry.blob == blob_file(store, BLOB)
    assert entry.blob.read_bytes() == BLOB
    entries, size = store.usage()
    assert entries == 1
    assert size == len(BLOB) + entry_file(store, KEY).stat().st_size


def test_an_entry_shows_the_parts_of_its_key(store: Store) -> None:
    store.put(BLOB, {KEY: "region_a"}, {KEY: {"max": "26.7.0"}})
    record = json.loads(entry_file(store, KEY).read_text())
    assert record == {"blob": hashlib.sha256(BLOB).hexdigest(), "graph": "region_a", "parts": {"max": "26.7.0"}}


def test_several_graphs_share_one_artifact(store: Store) -> None:
    store.put(BLOB, {KEY: "region_a", OTHER: "region_b"}, {})
    first, second = store.get(KEY), store.get(OTHER)
    assert first is not None and second is not None
    assert first.blob == second.blob
    assert (first.graph, second.graph) == ("region_a", "region_b")
    assert len(list(store.folder.rglob("*.mef"))) == 1


def test_another_process_sees_it(store: Store) -> None:
    store.put(BLOB, {KEY: "region_a"}, {})
    assert Store(store.folder).get(KEY) == store.get(KEY)


def test_a_later_artifact_replaces_an_entry(store: Store) -> None:
    store.put(BLOB, {KEY: "old"}, {})
    store.put(BLOB + b"!", {KEY: "new"}, {})
    entry = store.get(KEY)
    assert entry is not None
    assert entry.graph == "new"
    assert entry.blob.read_bytes() == BLOB + b"!"


def test_no_temporary_file_is_left(store: Store) -> None:
    store.put(BLOB, {KEY: "region_a"}, {})
    assert [p for p in store.folder.rglob("*") if p.name.startswith(".tmp-")] == []


def test_default_folder_follows_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "torch-max-backend"


# -- what counts as a miss -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("damage", ["flipped byte", "truncated", "empty"])
def test_a_corrupt_artifact_is_a_miss_and_is_mended(store: Store, log: pytest.LogCaptureFixture, damage: str) -> None:
    store.put(BLOB, {KEY: "region_a"}, {})
    flipped = bytes([BLOB[0] ^ 1]) + BLOB[1:]
    blob_file(store, BLOB).write_bytes({"flipped byte": flipped, "truncated": BLOB[:100], "empty": b""}[damage])
    assert store.get(KEY) is None
    assert "is corrupt: compiling again" in log.text
    store.put(BLOB, {KEY: "region_a"}, {})
    assert store.get(KEY) is not None


def test_a_missing_artifact_is_a_silent_miss(store: Store, log: pytest.LogCaptureFixture) -> None:
    store.put(BLOB, {KEY: "region_a"}, {})
    blob_file(store, BLOB).unlink()
    assert store.get(KEY) is None
    assert log.text == ""


@pytest.mark.parametrize("text", ['{"blob": "ab', "", "[]", "3", "{}", '{"blob": "abc"}', '{"blob": 5, "graph": "g"}'])
def test_an_entry_that_cannot_be_read_is_a_miss(store: Store, log: pytest.LogCaptureFixture, text: str) -> None:
    store.put(BLOB, {KEY: "region_a"}, {})
    entry_file(store, KEY).write_text(text)
    assert store.get(KEY) is None
    assert "cannot be read" in log.text
    store.put(BLOB, {KEY: "region_a"}, {})
    assert store.get(KEY) is not None


def test_an_entry_that_is_not_text_is_a_miss(store: Store, log: pytest.LogCaptureFixture) -> None:
    store.put(BLOB, {KEY: "region_a"}, {})
    entry_file(store, KEY).write_bytes(b"\xff\xfe\x00")
    assert store.get(KEY) is None
    assert "cannot be read" in log.text


# -- a disk that does not take it ----------------------------------------------------------------------------------
def test_a_folder_that_cannot_be_written_warns_once(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a_file").write_text("")
    store = Store(tmp_path / "a_file" / "below")  # holds for root as well, whom no permission stops
    for _ in range(3):
        store.put(BLOB, {KEY: "region_a"}, {})
    warnings = [r.getMessage() for r in log.records if "cannot be written" in r.getMessage()]
    assert len(warnings) == 1
    assert str(store.folder) in warnings[0]
    assert store.get(KEY) is None
    assert store.usage() == (0, 0)


# -- writers at the same time --------------------------------------------------------------------------------------
def test_concurrent_writers_and_readers(store: Store, log: pytest.LogCaptureFixture) -> None:
    blobs = [BLOB + bytes([i]) for i in range(4)]
    shas = {hashlib.sha256(b).hexdigest() for b in blobs}
    wrong: list[object] = []
    start = threading.Barrier(8)

    def write(blob: bytes) -> None:
        start.wait()
        for _ in range(25):
            store.put(blob, {KEY: "region_a", OTHER: "region_b"}, {})

    def read() -> None:
        start.wait()
        seen = False
        for _ in range(100):
            entry = store.get(KEY)
            if entry is None:
                if seen:  # once there is an entry, a reader always finds a whole one
                    wrong.append("an entry went missing")
            elif entry.sha not in shas or entry.blob.read_bytes() not in blobs:
                wrong.append(entry)
            else:
                seen = True

    threads = [threading.Thread(target=write, args=(b,)) for b in blobs] + [
        threading.Thread(target=read) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert log.text == ""
    assert len(list(store.folder.rglob("*.mef"))) == len(blobs)
    assert [p for p in store.folder.rglob("*") if p.name.startswith(".tmp-")] == []
    assert store.get(KEY) is not None
