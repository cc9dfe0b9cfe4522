"""Kernels of graphs that are over in microseconds, as where a language model decodes: few of them, and right."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections import Counter
from typing import Any

import pytest
import torch

from tests.codegen.test_emulated_kernels import as_if_large, for_gpu  # noqa: F401
from tests.codegen.test_grid_rows import nests, normalized, numbers
from tests.support.grid_programs import check_emulated
from torch_max_backend.codegen import program_writer
from torch_max_backend.codegen.program_writer import WrittenProgram
from torch_max_backend.compile import programs
from torch_max_backend.loops.attention_of_a_row import attention_of_a_row
from torch_max_backend.loops.expr import Load, cast, constant, select, variables, walk
from torch_max_backend.loops.narrow_products import product_as_loops
from torch_max_backend.loops.rules import pointwise as rules
from torch_max_backend.loops.rules import reduce, views
from torch_max_backend.loops.tensor import Tensor, define, pointwise
from torch_max_backend.schedule import cost, grid_rows_at_once
from torch_max_backend.schedule.equal_definitions import without_equal_definitions
from torch_max_backend.schedule.inline import inline
from torch_max_backend.schedule.late_stores import with_late_stores
from torch_max_backend.schedule.machine import GPU
from torch_max_backend.schedule.plan import schedule

pytestmark = [pytest.mark.any_runner("programs without a graph"), pytest.mark.sampled]


# -- one row -----------------------------------------------------------------------------------------------------------
def test_a_row_its_sums_and_what_reads_them_are_one_kernel() -> None:
    made = for_gpu(lambda x, y: normalized(pointwise(lambda a, b: a + b, x, y)), *[numbers(1, 768)] * 2, smooth=True)
    assert len(nests(made)) == 1
    check_emulated(made)


def test_a_product_in_front_of_a_row_is_for_many_blocks() -> None:
    """One block would compute its elements one after the other."""
    made = for_gpu(lambda x, w: normalized(*product(x, w)), numbers(1, 64), numbers(64, 48), smooth=True)
    first, second = nests(made)
    assert [v.size for v in first.outer] == [48]
    assert second.outer == ()
    check_emulated(made)


def test_a_long_row_is_for_many_blocks() -> None:
    assert len(nests(for_gpu(normalized, numbers(1, 1 << 16), smooth=True))) > 1


def test_a_chain_of_sums_is_kept_where_rows_are_summed() -> None:
    """Each norm of a model reads the sum so far, and not all that was added to it."""

    def function(*layers: Tensor) -> tuple[Tensor, ...]:
        total, found = layers[0], []
        for x in layers[1:]:
            total = rules.add(total, x)
            found += normalized(total)
        return tuple(found)

    made = for_gpu(function, *[numbers(1, 256)] * 21, smooth=True)
    statements = [s for n in nests(made) for stage in n.stages for s in stage.statements]
    read = [len({x.source for x in walk(*s.expressions) if isinstance(x, Load) and x.index}) for s in statements]
    assert 2 <= max(read) <= 12
    check_emulated(made)


# -- products ----------------------------------------------------------------------------------------------------------
def product(*args: Tensor) -> tuple[Tensor, ...]:
    found = product_as_loops(args, {})
    assert found is not None
    return (found,)


def unpacked_product(x: Tensor, w: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """A row times the transpose of a matrix of narrow elements, scaled."""
    dense = pointwise(lambda a, b: cast(cast(a, torch.float32) * b, torch.bfloat16, "round"), w, scale)
    return product(x, views.t(dense))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
def test_a_product_of_a_row_ends_in_what_reads_it(turned: bool, dtype: torch.dtype) -> None:
    """With its bias and what follows, and as many bytes a thread as a word has at least."""
    weight = numbers(96, 320, dtype=dtype).t() if turned else numbers(320, 96, dtype=dtype)

    def function(bias: Tensor, x: Tensor, w: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        done = pointwise(lambda a, b: a + b, *product(bias, x, w), residual)
        return done, reduce.over("sum", done, [-1])

    row = numbers(1, 320, dtype=dtype)
    made = for_gpu(function, numbers(96, dtype=dtype), row, weight, numbers(1, 96, dtype=dtype), smooth=True)
    first, *others = nests(made)
    assert len(others) == 1
    assert first.columns != turned
    assert first.lanes * dtype.itemsize >= 4
    check_emulated(made)


@pytest.mark.parametrize(
    ("depth", "columns", "threads", "rows"),
    [(768, 50257, 32, 8), (2048, 128256, 64, 1), (2048, 2048, 128, 1), (8192, 2048, 256, 1), (1024, 65536, 32, 2)],
)
def test_long_rows_have_small_blocks(depth: int, columns: int, threads: int, rows: int) -> None:
    x = torch.zeros(1, depth).bfloat16()
    w = torch.empty_strided((columns, depth), (depth, 1), dtype=torch.bfloat16, device="meta")
    made = for_gpu(product, x, w.t())
    (nest,) = nests(made)
    assert (nest.threads, nest.rows, nest.lanes) == (threads, rows, 8)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize(
    ("depth", "columns", "threads", "rows"),
    [(2048, 8192, 32, 2), (2048, 2048, 64, 1), (8192, 2048, 64, 1), (2048, 512, 256, 1)],
)
def test_narrow_rows_go_two_by_two(depth: int, columns: int, threads: int, rows: int, dtype: torch.dtype) -> None:
    """The row that both are multiplied with is read and converted once."""
    x, w = torch.zeros(1, depth).bfloat16(), torch.empty(columns, depth, dtype=dtype, device="meta")
    made = for_gpu(unpacked_product, x, w, torch.zeros(columns, 1).bfloat16())
    (nest,) = nests(made)
    assert (nest.threads, nest.rows, nest.lanes, cost.count(nest.outer)) == (threads, rows, 8, columns // 2)
    loads = [x.source for s in nest.stages[0].statements for x in s.body.loads if nest.stages[0].vector in variables(x)]
    assert Counter(Counter(loads).values()) == {2: 2}, "of the row and of the matrix one for each of two"


@pytest.mark.parametrize("siblings", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_two_narrow_rows_at_once(dtype: torch.dtype, siblings: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_rows_at_once, "FEW", 64)
    x = numbers(1, 320, dtype=torch.bfloat16)

    def function(x: Tensor, *args: Tensor) -> tuple[Tensor, ...]:
        found = [unpacked_product(x, w, scale)[0] for w, scale in zip(args[::2], args[1::2], strict=True)]
        return (pointwise(lambda *a: functools.reduce(operator.add, a), *found),)

    matrices = [numbers(96, 320).to(dtype), numbers(96, 1, dtype=torch.bfloat16)] * siblings
    made = for_gpu(function, x, *matrices)  # of integers, whose sums are exact
    assert [cost.count(n.outer) for n in nests(made)] == [48]
    check_emulated(made)


# -- attention ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("groups", [6, 2])
@pytest.mark.parametrize("mask", ["none", "booleans", "floats"])
def test_attention_of_a_row(mask: str, groups: int, dtype: torch.dtype) -> None:
    """Each position of keys and values is read where it lies, for all heads that share it."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 6, 1, 16, generator=generator).to(dtype)
    key, value = (torch.randn(2, groups, 40, 16, generator=generator).to(dtype) for _ in range(2))
    masks = {
        "none": [],
        "booleans": [(torch.arange(40) % 3 > 0).reshape(1, 1, 1, 40)],
        "floats": [torch.randn(2, 1, 1, 40, generator=generator).to(dtype)],
    }[mask]

    def function(*args: Tensor) -> tuple[Tensor, ...]:
        found = attention_of_a_row(*args, enable_gqa=groups != 6)
        assert found is not None
        return (found,)

    made = for_gpu(function, query, key, value, *masks, smooth=True)
    want = torch.nn.functional.scaled_dot_product_attention(query, key, value, *masks, enable_gqa=groups != 6)
    got = made.expected()[0]
    torch.testing.assert_close(got.to(dtype), want, rtol=2e-2 if dtype is torch.bfloat16 else 1e-4, atol=1e-2)
    check_emulated(made)


def test_a_query_for_which_no_key_counts_gives_zeros() -> None:
    x, mask = torch.ones(1, 2, 1, 8), torch.zeros(1, 1, 1, 5, dtype=torch.bool)

    def function(*args: Tensor) -> tuple[Tensor, ...]:
        found = attention_of_a_row(*args)
        assert found is not None
        return (found,)

    (got, *_) = for_gpu(function, x, *[torch.ones(1, 2, 5, 8)] * 2, mask).expected()
    assert torch.equal(got, torch.zeros(1, 2, 1, 8))


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_to_one_key_is_its_value(is_causal: bool) -> None:
    """Except where the score is no number."""
    query, key = torch.ones(1, 4, 1, 8), torch.ones(1, 2, 1, 8)
    query[0, 3, 0, 0] = math.inf
    value = torch.arange(16.0).reshape(1, 2, 1, 8)

    def function(*args: Tensor) -> tuple[Tensor, ...]:
        found = attention_of_a_row(*args, is_causal=is_causal, enable_gqa=True)
        assert found is not None
        return (found,)

    made = for_gpu(function, query, key, value, smooth=True)
    want = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal, enable_gqa=True)
    torch.testing.assert_close(made.expected()[0], want, equal_nan=True)
    assert want[0, 3].isnan().all()
    check_emulated(made)


@pytest.mark.parametrize(
    ("length", "dtype", "kwargs"),
    [
        (2, torch.float32, {}),
        (1, torch.float64, {}),
        (1, torch.float32, {"is_causal": True}),
        (1, torch.float32, {"dropout_p": 0.1}),
    ],
)
def test_other_attention_is_a_library_s(length: int, dtype: torch.dtype, kwargs: dict[str, Any]) -> None:
    def function(*args: Tensor) -> tuple[Tensor, ...]:
        assert attention_of_a_row(*args, **kwargs) is None
        return args[:1]

    query, key = torch.zeros(1, 2, length, 8, dtype=dtype), torch.zeros(1, 2, 5, 8, dtype=dtype)
    for_gpu(function, query, key, key)


# -- launches ----------------------------------------------------------------------------------------------------------
def test_small_kernels_share_a_launch() -> None:
    """Those of equal sizes that do not need each other, whatever stands between them."""

    def function(*args: Tensor) -> tuple[Tensor, ...]:
        sums = reduce.over("sum", args[0], [1])
        return (*(pointwise(lambda a: a + 1, x) for x in args), pointwise(lambda a: a * 2, sums))

    made = for_gpu(function, *(numbers(8, 8) + k for k in range(5)))
    shared = [n for n in nests(made) if len(n.stages[0].statements) > 1]
    assert [len(n.stages[0].statements) for n in shared] == [5]
    check_emulated(made)


def test_what_needs_another_kernel_shares_no_launch_with_it() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        turned = views.permute(pointwise(lambda a: a + 1, x), [1, 0])
        kept = define(turned.shape, turned.dtype, turned.at)
        return pointwise(lambda a: a + 1, x), kept, pointwise(lambda a, b: a * b, kept, y)

    check_emulated(for_gpu(function, numbers(16, 16), numbers(16, 16)))


def test_equal_tensors_are_computed_once() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        masks = [
            define(x.shape, x.dtype, lambda i: select(cast(x.at(i), torch.bool), constant(0.0, x.dtype), x.at(i)))
            for _ in range(3)
        ]
        sums = [reduce.over("sum", m, [1]) for m in masks]
        return (*sums[:2], pointwise(lambda a: a + 1, sums[2]))

    made = for_gpu(function, numbers(4, 6))
    left = without_equal_definitions(made.program)
    assert len(left.steps) == len(made.program.steps) - 4  # two masks and two sums of them
    changed = dataclasses.replace(made, program=left)
    for x, y in zip(changed.expected(), made.expected(), strict=True):
        assert torch.equal(x, y)


# -- channels last -----------------------------------------------------------------------------------------------------
def grouped(x: Tensor) -> tuple[Tensor, ...]:
    """Each group of channels without its mean, over its standard deviation."""
    batch, channels, *space = (int(s.constant) for s in x.shape)
    groups = views.view(x, [batch, 8, channels // 8, *space])
    over = [2, 3, 4]
    count = float(channels // 8 * math.prod(space))
    wide = pointwise(lambda a: cast(a, torch.float32), groups)
    off = pointwise(lambda a, s: a - s / count, wide, reduce.over("sum", wide, over, True))
    squares = reduce.over("sum", pointwise(lambda a: a * a, off), over, True)
    return (views.view(pointwise(lambda a, s: cast(a * s, x.dtype), off, squares), [batch, channels, *space]),)


def test_groups_of_few_channels_are_summed_by_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks with neighbouring groups would each read a few bytes of all lines."""
    x = numbers(2, 16, 12, 12, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    monkeypatch.setattr("torch_max_backend.schedule.split.LARGE", 1)
    made = for_gpu(grouped, x, smooth=True)
    text = str(schedule(made.program, GPU))
    assert "_parts = sum" in text
    assert "neighbours apart" in text
    check_emulated(made)


def test_groups_of_many_channels_are_summed_as_they_lie() -> None:
    x = torch.empty(64, 256, 14, 14, dtype=torch.bfloat16, device="meta").to(memory_format=torch.channels_last)
    assert "_parts" not in str(schedule(for_gpu(grouped, x).program, GPU))


# -- stores ------------------------------------------------------------------------------------------------------------


def test_a_cache_is_written_where_it_is_though_a_library_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As keys are, while the position that they are written to is counted up."""

    def step(cache: torch.Tensor, position: torch.Tensor, new: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        place = torch.arange(1) + position
        position.add_(1)
        cache.index_copy_(1, place, new)
        return query @ cache.transpose(1, 2) + place

    texts: list[str] = []
    write = program_writer.write_program

    def noted(*args: Any, **kwargs: Any) -> WrittenProgram:
        written = write(*args, **kwargs)
        texts.append(written.spec.source)
        return written

    monkeypatch.setattr(programs, "write_program", noted)
    generator = torch.Generator().manual_seed(0)
    cache, want_cache = torch.zeros(2, 2, 300, 64)
    position, want_position = torch.tensor([7]), torch.tensor([7])
    run = torch.compile(step, backend="max_backend", options={"fallback": "error", "executor": "auto", "cache": False})
    for _ in range(2):
        new = torch.randn(2, 1, 64, generator=generator)
        query = torch.randn(2, 70, 64, generator=generator)
        got, want = run(cache, position, new, query), step(want_cache, want_position, new, query)
        torch.testing.assert_close(got, want)
        assert torch.equal(cache, want_cache)
        assert torch.equal(position, want_position)
    assert len(texts) == 1
    assert "op0" in texts[0]
    assert "copy_" not in texts[0]


def test_stores_wait_for_readers() -> None:
    made = for_gpu(lambda n, x: (pointwise(lambda a: a + 1, n), pointwise(lambda a, b: a + b, x, n)), *[numbers(4)] * 2)
    p = made.program
    (added, _), (other, order) = p.outputs
    p = inline(dataclasses.replace(p, outputs=[(other, order)], stores=[("x0", added)]), GPU)
    assert [s.name for s in p.definitions()][-2:] == [added, other]
    assert [s.name for s in with_late_stores(p).definitions()][-2:] == [other, added]
