"""Parts of a reduction are pieces of memory, however its dimensions lie; and right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.codegen.test_written_source import program
from tests.support.loop_programs import LoopProgram, check_generated, check_passes
from torch_max_backend.loops.expr import cast
from torch_max_backend.loops.tensor import Tensor, reduce
from torch_max_backend.schedule.plan import schedule

DTYPES = [torch.float32, torch.bfloat16]


def whole(dtype: torch.dtype, combiner: str = "sum") -> LoopProgram:
    """A reduction of everything in a tensor whose last two dimensions are the other way round in memory."""
    x = torch.randn(32, 4, 512, 8, generator=torch.Generator().manual_seed(0)).to(dtype).transpose(-1, -2)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return (reduce(combiner, (), x.shape, lambda i, over: cast(x.at(over), torch.float32), torch.float32),)

    return program(function, x, smooth=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_are_pieces_of_memory(dtype: torch.dtype) -> None:
    first, *_ = schedule(whole(dtype).program).steps
    assert re.search(r"for \w+:8192 in vectors", str(first)), first


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_are_right(dtype: torch.dtype, tmp_path: Path) -> None:
    programs = [whole(dtype), whole(dtype, "maximum")]
    check_generated(programs, [check_passes(p) for p in programs], tmp_path)
