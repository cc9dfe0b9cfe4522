"""Tensors, memory, streams and threads of a GPU: what a call must leave alone, and what it must not wait for."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from tests.loops.test_rounded_operands import DECIDING
from tests.support.harness import STRICT
from torch_max_backend import reports
from torch_max_backend.diagnostics import report

F = torch.nn.functional

LONG = 1_000_000_000
"""Clock cycles for which the GPU is kept busy: about half a second."""


def _compiled(function: Callable[..., Any], fallback: str = "error", **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="max_backend", options={**STRICT, "fallback": fallback, **options})


def _chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y + 1).sigmoid() * x


@contextmanager
def _no_synchronisation() -> Iterator[None]:
    """What torch knows to wait for the device raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


# -- memory --------------------------------------------------------------------------------------------------------
def test_tensors_go_in_and_out_without_a_copy() -> None:
    """Torch allocates no more than the result in a call: inputs are read where they are."""
    x, y = torch.randn(2, 1024, 4096, device="cuda")
    function = _compiled(_chain)
    function(x, y)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = function(x, y)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before <= result.nbytes
    torch.testing.assert_close(result, _chain(x, y), rtol=1.3e-5, atol=1.5e-5)


def test_parameters_are_written_where_they_are() -> None:
    weight = nn.Parameter(torch.randn(64, 256, device="cuda"))
    gradient, place, wanted = torch.randn(64, 256, device="cuda"), weight.data_ptr(), weight.detach().clone()

    @torch.no_grad()
    def step(rate: torch.Tensor) -> None:
        weight.mul_(0.9).sub_(gradient * rate)

    function = _compiled(step)
    for rate in (0.5, 0.25, 0.125):
        function(torch.full((), rate, device="cuda"))
        wanted = wanted * 0.9 - gradient * rate
        assert weight.data_ptr() == place
        torch.testing.assert_close(weight.detach(), wanted, rtol=1.3e-5, atol=1.5e-5)


def test_an_input_is_written_in_place() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * 2

    x, y = torch.randn(2, 33, 65, device="cuda")
    wanted, place = x + y, x.data_ptr()
    result = _compiled(function)(x, y)
    assert x.data_ptr() == place
    assert torch.equal(x, wanted)
    assert torch.equal(result, wanted * 2)


@pytest.mark.parametrize("view", ["columns", "every other", "transposed with gaps", "spread", "one element on"])
def test_inputs_that_are_views(view: str) -> None:
    views = {
        "columns": lambda t: t[:, 1:34],
        "every other": lambda t: t[::2, ::3],
        "transposed with gaps": lambda t: t.t()[3:40],
        "spread": lambda t: t[:1].expand(7, 65),
        "one element on": lambda t: t.view(-1)[1:2561].view(40, 64),
    }
    x = torch.randn(40, 65, device="cuda")
    given = views[view](x)
    torch.testing.assert_close(_compiled(_chain)(given, given), _chain(given, given), rtol=1.3e-5, atol=1.5e-5)


def test_a_view_with_gaps_is_written() -> None:
    x = torch.randn(40, 65, device="cuda")
    wanted = x.clone()
    wanted[:, 1:34] += 1
    _compiled(lambda t: t.add_(1))(x[:, 1:34])
    assert torch.equal(x, wanted)


def test_a_view_that_begins_anywhere_is_written() -> None:
    x = torch.randn(2600, device="cuda")
    wanted = x.clone()
    wanted[1:2561] += 1
    _compiled(lambda t: t.add_(1))(x[1:2561].view(40, 64))
    assert torch.equal(x, wanted)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_parameter_may_begin_anywhere(mode: str) -> None:
    """It is a view, as when all parameters are pieces of one tensor."""
    flat = torch.randn(4097, device="cuda")
    model = nn.Module()
    model.weight = nn.Parameter(flat[1:].view(64, 64), requires_grad=False)
    function = torch.compile(lambda x: torch.tanh(x * model.weight), backend="max_backend", mode=mode)
    x = torch.randn(64, 64, device="cuda")
    for _ in range(3):
        flat.add_(0.5)
        torch.testing.assert_close(function(x), torch.tanh(x * flat[1:].view(64, 64)), rtol=1.3e-5, atol=1.5e-5)


def test_memory_is_given_back_to_torch() -> None:
    """Neither a module nor what it was called with outlives the compiled function; MAX does not keep a share either.

    What MAX keeps is seen in the memory of the whole GPU, so that part needs a run of one process.
    """
    gigabyte = 2**30

    def once() -> tuple[weakref.ref[Any], weakref.ref[Any]]:
        model = nn.Linear(1, 1).cuda()
        model.extra = nn.Parameter(torch.ones(gigabyte // 4, device="cuda"))  # type: ignore[assignment]
        function = _compiled(lambda x: (x + model.extra, model.extra * 2))
        x = torch.ones(gigabyte // 4, device="cuda")
        with torch.no_grad():
            a, b = function(x)
        assert a[-1].item() == 2 and b[0].item() == 2
        return weakref.ref(model), weakref.ref(x)

    def free() -> int:
        gc.collect()
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    before = torch.cuda.memory_allocated()
    once()
    first = free()
    for _ in range(4):
        refs = once()
        left = free()
        assert [r() for r in refs] == [None, None]
        assert torch.cuda.memory_allocated() - before < 2**20
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)) == 1:  # else others take and give at the same time
        assert left > first - gigabyte // 2, f"{(first - left) / gigabyte:.1f} GiB less after four more functions"


# -- order and waiting ---------------------------------------------------------------------------------------------
def test_a_call_does_not_wait_for_the_gpu() -> None:
    """Neither for what the caller has queued nor for what the call itself queues."""
    x, y = torch.randn(2, 1024, 1024, device="cuda")
    function = _compiled(_chain)
    for _ in range(3):
        wanted = function(x, y)
    busy = torch.cuda.Event()
    with _no_synchronisation():
        torch.cuda._sleep(LONG)
        busy.record()
        result = function(x, y)
        waited = busy.query()
    assert not waited, "the call came back after the GPU had done all that was queued before it"
    assert torch.equal(result, wanted)


def test_a_training_step_does_not_wait_for_the_gpu() -> None:
    weight = nn.Parameter(torch.randn(256, 256, device="cuda"))
    x = torch.randn(1024, 256, device="cuda")
    function = _compiled(lambda x: (x * weight.sum(0)).tanh().sum())
    for _ in range(3):
        weight.grad = None
        function(x).backward()
    wanted = weight.grad
    assert wanted is not None
    weight.grad = None
    busy = torch.cuda.Event()
    with _no_synchronisation():
        torch.cuda._sleep(LONG)
        busy.record()
        function(x).backward()
        waited = busy.query()
    assert not waited
    torch.testing.assert_close(weight.grad, wanted)


def test_the_callers_stream_is_respected() -> None:
    """Work before and after a call on a side stream is ordered with it, though MAX has a stream of its own."""
    x, y = torch.zeros(2, 1024, 1024, device="cuda")
    function = _compiled(_chain)
    function(x, y)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    for value in (1.0, 2.0, 3.0):
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG // 10)
            x.fill_(value)
            y.fill_(-value)
            result = function(x, y)
            x.zero_()  # the call has read it by then
            later = result + 1
        side.synchronize()
        full = torch.full((), value, device="cuda")
        wanted = (_chain(full, -full) + 1).expand_as(later)
        torch.testing.assert_close(later, wanted, rtol=1.3e-5, atol=1.5e-5)


def test_two_threads_call_one_function() -> None:
    function = _compiled(_chain)
    inputs = [torch.randn(2, 512, 513, device="cuda") for _ in range(2)]
    function(*inputs[0])
    torch.cuda.synchronize()
    wrong: list[str] = []

    def work(index: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            x, y = inputs[index]
            wanted = _chain(x, y)
            for i in range(100):
                given = function(x, y)
                if not torch.allclose(given, wanted, rtol=1.3e-5, atol=1.5e-5):
                    wrong.append(f"thread {index}, call {i}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# -- which device --------------------------------------------------------------------------------------------------
def test_every_gpu_is_addressed() -> None:
    """The same function on another GPU, also while the first one is torch's current device."""
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip("needs two GPUs")
    function = _compiled(_chain)
    for index in (1, 0, count - 1):
        x, y = torch.randn(2, 33, 65, device=f"cuda:{index}")
        result = function(x, y)
        assert result.device == x.device
        torch.testing.assert_close(result, _chain(x, y), rtol=1.3e-5, atol=1.5e-5)


def test_a_module_moves_to_the_gpu_and_back() -> None:
    model = nn.Sequential(nn.LayerNorm(33), nn.GELU(), nn.LayerNorm(33))
    function = _compiled(model)
    x = torch.randn(4, 33)
    with torch.no_grad():
        wanted = model(x)
        for device in ("cpu", "cuda", "cpu", "cuda"):
            model.to(device)
            given = function(x.to(device))
            assert given.device.type == device
            torch.testing.assert_close(given.cpu(), wanted, rtol=1.3e-5, atol=1.5e-5)


def test_a_number_on_the_host_beside_a_gpu_tensor() -> None:
    x, scale = torch.randn(33, 65, device="cuda"), torch.tensor(0.5)
    function = _compiled(lambda x, s: (x * s).relu() + s, fallback="eager")
    torch.testing.assert_close(function(x, scale), (x * scale).relu() + scale)


def test_positions_that_the_host_computes() -> None:
    """As models do that forget a device, in training, where they are read again behind the forward."""
    table = torch.randn(8, 5, device="cuda", requires_grad=True)

    def function(table: torch.Tensor, x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        places = torch.arange(8)
        near = (places[None] - places[:, None]).abs()
        return F.embedding(near.to(x.device), table).sin() + x[(shift + 1) % 8] * shift.sum()

    x, shift = torch.randn(8, 5, device="cuda"), torch.arange(8)
    report.clear()
    found, wanted = (f(table, x, shift) for f in (_compiled(function), function))
    torch.testing.assert_close(found, wanted)
    assert all(p for r in reports() for p in r.programs)
    given = [torch.autograd.grad(y.square().sum(), table)[0] for y in (found, wanted)]
    torch.testing.assert_close(*given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_decides_is_rounded(dtype: torch.dtype) -> None:
    """But for the places of extremes: of equal ones eager's reductions on a GPU promise none."""
    x, y = (torch.randn(700, 65, device="cuda").to(dtype) for _ in range(2))
    asked = {name: f for name, f in DECIDING.items() if "place" not in name and "argmax" not in name}
    found = _compiled(lambda x, y: [f(x, y) for f in asked.values()], executor="program")(x, y)
    wrong = [name for name, a in zip(asked, found, strict=True) if not torch.equal(a, asked[name](x, y))]
    assert not wrong


def test_an_island_between_two_regions() -> None:
    """Torch's own work is ordered between what MAX does before and after it."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2 + 1).tanh() + 20 * torch.eye(16, device=x.device)
        return (torch.linalg.inv(y) + y).sigmoid() * 2

    x = torch.randn(500, 16, 16, device="cuda")
    report.clear()
    compiled = _compiled(function, fallback="eager", min_block_size=1)
    with pytest.warns(UserWarning, match="linalg"):
        given = compiled(x)
    assert reports()[-1].stats.regions == 2
    for _ in range(20):
        torch.testing.assert_close(given, function(x), rtol=1e-4, atol=1e-4)
        given = compiled(x)


# -- random numbers ------------------------------------------------------------------------------------------------
RANDOM: dict[str, Callable[[torch.Tensor], Any]] = {
    "dropout": lambda x: F.dropout(x + 1, 0.3) * 2,
    "dropout of 16 bits": lambda x: F.dropout(x.bfloat16() + 1, 0.5) * 2,
    "rand and randn": lambda x: (torch.rand_like(x) + x, torch.randn(7, 9, device=x.device) * 2),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()) + 1,
    "randint and randperm": lambda x: (
        torch.randint(0, 9, (33,), device=x.device) + 1,
        torch.randperm(17, device="cuda"),
    ),
    "normal, in place": lambda x: (x + 1).normal_() + 1,
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.filterwarnings("ignore")
def test_random_numbers_are_those_of_eager(name: str) -> None:
    """Of the same seed, and the generator is left in the same state."""
    x = torch.randn(64, 129, device="cuda")
    function = _compiled(RANDOM[name], fallback="eager")
    for seed in (1, 2):
        torch.manual_seed(seed)
        wanted, state = RANDOM[name](x), torch.cuda.get_rng_state()
        torch.manual_seed(seed)
        given = function(x)
        assert torch.equal(torch.cuda.get_rng_state(), state)
        torch.testing.assert_close(given, wanted, rtol=0, atol=0)


# -- errors --------------------------------------------------------------------------------------------------------
def test_indices_out_of_range_are_clamped() -> None:
    """A GPU kernel cannot raise. Torch ends the context with a device-side assertion; here such an index is clamped.

    So no other memory is read, and the process can go on.
    """
    table = torch.randn(10, 8, device="cuda")
    indices = torch.tensor([0, 9, 10, 1000, -1, -(2**40)], device="cuda")
    given = _compiled(lambda i, t: F.embedding(i, t) * 2, check_indices=False)(indices, table)
    assert torch.equal(given, table[indices.clamp(0, 9)] * 2)


@pytest.mark.parametrize("size", [(0, 4), (), (1,), (3, 0, 5)], ids=str)
def test_small_tensors(size: tuple[int, ...]) -> None:
    x = torch.randn(size, device="cuda")
    given = _compiled(_chain)(x, x)
    assert given.shape == x.shape and given.device == x.device
    torch.testing.assert_close(given, _chain(x, x), rtol=1.3e-5, atol=1.5e-5)
