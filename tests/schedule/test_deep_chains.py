"""Chains of operations so long that passes and compilers could not descend into them as one expression."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.codegen.test_emulated_kernels import for_gpu
from tests.codegen.test_written_source import program
from tests.support.loop_programs import check_generated, check_passes
from torch_max_backend.loops.expr import Scalar, depth, loads, op
from torch_max_backend.loops.tensor import Tensor, pointwise
from torch_max_backend.schedule.inline import DEEPEST
from torch_max_backend.schedule.machine import GPU
from torch_max_backend.schedule.nest import Nest
from torch_max_backend.schedule.plan import schedule

STEPS = 600


def chain(x: Tensor) -> tuple[Tensor, ...]:
    for k in range(STEPS):
        x = pointwise(lambda a, k=k: op("absolute" if k % 5 == 4 else "neg", a) + 0.25, x)  # type: ignore[misc]
    return (x,)


def bodies(nest: Nest) -> list[Scalar]:
    return [s.body for stage in nest.stages for s in stage.statements]


def test_a_chain_is_one_kernel_of_expressions_that_are_not_too_deep() -> None:
    x = torch.randn(7, 40, generator=torch.Generator().manual_seed(0))
    for scheduled in (schedule(program(chain, x).program), schedule(for_gpu(chain, x).program, GPU)):
        (nest,) = (n for n in scheduled.steps if isinstance(n, Nest))
        found = bodies(nest)
        assert STEPS * 2 // DEEPEST <= len(found) <= STEPS
        assert max(map(depth, found)) <= 2 * DEEPEST
        written = [s for stage in nest.stages for s in stage.statements if s.address is not None]
        assert len(written) == 1
        assert len(loads(*found)) == len(found)


def test_it_is_right(tmp_path: Path) -> None:
    made = program(chain, torch.randn(7, 40, generator=torch.Generator().manual_seed(0)))
    check_generated([made], [check_passes(made)], tmp_path)
