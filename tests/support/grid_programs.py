"""Loop programs for a GPU: on a GPU, and in the emulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from tests.support.grid_emulator import emulated
from tests.support.loop_programs import LoopProgram, random_program
from torch_max_backend.base.digests import digest
from torch_max_backend.base.target import architecture
from torch_max_backend.codegen.program_writer import WrittenProgram
from torch_max_backend.compile.cuda_build import build_cubin, build_launcher
from torch_max_backend.runtime.grid_program import GridLibrary
from torch_max_backend.schedule.machine import GPU, Machine

SMALL: dict[str, dict[str, int]] = {
    "grid_limits": {"BUSY": 64, "LARGE": 64},
    "split": {"CHAIN": 16},
    "turned_operands": {"LEAST": 1, "OFTEN": 2},
}
"""Thresholds with which small tensors take the paths of large ones, by module of ``schedule``."""
SMALL_GPU = dataclasses.replace(GPU, row=64, parts=2, alone=64, results=(4, 64), part=64, block=256)


def programs_for_gpu(seeds: Sequence[int], symbolic: bool = False, machine: Machine = GPU) -> list[LoopProgram]:
    """Random programs with kernels for a GPU."""
    return [dataclasses.replace(random_program(seed, symbolic), machine=machine) for seed in seeds]


def on_gpu(written: Sequence[WrittenProgram], folder: Path) -> list[Callable[..., Any]]:
    """Programs as functions of tensors on GPU 0. One compile of all of them takes minutes, and of each 0.2 s."""
    launcher = folder / "launcher.so"
    launcher.write_bytes(build_launcher())

    def bound(program: WrittenProgram) -> Callable[..., Any]:
        cubin = build_cubin(program.source, arch=architecture(0), threads=program.threads, clusters=program.clusters)
        return program.spec.bind(GridLibrary(cubin, digest(cubin), launcher, 0))

    with ThreadPoolExecutor() as pool:
        return list(pool.map(bound, written))


def moved(x: torch.Tensor, shift: int = 0) -> torch.Tensor:
    """A copy on the GPU with the same strides, gaps included, that begins ``shift`` elements after an aligned place."""
    span = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    flat = torch.empty(span + shift, dtype=x.dtype, device="cuda")
    flat[shift:] = x.as_strided((span,), (1,)).cuda()
    return flat.as_strided(x.shape, x.stride(), shift)


def check_on_gpu(made: LoopProgram, written: WrittenProgram, run: Callable[..., Any], shift: int = 0) -> None:
    """A program on the GPU gives the interpreter's results, at all values of symbolic sizes."""
    for m in (made, *made.others):
        inputs = [moved(x, shift) for x in m.fresh()]
        outputs = list(run(*inputs, *(m.symbols[name] for name in written.symbols)))
        for x, (_, order) in zip(outputs, m.program.outputs, strict=True):
            assert x.permute(order).is_contiguous(), f"seed {m.seed}: {x.shape} {x.stride()} for order {order}"
        m.check([x.cpu() for x in (*outputs, *inputs)], m.expected(), f"on a GPU at {m.symbols}")


def check_emulated(made: LoopProgram) -> None:
    """The text of a program's kernels gives the interpreter's results, and does nothing that a GPU must not."""
    written = made.written()
    run = emulated(written)
    for m in (made, *made.others):
        inputs = m.fresh()
        try:
            outputs = list(run(*inputs, *(m.symbols[name] for name in written.symbols)))
        except AssertionError as error:
            raise AssertionError(f"seed {m.seed} at {m.symbols}: {error}") from error
        m.check([*outputs, *inputs], m.expected(), f"emulated at {m.symbols}")
