"""Ops of structures beside MDTraj and MDAnalysis: ``python -m benchmarks.structures`` prints times and differences.

The trajectory is a random structure with noise. The packages compute on a CPU; with ``--device cuda`` the ops run on a
GPU, whose arguments are there already. A figure is the least of several calls.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import torch
import typer

from torch_max_backend import ops

CUTOFF = 8.0


def trajectory(frames: int, points: int) -> torch.Tensor:
    """A structure of random points that moves a little: [frames, points, 3]."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(points, 3, generator=generator) * 10
    return start + torch.randn(frames, points, 3, generator=generator)


def _for_mdtraj(xyz: torch.Tensor) -> Any:
    import mdtraj

    topology = mdtraj.Topology()
    residue = topology.add_residue("ALA", topology.add_chain())
    for _ in range(xyz.shape[1]):
        topology.add_atom("CA", mdtraj.element.carbon, residue)
    return mdtraj.Trajectory(xyz.numpy(), topology)


def deviations_by_mdtraj(xyz: torch.Tensor) -> Callable[[], Any]:
    """``mdtraj.rmsd`` of all frames to the first one."""
    import mdtraj

    own = _for_mdtraj(xyz)
    return lambda: mdtraj.rmsd(own, own, 0)


def deviations_by_mdanalysis(xyz: torch.Tensor) -> Callable[[], Any]:
    """MDAnalysis's ``rmsd`` of each frame to the first one."""
    from MDAnalysis.analysis import rms

    frames = xyz.numpy()
    return lambda: numpy.array([rms.rmsd(x, frames[0], superposition=True) for x in frames])


def contacts_by_mdtraj(xyz: torch.Tensor) -> Callable[[], Any]:
    """``mdtraj.compute_distances`` of all pairs, which are compared with the cutoff."""
    import mdtraj

    own = _for_mdtraj(xyz)
    pairs = numpy.array(list(itertools.combinations(range(xyz.shape[1]), 2)))
    return lambda: mdtraj.compute_distances(own, pairs) < CUTOFF


def contacts_by_mdanalysis(xyz: torch.Tensor) -> Callable[[], Any]:
    """MDAnalysis's ``contact_matrix`` of each frame."""
    from MDAnalysis.lib.distances import self_distance_array

    frames = xyz.numpy()
    return lambda: numpy.array([self_distance_array(x) < CUTOFF for x in frames])


def least(call: Callable[[], Any], rounds: int, device: str) -> float:
    """Seconds of the fastest call."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times)


def main(
    frames: int = typer.Option(2501, help="Of the trajectory."),
    points: int = typer.Option(3891, help="Whose deviations are computed."),
    mapped: int = typer.Option(254, help="Whose contacts are computed."),
    device: str = typer.Option("cpu", help="Where the ops run: cpu or cuda."),
    threads: int = typer.Option(2, help="PyTorch's threads."),
    rounds: int = typer.Option(3, help="Calls, the fastest of which counts."),
) -> None:
    """Print a table."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    long, short = trajectory(frames, points), trajectory(frames, mapped)
    there = long.to(device)
    start = there[:1].expand_as(there)
    upper = torch.triu_indices(mapped, mapped, 1)
    maps = short.to(device)
    cases: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], dict[str, Callable[[], Any]]]] = {
        f"rmsd_aligned, {frames} x {points}": (
            lambda: ops.rmsd_aligned(there, start)[0],
            lambda found: found.cpu().numpy(),
            {"MDTraj": deviations_by_mdtraj(long), "MDAnalysis": deviations_by_mdanalysis(long)},
        ),
        f"contact_map, {frames} x {mapped}": (
            lambda: ops.contact_map(maps, CUTOFF),
            lambda found: found.cpu()[:, upper[0], upper[1]].numpy(),
            {"MDTraj": contacts_by_mdtraj(short), "MDAnalysis": contacts_by_mdanalysis(short)},
        ),
    }
    print("| op | ms | package | ms | times as fast | largest difference |\n|---|---|---|---|---|---|")
    for name, (op, shown, others) in cases.items():
        own = shown(op())
        seconds = least(op, rounds * 3, device)
        for package, call in others.items():
            found = call()
            far = numpy.abs(own.astype(float) - found.astype(float))
            told = f"{far.max():.1e}" if own.dtype != bool else f"{int(far.sum())} of {far.size} pairs"
            theirs = least(call, rounds, device)
            row = [name, f"{1e3 * seconds:.2f}", package, f"{1e3 * theirs:.0f}", f"{theirs / seconds:.1f}", told]
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
