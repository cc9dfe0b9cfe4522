"""Memory shared with torch and NumPy, both ways, and copies where they are asked for or needed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import torch_max_backend.array as xp

pytestmark = pytest.mark.any_runner("memory is shared before anything runs")


def test_memory_of_torch_and_numpy_is_shared_both_ways() -> None:
    t, n = torch.arange(6.0), np.arange(6.0)
    for made in (xp.asarray(t), xp.from_dlpack(t), xp.asarray(t, copy=False)):
        assert torch.from_dlpack(made).data_ptr() == t.data_ptr() == made.to_torch().data_ptr()
    for made in (xp.asarray(n), xp.from_dlpack(n)):
        assert np.shares_memory(np.from_dlpack(made), n)
        assert np.shares_memory(np.asarray(made), n)


def test_copies_are_made_where_they_are_asked_for() -> None:
    t, n = torch.arange(6.0), np.arange(6.0)
    assert xp.asarray(t, copy=True).to_torch().data_ptr() != t.data_ptr()
    assert not np.shares_memory(np.asarray(xp.from_dlpack(n, copy=True)), n)
    x = xp.asarray(t)
    assert xp.asarray(x) is x
    assert xp.asarray(x, copy=True).to_torch().data_ptr() != t.data_ptr()
    capsule = x.__dlpack__(copy=True)
    assert torch.from_dlpack(capsule).data_ptr() != t.data_ptr()
    assert x.__dlpack_device__() == t.__dlpack_device__()
    assert x.__dlpack__(dl_device=(1, 0), max_version=(1, 0)) is not None


def test_what_would_need_a_copy_is_refused() -> None:
    t = torch.arange(6.0)
    with pytest.raises(ValueError, match="copy=False"):
        xp.asarray([1, 2], copy=False)
    with pytest.raises((ValueError, BufferError)):
        xp.asarray(t, dtype=xp.float64, copy=False)
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    with pytest.raises(BufferError):
        xp.from_dlpack(frozen, copy=False)
    assert np.array_equal(np.asarray(xp.asarray(frozen)), frozen)


def test_strided_memory_stays_where_it_is() -> None:
    t = torch.arange(24.0).reshape(4, 6)
    x = xp.asarray(t.T[::2])
    assert x.to_torch().data_ptr() == t.data_ptr() and x.shape == (3, 4)
    assert torch.equal((x + 1).to_torch(), t.T[::2] + 1)


def test_writing_into_an_array_leaves_shared_memory_alone() -> None:
    t = torch.zeros(4)
    x = xp.asarray(t)
    x[1:3] = 5.0
    x += 1
    assert torch.equal(x.to_torch(), torch.tensor([1.0, 6.0, 6.0, 1.0]))
    assert not t.any()


def test_a_gradient_is_not_asked_for() -> None:
    t = torch.ones(3, requires_grad=True)
    assert not xp.asarray(t).to_torch().requires_grad


def test_devices() -> None:
    x = xp.asarray([1.0])
    assert x.to_device("cpu") is x and x.device == torch.device("cpu")
    with pytest.raises(ValueError, match="unknown device"):
        xp.ones(3, device="nowhere")
    with pytest.raises(ValueError, match="version"):
        x.__array_namespace__(api_version="2019.01")
    assert x.__array_namespace__(api_version="2024.12") is xp
