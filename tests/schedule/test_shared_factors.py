"""What many rows of a small product read is written first, as vectors read it, with what is computed of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.codegen.test_written_source import program
from tests.support.loop_programs import LoopProgram, check_generated, check_passes
from torch_max_backend.loops.expr import Scalar, cast, op
from torch_max_backend.loops.tensor import Tensor, reduce
from torch_max_backend.schedule.machine import GPU
from torch_max_backend.schedule.nest import Nest
from torch_max_backend.schedule.plan import passes, schedule

pytestmark = pytest.mark.any_runner("programs without a graph")


def product(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Rows times rows: a linear without a bias."""
    sizes = x.shape[0], w.shape[0]
    return (reduce("sum", sizes, x.shape[1:], lambda i, r: _wide(x.at((i[0], *r))) * _wide(w.at((i[1], *r)))),)


def product_of_more(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """The same of what is computed of both."""
    return product(
        Tensor(x.shape, x.dtype, lambda i: op("maximum", x.at(i), _negative(x.at(i)))),
        Tensor(w.shape, w.dtype, lambda i: op("neg", w.at(i))),
    )


def _wide(x: Scalar) -> Scalar:
    return cast(x, torch.float32)


def _negative(x: Scalar) -> Scalar:
    return op("neg", x)


def made(function: object, m: int, n: int, k: int, dtype: torch.dtype = torch.float32) -> LoopProgram:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randint(-3, 4, s, generator=generator).to(dtype) for s in ((m, k), (n, k)))
    return program(function, x, w)


def text_of(p: LoopProgram) -> str:
    return str(dict(passes(p.program))["shared_factors"])


@pytest.mark.parametrize(
    ("sizes", "is_copied"),
    [
        ((64, 64, 64), True),
        ((400, 12, 4), True),
        ((16, 64, 64), False),
        ((4, 128, 128), False),
        ((64, 17, 100), False),
        ((1, 0, 4), False),
        ((0, 64, 4), False),
        ((64, 64, 0), False),
    ],
    ids=[
        "many",
        "short sums",
        "few rows",
        "fewer rows",
        "vectors that would be half empty",
        "no columns",
        "no rows",
        "empty sums",
    ],
)
def test_what_is_turned(sizes: tuple[int, int, int], is_copied: bool) -> None:
    p = made(product, *sizes)
    assert ("_factor0" in text_of(p)) is is_copied
    assert "_factor" not in str(dict(passes(p.program, GPU))["shared_factors"])


def test_large_ones_are_read_as_they_lie() -> None:
    assert "_factor" not in text_of(program(product, torch.zeros(8, 1024), torch.zeros(1024, 1024)))


def test_what_is_computed_is_computed_once() -> None:
    first, second = schedule(made(product_of_more, 64, 64, 64).program).steps[-2:]
    assert isinstance(first, Nest) and isinstance(second, Nest)
    assert "neg" in str(first) and "neg" not in str(second)
    assert second.vector is not None and second.rows > 1


@pytest.mark.parametrize("function", [product, product_of_more])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_right(function: object, dtype: torch.dtype, tmp_path: Path) -> None:
    programs = [made(function, *sizes, dtype=dtype) for sizes in ((64, 64, 64), (67, 46, 33), (200, 21, 5))]
    assert all("_factor0" in text_of(p) for p in programs)
    check_generated(programs, [check_passes(p) for p in programs], tmp_path)


def test_a_products_rows_stay_together() -> None:
    """What reads whole rows of a large product is another kernel, of a small one the same."""

    def sums(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        (y,) = product(x, w)
        largest = reduce("maximum", y.shape[:1], y.shape[1:], lambda i, r: y.at((*i, *r)))
        return (largest,)

    for sizes, count in (((64, 64, 64), 3), ((16, 32, 32), 1)):
        assert len(schedule(made(sums, *sizes).program).steps) == count
