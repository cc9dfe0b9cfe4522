"""What a GPU reads many times across memory is written as it is read, once."""

from __future__ import annotations

import pytest
import torch

from tests.codegen.test_emulated_kernels import for_gpu
from tests.codegen.test_written_source import program
from tests.support.grid_programs import check_emulated
from torch_max_backend.loops.rules import pointwise, reduce
from torch_max_backend.loops.tensor import Tensor
from torch_max_backend.schedule import turned_operands as turned
from torch_max_backend.schedule.machine import CPU, GPU, Machine
from torch_max_backend.schedule.plan import passes

pytestmark = pytest.mark.any_runner("programs without a graph")


def text_of(x: torch.Tensor, y: torch.Tensor, machine: Machine) -> str:
    made = program(lambda x, y: (pointwise.add(x, y),), x, y)
    return str(dict(passes(made.program, machine))["turned_operands"])


@pytest.mark.parametrize(
    ("images", "rows", "is_turned"),
    [(16, torch.zeros(600, 600), True), (16, torch.zeros(600, 600).t(), False), (7, torch.zeros(600, 600), False)],
    ids=["across", "along", "seldom"],
)
def test_what_is_turned(images: int, rows: torch.Tensor, is_turned: bool) -> None:
    x = torch.zeros(1).expand(images, 600, 600)
    assert x.numel() >= turned.LEAST
    assert ("_turned0" in text_of(x, rows.t(), GPU)) is is_turned
    assert "_turned0" not in text_of(x, rows.t(), CPU)


def test_small_ones_are_not() -> None:
    assert "_turned0" not in text_of(torch.zeros(16, 30, 60), torch.zeros(60, 30).t(), GPU)


def both(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return pointwise.add(x, y), reduce.sum_dims(pointwise.add(y, x), [2])


@pytest.mark.sampled
def test_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turned, "LEAST", 1)
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(-9, 10, shape, generator=generator).float() for shape in ((9, 34, 21), (21, 34)))
    made = for_gpu(both, x, y.t())
    assert "_turned0" in str(dict(passes(made.program, GPU))["turned_operands"])
    check_emulated(made)
