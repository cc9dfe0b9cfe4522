"""Sorts that a GPU's kernels do: what torch gives, in every layout, and which rows are sorted so."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.codegen.test_emulated_kernels import for_gpu
from tests.support.grid_emulator import emulated
from tests.support.grid_programs import check_emulated
from tests.support.loop_programs import LoopProgram
from torch_max_backend.compile.cuda_build import build_cubin
from torch_max_backend.loops.index import Index, Sym
from torch_max_backend.loops.program import Input
from torch_max_backend.loops.rules import rank, scan, sort, views
from torch_max_backend.loops.rules.pointwise import to_copy
from torch_max_backend.loops.rules.registry import LeftToLibrary
from torch_max_backend.loops.tensor import Tensor, builder, building, define, named, pointwise
from torch_max_backend.schedule import grid_limits, grid_sorts
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.machine import GPU
from torch_max_backend.schedule.plan import schedule

pytestmark = [pytest.mark.any_runner("programs without a graph"), pytest.mark.sampled]

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool,
)  # fmt: skip
INF, NAN = float("inf"), float("nan")


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Few different ones, so that many are equal. Floats have NaN, infinities and zeros of both signs among them."""
    generator = torch.Generator().manual_seed(sum(shape))
    if not dtype.is_floating_point:
        x = torch.randint(-4, 5, shape, generator=generator)
        x = x.abs() if dtype in (torch.uint8, torch.bool) else x
        if dtype.itemsize > 1 and len(shape) and math.prod(shape):
            limits = torch.iinfo(dtype)
            x.view(-1)[:2] = torch.tensor([limits.max, limits.min])
            x.view(-1)[-2:] = torch.tensor([limits.min, limits.max])[-min(2, x.numel()) :]
        return x.to(dtype)
    some = torch.tensor([1.0, NAN, -INF, 0.0, -0.0, 1.5, INF, -NAN, -1.0, 2.0, 3e-8, -3e-8]).to(dtype)
    return some[torch.randint(0, len(some), shape, generator=generator)]


def sorting(x: torch.Tensor, dim: int = -1, descending: bool = False) -> LoopProgram:
    return for_gpu(lambda x: sort.sort(x, dim, descending), x)


def wanting_values(function: Callable[[Tensor], tuple[Tensor, ...]], x: torch.Tensor) -> LoopProgram:
    """The program of a function's first result, of which alone it is said that it is read."""

    def only(x: Tensor) -> tuple[Tensor, ...]:
        builder().wanted = frozenset({0})
        return function(x)[:1]

    return for_gpu(only, x)


def nests(made: LoopProgram) -> list[GridNest]:
    return [n for n in schedule(made.program, GPU).steps if isinstance(n, GridNest)]


def check(x: torch.Tensor, dim: int = -1, descending: bool = False) -> GridNest:
    """The one kernel gives what eager gives, to the bit but for those of NaN; and the interpreter, too."""
    made = sorting(x, dim, descending)
    wanted = torch.sort(x, dim=dim, descending=descending, stable=True)
    for values, places in (emulated(made.written())(*made.fresh()), made.expected()[:2]):
        assert torch.equal(places, wanted.indices)
        torch.testing.assert_close(values, wanted.values, rtol=0, atol=0, equal_nan=True)
        if x.dtype.is_floating_point:
            assert torch.equal(values.signbit() & ~values.isnan(), wanted.values.signbit() & ~values.isnan())
    (nest,) = nests(made)
    return nest


# -- results -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype, descending: bool) -> None:
    check(numbers(5, 45, dtype=dtype), descending=descending)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64], ids=str)
@pytest.mark.parametrize("length", [2, 3, 4, 7, 8, 16, 31, 32, 33, 64, 129, 200])
def test_every_length(length: int, dtype: torch.dtype) -> None:
    check(numbers(3, length, dtype=dtype))


@pytest.mark.parametrize(("shape", "dim"), [((3, 40, 5), 1), ((40, 11), 0), ((2, 3, 9, 4), 2), ((7, 300), 0)], ids=str)
def test_memory_runs_across_rows(shape: tuple[int, ...], dim: int) -> None:
    for dtype in (torch.float32, torch.int64):
        assert check(numbers(*shape, dtype=dtype), dim, descending=True).columns


def test_strides_and_gaps() -> None:
    wide = numbers(12, 60)
    for x, dim in ((wide.t(), 1), (wide[:, ::2], -1), (wide[2:, 5:40].t(), 0), (wide[:1].expand(4, 60), 1)):
        check(x, dim)


@pytest.mark.parametrize("held", [4, 8, 16])
@pytest.mark.parametrize("shape", [(3, 100), (37, 9), (2, 3, 260), (1, 16)], ids=str)
def test_threads_have_many_elements(monkeypatch: pytest.MonkeyPatch, held: int, shape: tuple[int, ...]) -> None:
    """As where rows are many."""
    monkeypatch.setattr(grid_limits, "BUSY", 1)
    monkeypatch.setattr(grid_sorts, "MOST_HELD", held)
    monkeypatch.setattr(grid_sorts, "ROW", 1)
    for dtype in (torch.float32, torch.int8, torch.float64):
        nest = check(numbers(*shape, dtype=dtype))
        assert nest.held == held and nest.threads == max(1, 1 << (shape[-1] - 1).bit_length()) // held
    check(numbers(*shape[::-1]), 0)


def test_one_element_none_and_no_dimension() -> None:
    for x in (numbers(5, 1), numbers(0, 5), numbers(5, 0), torch.tensor(2.0)):
        made = sorting(x)
        wanted = torch.sort(x, stable=True)
        for got, want in zip(emulated(made.written())(*made.fresh()), wanted, strict=True):
            assert torch.equal(got, want) and got.dtype is want.dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_only_values_are_wanted(dtype: torch.dtype) -> None:
    """Integers are their own keys; zeros of both signs stay in their order."""
    x = numbers(4, 37, dtype=dtype)
    for descending in (False, True):
        made = wanting_values(lambda x, d=descending: sort.sort(x, 1, d), x)
        (values,) = emulated(made.written())(*made.fresh())
        wanted = x.sort(dim=1, descending=descending, stable=True).values
        torch.testing.assert_close(values, wanted, rtol=0, atol=0, equal_nan=True)
        if dtype.is_floating_point:
            assert torch.equal(values.signbit() & ~values.isnan(), wanted.signbit() & ~wanted.isnan())
        if not dtype.is_floating_point:
            assert made.program.steps[0].dtype.itemsize == max(4, dtype.itemsize)  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32], ids=str)
def test_what_is_found_by_rank(dtype: torch.dtype) -> None:
    x = numbers(6, 21, dtype=dtype)
    x[0] = 1
    for function, wanted in (
        (lambda x: rank.topk(x, 5, 1), x.topk(5, 1)),
        (lambda x: rank.topk(x, 3, 0, largest=False), x.topk(3, 0, largest=False)),
        (lambda x: rank.kthvalue(x, 4, 1, True), x.kthvalue(4, 1, True)),
        (lambda x: rank.median(x, 1), x.median(1)),
        (lambda x: rank.median(x, 0, True), x.median(0, True)),
    ):
        made = wanting_values(function, x)
        assert len(nests(made)) == 1
        (values,) = emulated(made.written())(*made.fresh())
        torch.testing.assert_close(values, wanted.values, rtol=0, atol=0, equal_nan=True)


def of_symbolic_rows(rows: int) -> LoopProgram:
    with building() as b:
        sizes = (Index.of(Sym("n0", 1, 9)), Index.of(12))
        b.program.symbols = {Sym("n0", 1, 9): "n0"}
        b.program.inputs["x0"] = Input("x0", torch.float32, sizes, (sizes[1], Index.of(1)))
        for y in sort.sort(named("x0", sizes, torch.float32)):
            define(y.shape, y.dtype, y.at)
            b.program.outputs.append((b.program.steps[-1].name, (0, 1)))  # type: ignore[union-attr]
            b.program.shapes[b.program.outputs[-1][0]] = sizes
        inputs, shapes = [numbers(rows, 12)], [(rows, 12)] * 2
        return LoopProgram(0, b.program, inputs, False, shapes, {"n0": rows}, machine=GPU)


def test_any_number_of_rows() -> None:
    few, many = (of_symbolic_rows(rows) for rows in (1, 77))
    assert few.written().source == many.written().source and few.written().symbols == ("n0",)
    for made in (few, many):
        values, places = emulated(made.written())(*made.fresh(), len(made.inputs[0]))
        wanted = made.inputs[0].sort(stable=True)
        assert torch.equal(places, wanted.indices)
        torch.testing.assert_close(values, wanted.values, rtol=0, atol=0, equal_nan=True)


def test_one_row() -> None:
    check(numbers(40))
    check(numbers(40, 1, 1), 0)


def test_long_rows() -> None:
    nest = check(numbers(1, 4096))
    assert nest.block == 512
    check(numbers(2, 1000, dtype=torch.float64))


# -- what is computed around a sort ------------------------------------------------------------------------------------
def around(function: Callable[..., tuple[Tensor, ...]], *inputs: torch.Tensor, kernels: int) -> None:
    made = for_gpu(function, *inputs)
    assert len(nests(made)) == kernels
    check_emulated(made)


def test_a_kernel_computes_what_it_sorts_and_what_is_made_of_it() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        values, places = sort.sort(pointwise(lambda a, b: a * 2 + b, x, y), 1)
        return pointwise(lambda a, b: a * 3 - b, values, y), pointwise(lambda a: a + 1, places)

    x = torch.randint(-5, 5, (9, 23), generator=torch.Generator().manual_seed(0)).float()
    around(function, x, x.flip(1).contiguous(), kernels=1)
    around(function, x.double(), x.flip(1).double(), kernels=1)


def test_rounding_comes_before_the_sort() -> None:
    x = torch.linspace(1, 2, 64).reshape(2, 32)
    around(lambda x: sort.sort(to_copy(pointwise(lambda a: a * 2, x), torch.bfloat16), 1, True), x, kernels=1)


def test_a_kernel_takes_parts_of_what_it_sorts() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        values, places = sort.sort(x, 1)
        first, last = (views.slice_(t, 1, *ends) for t, ends in ((values, (0, 5)), (places, (-3, 1 << 62))))
        return views.select_(values, 1, -2), first, last, views.flip(places, [1]), pointwise(lambda a: a + a, first)

    for dtype in (torch.float32, torch.int64, torch.int8):
        around(function, numbers(6, 19, dtype=dtype), kernels=1)
        across = numbers(19, 40, dtype=dtype)
        around(
            lambda x: (views.select_(sort.sort(x, 0)[0], 0, 9), views.slice_(sort.sort(x, 0)[1], 0, 1, 4)),
            across,
            kernels=2,
        )


def test_what_else_reads_a_sort_is_another_kernel() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        values, places = sort.sort(x, 1)
        ranks, _ = sort.sort(places, 1)[::-1]
        return scan.cumsum(values, 1), define(places.shape[::-1], places.dtype, lambda i: places.at(i[::-1])), ranks

    around(function, numbers(6, 19, dtype=torch.int32), kernels=4)  # one copies the scan, which leaves
    around(function, numbers(6, 19, dtype=torch.int64), kernels=4)  # one copies the scan, which leaves


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_an_input_is_sorted_in_place(dim: int, dtype: torch.dtype) -> None:
    """A group has read its rows before it writes them. What is read again where it goes is written elsewhere first."""
    made = for_gpu(lambda x: sort.sort(x, dim)[:1], numbers(37, 9, dtype=dtype))
    ((name, _),) = made.program.outputs
    made.program.outputs.clear()
    made.program.stores.append(("x0", name))
    made.shapes.clear()
    assert ("copy_" in made.written().spec.source) == (dtype is torch.int64)
    check_emulated(made)


# -- which rows --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shape", "dtype", "dim", "wanted"),
    [
        ((4096, 32), torch.float32, 1, (16, 8, 4, False)),
        ((131072, 7), torch.int64, 1, (256, 1, 8, False)),
        ((64, 1024, 32), torch.float32, 1, (4, 64, 16, True)),
        ((1000, 200), torch.bfloat16, 1, (1, 64, 4, False)),
        ((512, 8192), torch.int16, 0, (16, 32, 16, True)),
        ((20000, 129), torch.float16, 1, (16, 16, 16, False)),
        ((1_000_000, 4), torch.float32, 1, (256, 1, 4, False)),
        ((8192, 2048), torch.float64, 1, (1, 128, 16, False)),
    ],
    ids=str,
)
def test_shares(shape: tuple[int, ...], dtype: torch.dtype, dim: int, wanted: tuple[int, int, int, bool]) -> None:
    """Rows of a block, threads of a row, elements of a thread, and whether the block has neighbouring rows."""
    (nest,) = nests(sorting(torch.empty(shape, dtype=dtype), dim))
    assert (nest.rows, nest.threads, nest.held, nest.columns) == wanted
    assert nest.sort is not None
    assert nest.rows * grid_sorts.row_bytes(nest.sort, nest.threads, nest.held, nest.columns) <= grid_limits.SHARED


def test_longer_rows_are_left() -> None:
    for x in (numbers(3, 4097), numbers(3, 2049, dtype=torch.int64), numbers(3, 40).to(torch.uint16)):
        with pytest.raises(LeftToLibrary):
            sorting(x)


# -- compiled ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shape", "dtype", "dim"),
    [((4096, 32), torch.float32, 1), ((64, 1000, 32), torch.float64, 1), ((131072, 5), torch.bool, 1)],
    ids=str,
)
def test_kernels_become_machine_code(shape: tuple[int, ...], dtype: torch.dtype, dim: int) -> None:
    made = sorting(torch.empty(shape, dtype=dtype), dim)
    written = made.written()
    assert len(build_cubin(written.source, threads=written.threads)) > 1000
