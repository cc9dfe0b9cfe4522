"""Loop programs for a GPU, without one: what is written, and that threads share all of the work."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable

import pytest
import torch

from tests.support.loop_programs import LoopProgram, random_program
from torch_max_backend.base.errors import Unsupported
from torch_max_backend.codegen.grid_kernel_writer import GridKernelWriter
from torch_max_backend.codegen.program_writer import WrittenProgram, write_program
from torch_max_backend.codegen.source import Slot, touched
from torch_max_backend.compile.cuda_build import build_cubin
from torch_max_backend.loops.expr import Const, Scalar, as_index, cast, compare_index, op, select
from torch_max_backend.loops.index import Index, Sym, Var
from torch_max_backend.loops.program import Input
from torch_max_backend.loops.rules import indexing, pool, reduce, views
from torch_max_backend.loops.tensor import Tensor, building, define, named, pointwise
from torch_max_backend.runtime.index_reports import error_at
from torch_max_backend.schedule.grid_memory import is_same_within, runs_within
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.machine import GPU
from torch_max_backend.schedule.plan import schedule

pytestmark = [pytest.mark.any_runner("programs without a graph"), pytest.mark.sampled]


# -- indices that are checked ------------------------------------------------------------------------------------------
def of_rows(size: Index, message: str = "") -> LoopProgram:
    """Rows of a matrix by an index, and elements by another one."""
    with building() as b:
        b.program.symbols = {Sym("n0", 2, 9): "n0"} if not size.is_constant else {}
        sizes = {"x0": (size, Index.of(8)), "x1": (Index.of(40),), "x2": (Index.of(40),)}
        for name, shape in sizes.items():
            strides = (shape[-1], Index.of(1))[-len(shape) :]
            dtype = torch.float32 if name == "x0" else torch.int64
            b.program.inputs[name] = Input(name, dtype, shape, strides)
        x, i, j = (named(name, shape, b.program.inputs[name].dtype) for name, shape in sizes.items())
        for y in (indexing.index_select(x, 0, i), indexing.take(x, pointwise(lambda e: op("neg", e), j))):
            define(y.shape, y.dtype, y.at)
            b.program.outputs.append((b.program.steps[-1].name, tuple(range(y.rank))))  # type: ignore[union-attr]
            b.program.shapes[b.program.outputs[-1][0]] = y.shape
        if message:
            b.program.sites[0] = dataclasses.replace(b.program.sites[0], message=message)
        rows = size.typical
        inputs = [torch.zeros(rows, 8), *(torch.zeros(40, dtype=torch.int64) for _ in range(2))]
        shapes = [(40, 8), (40,)]
        return LoopProgram(0, b.program, inputs, False, shapes, {"n0": rows}, machine=GPU)


def codes(written: WrittenProgram) -> dict[str, str]:
    """The codes of checks in the kernels, by the size that they check."""
    found = re.findall(r"(checked|wrapped)_index\(p\d+, \w+, ([^,]+), (\d+)\)", written.source)
    return {code: size for _, size, code in found}


def test_a_kernel_reports_the_site_of_a_check() -> None:
    made = of_rows(Index.of(9)).written()
    assert codes(made) == {"1": "9", "2": "72"}
    assert made.spec.source.count("errors.data_ptr()") == made.spec.source.count("segment") == 1
    first, second = made.spec.sites
    assert str(error_at(first, 11, 9)).startswith("index out of range in self\n")
    assert str(error_at(second, -73, 72)).startswith("out of range: tried to access index -73 on a tensor of 72 elem")


def test_a_message_has_the_size_that_is_reported() -> None:
    first, second = of_rows(Index.of(Sym("n0", 2, 9))).written().spec.sites
    assert str(error_at(first, 11, 7)).startswith("index out of range in self\n")
    assert str(error_at(second, -57, 56)).startswith("out of range: tried to access index -57 on a tensor of 56 elem")


def test_a_message_with_another_size_is_not_for_a_gpu() -> None:
    made = of_rows(Index.of(Sym("n0", 2, 9)), "index {index} of {n0}, and {2*n0 + 1}")
    with pytest.raises(Unsupported, match=r"an index and a size, but not 2\*n0 \+ 1"):
        made.written()


def test_without_checks_the_same_kernels_report_nothing() -> None:
    made, checked = of_rows(Index.of(9)), of_rows(Index.of(9)).written()
    inputs = [False] * len(made.inputs)
    written = write_program(made.region(), schedule(made.program, GPU), inputs, 0, check_indices=False)
    assert written.source == checked.source
    assert written.spec.sites == () and "errors" not in written.spec.source


# -- how work is shared out --------------------------------------------------------------------------------------------
def nests(function: Callable[[Tensor], Tensor], *shape: int, dtype: torch.dtype = torch.float32) -> list[GridNest]:
    """The kernels of a function of one contiguous tensor."""
    sizes = tuple(map(Index.of, shape))
    strides = tuple(Index.of(n) for n in torch.empty(shape, device="meta").stride())
    with building() as builder:
        builder.program.inputs["x0"] = Input("x0", dtype, sizes, strides)
        y = function(named("x0", sizes, dtype))
        name = define(y.shape, y.dtype, y.at).at(tuple(Index.of(0) for _ in y.shape)).source  # type: ignore[attr-defined]
        builder.program.outputs.append((name, tuple(range(len(y.shape)))))
        return [s for s in schedule(builder.program, GPU).steps if isinstance(s, GridNest)]


def texts(function: Callable[[Tensor], Tensor], *shape: int, dtype: torch.dtype = torch.float32) -> str:
    """The kernels' text."""
    written = []
    for nest in nests(function, *shape, dtype=dtype):
        slots = {name: Slot(k, dtype) for k, (name, _) in enumerate(touched(nest))}
        written.append(GridKernelWriter(nest, slots).text())
    return "\n".join(written)


def softmax(x: Tensor) -> Tensor:
    return reduce.softmax(x, 1)


def test_a_row_is_read_once() -> None:
    (nest,) = nests(softmax, 8192, 512)
    assert (nest.threads, nest.lanes, nest.held) == (32, 4, 4)
    assert nest.parts == 8192 and nest.block == 256
    text = texts(softmax, 8192, 512)
    assert text.count("load_aligned[4]") == text.count("exp(") == text.count("store_aligned") == 4
    assert text.count("warp_max[32]") == text.count("warp_add[32]") == 1


def test_a_long_row_has_a_block() -> None:
    text = texts(softmax, 4096, 16384)
    assert text.count("block_max") == text.count("block_add") == 1


def test_odd_rows_have_no_vectors_and_few_elements_idle() -> None:
    (nest,) = nests(softmax, 4096, 28)
    assert (nest.threads, nest.lanes) == (8, 4)
    (nest,) = nests(softmax, 4096, 29)
    assert (nest.threads, nest.lanes) == (32, 1)


def test_columns_are_shared_by_neighbours() -> None:
    first, second = nests(lambda x: reduce.over("sum", x, [0], False), 100_000, 64)
    assert first.columns and second.columns and first.outer[-1].size == 64


def test_a_transpose_passes_through_tiles() -> None:
    (nest,) = nests(views.t, 512, 768)
    assert nest.tile is not None and nest.block == 256 and nest.parts == 16 * 12
    text = texts(views.t, 512, 768)
    assert text.count("shared_store") == text.count("shared_load") == 8 and text.count("block_barrier") == 1


def test_short_rows_are_written_in_whole_vectors() -> None:
    """Three columns and a row that is added to each: vectors run over the ends of rows."""

    def added(x: Tensor) -> Tensor:
        return pointwise(lambda a, b: a + b, x, views.expand(views.slice_(x, 0, 0, 1), [400_000, 3]))

    (nest,) = nests(added, 400_000, 3)
    assert nest.lanes == 4 and nest.outer[-1].size == 1_200_000
    text = texts(added, 400_000, 3)
    assert text.count("store_aligned") == 1 and text.count("with_lane") == 4 and "rem32(" in text


def test_shares_cover_a_loop() -> None:
    """Every element of a loop is some thread's, and no other's."""
    for size, threads in ((28, 8), (512, 32), (513, 64), (3, 32)):
        (stage,) = [s for s in nests(lambda x: reduce.over("sum", x, [1], False), 300, size)[0].stages if s.reduced]
        nest = dataclasses.replace(nests(softmax, 300, size)[0], threads=threads, lanes=1)
        (share,) = nest.shared(stage).values()
        assert share == threads
        assert sorted(i for t in range(threads) for i in range(t, size, share)) == list(range(size))


# -- compiled without a GPU --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
def test_random_programs_compile(symbolic: bool) -> None:
    """Their kernels become machine code; a GPU's assembler has looked at all of them."""
    for seed in range(16):
        made = random_program(seed, symbolic=symbolic)
        written = write_program(made.region(), schedule(made.program, GPU), [False] * len(made.inputs), 0)
        assert written.threads, seed
        assert len(build_cubin(written.source, threads=written.threads)) > 1000, seed


# -- approximate functions ---------------------------------------------------------------------------------------------
def test_a_row_of_16_bits_is_computed_nearly_with_its_sums() -> None:
    assert "exp_nearly(" in texts(softmax, 4096, 512, dtype=torch.bfloat16)
    exact = texts(softmax, 4096, 512)
    assert "exp(" in exact and "_nearly(" not in exact
    assert "div_closely(" in exact, "so that shares add up to one as eager's do"


def test_what_is_compared_is_exact() -> None:
    def chosen(x: Tensor) -> Tensor:
        wide = pointwise(lambda a: op("sigmoid", cast(a, torch.float32)), x)
        return pointwise(lambda a: cast(select(a > 0.5, op("exp", a), a), torch.bfloat16), wide)

    text = texts(chosen, 4096, 512, dtype=torch.bfloat16)
    assert "exp_nearly(" in text and "sigmoid(" in text and "sigmoid_nearly(" not in text


def test_a_quotient_of_exponentials_that_is_rounded_to_an_integer_is_exact() -> None:
    def shares(x: Tensor, rounds: bool) -> Tensor:
        e = pointwise(lambda a: op("exp", a), x)
        share = pointwise(lambda a, b: op("div", a, b), e, reduce.sum_dims(e, [1], True))
        return pointwise(lambda a: op("floor", a), share) if rounds else share

    assert "div_closely(" in texts(lambda x: shares(x, False), 4096, 512)
    assert "div_closely(" not in texts(lambda x: shares(x, True), 4096, 512)
    assert "div_closely(" not in texts(lambda x: pointwise(lambda a: op("div", op("exp", a), op("exp", a)), x), 64, 512)


# -- shares ------------------------------------------------------------------------------------------------------------
def test_vectors_fill_pieces_of_memory() -> None:
    v = Var("v", 6000)
    place = Index.of(v) // 20 * 30 + Index.of(v) % 20
    assert [lanes for lanes in (2, 4, 8) if runs_within(place, v, lanes)] == [2, 4]
    assert not runs_within(Index.of(v) * 2, v, 2) and not runs_within(Index.of(v) // 4, v, 4)


@pytest.mark.parametrize(("rows", "kernels"), [(4096, 2), (64, 1)])
def test_large_rows_that_are_written_across_memory_pass_through_tiles(rows: int, kernels: int) -> None:
    def turned(x: Tensor) -> Tensor:
        return views.t(softmax(x))

    found = nests(turned, rows, 512)
    assert len(found) == kernels
    assert (found[-1].tile is not None) is (kernels == 2)


def test_parts_that_begin_at_whole_vectors_are_joined_in_vectors() -> None:
    """With as many conditions as there are parts: each is the same in all lanes of a vector."""

    def joined(width: int) -> Callable[[Tensor], Tensor]:
        def function(x: Tensor) -> Tensor:
            parts = [pointwise(lambda e, k=k: e * (k + 1.0), views.slice_(x, 1, 0, width)) for k in range(6)]
            return views.cat(parts, 1)

        return function

    (nest,) = nests(joined(24), 100_000, 32, dtype=torch.bfloat16)
    assert nest.lanes == 8
    text = texts(joined(24), 100_000, 32, dtype=torch.bfloat16)
    assert text.count("load_aligned[8]") == 6 and "with_lane" not in text
    (nest,) = nests(joined(20), 100_000, 32, dtype=torch.bfloat16)
    assert nest.lanes == 4
    (nest,) = nests(joined(21), 100_000, 32, dtype=torch.bfloat16)
    assert nest.lanes == 1


def test_a_thread_with_a_whole_row_stores_vectors_of_it() -> None:
    """A norm of few channels, of contiguous images, whose results have channels last."""

    def norm(x: Tensor) -> Tensor:
        return views.permute(reduce.softmax(x, 1), (0, 2, 3, 1))

    text = texts(norm, 4000, 8, 22, 19)
    assert text.count("store_aligned(") == 2 and " store(" not in text


def test_windows_that_fill_memory_are_not_read_lane_by_lane() -> None:
    """Sums of 8 neighbours each, in rows of an odd length."""
    text = texts(lambda x: reduce.sum_dims(views.unfold(x, 1, 8, 8), [2]), 512, 32769, dtype=torch.float16)
    assert "with_lane(" not in text


def test_numbers_of_groups_are_read_side_by_side() -> None:
    """A group's numbers, for images with channels last, are written out for each channel."""

    def scaled(x: Tensor) -> Tensor:
        means = reduce.mean(views.view(x, [8, 200 * 200, 4, 4]), [1, 3])
        each = views.view(views.expand(views.unsqueeze(means, 2), [8, 4, 4]), [8, 1, 16])
        return pointwise(lambda a, b: a - b, views.view(x, [8, 200 * 200, 16]), views.expand(each, [8, 200 * 200, 16]))

    *_, last = nests(scaled, 8, 200, 200, 16, dtype=torch.bfloat16)
    assert "//" not in str(last) and last.lanes == 8


def test_of_zeros_in_a_window_the_first_is_taken() -> None:
    """A GPU's own instruction takes plus zero for larger than minus zero; torch's pools do not."""
    text = texts(lambda x: pool.max_pool2d(x, [2, 2])[0], 2, 3, 8, 8)
    assert text.count("maximum_so_far(") == 3 and " maximum(" not in text


def test_conditions_that_are_the_same_in_a_vector() -> None:
    v, w = Var("v", 64), Var("w", 9)
    same = [
        compare_index("lt", Index.of(v), Index.of(24)),
        compare_index("ge", Index.of(v) + 8 * Index.of(w), Index.of(40)),
        compare_index("gt", Index.of(40), Index.of(v)),
        compare_index("eq", Index.of(v) // 8, Index.of(w)),
        compare_index("lt", Index.of(w), Index.of(3)),
    ]
    other = [
        compare_index("le", Index.of(v), Index.of(24)),
        compare_index("lt", Index.of(v), Index.of(20)),
        compare_index("lt", 2 * Index.of(v), Index.of(40)),
        compare_index("eq", Index.of(v), Index.of(8)),
        compare_index("lt", Index.of(v) + Index.of(w), Index.of(24)),
        compare_index("lt", Index.of(24) - Index.of(v), Index.of(8)),
    ]
    assert all(is_same_within(x, v, 8) for x in same) and is_same_within(op("bit_and", *same[:2]), v, 8)
    assert not any(is_same_within(x, v, 8) for x in other) and not is_same_within(
        op("bit_and", same[0], other[0]), v, 8
    )
    for x in (*same, *other):  # as counted
        values = [[_holds(x, {v: k, w: n}) for k in range(64)] for n in range(9)]
        parts = [row[k : k + 8] for row in values for k in range(0, 64, 8)]
        assert (x in same) == all(len(set(part)) == 1 for part in parts)


def _holds(x: Scalar, at: dict[Var, int]) -> bool:
    sides = [
        int(s.value)
        if isinstance(s, Const)
        else int(as_index(s).substitute({v: Index.of(n) for v, n in at.items()}).constant)
        for s in x.operands
    ]  # type: ignore[union-attr]
    return bool(getattr(operator, x.name)(*sides))  # type: ignore[union-attr]


def test_a_short_row_has_few_threads_for_a_place() -> None:
    (nest,) = nests(lambda x: reduce.argmax(x, 1), 1_000_000, 26)
    assert nest.threads == 4


def test_a_whole_variance_is_two_kernels() -> None:
    assert len(nests(lambda x: reduce.var(x, [0], correction=1), 524_281)) == 2


def test_rows_run_on_past_a_loop_of_one() -> None:
    """Reduced loops are one before they are cut, with a loop that has one iteration among them."""
    first, *_ = nests(lambda x: reduce.over("sum", x, [1, 2, 3]), 160, 1, 453, 453)
    assert len(first.stages[0].reduced) == 1
