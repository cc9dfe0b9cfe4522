"""Ops of structures against MDTraj and MDAnalysis, the packages that people have for trajectories."""

from __future__ import annotations

import numpy
import pytest
import torch

from benchmarks.structures import (
    CUTOFF,
    contacts_by_mdanalysis,
    contacts_by_mdtraj,
    deviations_by_mdanalysis,
    deviations_by_mdtraj,
    trajectory,
)
from torch_max_backend import ops

FRAMES, POINTS = 40, 90

pytestmark = pytest.mark.filterwarnings("ignore")


def test_aligned_deviations() -> None:
    pytest.importorskip("mdtraj")
    pytest.importorskip("MDAnalysis")
    xyz = trajectory(FRAMES, POINTS)
    found = ops.rmsd_aligned(xyz, xyz[:1].expand_as(xyz))[0].numpy()
    assert found.max() > 1
    numpy.testing.assert_allclose(found, deviations_by_mdanalysis(xyz)(), atol=2e-5)
    numpy.testing.assert_allclose(found, deviations_by_mdtraj(xyz)(), atol=2e-3)  # single precision, by a difference


def test_contacts() -> None:
    pytest.importorskip("mdtraj")
    pytest.importorskip("MDAnalysis")
    xyz = trajectory(FRAMES, POINTS)
    upper = torch.triu_indices(POINTS, POINTS, 1)
    found = ops.contact_map(xyz, CUTOFF)[:, upper[0], upper[1]].numpy()
    assert 0 < found.sum() < found.size
    assert numpy.array_equal(found, contacts_by_mdanalysis(xyz)())
    assert numpy.array_equal(found, contacts_by_mdtraj(xyz)())
