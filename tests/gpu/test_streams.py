"""Calls from any stream and thread: in order with the caller's work, without waiting for the device."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from tests.support.harness import STRICT

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

LONG = 200_000_000
"""Clock cycles of a kernel that is still running when the host has enqueued what follows: about 100 ms."""

Function = Callable[[torch.Tensor], torch.Tensor]


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1.0


def rows(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.softmax(x, -1) * 3.0, -1)


def warm(function: Function, *shape: int) -> Function:
    """The compiled function, called once."""
    result: Function = torch.compile(function, backend="max_backend", options=STRICT)
    result(torch.zeros(*shape, device="cuda"))
    torch.cuda.synchronize()
    return result


def test_a_call_does_not_wait_for_the_device() -> None:
    add = warm(plus_one, 64)
    x = torch.zeros(64, device="cuda")
    stream = torch.cuda.current_stream()
    torch.cuda._sleep(LONG)
    x.fill_(5.0)
    y = add(x)
    assert not stream.query()
    assert (y == 6.0).all()


def test_a_call_follows_its_own_stream() -> None:
    add, side = warm(plus_one, 4096), torch.cuda.Stream()
    for value in range(5):
        with torch.cuda.stream(side):
            x = torch.zeros(4096, device="cuda")
            torch.cuda._sleep(LONG // 10)
            x.fill_(value)
            y = add(x) * 2.0
        side.synchronize()
        assert (y == 2.0 * (value + 1)).all()


def test_memory_of_an_input_may_be_used_again_at_once() -> None:
    function = warm(rows, 16384, 256)
    for _ in range(5):
        x = torch.randn(16384, 256, device="cuda")
        expected = rows(x)
        y = function(x)
        del x
        torch.full((16384, 256), 9.0, device="cuda")  # torch's allocator gives it the same memory
        torch.testing.assert_close(y, expected)


def test_threads_with_streams_of_their_own() -> None:
    function = warm(rows, 64, 256)
    wrong = []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(200):
                x = torch.randn(64, 256, device="cuda")
                y = function(x)
                if not torch.allclose(y, rows(x), atol=1e-6):
                    wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_output_that_is_read_late_is_not_overwritten_by_a_call_from_another_stream() -> None:
    add = warm(plus_one, 4096)
    other = torch.full((4096,), -50.0, device="cuda")
    for value in range(4):
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        x = torch.full((4096,), float(value), device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            y = add(x)
            torch.cuda._sleep(LONG)
            read = y * 1.0
        del y
        with torch.cuda.stream(second):
            later = [add(other) for _ in range(8)]
        torch.cuda.synchronize()
        assert (read == value + 1).all()
        del later
