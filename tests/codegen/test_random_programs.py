"""Random loop programs: every pass keeps their results, and so do the kernels that are generated for them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.support.loop_programs import check_generated, check_passes, random_program
from torch_max_backend.schedule import split, vectors
from torch_max_backend.schedule.machine import CPU

pytestmark = pytest.mark.sampled

CHUNK = 40
"""Programs of one compile."""
SMALL = [(split, "PART", 64), (split, "CHAIN", 16), (split, "LANES", 4), (vectors, "SLICE", 32)]
SMALL_MACHINE = dataclasses.replace(CPU, row=64, results=(4, 64))
"""Thresholds with which small tensors take the paths of large ones: parts, slices, kernels that are kept apart."""


def _check(first: int, folder: Path, symbolic: bool = False, small: pytest.MonkeyPatch | None = None) -> None:
    """Check a chunk; with ``small`` as if its tensors were large."""
    programs = [random_program(seed, symbolic) for seed in range(first, first + CHUNK)]
    if small is not None:
        for module, name, value in SMALL:
            small.setattr(module, name, value)
        programs = [dataclasses.replace(p, machine=SMALL_MACHINE) for p in programs]
    check_generated(programs, [check_passes(p) for p in programs], folder)


@pytest.mark.parametrize("first", [0, CHUNK])
def test_random_programs(first: int, tmp_path: Path) -> None:
    _check(first, tmp_path)


@pytest.mark.parametrize("first", [100_000])
def test_random_programs_as_if_large(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _check(first, tmp_path, small=monkeypatch)


@pytest.mark.parametrize("first", [200_000])
def test_random_programs_of_symbolic_sizes(first: int, tmp_path: Path) -> None:
    _check(first, tmp_path, symbolic=True)


def test_neighbours_inside_of_a_part_of_a_loop(tmp_path: Path) -> None:
    """The part is no outer loop where the loop around it becomes vectors: these two could not be written."""
    programs = [random_program(seed, symbolic=True) for seed in (31, 110)]
    check_generated(programs, [check_passes(p) for p in programs], tmp_path)


@pytest.mark.parametrize("first", [300_000])
def test_random_programs_of_symbolic_sizes_as_if_large(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check(first, tmp_path, symbolic=True, small=monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("first", range(2 * CHUNK, 1000, CHUNK))
def test_more_random_programs(first: int, tmp_path: Path) -> None:
    _check(first, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("first", range(100_000 + CHUNK, 101_000, CHUNK))
def test_more_random_programs_as_if_large(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _check(first, tmp_path, small=monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("first", range(200_000 + CHUNK, 201_000, CHUNK))
def test_more_random_programs_of_symbolic_sizes(first: int, tmp_path: Path) -> None:
    _check(first, tmp_path, symbolic=True)


@pytest.mark.full
@pytest.mark.parametrize("first", range(300_000 + CHUNK, 301_000, CHUNK))
def test_more_random_programs_of_symbolic_sizes_as_if_large(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check(first, tmp_path, symbolic=True, small=monkeypatch)
