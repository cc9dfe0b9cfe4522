"""Generated kernels on a GPU: random loop programs against the interpreter, and compiled functions against eager."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.codegen.test_emulated_kernels import for_gpu
from tests.codegen.test_written_source import CASES, SMOOTH
from tests.support.grid_programs import SMALL, SMALL_GPU, check_on_gpu, moved, on_gpu, programs_for_gpu
from tests.support.loop_programs import LoopProgram
from torch_max_backend import reports, synchronize
from torch_max_backend.base.errors import OutOfRangeError
from torch_max_backend.diagnostics import report

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

OPTIONS = {"fallback": "error", "executor": "program"}
LONG = 100_000_000
"""Clock cycles of a kernel that is still running when the host has enqueued what follows: about 50 ms."""
CHUNK = 40
"""Programs of one test."""
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool,
)  # fmt: skip

Function = Callable[..., Any]


def compiled(function: Function, **how: Any) -> Function:
    """The function as programs alone."""
    torch._dynamo.reset()
    report.clear()
    call = torch.compile(function, backend="max_backend", fullgraph=True, options=OPTIONS, **how)

    def checked(*args: Any) -> Any:
        results = call(*args)
        assert reports() and all(r.stats.programs == r.stats.regions for r in reports())
        return results

    return checked


def agrees(function: Function, *args: torch.Tensor, shift: int = 0) -> None:
    """Eager's results, and its changes of arguments, which begin ``shift`` elements after an aligned place."""
    mine, theirs = ([moved(x, shift) for x in args] for _ in range(2))
    found, wanted = compiled(function)(*mine), function(*theirs)
    torch.testing.assert_close([found, mine], [wanted, theirs], equal_nan=True)


# -- random programs ---------------------------------------------------------------------------------------------------
def check_all(made: list[LoopProgram], folder: Path) -> None:
    """On the GPU, also of inputs that do not begin where vectors do; some of them are written."""
    written = [p.written() for p in made]
    for p, w, run in zip(made, written, on_gpu(written, folder), strict=True):
        for shift in (0, 1):
            check_on_gpu(p, w, run, shift)


@pytest.mark.parametrize(("first", "symbolic"), [(0, False), (CHUNK, False), (200_000, True)])
def test_random_programs(tmp_path: Path, first: int, symbolic: bool) -> None:
    check_all(programs_for_gpu(range(first, first + CHUNK), symbolic), tmp_path)


@pytest.mark.parametrize(("first", "symbolic"), [(100_000, False), (300_000, True)])
def test_random_programs_as_if_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, symbolic: bool
) -> None:
    for module, values in SMALL.items():
        for name, value in values.items():
            monkeypatch.setattr(f"torch_max_backend.schedule.{module}.{name}", value)
    check_all(programs_for_gpu(range(first, first + CHUNK), symbolic, SMALL_GPU), tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("first", [*range(2 * CHUNK, 1000, CHUNK), *range(200_000 + CHUNK, 200_400, CHUNK)])
def test_more_random_programs(tmp_path: Path, first: int) -> None:
    check_all(programs_for_gpu(range(first, first + CHUNK), first >= 200_000), tmp_path)


def test_programs_that_were_wrong_on_a_cpu(tmp_path: Path) -> None:
    check_all([for_gpu(function, x, smooth=name in SMOOTH) for name, (function, x) in CASES.items()], tmp_path)


# -- sizes and dtypes --------------------------------------------------------------------------------------------------
def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, the same for the same shape."""
    x = torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(sum(shape)))
    return x.bool() if dtype is torch.bool else x.abs().to(dtype) if dtype is torch.uint8 else x.to(dtype)


def rows_and_columns(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x + 1, x.sum(-1), x.sum(0), x.amax(-1), x.t().contiguous(), x.flip(0) * 2


@pytest.mark.parametrize("dtype", [d for d in DTYPES if not d.is_floating_point and d is not torch.bool], ids=str)
def test_integers_divided_by_constants(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        few = x.long() & 63
        return [x // 3, x % 7, torch.fmod(x, 5), torch.div(x, 6, rounding_mode="trunc"), few // 3, few % -5]

    ends = torch.tensor([torch.iinfo(dtype).min, torch.iinfo(dtype).max], dtype=dtype)
    agrees(function, torch.cat([numbers(4094, dtype=dtype), ends]))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d is not torch.bool], ids=str)
def test_scatters_with_products_and_extremes(dtype: torch.dtype) -> None:
    """Many threads change the same elements; of products of twos and ones no order is seen."""

    def function(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x.scatter_reduce(0, i, y, how) for how in ("prod", "amax", "amin")]

    draw = torch.Generator().manual_seed(0)
    places = torch.randint(0, 500, (900, 65), generator=draw)
    x, y = (torch.randint(1, 3, (n, 65), generator=draw).to(dtype) for n in (500, 900))
    agrees(function, x, places, y)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    agrees(lambda x: [x.to(d) for d in DTYPES] + [x.any(0), x == x.flip(1)], numbers(70, 200, dtype=dtype))
    if dtype is not torch.bool:
        agrees(rows_and_columns, numbers(70, 200, dtype=dtype))


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (1, 100_003), (100_003, 1), (4099, 515), (128, 64)], ids=str)
def test_sizes(shape: tuple[int, ...]) -> None:
    agrees(rows_and_columns, numbers(*shape))


@pytest.mark.parametrize("columns", [40000, 65536, 131072, 151936])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rows_of_clusters(columns: int, dtype: torch.dtype) -> None:
    """More of them than run at the same time; two reductions, extremes of 16 bits, and numbers that are none."""
    x = torch.randn(40, columns, generator=torch.Generator().manual_seed(columns)).to(dtype)
    x[3, 7], x[5, -1] = float("inf"), float("nan")

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        norm = torch.nn.functional.rms_norm(x.float(), x.shape[-1:])
        low, high = x.amin(-1, True), x.amax(-1, True)
        finite = x.float().clamp(-10, 10)  # of infinite numbers eager's mean is none
        return norm.to(x.dtype), (x.float() - low) / (high - low), torch.var_mean(finite, -1), x.softmax(-1)

    rows = x.cuda().repeat(27, 1)  # long rows of few are cut in parts
    found, wanted = compiled(function)(rows), function(rows)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    for k in range(2):  # rows that are equal have equal results, whichever blocks compute them
        assert torch.equal(found[k][:40].nan_to_num(), found[k][-40:].nan_to_num())


def test_kernels_in_several_parts() -> None:
    """More kernels than one compiler gets."""

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        found = [x]
        for k in range(40):
            x = (x * (k + 2)).roll(k + 1, k % 2).cumsum(k % 2) / (k + 1)
            found.append(x)
        return found

    agrees(function, torch.randn(70, 33, dtype=torch.float64))


def test_no_elements_and_no_dimensions() -> None:
    agrees(lambda x: (x + 1, x.sum(0), x.sum(1), x.t() * 2), numbers(0, 5))
    agrees(lambda x: (x + 1, x.sum(), x.reshape(1, 1) * 2), numbers())
    agrees(lambda x, y: (x + 1, x.sum(1) + y), numbers(5, 0), numbers())


def test_strides_and_gaps() -> None:
    wide = numbers(64, 130)
    for x in (wide.t(), wide[:, ::2], wide[:, 1:], wide[3:, 5:77].t(), wide[:1].expand(40, 130), wide[0, 3:]):
        agrees(lambda x: (x * 2 + 1, x.sum(-1), x.sum(0)), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("shift", [0, 1, 3])
def test_places_that_are_not_aligned(dtype: torch.dtype, shift: int) -> None:
    def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y).mul_(2)
        return x.sum(0)

    agrees(writes, numbers(9, 32, dtype=dtype), numbers(9, 32, dtype=dtype), shift=shift)
    agrees(writes, numbers(9, 64, dtype=dtype)[:, ::2], numbers(32, 9, dtype=dtype).t(), shift=shift)


def test_symbolic_sizes() -> None:
    call = compiled(lambda x: (torch.softmax(x, -1), x.sum(0), x.t() + 1), dynamic=True)
    for shape in ((2, 3), (4096, 3), (7, 4099), (512, 512)):
        x = torch.randn(shape, device="cuda")
        torch.testing.assert_close(call(x), (torch.softmax(x, -1), x.sum(0), x.t() + 1), rtol=1e-4, atol=1e-4)
    assert len(reports()) == 1


def test_more_elements_than_32_bits_count() -> None:
    size = 2**31 + 2**20 + 5
    if torch.cuda.mem_get_info()[0] < 5 * size:
        pytest.skip("needs 11 GB of a GPU's memory")
    x = torch.ones(size, dtype=torch.int8, device="cuda")
    x[-3:] = torch.tensor([5, 7, 11], dtype=torch.int8)
    y = compiled(lambda x: x * 3 + 1)(x)
    assert y[-4:].tolist() == [4, 16, 22, 34]
    assert bool((y[: 1 << 30] == 4).all()) and bool((y[1 << 30 : -3] == 4).all())
    del y
    assert int(compiled(lambda x: x.sum())(x)) == size - 3 + 23
    tall = x[: size // 5 * 5].view(5, -1)
    assert torch.equal(compiled(lambda x: x.amax(0))(tall), tall.amax(0))


# -- streams, threads, devices, graphs ---------------------------------------------------------------------------------
def rows(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 3.0, -1) + x.sum(0)


def test_a_call_follows_its_own_stream() -> None:
    call, sides = compiled(rows), [torch.cuda.Stream() for _ in range(3)]
    call(torch.randn(64, 4096, device="cuda"))
    for value in range(6):
        with torch.cuda.stream(sides[value % 3]):
            x = torch.zeros(64, 4096, device="cuda")
            torch.cuda._sleep(LONG // 5)
            x.fill_(value)
            y = call(x) * 1.0
        sides[value % 3].synchronize()
        torch.testing.assert_close(y, rows(torch.full((64, 4096), float(value), device="cuda")))


def test_a_call_does_not_wait() -> None:
    call = compiled(rows)
    call(torch.randn(64, 64, device="cuda"))
    torch.cuda.synchronize()
    torch.cuda._sleep(10 * LONG)
    call(torch.zeros(64, 64, device="cuda"))
    assert not torch.cuda.current_stream().query()


def test_other_threads() -> None:
    """Of which CUDA's driver knows nothing when they call."""
    call, x = compiled(rows), torch.randn(64, 512, device="cuda")
    wanted, found = call(x), []
    threads = [threading.Thread(target=lambda: found.extend(call(x) for _ in range(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80 and all(torch.equal(y, wanted) for y in found)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device_is_the_current_one() -> None:
    for of, current in ((1, 0), (0, 1)):
        x = torch.randn(64, 512, device=f"cuda:{of}")
        with torch.cuda.device(current):
            y = compiled(rows)(x)
            assert y.device == x.device and torch.cuda.current_device() == current
            torch.testing.assert_close(y, rows(x))


def test_torchs_graphs_record_a_call() -> None:
    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.add_(x.sum(0))
        return rows(x)

    run = compiled(call)
    x, y = torch.randn(64, 512, device="cuda"), torch.zeros(512, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        run(x, y)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        result = run(x, y)
    for seed in range(3):
        new = torch.randn(64, 512, generator=torch.Generator().manual_seed(seed)).cuda()
        x.copy_(new)
        y.zero_()
        graph.replay()
        torch.testing.assert_close(result, rows(new))
        torch.testing.assert_close(y, new.sum(0), rtol=1e-4, atol=1e-4)


# -- indices out of range ----------------------------------------------------------------------------------------------
def call_and_wait(call: Function, *args: torch.Tensor) -> None:
    """The call itself tells of an index if the GPU is done before the host."""
    call(*args)
    synchronize()


def test_an_index_out_of_range_is_told_and_the_process_goes_on() -> None:
    x, good = torch.arange(36.0, device="cuda").reshape(9, 4), torch.tensor([0, 8, -9, 3], device="cuda")
    call = compiled(lambda x, i: (x[i], x.take(i)))
    for bad in (9, -10):
        torch.testing.assert_close(call(x, good), (x[good], x.take(good)))
        synchronize()
        indices = torch.tensor([1, bad, 2, 3], device="cuda")
        with pytest.raises(OutOfRangeError, match=f"index {bad} is out of bounds for dimension 0 with size 9"):
            call_and_wait(call, x, indices)
    torch.testing.assert_close(call(x, good), (x[good], x.take(good)))
    synchronize()


def test_a_message_has_the_size_of_the_call() -> None:
    call = compiled(lambda x, i: x.take(i), dynamic=True)
    for size in (5, 7):
        x, indices = torch.zeros(size, 4, device="cuda"), torch.tensor([0, 4 * size], device="cuda")
        with pytest.raises(OutOfRangeError, match=f"access index {4 * size} on a tensor of {4 * size} elements"):
            call_and_wait(call, x, indices)


def test_without_checks_an_index_is_moved_into_range() -> None:
    torch._dynamo.reset()
    call = torch.compile(lambda x, i: x[i], backend="max_backend", options={**OPTIONS, "check_indices": False})
    x = torch.arange(9.0, device="cuda")
    assert call(x, torch.tensor([0, 20, -30], device="cuda")).tolist() == [0.0, 8.0, 0.0]
    synchronize()


# -- gradients ---------------------------------------------------------------------------------------------------------
def test_gradients() -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.nn.functional.layer_norm(x, (256,), w).sigmoid() * x).square().mean()

    grads = []
    for function in (compiled(loss), loss):
        x, w = (numbers(*shape).cuda().requires_grad_() for shape in ((128, 256), (256,)))
        function(x, w).backward()
        grads.append((x.grad, w.grad))
    torch.testing.assert_close(*grads)
