"""``compile="background"``: eager until the compiler is done, the compiled graph from then on."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from tests.support.all_to_torch import patience
from torch_max_backend import reports, wait_for_compiles
from torch_max_backend.base.errors import CompileError
from torch_max_backend.compile import compiler as compile_module
from torch_max_backend.diagnostics import report
from torch_max_backend.frontend import background_tracing as background_module
from torch_max_backend.frontend import pipeline

pytestmark = pytest.mark.sampled

COMPILE_S = patience(120.0)


class Gate:
    """Stands in for the compile pool: holds each job until it is opened, or fails it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.held = error, list[tuple[Future[Any], Future[Any]]]()
        self.reached = threading.Event()

    def hold(self, real: Future[Any]) -> Future[Any]:
        shown: Future[Any] = Future()
        self.held.append((real, shown))
        self.reached.set()
        return shown

    def open(self) -> None:
        assert self.reached.wait(COMPILE_S)
        for real, shown in self.held:
            if self.error is None:
                shown.set_result(real.result(COMPILE_S))
            else:
                shown.set_exception(self.error)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Gate:
    gate, submit = Gate(getattr(request, "param", None)), compile_module.submit

    def held(lowered: Any, options: Any) -> Future[Any]:
        return gate.hold(Future() if gate.error else submit(lowered, options))

    monkeypatch.setattr(compile_module, "submit", held)
    assert wait_for_compiles(COMPILE_S)  # of the tests before, whose reports are not counted here
    report.clear()
    return gate


def function(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    state.add_(1)
    keep = torch.rand_like(x) < 0.5
    return (x * keep + state).cos()


def run(compiled: Any, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    state = torch.arange(6.0)
    return compiled(torch.linspace(-2, 2, 6), state), state


def background(tmp_path: Any) -> Any:
    options = {"compile": "background", "fallback": "error", "cache_dir": str(tmp_path)}
    return torch.compile(function, backend="max_backend", options=options)


def test_it_switches_when_the_compiler_is_done(gate: Gate, tmp_path: Any) -> None:
    report.clear()
    compiled = background(tmp_path)
    for seed in (1, 2):
        torch.testing.assert_close(run(compiled, seed), run(function, seed), rtol=0, atol=0)  # eager itself
    assert not wait_for_compiles(0.0)
    assert not reports()
    gate.open()
    assert wait_for_compiles(COMPILE_S)
    (only,) = reports()
    assert only.stats.regions >= 1
    assert only.stats.hits == 0
    torch.testing.assert_close(run(compiled, 3), run(function, 3))

    torch._dynamo.reset()  # now the store has it: nothing is left for the background
    report.clear()
    torch.testing.assert_close(run(background(tmp_path), 4), run(function, 4))
    assert reports()[0].stats.hits == reports()[0].stats.regions
    assert len(gate.held) == 1


@pytest.mark.parametrize("gate", [CompileError("no compiler today")], indirect=True)
def test_a_failure_is_told_once_and_the_function_stays_eager(
    gate: Gate, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = background(tmp_path)
    with caplog.at_level(logging.WARNING, "torch_max_backend"):
        run(compiled, 1)
        gate.open()
        assert wait_for_compiles(COMPILE_S)
        for seed in (2, 3):
            torch.testing.assert_close(run(compiled, seed), run(function, seed), rtol=0, atol=0)
    told = [r.message for r in caplog.records if "no compiler today" in r.message]
    assert len(told) == 1
    assert "stays in eager" in told[0]


def test_a_region_that_is_being_compiled_is_waited_for_without_blocking(gate: Gate, tmp_path: Any) -> None:
    first = background(tmp_path)
    run(first, 1)
    assert gate.reached.wait(COMPILE_S)  # from here on the region's lock is held
    torch._dynamo.reset()
    second = background(tmp_path)
    torch.testing.assert_close(run(second, 2), run(function, 2), rtol=0, atol=0)
    assert not wait_for_compiles(1.0)
    assert len(gate.held) == 1
    gate.open()
    assert wait_for_compiles(COMPILE_S)
    assert len(gate.held) == 1  # the second one took what the first one had compiled
    assert sorted(r.stats.hits for r in reports()) == [0, reports()[0].stats.regions]


# -- tracing in the background -------------------------------------------------------------------------------------
def traced_later(tmp_path: Any, called: Any = function) -> Any:
    if not background_module.TRACING_IS_OF_A_THREAD:
        pytest.skip("this torch cannot run compiled functions while it traces")
    return torch.compile(called, backend="max_backend", options={"compile": "background", "cache_dir": str(tmp_path)})


def test_nobody_waits_for_tracing(gate: Gate, tmp_path: Any) -> None:
    compiled, tracing = traced_later(tmp_path), threading.Event()

    def trace(*args: Any, **kwargs: Any) -> Any:
        assert tracing.wait(COMPILE_S)
        return compile_graph(*args, **kwargs)

    compile_graph = pipeline.compile_graph
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "compile_graph", trace)
        for seed in (1, 2):
            torch.testing.assert_close(run(compiled, seed), run(function, seed), rtol=0, atol=0)
        assert not wait_for_compiles(2.0)
        tracing.set()
        assert gate.reached.wait(COMPILE_S)
    torch.testing.assert_close(run(compiled, 3), run(function, 3))  # traced, and not compiled yet
    gate.open()
    assert wait_for_compiles(COMPILE_S)
    assert "" not in {r.compile_id for r in reports()}
    torch.testing.assert_close(run(compiled, 4), run(function, 4))
    assert len(gate.held) == 1


@pytest.mark.parametrize("gate", [CompileError("no compiler today")], indirect=True)
def test_random_numbers_go_on_while_a_graph_is_traced(gate: Gate, tmp_path: Any) -> None:
    """AOTAutograd by itself puts the generator back at the end of a trace, so that numbers come twice."""
    other = torch.compile(lambda x: x + 1, backend="eager")
    x = torch.linspace(-2, 2, 6)
    other(x)
    torch.manual_seed(0)
    traced_later(tmp_path, lambda x: x.cos().sin())(x)
    got = list[torch.Tensor]()
    while not gate.reached.is_set() and not wait_for_compiles(0.0):
        got.append(torch.rand(()))
        assert other(x).equal(x + 1)  # compiled functions can be called meanwhile
    assert gate.reached.is_set(), "it was not traced"
    gate.open()
    assert wait_for_compiles(COMPILE_S)
    got.extend(torch.rand(()) for _ in range(1000))
    torch.manual_seed(0)
    torch.testing.assert_close(torch.stack(got), torch.rand(len(got)), rtol=0, atol=0)


@pytest.mark.any_runner("a question about Dynamo's graph")
def test_a_torch_that_cannot_run_and_trace_at_once_traces_first(monkeypatch: pytest.MonkeyPatch) -> None:
    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    given = []
    for is_of_a_thread in (True, False):
        monkeypatch.setattr(background_module, "TRACING_IS_OF_A_THREAD", is_of_a_thread)
        given.append(background_module.can_trace_later(gm, [torch.ones(3)]))
    assert given == [True, False]


@pytest.mark.full
def test_a_training_step_before_and_after(tmp_path: Any) -> None:
    report.clear()
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5), torch.nn.Tanh())
    compiled = traced_later(tmp_path, model)

    def gradients(called: Any) -> list[torch.Tensor]:
        model.zero_grad()
        torch.manual_seed(0)
        called(torch.randn(5, 4)).square().sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    for traced in (False, True, True):
        exact = {} if traced else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(gradients(compiled), gradients(model), **exact)
        assert wait_for_compiles(COMPILE_S)
    assert [(r.stats.regions >= 1, r.islands) for r in reports()] == [(True, ())] * 2  # forward and backward
    with torch.inference_mode():
        x = torch.randn(5, 4)
        torch.testing.assert_close(compiled.eval()(x), model(x))
        assert wait_for_compiles(COMPILE_S)
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.any_runner("nothing gets to the partition")
def test_tracing_that_fails_is_told_once(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no tracing today")

    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING, "torch_max_backend"):
        patch.setattr(pipeline, "compile_graph", fail)
        compiled = traced_later(tmp_path)
        run(compiled, 1)
        assert wait_for_compiles(COMPILE_S)
        torch.testing.assert_close(run(compiled, 2), run(function, 2), rtol=0, atol=0)
    (told,) = [r.message for r in caplog.records if "no tracing today" in r.message]
    assert "stays in eager" in told


@pytest.mark.any_runner("nothing gets to the partition")
def test_inputs_that_cannot_be_made_fake_are_told_and_the_call_is_right(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Refuses:
        def __init__(self, **settings: Any) -> None:
            raise RuntimeError("no fake tensors today")

    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING, "torch_max_backend"):
        patch.setattr(background_module, "FakeTensorMode", Refuses)
        compiled = traced_later(tmp_path)
        for seed in (1, 2):
            torch.testing.assert_close(run(compiled, seed), run(function, seed), rtol=0, atol=0)
    assert sum("no fake tensors today" in r.message for r in caplog.records) == 1
    assert wait_for_compiles(5.0)


@pytest.mark.any_runner("a question about Dynamo's graph")
@pytest.mark.parametrize(
    ("called", "later"),
    [
        (lambda x: x.exp(), True),
        (lambda x: torch.ones(x.sum().item() + 4), False),
        (lambda x: x * x.amax().item(), False),
        (lambda x: x.nonzero(), False),
    ],
)
def test_sizes_and_numbers_that_depend_on_values_are_traced_at_once(called: Any, later: bool) -> None:
    answers: list[bool] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        answers.append(background_module.can_trace_later(gm, inputs))
        return gm.forward

    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        torch.compile(called, backend=backend, fullgraph=True)(torch.arange(4))
    assert answers == [later]


@pytest.mark.any_runner("a thread without a graph")
def test_an_idle_thread_does_not_delay_the_end() -> None:
    program = """
import atexit, time
atexit.register(lambda: print(time.time()))  # runs after what is registered later
from torch_max_backend.frontend import background_tracing as background
class Idle(background._Job):
    def __init__(self): pass
    def run(self): print(time.time())
background._enqueue(Idle())
time.sleep(2 * background.QUIET_S)
print(time.time())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    ran, left, end = map(float, done.stdout.split())
    assert ran < left < end < left + background_module.QUIET_S


@pytest.mark.full
def test_what_needs_guards_is_traced_at_once(gate: Gate, tmp_path: Any) -> None:
    """Inputs that share memory, symbolic sizes, and an error that the call promises."""
    base = torch.arange(12.0)
    compiled = traced_later(tmp_path, lambda a, b: a.add_(1).sum() + b)
    compiled(base[:8], base[4:])
    assert gate.reached.is_set()
    torch._dynamo.reset()
    gate.reached.clear()
    compiled = traced_later(tmp_path, lambda a: a.exp() - 1)
    torch._dynamo.mark_dynamic(base, 0)
    compiled(base)
    assert gate.reached.is_set()
    gate.open()
    assert wait_for_compiles(COMPILE_S)
