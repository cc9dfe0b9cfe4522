"""What is computed once a row in vectors over sixteen rows: where, and right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import torch_max_backend
from tests.codegen.test_written_source import program
from tests.support.loop_programs import LoopProgram, check_generated, check_passes
from torch_max_backend.loops.rules.registry import rules
from torch_max_backend.loops.tensor import Tensor, pointwise, reduce
from torch_max_backend.schedule.nest import LANES, Nest
from torch_max_backend.schedule.plan import schedule

Function = Callable[[Tensor], tuple[Tensor, ...]]


def rule(name: str, overload: str = "default") -> Callable[..., Any]:
    return rules()[getattr(getattr(torch.ops.aten, name), overload)]


FUNCTIONS: dict[str, Function] = {
    "logsumexp": lambda x: (rule("logsumexp")(x, [x.rank - 1], False),),
    "deviation": lambda x: (rule("std", "correction")(x, [x.rank - 1], correction=1, keepdim=True),),
    "layer norm": lambda x: rule("native_layer_norm")(x, [x.shape[x.rank - 1].constant], None, None, 1e-5),
    "sum and its logarithm": lambda x: sum_and_logarithm(x),
}


def sum_and_logarithm(x: Tensor) -> tuple[Tensor, ...]:
    sums = reduce("sum", x.shape[:-1], x.shape[-1:], lambda i, over: x.at((*i, *over)))
    return sums, rule("log")(sums)


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)).add(0.5).to(dtype)


def nests(made: LoopProgram) -> list[Nest]:
    return [n for n in schedule(made.program).steps if isinstance(n, Nest)]


def in_vectors(made: LoopProgram) -> bool:
    found = [s for n in nests(made) for s in n.stages if not s.reduced]
    return bool(found) and all(s.vector is not None and s.vector in s.free for s in found)


@pytest.mark.parametrize(("shape", "wanted"), [
    ((512, 32), True), ((700, 33), True), ((4, 300, 20), True), ((100, 32), False), ((600, 2000), False),
])  # fmt: skip
def test_many_short_rows_have_blocks(shape: tuple[int, ...], wanted: bool) -> None:
    made = program(FUNCTIONS["logsumexp"], rows(*shape))
    assert in_vectors(made) == wanted
    assert all((row.size, row.bytes) == (LANES, 4 * LANES) for n in nests(made) for row in n.own)


def log_softmax_of_sigmoids(x: Tensor) -> tuple[Tensor, ...]:
    """These are computed once and kept."""
    return (rule("_log_softmax")(rule("sigmoid")(x), x.rank - 1, False),)


@pytest.mark.parametrize(("row", "wanted"), [(32, True), (512, True), (600, False)])
def test_sixteen_of_the_rows_that_a_thread_keeps(row: int, wanted: bool) -> None:
    made = program(log_softmax_of_sigmoids, rows(600, row, dtype=torch.bfloat16))
    kept = {r.size for n in nests(made) for r in n.own if r.dtype is torch.bfloat16}
    assert kept == {LANES * row if wanted else row}
    assert in_vectors(made) == wanted


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_kept_rows_are_right(dtype: torch.dtype, tmp_path: Path) -> None:
    programs = [
        program(log_softmax_of_sigmoids, rows(*shape, dtype=dtype), smooth=True) for shape in [(512, 32), (700, 33)]
    ]
    assert all(len(n.own) > 1 for made in programs for n in nests(made))
    check_generated(programs, [check_passes(p) for p in programs], tmp_path)


def test_what_is_cheap_is_computed_row_by_row() -> None:
    made = program(lambda x: (pointwise(lambda a: a + 1, sum_and_logarithm(x)[0]),), rows(512, 32))
    assert not in_vectors(made)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_they_are_right(dtype: torch.dtype, tmp_path: Path) -> None:
    """Whatever is left of blocks of 16 rows."""
    shapes = [(512, 32), (700, 33), (4, 300, 20)]
    programs = [program(f, rows(*shape, dtype=dtype), smooth=True) for f in FUNCTIONS.values() for shape in shapes]
    assert all(map(in_vectors, programs))
    check_generated(programs, [check_passes(p) for p in programs], tmp_path)


def test_an_index_in_the_last_part_of_a_block_is_checked() -> None:
    """Of 601 rows nine are in the last block: what would be in its other lanes is no index."""

    def loss(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, t, reduction="none")

    x, t = torch.randn(601, 20), torch.randint(0, 20, (601 + LANES,))
    t[601:] = 99
    compiled = torch.compile(loss, backend="max_backend")
    torch.testing.assert_close(compiled(x, t[:601]), loss(x, t[:601]))
    assert not torch_max_backend.reports()[-1].islands
    t[600] = 20
    with pytest.raises(IndexError, match="20"):
        compiled(x, t[:601])
