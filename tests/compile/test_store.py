"""The store of compiled regions: what is kept, what counts as a miss, and what a broken disk does (nothing)."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from filelock import FileLock
from typer.testing import CliRunner

from torch_max_backend.base.errors import BundleError
from torch_max_backend.cli import app
from torch_max_backend.compile.cache.bundle import export_bundle, import_bundle
from torch_max_backend.compile.cache.store import FORMAT, Store, default_folder

pytestmark = pytest.mark.any_runner("the store takes bytes from whomever")

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
    record.pop("check")
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
    assert list((store.folder / FORMAT / "tmp").iterdir()) == []


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


def test_an_entry_that_names_another_graph_is_a_miss(store: Store, log: pytest.LogCaptureFixture) -> None:
    store.put(BLOB, {KEY: "region_0", OTHER: "region_1"}, {})
    text = entry_file(store, KEY).read_text()
    entry_file(store, KEY).write_text(text.replace("region_0", "region_1"))  # one bit
    assert store.get(KEY) is None
    assert "checksum does not fit" in log.text
    entry_file(store, KEY).write_text(entry_file(store, OTHER).read_text())
    assert store.get(KEY) is None
    assert store.get(OTHER) is not None


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


def test_what_a_killed_writer_left_is_deleted(store: Store) -> None:
    store.put(BLOB, {KEY: "g"}, {})
    left, current = (store.folder / FORMAT / "tmp" / name for name in ("left", "current"))
    left.write_bytes(BLOB[:7])
    current.write_bytes(BLOB[:7])
    os.utime(left, (1, 1))
    store.put(BLOB, {OTHER: "g"}, {})
    assert not left.exists()
    assert current.exists()
    assert store.remove_abandoned(-1.0) == 1


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
    assert list((store.folder / FORMAT / "tmp").iterdir()) == []
    assert store.get(KEY) is not None


# -- the limit -----------------------------------------------------------------------------------------------------
def test_what_was_not_used_for_longest_is_deleted_first(tmp_path: Path) -> None:
    store = Store(tmp_path, limit=2 * len(BLOB) + 10)
    keys = [f"{i:02x}" * 32 for i in range(4)]
    for age, key in enumerate(keys[:2]):
        blob = BLOB + bytes([age])
        store.put(blob, {key: "g"}, {})
        os.utime(blob_file(store, blob), (age, age))
    assert store.get(keys[0]) is not None  # used now, so that the second one is the oldest
    store.put(BLOB + b"c", {keys[2]: "g"}, {})
    assert [store.get(k) is not None for k in keys[:3]] == [True, False, True]
    assert not entry_file(store, keys[1]).exists()


def test_the_artifact_at_hand_stays_however_large(tmp_path: Path) -> None:
    store = Store(tmp_path, limit=10)
    store.put(BLOB, {KEY: "g"}, {})
    assert store.get(KEY) is not None


def test_compiles_are_noted_for_estimates(store: Store) -> None:
    store.note_compile(12.345, 7, "cuda")
    assert [(c["seconds"], c["kinds"], c["api"]) for c in store.compiles()] == [(12.35, 7, "cuda")]
    with (store.folder / FORMAT / "compiles.jsonl").open("a") as file:
        file.write('3\n{"half')
    assert len(store.compiles()) == 1


def test_clear(store: Store) -> None:
    store.put(BLOB, {KEY: "g", OTHER: "h"}, {})
    store.note_lookup(KEY, "hit")
    assert store.clear() == 2
    assert store.usage() == (0, 0)
    assert store.get(KEY) is None
    assert store.lookups() == []


# -- locks ---------------------------------------------------------------------------------------------------------
HOLD = """
import sys, time
from pathlib import Path
from torch_max_backend.compile.cache.store import Store
with Store(Path(sys.argv[1])).locked([sys.argv[2]]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_another_process_waits_and_a_killed_one_frees_its_lock(store: Store) -> None:
    held = subprocess.Popen([sys.executable, "-c", HOLD, str(store.folder), KEY], stdout=subprocess.PIPE, text=True)
    assert held.stdout is not None and held.stdout.readline() == "held\n"
    entered = threading.Event()

    def enter() -> None:
        with store.locked([OTHER, KEY]):
            entered.set()

    waiter = threading.Thread(target=enter)
    waiter.start()
    try:
        assert not entered.wait(0.5)
        with store.locked(["ef" * 32]):  # another region is free
            pass
    finally:
        held.kill()
        held.wait()
    assert entered.wait(10)
    waiter.join()


def test_who_waits_goes_on_once_the_entry_is_there(store: Store) -> None:
    """Though the lock is held: many that wait need not take it one after the other."""
    entered = threading.Event()

    def enter() -> None:
        with Store(store.folder).locked([KEY]):
            entered.set()

    with store.locked([KEY]):
        waiter = threading.Thread(target=enter)
        waiter.start()
        assert not entered.wait(0.3)
        store.put(BLOB, {KEY: "g"}, {})
        assert entered.wait(30)
    waiter.join(30)


@pytest.mark.parametrize("error", [OSError(errno.ENOLCK, "No locks available"), NotImplementedError("no flock")])
def test_a_file_system_without_locks_is_done_without(
    store: Store, error: Exception, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    """As some that several machines share."""

    def acquire(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with store.locked([KEY]):
        pass
    assert "going on without it" in log.text


def test_without_a_folder_nothing_is_locked(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a_file").write_text("")
    with Store(tmp_path / "a_file" / "below").locked([KEY]):
        pass
    assert "cannot be written" in log.text


# -- why a key missed ----------------------------------------------------------------------------------------------
def test_a_miss_names_the_parts_that_differ(store: Store) -> None:
    parts = {"region": "r" * 64, "max": "26.7.0", "settings": "a"}
    assert store.why_missing(parts) == "no such region was compiled yet"
    store.put(BLOB, {KEY: "g"}, {KEY: parts})
    store.put(BLOB, {OTHER: "g"}, {OTHER: parts | {"max": "26.6.0", "settings": "b"}})
    assert store.why_missing(parts | {"max": "26.8.0"}) == "differs in max (26.8.0, was 26.7.0)"
    assert store.why_missing(parts | {"region": "q" * 64}) == "no such region was compiled yet"
    assert store.why_missing(parts) == "its artifact is missing or damaged"


def test_a_miss_reads_no_entries_of_other_regions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of many thousand entries must not make compiles slow."""
    for k in range(20):
        key = f"{k:02x}" * 32
        store.put(BLOB, {key: "g"}, {key: {"region": f"{k % 10}" * 64, "max": f"{k}"}})
    read: list[str] = []
    monkeypatch.setattr(store, "records", lambda: pytest.fail("all entries are read"))
    record = store.record
    monkeypatch.setattr(store, "record", lambda key: read.append(key) or record(key))
    assert store.why_missing({"region": "3" * 64, "max": "x"}) == "differs in max (x, was 3)"
    assert read == ["03" * 32, "0d" * 32]
    for path in (store.folder / "v1" / "regions").rglob("*"):
        if path.is_file():
            path.write_bytes(b"../../x\n\xff")
    assert store.why_missing({"region": "3" * 64, "max": "x"}) == "no such region was compiled yet"


def test_artifacts_are_counted_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written since is added; other processes write too, and what the file has may be damaged."""
    store = Store(tmp_path, limit=3 * len(BLOB) + 10)
    counted: list[int] = []
    blobs = store.blobs
    monkeypatch.setattr(store, "blobs", lambda: counted.append(1) or blobs())
    keys = [f"{i:02x}" * 32 for i in range(7)]
    for age, key in enumerate(keys[:3]):
        Store(tmp_path, store.limit).put(BLOB + bytes([age]), {key: "g"}, {}) if age == 1 else store.put(
            BLOB + bytes([age]), {key: "g"}, {}
        )
        os.utime(blob_file(store, BLOB + bytes([age])), (age, age))
    assert len(counted) == 1
    store.put(BLOB + b"d", {keys[3]: "g"}, {})
    assert len(counted) == 2 and [store.get(k) is not None for k in keys[:4]] == [False, True, True, True]
    (tmp_path / "v1" / "sizes").write_text("many\n")
    store.put(BLOB + b"e", {keys[4]: "g"}, {})
    assert len(counted) == 3 and len(blobs()) == 3
    store.clear()
    assert not (tmp_path / "v1" / "sizes").exists() and not (tmp_path / "v1" / "regions").exists()


# -- bundles -------------------------------------------------------------------------------------------------------
def test_a_bundle_carries_entries_to_another_store(store: Store, tmp_path: Path) -> None:
    store.put(BLOB, {KEY: "g", OTHER: "h"}, {KEY: {"target": "here"}})
    store.put(BLOB + b"!", {"ef" * 32: "i"}, {})
    blob_file(store, BLOB + b"!").write_bytes(b"damaged")
    assert export_bundle(store, tmp_path / "bundle") == 2
    other = Store(tmp_path / "other")
    assert import_bundle(other, tmp_path / "bundle").targets == {"here", ""}
    for key in (KEY, OTHER):
        mine, theirs = store.get(key), other.get(key)
        assert mine is not None and theirs is not None
        assert (mine.graph, mine.sha) == (theirs.graph, theirs.sha)
    assert other.records() == [r for r in store.records() if r.key in (KEY, OTHER)]


@pytest.mark.parametrize("damage", ["not a bundle", "truncated", "flipped"])
def test_a_damaged_bundle_adds_nothing(store: Store, tmp_path: Path, damage: str) -> None:
    store.put(BLOB, {KEY: "g"}, {})
    file = tmp_path / "bundle"
    export_bundle(store, file)
    data = file.read_bytes()
    flipped = data.replace(BLOB, BLOB[:-1] + b"?")
    file.write_bytes({"not a bundle": b"text", "truncated": data[:2000], "flipped": flipped}[damage])
    other = Store(tmp_path / "other")
    with pytest.raises(BundleError):
        import_bundle(other, file)
    assert other.usage() == (0, 0)


def test_a_bundle_chooses_no_path(store: Store, tmp_path: Path) -> None:
    """An entry's name is a key, whatever the bundle calls it."""
    store.put(BLOB, {KEY: "g"}, {})
    file = tmp_path / "bundle"
    export_bundle(store, file)
    name = f"keys/{KEY}.json".encode()
    for other_name in (b"keys/" + b"." * 64 + b".json", b"keys/" + b".." + b"a" * 62 + b".json"):
        data = bytearray(file.read_bytes())
        at = data.index(name)
        data[at : at + len(name)] = other_name
        header = at // 512 * 512
        data[header + 148 : header + 156] = b" " * 8
        data[header + 148 : header + 156] = b"%06o\0 " % sum(data[header : header + 512])
        file.with_name("renamed").write_bytes(data)
        with pytest.raises(BundleError, match="is named by no key"):
            import_bundle(Store(tmp_path / "other"), file.with_name("renamed"))


def test_the_command_line(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_MAX_BACKEND_CACHE_DIR", str(store.folder))
    store.put(BLOB, {KEY: "g"}, {KEY: {"target": "elsewhere", "max": "26.7.0"}})
    store.note_lookup(KEY, "miss: differs in max (26.7.0, was 26.6.0)")
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["cache", *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    assert str(store.folder) in run("info")
    assert KEY[:12] in run("list")
    assert "differs in max" in run("explain", KEY[:6])
    bundle = str(tmp_path / "bundle")
    told = run("export", bundle)
    assert "wrote 1 entries" in told
    assert "deleted 1 entries" in run("clear")
    refused = CliRunner().invoke(app, ["cache", "import", bundle, "--sha256", "0" * 64])
    assert refused.exit_code == 1 and "is another file than was asked for" in refused.output
    assert store.get(KEY) is None
    assert "read 1 entries" in run("import", bundle, "--sha256", told.split()[-1])
    assert "deleted 1 entries" in run("clear")
    assert "none of them is for this machine" in run("import", bundle)
    assert store.get(KEY) is not None
    (tmp_path / "text").write_text("no bundle")
    assert CliRunner().invoke(app, ["cache", "import", str(tmp_path / "text")]).exit_code == 1
