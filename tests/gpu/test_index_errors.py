"""Indices out of range on a GPU: the program is told which, where and of what op, and goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.support.harness import STRICT
from torch_max_backend import compile_together, synchronize
from torch_max_backend.base.errors import OutOfRangeError
from torch_max_backend.options import resolve

ROWS, COLUMNS = 4, 3
Function = Callable[[torch.Tensor, torch.Tensor], Any]


def written_slice(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    """A cache that is written where it is."""
    x.index_copy_(0, i, torch.ones(2, COLUMNS, device=x.device))
    return x + 1


pytestmark = pytest.mark.xdist_group("index_errors")  # they share what is compiled

OF_ROWS = "is out of bounds for dimension 0 with size 4"
OPS: dict[str, tuple[Function, tuple[int, ...], str, str]] = {
    # name: function, shape of the index, op, what eager says (after the index, where it is named first)
    "index": (lambda x, i: x[i], (2,), "aten.index.Tensor", OF_ROWS),
    "index_two": (lambda x, i: x[i, i * 0], (2,), "aten.index.Tensor", OF_ROWS),
    "index_put": (lambda x, i: x.index_put((i,), x[0]), (2,), "aten.index_put.default", OF_ROWS),
    "index_put_sum": (lambda x, i: x.index_put((i,), x[0], accumulate=True), (2,), "aten.index_put.default", OF_ROWS),
    "index_select": (lambda x, i: x.index_select(0, i), (2,), "aten.index_select.default", "out of range in self"),
    "index_add": (lambda x, i: x.index_add(0, i, x[:2]), (2,), "aten.index_add.default", OF_ROWS),
    "index_copy": (lambda x, i: x.index_copy(0, i, x[:2]), (2,), "aten.index_copy.default", OF_ROWS),
    "index_copy_in_place": (written_slice, (2,), "aten.index_copy.default", OF_ROWS),
    "gather": (lambda x, i: x.gather(0, i), (2, 3), "aten.gather.default", OF_ROWS),
    "scatter": (lambda x, i: x.scatter(0, i, 1.0), (2, 3), "aten.scatter.value", OF_ROWS),
    "scatter_add": (lambda x, i: x.scatter_add(0, i, x), (2, 3), "aten.scatter_add.default", OF_ROWS),
    "take": (lambda x, i: x.take(i * 3), (2,), "aten.take.default", "on a tensor of 12 elements."),
    "embedding": (lambda x, i: F.embedding(i, x), (2,), "aten.embedding.default", "out of range in self"),
    "cross_entropy": (lambda x, i: F.cross_entropy(x.t(), i), (3,), "aten.nll_loss_forward.default", "Target"),
    "nll_loss": (lambda x, i: F.nll_loss(x.t(), i), (3,), "aten.nll_loss_forward.default", "Target"),
}


def takes_int32(name: str) -> bool:
    """Whether torch, of whatever version, does so."""
    function, shape, *_ = OPS[name]
    try:
        function(torch.ones(ROWS, COLUMNS), torch.zeros(shape, dtype=torch.int32))
    except (IndexError, RuntimeError):
        return False
    return True


INT32 = [
    name
    for name in ("index", "index_put", "index_select", "index_add", "index_copy_in_place", "embedding")
    if takes_int32(name)
]
CASES = [(name, dtype) for name in OPS for dtype in (torch.int64, torch.int32) if dtype is torch.int64 or name in INT32]
WRAPS = ("index", "index_two", "index_put", "index_put_sum", "take")
FAR = 10**6


def compiled(name: str, dtype: torch.dtype, **options: Any) -> Function:
    torch._dynamo.reset()
    mode = options.pop("mode", None)
    kind = {"mode": mode} if mode else {"options": {**STRICT, **options}}
    return torch.compile(OPS[name][0], backend="max_backend", fullgraph=True, dynamic=False, **kind)


def inputs(name: str, dtype: torch.dtype, bad: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor and indices, one of which may be bad."""
    index = torch.ones(OPS[name][1], dtype=dtype)
    index.view(-1)[0] = 3 if bad is None else bad
    return torch.arange(12.0, device="cuda").reshape(ROWS, COLUMNS), index.cuda()


def run_and_wait(run: Callable[..., Any], *given: torch.Tensor) -> None:
    """A call and all that the GPU does for it, which raises at the end of the call if the GPU was quick."""
    run(*given)
    synchronize()


@pytest.fixture(scope="module", autouse=True)
def compiled_together() -> None:
    """All of it in few modules, with and without checks."""
    for check in (True, False):
        with compile_together(resolve({**STRICT, "check_indices": check})), torch.no_grad():
            for name, dtype in CASES:
                compiled(name, dtype, check_indices=check)(*inputs(name, dtype))


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No test leaves an error to the next one."""
    synchronize()
    yield
    synchronize()


@pytest.mark.parametrize("bad", [5, -7, FAR, -FAR])
@pytest.mark.parametrize(("name", "dtype"), CASES)
@torch.no_grad()
def test_it_is_raised_and_the_next_call_works(name: str, dtype: torch.dtype, bad: int) -> None:
    function, _, op, words = OPS[name]
    run = compiled(name, dtype)
    with pytest.raises(OutOfRangeError) as error:
        run_and_wait(run, *inputs(name, dtype, bad))
    text = str(error.value)
    index = bad * 3 if name == "take" else bad
    assert words in text.splitlines()[0] and f"{op} was given the index {index} for a size of" in text
    assert "test_index_errors.py:" in text
    synchronize()
    wanted, given = function(*inputs(name, dtype)), run(*inputs(name, dtype))
    torch.testing.assert_close(given, wanted)


@pytest.mark.parametrize("name", OPS)
@torch.no_grad()
def test_the_last_ones_are_in_range(name: str) -> None:
    for index in (0, ROWS - 1, *((-1, -ROWS) if name in WRAPS else ())):
        run, given = compiled(name, torch.int64), inputs(name, torch.int64, index)
        torch.testing.assert_close(run(*given), OPS[name][0](*inputs(name, torch.int64, index)))
        synchronize()


@pytest.mark.parametrize("name", [n for n in OPS if n not in WRAPS])
@torch.no_grad()
def test_a_negative_one_is_out_of_range_where_eager_says_so(name: str) -> None:
    with pytest.raises(OutOfRangeError):
        run_and_wait(compiled(name, torch.int64), *inputs(name, torch.int64, -1))


@pytest.mark.parametrize("bad", [5, -7, FAR, -FAR])
@pytest.mark.parametrize(("name", "dtype"), CASES)
@torch.no_grad()
def test_without_checks_nothing_is_raised_and_nothing_breaks(name: str, dtype: torch.dtype, bad: int) -> None:
    run = compiled(name, dtype, check_indices=False)
    run(*inputs(name, dtype, bad))
    synchronize()
    torch.testing.assert_close(run(*inputs(name, dtype)), OPS[name][0](*inputs(name, dtype)))


@torch.no_grad()
def test_the_next_call_raises_without_waiting() -> None:
    run, given = compiled("embedding", torch.int64), inputs("embedding", torch.int64, 5)
    run(*inputs("embedding", torch.int64))  # which traces it
    torch.cuda._sleep(10**9)  # so that the next call is over before the GPU finds anything
    run(*given)
    torch.cuda.synchronize()  # torch's own knows nothing of it
    with pytest.raises(OutOfRangeError, match="index 5 "):
        run(*inputs("embedding", torch.int64))
    run(*inputs("embedding", torch.int64))


@torch.no_grad()
def test_many_are_as_one() -> None:
    """Every thread finds one, and one of them reports it."""
    x, index = torch.randn(1000, 768, device="cuda"), torch.full((20_000,), 1000, device="cuda")
    run = torch.compile(lambda x, i: F.embedding(i, x), backend="max_backend", dynamic=False, options=STRICT)
    with pytest.raises(OutOfRangeError, match="index 1000 for a size of 1000"):
        run_and_wait(run, x, index)
    synchronize()
    torch.testing.assert_close(run(x, index - 1), F.embedding(index - 1, x))


@torch.no_grad()
def test_sizes_may_vary() -> None:
    run = torch.compile(lambda x, i: x[i] + F.embedding(i, x), backend="max_backend", dynamic=True, options=STRICT)
    for rows in (5, 9):
        x, index = torch.randn(rows, 8, device="cuda"), torch.arange(rows, device="cuda").flip(0)
        torch.testing.assert_close(run(x, index), x[index] * 2)
        index[rows // 2] = rows
        with pytest.raises(OutOfRangeError, match=f"index {rows} for a size of {rows}"):
            run_and_wait(run, x, index)


@pytest.mark.parametrize("name", ["embedding", "index_put", "index_copy_in_place", "cross_entropy"])
@torch.no_grad()
def test_recordings_report_as_well(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torch_max_backend")
    run = compiled(name, torch.int64, mode="reduce-overhead")
    x, index = inputs(name, torch.int64)
    for _ in range(4):
        run(x, index)
    synchronize()
    assert any(r.getMessage().startswith("recorded ") for r in caplog.records)
    for bad in (5, -7):
        index.view(-1)[0] = bad
        with pytest.raises(OutOfRangeError, match=f"index {bad} "):
            run_and_wait(run, x, index)
        index.view(-1)[0] = 3
        run(x, index)
        synchronize()


def test_a_training_step_reports_and_the_next_is_right() -> None:
    table = torch.randn(ROWS, 8, device="cuda", requires_grad=True)

    def loss(index: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.embedding(index, table), target)

    def step(index: torch.Tensor, target: torch.Tensor) -> None:
        run(index, target).backward()
        synchronize()

    run = torch.compile(loss, backend="max_backend", dynamic=False, options=STRICT)
    index, target = torch.tensor([0, 3, 2], device="cuda"), torch.tensor([7, 0, 1], device="cuda")
    for bad, good in ((torch.tensor([0, 4, 2], device="cuda"), target), (index, target + 1)):
        with pytest.raises(OutOfRangeError):
            step(bad, good)
        synchronize()
        table.grad = None
    step(index, target)
    (wanted,) = torch.autograd.grad(loss(index, target), table)
    torch.testing.assert_close(table.grad, wanted)


@torch.no_grad()
def test_calls_on_another_stream() -> None:
    run, side = compiled("gather", torch.int64), torch.cuda.Stream()
    run(*inputs("gather", torch.int64))
    given = inputs("gather", torch.int64, 5)
    side.wait_stream(torch.cuda.current_stream())
    for _ in range(2):
        with pytest.raises(OutOfRangeError, match="index 5 "), torch.cuda.stream(side):
            run_and_wait(run, *given)


@torch.no_grad()
def test_caches_that_one_kernel_writes() -> None:
    def written(k: torch.Tensor, v: torch.Tensor, i: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        k.index_copy_(2, i, a * 2)
        v.index_copy_(2, i, a + 1)
        return k + v

    run = torch.compile(written, backend="max_backend", dynamic=False, options=STRICT)
    a = torch.randn(1, 2, 1, 8, device="cuda")
    for position, is_bad in ((3, False), (16, True), (-1, True), (15, False)):
        caches = torch.zeros(2, 1, 2, 16, 8, device="cuda")
        given = *caches, torch.tensor([position], device="cuda"), a
        if is_bad:
            with pytest.raises(OutOfRangeError, match=rf"index_copy_\(\): index {position} is out of .* with size 16"):
                run_and_wait(run, *given)
        else:
            run_and_wait(run, *given)
            torch.testing.assert_close(caches[:, :, :, position], torch.stack([a * 2, a + 1])[:, :, :, 0])
