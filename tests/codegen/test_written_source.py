"""What a softmax becomes, as it is printed: loops, schedule, kernels. And programs that were once computed wrongly.

``python -m tests.codegen.test_written_source`` writes ``softmax.txt`` anew.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.loop_programs import LoopProgram, check_generated, check_passes
from torch_max_backend.codegen.program_writer import WORTH_A_TEAM
from torch_max_backend.loops.expr import Scalar, as_index, compare_index, constant, from_index, guarded, op, select
from torch_max_backend.loops.index import Index, Sym
from torch_max_backend.loops.program import Input
from torch_max_backend.loops.rules import reduce, views
from torch_max_backend.loops.tensor import Tensor, building, define, named, pointwise
from torch_max_backend.schedule import split
from torch_max_backend.schedule.machine import CPU
from torch_max_backend.schedule.plan import schedule

GOLDEN = Path(__file__).with_name("softmax.txt")


def program(function: Callable[..., tuple[Tensor, ...]], *inputs: torch.Tensor, smooth: bool = False) -> LoopProgram:
    """The loop program of a function of tensors, with contiguous outputs."""
    with building() as b:
        operands = []
        for k, x in enumerate(inputs):
            sizes, strides = (tuple(map(Index.of, of)) for of in (x.shape, x.stride()))
            b.program.inputs[f"x{k}"] = Input(f"x{k}", x.dtype, sizes, strides)
            operands.append(named(f"x{k}", sizes, x.dtype))
        shapes = []
        for y in function(*operands):
            define(y.shape, y.dtype, y.at)
            b.program.outputs.append((b.program.steps[-1].name, tuple(range(y.rank))))  # type: ignore[union-attr]
            b.program.shapes[b.program.outputs[-1][0]] = y.shape
            shapes.append(tuple(int(s.constant) for s in y.shape))
        return LoopProgram(0, b.program, list(inputs), smooth, shapes)


def softmax_as_text() -> str:
    made = program(lambda x: (reduce.softmax(x, -1, False),), torch.zeros(8, 32), smooth=True)
    written = made.written()
    parts = [made.program, schedule(made.program), written.source, written.spec.source]
    return "\n\n".join(str(part).strip() for part in parts) + "\n"


def test_softmax_is_written_like_this() -> None:
    assert softmax_as_text() == GOLDEN.read_text()


def of_symbolic_sizes(hint: int) -> LoopProgram:
    """A softmax of rows, and a sum of all, of any size."""
    rows, columns = (Sym(name, low=2, hint=hint) for name in ("n0", "n1"))
    with building() as b:
        sizes = (Index.of(rows), Index.of(columns))
        b.program.symbols = {rows: "n0", columns: "n1"}
        b.program.inputs["x0"] = Input("x0", torch.float32, sizes, (sizes[1], Index.of(1)))
        x = named("x0", sizes, torch.float32)
        y = reduce.softmax(x, -1, False)
        z = define(y.shape, y.dtype, lambda i: y.at(i) * 2 + 1)
        b.program.outputs.append((b.program.steps[-1].name, (0, 1)))  # type: ignore[union-attr]
        b.program.shapes[b.program.outputs[0][0]] = z.shape
        return LoopProgram(0, b.program, [torch.zeros(hint, hint)], True, [(hint, hint)], {"n0": hint, "n1": hint})


def test_symbolic_sizes_are_arguments() -> None:
    small, large = (of_symbolic_sizes(hint).written() for hint in (37, 911))
    assert (small.source, small.spec.source) == (large.source, large.spec.source)
    assert small.symbols == ("n0", "n1")
    assert "def kernel0(p0: Ptr[f32], p1: Ptr[f32], p2: Ptr[f32], s0: Int, s1: Int):" in small.source
    assert not re.search(r"\bn[01]\b", small.source)


def test_threads_are_woken_by_the_size_of_a_call() -> None:
    (segment,) = of_symbolic_sizes(37).written().spec.segments
    assert segment.sized and not segment.parallel
    (line,) = [x for x in of_symbolic_sizes(37).written().spec.source.splitlines() if "parallel(" in x]
    assert line.strip().startswith("if m") and f" > {WORTH_A_TEAM}: parallel(team0, " in line


def test_memory_is_read_only_where_it_is_taken() -> None:
    both = program(lambda x, y: (views.cat([x, y], 0),), torch.zeros(3, 17), torch.ones(5, 17))
    lines = [line.strip() for line in both.written().source.splitlines()]
    branches = [k for k, line in enumerate(lines) if line == "else:"]
    assert branches
    for k in branches:  # a load in each branch, and none before the condition is known
        loads = [bool(re.search(r"= load\w*\[", x)) for x in lines[k - 4 : k + 2]]
        assert loads == [False, False, True, False, False, True]


def one_element(x: Tensor) -> tuple[Tensor, ...]:
    """A column, and zeros, summed again: the gradient of a log-softmax that was indexed."""
    column = guarded_column(x, 3)
    return (pointwise(lambda a, b: a - b, x, views.unsqueeze(reduce.over("sum", column, [1]), 1)),)


def guarded_column(x: Tensor, k: int) -> Tensor:
    def at(i: tuple[Index, ...]) -> Scalar:
        return guarded(compare_index("eq", i[1], Index.of(k)), x.at(i), constant(0, x.dtype))

    return define(x.shape, x.dtype, at)


def test_a_sum_of_one_element_is_no_loop() -> None:
    text = str(schedule(program(one_element, torch.zeros(64, 48)).program))
    assert "sum of" not in text and text.count("kernel over") == 1


def test_vectors_run_along_what_is_read_most() -> None:
    """A reduction over the first of three dimensions, which reads along the second and writes along the third."""
    with building() as b:
        sizes = tuple(map(Index.of, (3, 1365, 128)))
        strides = tuple(map(Index.of, (174720, 1, 1365)))
        b.program.inputs["x0"] = Input("x0", torch.float32, sizes, strides)
        reduce.argmax(named("x0", sizes, torch.float32), 0)
        b.program.outputs.append((b.program.steps[-1].name, (0, 1)))  # type: ignore[union-attr]
    text = str(schedule(b.program))
    assert re.search(r"i\d+:1365 in vectors", text), text


def test_a_transpose_of_few_rows_is_shared_among_threads(tmp_path: Path) -> None:
    """Vectors are the few rows; the long way along memory is cut in slices. The last one is shorter."""
    made = program(lambda x: (views.transpose(x, 0, 1),), torch.randn(12, 40000))
    assert re.search(r"kernel over i\d+:12 in vectors, i\d+p:\d+:", str(schedule(made.program)))
    check_generated([made], [check_passes(made)], tmp_path)


TURNED = [(16, 16), (48, 32), (33, 21), (17, 100), (200, 5), (3, 50)]
TURNED_DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool]


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", TURNED_DTYPES, ids=str)
def test_a_transpose_is_turned_in_registers(dtype: torch.dtype, tmp_path: Path) -> None:
    """Whatever is left of blocks of 16 x 16; what is read in the order of the stores is read as ever."""

    def both(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        f = operator.xor if dtype is torch.bool else lambda a, b: a * 2 - b
        return (pointwise(f, views.transpose(x, 0, 1), y),)

    made = []
    for m, n in TURNED:
        made.append(program(both, numbers(m, n, dtype=dtype), numbers(n, m, dtype=dtype)))
        text = made[-1].written().source
        assert ("turn_block(" in text) == (m > 8 and n > 3)
        assert ("turn_block(" in text) != ("load_strided" in text)
    check_generated(made, list(map(check_passes, made)), tmp_path)


@pytest.mark.parametrize(
    ("rows", "columns", "blocks"), [(1024, 512, 32), (1024, 300, 19), (1000, 512, 0), (1024, 24, 2), (1024, 16, 0)]
)
def test_a_transpose_whose_lines_push_each_other_out_is_written_in_blocks_of_rows(
    rows: int, columns: int, blocks: int, tmp_path: Path
) -> None:
    """Addresses a multiple of 4096 bytes apart share places of the caches, of which the second has 16."""
    made = program(lambda x: (views.transpose(x, 0, 1),), numbers(rows, columns, dtype=torch.float32))
    found = re.search(r"kernel over i\d+p:(\d+), i\d+:1024 in vectors:", str(schedule(made.program)))
    assert (int(found[1]) if found else 0) == blocks
    check_generated([made], [check_passes(made)], tmp_path)


def test_sums_of_columns_are_in_a_kernel_of_their_own_where_rows_are_short() -> None:
    def both(x: Tensor) -> tuple[Tensor, ...]:
        y = pointwise(lambda e: op("lgamma", e), x)  # dear, so that it is kept
        y = define(y.shape, y.dtype, y.at)
        return y, reduce.over("sum", y, [0])

    narrow, wide = (str(schedule(program(both, torch.zeros(shape)).program)) for shape in ((5000, 48), (50, 4800)))
    first, *others = narrow.split("kernel over")[1:]
    assert "lgamma" in first and "sum of" not in first and any("sum of" in k for k in others)
    assert any("lgamma" in k and "sum of" in k for k in wide.split("kernel over"))


def test_what_reads_the_same_elements_shares_a_kernel() -> None:
    def three(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        both = pointwise(lambda a, b: a * b, x, y)
        return both, pointwise(lambda a: a + 1, x), views.transpose(pointwise(lambda a: a - 1, y), 0, 1)

    text = str(schedule(program(three, torch.zeros(40, 40), torch.zeros(40, 40)).program))
    together, turned = text.split("kernel over")[1:]
    assert "mul" in together and "add" in together and "sub" in turned  # which is written in another order


# -- found by random programs ------------------------------------------------------------------------------------------
def numbers(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def negative_quotients(x: Tensor) -> tuple[Tensor, ...]:
    """Loops are cut at a quotient of what may be negative."""
    return (views.constant_pad_nd(views.roll(x, [11], []), [1, 0]),)


def inner_loops_of_one_stage(x: Tensor) -> tuple[Tensor, ...]:
    """Two loops are one in a stage, and cannot be in the stage before it."""
    total = reduce.logsumexp(views.flip(x, [1]), [1], True)
    return pointwise(lambda a, b: op("sigmoid", a - b), x, total), views.constant_pad_nd(total, [1, 1, 1, 1])


def guards_of_vectors(x: Tensor) -> tuple[Tensor, ...]:
    """A guarded value is in registers, as a vector."""
    y = pointwise(lambda e: op("absolute", e), reduce.over("sum", x, [0]))
    z = views.cat([views.unsqueeze(y, 0), views.unsqueeze(pointwise(lambda e: -e, y), 0)], 0)
    return z, y


def first_of_equals(x: Tensor) -> tuple[Tensor, ...]:
    """The first of equal elements, where memory has another order."""
    return reduce.argmax(x, None), reduce.argmin(x, None)


def places_in_registers(x: Tensor) -> tuple[Tensor, ...]:
    """An index that is computed by vectors in the same kernel."""
    y = define(x.shape, x.dtype, lambda i: op("remainder", x.at(i) * x.at(i), constant(2, x.dtype)))
    z = define((*x.shape, Index.of(2)), x.dtype, lambda i: x.at((i[1] * 2 + as_index(y.at(i[:1]), 0, 1),)))
    return y, z


def sums_of_one(x: Tensor) -> tuple[Tensor, ...]:
    """Reductions over dimensions of size 1, and of size 0."""
    one = views.unsqueeze(x, 1)
    nothing = views.slice_(x, 0, 0, 0)
    return (
        reduce.over("sum", one, [1]),
        reduce.argmax(one, 1),
        reduce.over("sum", nothing, [0]),
        views.reshaped(nothing, [x.shape[1], 0]),
        views.repeat(nothing, [2, 1]),
    )


def sums_in_parts(x: Tensor) -> tuple[Tensor, ...]:
    """All that is summed is in the parts, but for a dimension of size 1."""
    return reduce.over("sum", x, [0, 2]), reduce.over("sum", x, [0, 1, 2])


def sums_of_one_element(x: Tensor) -> tuple[Tensor, ...]:
    """All but one element of a sum are zero; the one is in the range for some rows, for all, or for none."""
    columns = x.shape[1]

    def chosen(place: Callable[[Index], Index]) -> Tensor:
        def at(i: tuple[Index, ...]) -> Scalar:
            return guarded(compare_index("eq", i[1], place(i[0])), x.at(i), constant(0, x.dtype))

        return define(x.shape, x.dtype, at)

    places = (lambda i: Index.of(3), lambda i: i * 2 - 5, lambda i: columns - i, lambda i: -i - 1, lambda i: i // 3)
    picked = [reduce.over("sum", chosen(place), [1]) for place in places]
    return *picked, reduce.over("sum", chosen(places[1]), [0, 1])


def sums_chosen_by_elements(x: Tensor) -> tuple[Tensor, ...]:
    """The one element is where another tensor says, if a second condition holds, and may lie outside of the row."""

    def chosen(times: int) -> Tensor:
        def at(i: tuple[Index, ...]) -> Scalar:
            first, second = (x.at((i[0], Index.of(k))) for k in (0, 1))
            place = first if times == 1 else from_index(as_index(first) * times)
            there = op("bit_and", place.equals(from_index(i[1])), op("ne", second, constant(2, torch.int64)))
            return select(there, x.at(i), constant(0, torch.int64))

        return define(x.shape, torch.int64, at)

    return tuple(reduce.over("sum", chosen(times), [1]) for times in (1, 20))


def conditions_of_lanes(x: Tensor) -> tuple[Tensor, ...]:
    """Reductions along memory of what is padded, shifted row by row, or read across."""
    rows, columns = x.shape

    def shifted(by: Callable[[Index], Index], turned: bool = False) -> Tensor:
        def at(i: tuple[Index, ...]) -> Scalar:
            place = i[1] + by(i[0])
            inside = compare_index("lt", place, columns)
            value = x.at((place, i[0]) if turned else (i[0], place))
            value = guarded(inside, value, constant(2, x.dtype))
            return guarded(compare_index("ge", place, Index.of(0)), value, x.at((rows - 1 - i[0], i[1])))

        return define((rows, columns), x.dtype, at)

    padded = (shifted(lambda i: i - 7), shifted(lambda i: Index.of(-3)), shifted(lambda i: 5 - i, turned=True))
    both = [pointwise(lambda a, b: op("maximum", a, b), p, x) for p in padded]
    return *(reduce.over("sum", p, [1]) for p in both), *(reduce.over("maximum", p, [0]) for p in both)


CASES = {
    "negative_quotients": (negative_quotients, numbers(1, 1, 33, 64).permute(3, 2, 0, 1)),
    "inner_loops_of_one_stage": (inner_loops_of_one_stage, numbers(2, 2, 17, 17).permute(0, 3, 2, 1)),
    "guards_of_vectors": (guards_of_vectors, numbers(16, 128, dtype=torch.int32)),
    "first_of_equals": (first_of_equals, numbers(33, 99).t()),
    "places_in_registers": (places_in_registers, numbers(16, dtype=torch.int64)),
    "sums_of_one": (sums_of_one, numbers(5, 17)),
    "sums_in_parts": (sums_in_parts, numbers(33, 64, 1)),
    "sums_of_one_element": (sums_of_one_element, numbers(40, 33)),
    "sums_chosen_by_elements": (sums_chosen_by_elements, numbers(40, 33, dtype=torch.int64)),
    "conditions_of_lanes": (conditions_of_lanes, numbers(37, 37, dtype=torch.float32)),
    "conditions_of_lanes of 16 bits": (conditions_of_lanes, numbers(37, 37, dtype=torch.bfloat16)),
    "conditions_of_lanes of bytes": (conditions_of_lanes, numbers(35, 35, dtype=torch.int8)),
}


SMOOTH = ("inner_loops_of_one_stage",)


def test_a_sum_of_one_chosen_element_is_a_read() -> None:
    function, x = CASES["sums_chosen_by_elements"]
    made = schedule(program(function, x).program).program
    assert not any(d.reduced for d in made.definitions())


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_programs_that_were_wrong(cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if cut:
        for name, value in {"PART": 64, "CHAIN": 16, "LANES": 4}.items():
            monkeypatch.setattr(split, name, value)
    machine = dataclasses.replace(CPU, results=(4, 64)) if cut else CPU
    made = [program(function, x, smooth=name in SMOOTH) for name, (function, x) in CASES.items()]
    made = [dataclasses.replace(p, machine=machine) for p in made]
    check_generated(made, [check_passes(p) for p in made], tmp_path)


if __name__ == "__main__":
    GOLDEN.write_text(softmax_as_text())


def test_the_first_thread_does_not_wait_for_itself(tmp_path: Path) -> None:
    """A long sum in parts of all threads, the sum of these, and what is made of it, which all threads read again."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        total = reduce.over("maximum", x, [0])
        return define((), x.dtype, lambda _: total.at(())), pointwise(lambda a, b: a - b, x, total)

    made = program(function, numbers(300_000, dtype=torch.float32))
    source = made.written().source
    segment = source[source.index("def segment0") :]
    kernels = [line.strip()[:6] for line in segment.splitlines()[1:] if line.strip()]
    assert kernels == ["kernel", "barrie", "kernel", "kernel", "barrie", "kernel"]
    assert source.count("if thread_index() == 0:") == 2
    check_generated([made], [check_passes(made)], tmp_path)
