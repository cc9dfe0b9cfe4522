"""``mode="reduce-overhead"``: the same results as without it, recorded by MAX and by PyTorch's CUDA graph trees."""

from __future__ import annotations

import concurrent.futures
import gc
import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

MODE = "reduce-overhead"


@pytest.fixture(params=["graph", "program"], autouse=True)
def executor_of_regions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who runs the regions: MAX, which records them itself, or programs."""
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", request.param)
    return request.param


@pytest.fixture
def recordings(caplog: pytest.LogCaptureFixture) -> Callable[[], int]:
    """How many graphs were recorded by MAX or given to PyTorch to record; fails if one could not be."""
    caplog.set_level(logging.INFO, "torch_max_backend")

    def count() -> int:
        messages = [r.getMessage() for r in caplog.records]
        assert not [m for m in messages if m.startswith("no device graph")]
        return sum(m.startswith("recorded ") for m in messages)

    return count


def fast(function: Any, **options: Any) -> Any:
    """The function, compiled to be played back."""
    return torch.compile(function, backend="max_backend", mode=MODE, **options)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 32)).cuda().bfloat16()


def test_results_equal_those_of_the_default_mode(recordings: Callable[[], int]) -> None:
    model = network()
    plain, played = torch.compile(model, backend="max_backend"), fast(model)
    with torch.no_grad():
        inputs = [torch.randn(16, 64, device="cuda", dtype=torch.bfloat16) for _ in range(6)]
        kept = [played(x) for x in inputs]
        for x, y in zip(inputs, kept, strict=True):
            assert torch.equal(y, plain(x))
    assert recordings() == 1


def test_playing_back_leaves_other_calls_alone(recordings: Callable[[], int]) -> None:
    model = network()
    plain, played = torch.compile(model, backend="max_backend"), fast(model)
    with torch.no_grad():
        x = torch.randn(16, 64, device="cuda", dtype=torch.bfloat16)
        expected = model(x)
        for _ in range(3):
            played(x)
        held = [plain(x) for _ in range(50)]
        before = [h.clone() for h in held]
        for _ in range(3):
            y = played(x)
            held += [plain(x) for _ in range(10)]
        torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)
        assert all(torch.equal(h, b) for h, b in zip(held, before, strict=False))


def test_a_cache_is_written_in_place(recordings: Callable[[], int]) -> None:
    def step(cache: torch.Tensor, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, position, x * 2.0)
        return cache.sum(0)

    function = fast(step)
    cache, expected = torch.zeros(32, 64, device="cuda"), torch.zeros(32, 64, device="cuda")
    torch._dynamo.mark_static_address(cache)
    position = torch.zeros(1, dtype=torch.int64, device="cuda")
    for n in range(10):
        x = torch.randn(1, 64, device="cuda")
        position.fill_(n)
        result = function(cache, x, position)
        torch.testing.assert_close(result, step(expected, x, position))
        assert torch.equal(cache, expected)
    assert recordings() in (1, 2)  # two if the allocator gave the first two inputs the same place


def test_a_parameter_that_moves_is_followed() -> None:
    model = network()
    played = fast(model)
    with torch.no_grad():
        x = torch.randn(16, 64, device="cuda", dtype=torch.bfloat16)
        for scale in (1.0, 2.0, 3.0):
            model[0].weight.data = model[0].weight.data.clone() * scale
            for _ in range(3):
                torch.testing.assert_close(played(x), model(x), rtol=2e-2, atol=2e-2)


def test_training_takes_the_same_steps() -> None:
    def train(compiled: Callable[[nn.Module], Any]) -> list[torch.Tensor]:
        model = network()
        function = compiled(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        generator = torch.Generator(device="cuda").manual_seed(1)
        for _ in range(6):
            x = torch.randn(16, 64, device="cuda", dtype=torch.bfloat16, generator=generator)
            loss = function(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    for played, plain in zip(train(fast), train(lambda m: torch.compile(m, backend="max_backend")), strict=True):
        torch.testing.assert_close(played, plain, rtol=1e-5, atol=1e-6)


def test_two_forwards_before_their_backwards() -> None:
    model = network()
    played = fast(model)
    xs = [torch.randn(16, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    for _ in range(4):
        grads = []
        for function in (played, model):
            model.zero_grad()
            results = [function(x).square().mean() for x in xs]
            for r in results:
                r.backward()
            grads.append([p.grad.clone() for p in model.parameters()])  # type: ignore[union-attr]
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


def test_random_numbers_differ_from_call_to_call() -> None:
    played = fast(lambda x: nn.functional.dropout(x, 0.5) * 2.0)
    x = torch.ones(1000, device="cuda")
    results = [played(x) for _ in range(5)]
    assert all(set(r.unique().tolist()) <= {0.0, 4.0} for r in results)
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(results))


def test_every_shape_of_a_dynamic_graph_has_its_recording(
    recordings: Callable[[], int], executor_of_regions: str
) -> None:
    played = fast(lambda x: torch.softmax(x * 2.0, -1), dynamic=True)
    for _ in range(3):
        for n in (3, 5, 8):
            x = torch.randn(n, 64, device="cuda")
            torch.testing.assert_close(played(x), torch.softmax(x * 2.0, -1))
    assert recordings() >= (3 if executor_of_regions == "graph" else 1)  # trees record shapes by themselves


def test_streams_take_turns() -> None:
    model = network()
    played = fast(model)
    streams = [torch.cuda.Stream() for _ in range(2)]
    with torch.no_grad():
        torch.cuda.synchronize()
        for n in range(12):
            with torch.cuda.stream(streams[n % 2]):
                x = torch.randn(16, 64, device="cuda", dtype=torch.bfloat16)
                torch.cuda._sleep(1_000_000)
                y = played(x)
                expected = model(x)
            streams[n % 2].synchronize()
            torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)


def test_memory_is_given_back_when_the_function_dies() -> None:
    x = torch.randn(4096, 4096, device="cuda")

    def use() -> None:
        played = fast(lambda t: torch.softmax(torch.softmax(t, -1) * 5.0, -1).sum(-1))
        for _ in range(4):
            played(x)

    def free_after(uses: int) -> int:
        for _ in range(uses):
            use()
            torch._dynamo.reset()
            gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    free_after(1)
    # Other processes of the test run take memory meanwhile; what this one leaks, it leaks every time.
    lost: list[int] = []
    for _ in range(12):
        lost.append(free_after(1) - free_after(2))
        if lost[-1] < 64 << 20:
            break
    assert lost[-1] < 64 << 20, lost


def test_decoding_with_a_static_cache() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=512, n_positions=128)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).cuda().bfloat16().eval()
    plain, played = torch.compile(model, backend="max_backend"), fast(model)

    def generate(function: Any) -> list[int]:
        cache = transformers.StaticCache(config=config, max_cache_len=64, device="cuda", dtype=torch.bfloat16)
        token = torch.tensor([[7]], device="cuda")
        tokens = []
        for n in range(24):
            position = torch.tensor([n], device="cuda")
            step = function if n else model  # the first one makes the cache's tensors
            logits = step(input_ids=token, past_key_values=cache, cache_position=position, use_cache=True).logits
            token = logits[:, -1:].argmax(-1)
            tokens.append(int(token))
        return tokens

    with torch.no_grad():
        expected = generate(plain)
        assert generate(played) == expected
        assert generate(played) == expected  # with a new cache


def test_a_backward_may_run_again_after_another_forward() -> None:
    model = network()
    played = fast(model)
    x, other = (torch.randn(16, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(4):
        model.zero_grad()
        loss = played(x).square().mean()
        loss.backward(retain_graph=True)
        once = [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]
        played(other)
        model.zero_grad()
        loss.backward()
        for a, p in zip(once, model.parameters(), strict=True):
            torch.testing.assert_close(a, p.grad, rtol=2e-2, atol=2e-2)


def test_other_threads_get_the_same_results() -> None:
    model = network()
    played = fast(model)
    xs = [torch.randn(16, 64, device="cuda", dtype=torch.bfloat16) for _ in range(8)]

    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return played(x)

    expected = [call(x) for x in xs for _ in range(3)][::3]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for y, z in zip(pool.map(call, xs), expected, strict=True):
            torch.testing.assert_close(y, z, rtol=2e-2, atol=2e-2)
