"""How kernels for a GPU compute with indices and sums, and how they scatter: texts, and what the emulator gives."""

from __future__ import annotations

import re

import pytest
import torch

from tests.codegen.test_emulated_kernels import for_gpu
from tests.codegen.test_grid_programs import nests, texts
from tests.support.absent_gpu import noted_plans, trace
from tests.support.grid_emulator import emulated
from tests.support.grid_programs import check_emulated
from torch_max_backend.compile.cuda_build import build_ptx
from torch_max_backend.loops.expr import cast, op, select
from torch_max_backend.loops.program import Scatter
from torch_max_backend.loops.rules import reduce, scatter, views
from torch_max_backend.loops.rules.registry import rules
from torch_max_backend.loops.tensor import Tensor, pointwise
from torch_max_backend.schedule import grid_limits
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.machine import GPU
from torch_max_backend.schedule.plan import schedule

aten = torch.ops.aten
pytestmark = [pytest.mark.any_runner("programs without a graph"), pytest.mark.sampled]


@pytest.mark.parametrize(("dtype", "columns", "lanes", "stored"), [
    (torch.float32, 64, 4, 4), (torch.bfloat16, 64, 4, 8), (torch.float16, 12, 4, 4), (torch.float32, 33, 1, 1),
    (torch.float64, 64, 1, 2), (torch.int64, 64, 1, 2),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("how", ["sum", "set"])
def test_rows_are_scattered_in_vectors(
    dtype: torch.dtype, columns: int, lanes: int, stored: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of 16 bits are in float32 until all is added."""
    monkeypatch.setattr(grid_limits, "BUSY", 8)
    rows = torch.randint(0, 9, (40,)) if how == "sum" else torch.randperm(50)[:40]
    given = [torch.randint(0, 9, (n, columns)).to(dtype) for n in (50, 40)]
    put = scatter.index_add if how == "sum" else scatter.index_copy
    made = for_gpu(lambda x, i, y: (put(x, 0, i, y),), given[0], rows, given[1])
    found = [n for n in schedule(made.program, GPU).steps if isinstance(n, GridNest) and _scatters(n)]
    wanted = lanes if how == "sum" else stored
    assert [n.lanes for n in found] == [wanted]
    assert ("atomic_add_vector(" in made.written().source) == (how == "sum" and lanes > 1)
    check_emulated(made)


def _scatters(n: GridNest) -> bool:
    return any(isinstance(s.how, Scatter) for stage in n.stages for s in stage.statements)


@pytest.mark.parametrize("dtype", [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8,
], ids=str)  # fmt: skip
@pytest.mark.parametrize("how", ["prod", "amax", "amin"])
def test_scatters_without_an_instruction_are_repeated_until_nobody_was_between(how: str, dtype: torch.dtype) -> None:
    """They become machine code, too."""
    given = [torch.randint(1, 3, shape).to(dtype) for shape in ((50, 6), (40, 6))]
    places = torch.randint(0, 50, (40, 6))
    made = for_gpu(lambda x, i, y: (scatter.scatter_reduce(x, 0, i, y, how),), given[0], places, given[1])
    written = made.written()
    assert f"atomic_{how.removeprefix('a').replace('prod', 'mul')}(" in written.source
    check_emulated(made)
    build_ptx(written.source, threads=written.threads, clusters=written.clusters)


def test_places_of_columns_are_scattered_one_by_one() -> None:
    given = [torch.randint(0, 9, shape).float() for shape in ((50, 64), (50, 16))]
    made = for_gpu(lambda x, i, y: (scatter.index_add(x, 1, i, y),), given[0], torch.randint(0, 64, (16,)), given[1])
    assert "atomic_add(" in made.written().source
    check_emulated(made)


def test_sums_in_float64_take_lanes_of_float32_together() -> None:
    def mean(x: Tensor) -> Tensor:
        return reduce.over("sum", pointwise(lambda a: cast(a, torch.float64), x), [0])

    text = texts(mean, 1 << 20)
    assert re.search(r"= add\(a\d+, cast\[f64\]\(reduce_add\(\w+\)\)\)", text)
    check_emulated(for_gpu(lambda x: (mean(x),), torch.randint(-9, 9, (70_000,)).float()))


def test_what_ends_in_16_bits_in_a_later_kernel_is_computed_nearly() -> None:
    def mean(x: Tensor, dtype: torch.dtype) -> Tensor:
        total = reduce.over("sum", pointwise(lambda a: op("exp", a), x), [0])
        return Tensor(total.shape, dtype, lambda i: cast(total.at(i), dtype))

    x = torch.randn(1 << 20)
    assert len(nests(lambda x: mean(x, torch.bfloat16), 1 << 20)) == 2
    assert "exp_nearly(" in for_gpu(lambda x: (mean(x, torch.bfloat16),), x).written().source
    assert "_nearly(" not in for_gpu(lambda x: (mean(x, torch.float32),), x).written().source


def test_reads_under_conditions_are_under_way_together() -> None:
    def sums(x: Tensor) -> tuple[Tensor, ...]:
        return (reduce.over("sum", views.roll(x, [1], [2]), [1]),)

    made = for_gpu(sums, torch.randint(0, 9, (6, 5000, 40)).float())
    text = made.written().source
    loads, adds = ([m.start() for m in re.finditer(p, text)] for p in (r"= load\[1\]\(p0", r"= add\(a"))
    assert sum(at < adds[0] for at in loads) >= 4
    check_emulated(made)


@pytest.mark.parametrize(("mode", "sizes", "taps"), [
    ("upsample_bilinear2d", (20, 25), 24), ("upsample_bilinear2d", (20, 32), 12), ("upsample_nearest2d", (20, 25), 4),
    ("upsample_nearest2d", (20, 32), 4),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_lanes_that_read_one_element_read_it_once(
    mode: str, sizes: tuple[int, int], taps: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each lane reads is known from the number of the vector, and so are weights, but for those of rows."""
    monkeypatch.setattr(grid_limits, "BUSY", 8)
    rule = rules()[getattr(torch.ops.aten, mode).default]
    options = (False,) if mode == "upsample_bilinear2d" else ()
    x = torch.randint(-9, 9, (3, 8, *sizes)).to(dtype)
    made = for_gpu(lambda x: (rule(x, [2 * n for n in sizes], *options),), x)
    text = made.written().source
    (nest,) = (n for n in schedule(made.program, GPU).steps if isinstance(n, GridNest))
    assert text.count("load") <= taps * nest.each
    assert "floor_div(" not in text and "remainder(" not in text
    check_emulated(made)


@pytest.mark.parametrize(("mode", "outputs"), [
    ("upsample_bicubic2d", (17, 23)), ("upsample_bilinear2d", (17, 23)), ("upsample_bicubic2d", (40, 50)),
])  # fmt: skip
def test_places_in_a_resized_image_are_of_32_bits(mode: str, outputs: tuple[int, int]) -> None:
    """Also those that a float gives, which is known to be between some numbers."""
    rule = rules()[getattr(torch.ops.aten, mode).default]
    x = torch.randn(3, 8, 20, 25)
    made = for_gpu(lambda x: (rule(x, outputs, False),), x, smooth=True)
    text = made.written().source
    assert ("imax32(" if "cubic" in mode else "imin32(") in text and "imin(" not in text
    check_emulated(made)


def test_a_thread_that_reads_much_has_few_elements() -> None:
    """Reads of all of them are under way together, and each is in a register: of two images, which share weights."""
    rule = rules()[torch.ops.aten.upsample_bicubic2d.default]
    x = torch.empty(4096, 8, 32, 32, dtype=torch.bfloat16)
    made = for_gpu(lambda x: (rule(x, [17, 23], False),), x)
    (nest,) = (n for n in schedule(made.program, GPU).steps if isinstance(n, GridNest))
    assert nest.lanes == 1 and nest.each == 2 and nest.repeated == nest.outer[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_elements_of_a_vector_in_two_rows_are_at_their_number(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory has the order of stores."""
    monkeypatch.setattr(grid_limits, "BUSY", 8)

    def padded(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (pointwise(lambda a, b: a + b, rules()[torch.ops.aten.reflection_pad2d.default](x, [2, 1, 1, 1]), y),)

    given = [torch.randint(-9, 9, shape).to(dtype) for shape in ((3, 5, 300), (3, 7, 303))]
    made = for_gpu(padded, *given)
    (nest,) = (n for n in schedule(made.program, GPU).steps if isinstance(n, GridNest))
    text = made.written().source
    assert nest.flat and nest.lanes > 1
    assert re.search(r"load_aligned\[\d\]\(p\d, first\)", text) and re.search(r"load\[1\]\(p\d, k\d+\)", text)
    check_emulated(made)


@pytest.mark.parametrize(("columns", "places"), [(33, 2), (42, 2), (8, 1)])
def test_a_vector_in_two_rows_looks_its_places_up_twice(
    columns: int, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no row is shorter than it: the first and the last lane know where their rows begin."""
    monkeypatch.setattr(grid_limits, "BUSY", 8)

    def chosen(x: Tensor, k: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        rows = rules()[aten.index_select.default](x, 0, k)
        y, z = views.expand(views.unsqueeze(y, 1), rows.shape), views.expand(views.unsqueeze(z, 0), rows.shape)
        return (pointwise(lambda a, b, c: select(b > 0, a, a + c), rows, y, z),)

    generator = torch.Generator().manual_seed(0)
    x, y, z = (torch.randint(-9, 9, n, generator=generator).bfloat16() for n in ((20, columns), (64,), (columns,)))
    made = for_gpu(chosen, x, torch.randint(0, 20, (64,), generator=generator), y, z)
    (nest,) = (n for n in schedule(made.program, GPU).steps if isinstance(n, GridNest))
    text = made.written().source
    assert nest.lanes == 8 and text.count("checked_index(") == places
    check_emulated(made)


def test_rows_with_more_elements_than_32_bits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = noted_plans(monkeypatch)
    shapes = ((1000, 33), torch.bfloat16), ((140_000_000,), torch.int64)
    made = [lambda n=n, d=d: torch.empty(n, dtype=d, device="cuda") for n, d in shapes]  # type: ignore[misc]
    trace(lambda x, k: x.index_select(0, k) * 2, *made)
    (program,) = plans[-1][1].values()
    assert "% (33)" in program.written.source and "32(i0" not in program.written.source


def test_what_all_lanes_have_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of a table that lies by columns, of which a vector's elements are far apart."""
    monkeypatch.setattr(grid_limits, "BUSY", 8)

    def chosen(x: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        return (rules()[aten.index_select.default](views.transpose(x, 0, 1), 0, k),)

    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-9, 9, (16, 39), generator=generator).bfloat16()
    made = for_gpu(chosen, x, torch.randint(0, 39, (64,), generator=generator))
    text = made.written().source
    assert text.count("checked_index(") == 1 and text.count("load[1](") == 9
    check_emulated(made)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_decides_is_rounded(dtype: torch.dtype) -> None:
    """As eager has it, though product and comparison are one kernel."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(40, 33, generator=generator).to(dtype) for _ in range(2))

    def asked(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = rules()[aten.mul.Tensor](x, y)
        return rules()[aten.gt.Tensor](z, y), rules()[aten.floor.default](z), reduce.argmax(z, 1)

    found = emulated(for_gpu(asked, x, y).written())(x, y)
    z = x * y
    assert all(map(torch.equal, found, (z > y, z.floor(), z.argmax(1))))
