"""Calls are judged before they run: what is admitted, what is refused and how, and what runs instead."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.allocations import allocations, bytes_of
from torch_max_backend import Admit, NotAdmittedError, Reject, admission, loaded, reports
from torch_max_backend.admission_control import device_memory, gate
from torch_max_backend.admission_control.asking import AskedError
from torch_max_backend.admission_control.decision import AdmissionError
from torch_max_backend.base.errors import MaxBackendError

AUTO = {"executor": "auto", "compile": "wait"}
MIB = 1 << 20
NOT_COMPILED = r"compiled is .*: expected what torch\.compile"


def softmaxed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Products of matrices with what is computed between them: 3 MiB to allocate as a program, 2 op by op."""
    return ((x @ w).softmax(0) @ w.t()).relu()


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """5 MiB."""
    return torch.randn(256, 1024), torch.randn(1024, 1024)


def compiled_with(function: Any = softmaxed, dynamic: bool = False, **options: Any) -> Any:
    return torch.compile(function, backend="max_backend", dynamic=dynamic, options={**AUTO, **options})


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "torch_max_backend" and r.levelno == logging.WARNING]


# -- asking --------------------------------------------------------------------------------------------------------
def test_a_program_can_ask_before_it_calls() -> None:
    x, w = inputs()
    compiled = compiled_with(memory_budget="100MiB")
    with allocations() as found:
        decision = admission(compiled, x, w)
    assert isinstance(decision, Admit)
    assert (decision.needed, decision.free, decision.device) == (8 * MIB, 100 * MIB, "cpu")
    (estimate,) = decision.estimates
    assert (estimate.arguments, estimate.allocated, estimate.results) == (5 * MIB, 3 * MIB, MIB)
    assert found.peak < MIB, "nothing has run"
    with allocations() as found:
        result = compiled(x, w)
    assert found.peak == estimate.allocated
    torch.testing.assert_close(result, softmaxed(x, w))
    with allocations() as found:
        assert admission(compiled, x, w) == decision
    assert found.peak == 0


def test_without_a_budget_the_device_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = inputs()
    monkeypatch.setattr(device_memory, "free", lambda device: 3 * MIB)
    compiled = compiled_with()
    assert admission(compiled, x, w) == Admit(3 * MIB, 3 * MIB, "cpu", admission(compiled, x, w).estimates)
    monkeypatch.setattr(device_memory, "free", lambda device: 3 * MIB - 1)
    decision = admission(compiled, x, w)
    assert isinstance(decision, Reject)
    assert (decision.needed, decision.free) == (3 * MIB, 3 * MIB - 1)
    assert "must allocate 3.00 MiB on cpu, which has 3.00 MiB free" in decision.reason


@pytest.mark.sampled
def test_asking_takes_keyword_arguments_and_symbolic_sizes() -> None:
    x, w = inputs()
    compiled = compiled_with(dynamic=True, memory_budget="1GiB")
    needed = [admission(compiled, x=x[:rows], w=w).needed for rows in (256, 128, 64)]
    storage = x.untyped_storage().nbytes()
    assert [n - storage - w.nbytes for n in needed] == [3 * MIB, 3 * MIB // 2, 3 * MIB // 4]


@pytest.mark.any_runner("nothing is compiled, or there is no graph")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: softmaxed, NOT_COMPILED),
        (lambda: torch.nn.Linear(2, 2), NOT_COMPILED),
        (lambda: 3, NOT_COMPILED),
        (lambda: compiled_with(lambda x: 3), r"called with 1 argument.* it reached no graph of max_backend"),
    ],
    ids=["a function", "a module", "a number", "compiled without a graph"],
)
def test_asking_of_what_has_no_graph(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(AdmissionError, match=message):
        admission(make(), torch.ones(2))


@pytest.mark.any_runner("nothing runs")
def test_programs_cannot_catch_the_question() -> None:
    """It ends the call whatever the program does with errors of its own."""

    def careful(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * 2
        except Exception:
            return x

    assert isinstance(admission(compiled_with(careful), torch.ones(8)), Admit)
    assert not issubclass(AskedError, Exception)


# -- a budget ------------------------------------------------------------------------------------------------------
def test_what_does_not_fit_runs_op_by_op_and_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    x, w = inputs()
    expected = softmaxed(x, w)
    compiled = compiled_with(memory_budget=str(7 * MIB + MIB // 2))
    decision = admission(compiled, x, w)
    assert isinstance(decision, Reject)
    assert (decision.needed, decision.free) == (8 * MIB, 7 * MIB + MIB // 2)
    for _ in range(3):
        with allocations() as found:
            result = compiled(x, w)
        torch.testing.assert_close(result, expected)
        assert bytes_of(x, w) + found.peak <= 7 * MIB + MIB // 2
    (warning,) = warned(caplog)
    assert "needs 8.00 MiB (5.00 MiB arguments, 3.00 MiB to allocate) on cpu" in warning
    assert "the budget of 7.50 MiB leaves 7.50 MiB; torch runs its ops one by one, which needs 7.00 MiB" in warning
    report = reports()[-1]
    assert [r.reason for r in report.admission.rejected] == [decision.reason]
    assert "rejected: the call needs 8.00 MiB" in report.summary()


def test_what_fits_in_no_way_raises_before_it_begins() -> None:
    x, w = inputs()
    compiled = compiled_with(memory_budget="6MiB")
    with allocations() as found, pytest.raises(torch.OutOfMemoryError) as caught:
        compiled(x, w)
    assert found.peak < MIB // 16, "what compiling needs"
    error = caught.value
    assert isinstance(error, NotAdmittedError) and isinstance(error, MaxBackendError)
    assert (error.needed, error.free) == (8 * MIB, 6 * MIB)
    assert "op by op it needs 7.00 MiB" in str(error)
    assert "memory_budget" in str(error)


def test_strict_mode_raises_whatever_else_would_fit() -> None:
    x, w = inputs()
    compiled = compiled_with(memory_budget=str(7 * MIB + MIB // 2), fallback="error")
    with pytest.raises(torch.OutOfMemoryError, match=r"needs 8\.00 MiB .* budget of 7\.50 MiB leaves 7\.50 MiB"):
        compiled(x, w)


@pytest.mark.any_runner("the budget is looked at")
def test_a_budget_by_its_variable_and_as_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = inputs()
    monkeypatch.setattr(device_memory, "total", lambda device: 10 * MIB)
    monkeypatch.setenv("TORCH_MAX_BACKEND_MEMORY_BUDGET", "60%")
    with pytest.raises(torch.OutOfMemoryError, match=r"budget of 6\.00 MiB"):
        compiled_with()(x, w)


@pytest.mark.any_runner("whoever runs it, memory is the same to the judge")
def test_symbolic_sizes_are_admitted_up_to_the_budget_and_not_beyond() -> None:
    """One compile: calls grow until they are refused, and memory never exceeds the budget."""
    w, budget = torch.randn(1024, 1024), 10 * MIB
    compiled = compiled_with(dynamic=True, memory_budget=str(budget))
    most = 0
    for rows in range(64, 1024, 64):
        x = torch.randn(rows, 1024)
        with allocations() as found:
            try:
                compiled(x, w)
            except torch.OutOfMemoryError:
                break
        most = max(most, bytes_of(x, w) + found.peak)
    assert 0.9 * budget <= most <= budget


@pytest.mark.sampled
@pytest.mark.any_runner("calls are counted")
def test_nothing_is_judged_twice_without_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[tuple[int, ...]] = []
    judge = gate.MemoryGate.judge

    def noted(self: gate.MemoryGate, sizes: tuple[int, ...], arguments: Any) -> Any:
        judged.append(sizes)
        return judge(self, sizes, arguments)

    monkeypatch.setattr(gate.MemoryGate, "judge", noted)
    w = torch.randn(1024, 1024)
    compiled = compiled_with(dynamic=True)
    for rows in (8, 16, 8, 16, 24):
        compiled(torch.randn(rows, 1024), w)
    assert [rows for rows, _ in judged] == [8, 16, 24]
    judged.clear()
    static = compiled_with()
    for _ in range(3):
        static(torch.randn(8, 1024), w)
    assert judged == [()]


@pytest.mark.sampled
def test_a_device_that_is_full_is_told_of_and_the_call_is_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What a device has free is an estimate, too: without a budget the way that needs least is tried."""
    x, w = inputs()
    monkeypatch.setattr(device_memory, "free", lambda device: MIB)
    compiled = compiled_with()
    for _ in range(2):
        torch.testing.assert_close(compiled(x, w), softmaxed(x, w))
    (warning,) = warned(caplog)
    assert "must allocate 3.00 MiB on cpu, which has 1.00 MiB free; torch runs its ops one by one" in warning


# -- what is judged ------------------------------------------------------------------------------------------------
@pytest.mark.any_runner("arguments are counted")
def test_views_and_repeated_arguments_count_once() -> None:
    w = torch.randn(1024, 1024)
    decision = admission(compiled_with(lambda a, b: (a @ b).relu(), memory_budget="1GiB"), w, w.t())
    assert decision.estimates[0].arguments == w.nbytes


@pytest.mark.sampled
@pytest.mark.any_runner("whoever runs it, the estimate holds")
def test_a_backward_frees_what_its_forward_saved() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(m for _ in range(4) for m in (torch.nn.Linear(64, 64), torch.nn.GELU())))
    x = torch.randn(2048, 64)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return layers(x).square().mean()

    compiled = compiled_with(loss, memory_budget="1GiB")
    compiled(x).backward()
    layers.zero_grad()
    count = len(reports())
    with allocations() as found:
        compiled(x).backward()
    forward, backward = (r.admission.estimates[0] for r in reports()[count - 2 :])
    measured = found.peak + bytes_of(layers, x)
    estimated = max(forward.needed, backward.needed)
    assert estimated == pytest.approx(measured, rel=0.1)
    assert backward.arguments > forward.arguments


@pytest.mark.sampled
@pytest.mark.any_runner("programs, which free what they read")
def test_gradients_take_the_memory_of_activations() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(m for _ in range(6) for m in (torch.nn.Linear(256, 256), torch.nn.Tanh())))
    x = torch.randn(256, 256)
    compiled = compiled_with(lambda x: layers(x).square().mean())
    compiled(x).backward()
    layers.zero_grad()
    with allocations() as found:
        loss = compiled(x)
    saved = found.peak
    with allocations() as found:
        loss.backward()
    assert saved >= 6 * x.nbytes
    assert found.peak < bytes_of(layers) / 2


@pytest.mark.sampled
@pytest.mark.any_runner("such a region counts as if torch ran it")
def test_a_region_of_max_counts_op_by_op() -> None:
    x, w = inputs()
    decision = admission(compiled_with(lambda x, w: ((x @ w) + 1).relu(), executor="graph", memory_budget="1GiB"), x, w)
    assert decision.estimates[0].allocated == 2 * MIB


# -- what is loaded ------------------------------------------------------------------------------------------------
def masked(x: torch.Tensor) -> torch.Tensor:
    """A graph with a folded constant of 1 MiB."""
    return x + torch.ones(512, 512).tril()[: x.shape[0]]


def own_graphs(before: int) -> list[Any]:
    return list(loaded().graphs[before:])


@pytest.mark.any_runner("constants are the graph's")
def test_constants_are_given_back_and_loaded_again() -> None:
    x = torch.randn(512, 512)
    compiled = compiled_with(masked)
    expected = compiled(x)
    row = loaded().graphs[-1]
    assert (row.holds, row.is_loaded, row.can_unload, row.loads) == ({"cpu": MIB}, True, True, 0)
    assert loaded().clear() >= MIB
    assert loaded().bytes() == 0 and not loaded().graphs[-1].is_loaded
    torch.testing.assert_close(compiled(x), expected)
    row = loaded().graphs[-1]
    assert row.is_loaded and row.loads == 1
    assert "1 loads after that" in str(loaded()) or loaded().loads > 1


@pytest.mark.sampled
def test_graphs_that_were_not_called_for_longest_make_room() -> None:
    loaded().clear()
    x = torch.randn(512, 512)
    functions = [lambda x, k=k: masked(x) * (k + 2.5) for k in range(3)]
    every = [
        compiled_with(f, memory_budget=str(5 * MIB)) for f in functions
    ]  # a call needs 3, two others fit beside it
    before = len(loaded().graphs)
    for f in every:
        f(x)
    assert [g.is_loaded for g in own_graphs(before)] == [True, True, True]
    tight = compiled_with(lambda x: masked(x) * 7.5, memory_budget=str(4 * MIB))
    every[0](x)  # now it is the second that was not called for longest
    unloads = loaded().unloads
    torch.testing.assert_close(tight(x), masked(x) * 7.5)
    rows = own_graphs(before)
    assert [g.is_loaded for g in rows] == [False, False, True, True], "the second and the third gave theirs back"
    assert loaded().unloads == unloads + 2
    torch.testing.assert_close(every[1](x), functions[1](x))


@pytest.mark.any_runner("graphs are counted")
def test_a_graph_that_is_gone_is_not_counted() -> None:
    compiled = compiled_with(masked)
    compiled(torch.randn(512, 512))
    count = len(loaded().graphs)
    del compiled
    torch._dynamo.reset()
    gc.collect()
    assert len(loaded().graphs) < count


@pytest.mark.sampled
def test_control_flow_op_by_op(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x * 2,))

    x = torch.linspace(0.1, 1, 64)
    compiled = compiled_with(function)
    assert isinstance(admission(compiled, x), Admit)
    monkeypatch.setattr(device_memory, "free", lambda device: 0)
    assert isinstance(admission(compiled, x), Reject)
    for y in (x, -x):
        torch.testing.assert_close(compiled(y), function(y))
