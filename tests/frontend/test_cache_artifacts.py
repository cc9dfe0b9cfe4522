"""``torch.compiler.save_cache_artifacts`` takes compiled regions along; what is loaded is checked like a bundle."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.compiler._cache import CacheArtifactManager

from torch_max_backend.base import cache_artifacts
from torch_max_backend.compile.cache.configured_store import store_for
from torch_max_backend.compile.cache.store import Store
from torch_max_backend.options import resolve

pytestmark = pytest.mark.sampled


@pytest.fixture(autouse=True)
def fresh_artifacts() -> Iterator[None]:
    cache_artifacts.register()
    with CacheArtifactManager.with_fresh_cache():
        yield
    cache_artifacts.take_loaded()


def saved(folder: Path) -> bytes:
    """What torch saves after a function was compiled with its regions in ``folder``."""
    options = {"executor": "auto", "fallback": "error", "cache_dir": str(folder)}
    run = torch.compile(lambda x: (x * 2).tanh().sum(0), backend="max_backend", options=options)
    run(torch.randn(3, 4))
    result = torch.compiler.save_cache_artifacts()
    assert result is not None
    assert len(result[1].max_backend_artifacts) == 1
    return result[0]


def test_regions_travel(tmp_path: Path) -> None:
    data = saved(tmp_path / "here")
    assert torch.compiler.load_cache_artifacts(data).artifacts[cache_artifacts.TYPE]
    other = store_for(resolve({"cache_dir": str(tmp_path / "there")}))
    assert [r.key for r in other.records()] == [r.key for r in Store(tmp_path / "here").records()]
    assert all(other.get(r.key) is not None for r in other.records())


@pytest.mark.any_runner("bytes that are no bundle")
def test_what_is_damaged_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache_artifacts.note("key", lambda: b"no bundle")
    torch.compiler.load_cache_artifacts(torch.compiler.save_cache_artifacts()[0])
    with caplog.at_level(logging.WARNING, "torch_max_backend"):
        store = store_for(resolve({"cache_dir": str(tmp_path)}))
    assert "are left out" in caplog.text
    assert store.records() == []


@pytest.mark.any_runner("bytes")
def test_nothing_is_read_before_it_is_saved() -> None:
    read = []
    cache_artifacts.note("key", lambda: read.append(1) or b"bundle")
    cache_artifacts.note("key", lambda: read.append(2) or b"bundle")
    assert read == []
    assert b"bundle" in torch.compiler.save_cache_artifacts()[0]
    assert set(read) == {1}
