"""``torch-max-backend verify``: every region and the results of a model, and the stage at fault for a wrong one."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from typer.testing import CliRunner

from tests.diagnostics.verify.injection import inject
from torch_max_backend.capture import graph_passes
from torch_max_backend.cli import app
from torch_max_backend.compile import programs
from torch_max_backend.loops.expr import constant
from torch_max_backend.loops.program import Definition, Program
from torch_max_backend.schedule import plan
from torch_max_backend.schedule.machine import Machine

pytestmark = pytest.mark.sampled

MODELS = """
    import torch
    from torch import nn

    def network():
        torch.manual_seed(0)
        layers = nn.Linear(8, 16), nn.Tanh(), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 4), nn.Softmax(-1)
        return nn.Sequential(*layers), (torch.randn(6, 8),)

    def tanh():
        return torch.tanh, (torch.linspace(-2, 2, 64).reshape(4, 16),)

    def writes():
        def add(x, y):
            x.add_(y)
            return x.sin()
        return add, (torch.ones(4), torch.arange(4.0))

    def in_float32():
        return (lambda x: torch.tanh(x) @ torch.ones(8, 8)), (torch.randn(4, 8),)

    def raises():
        raise RuntimeError("not today")
"""

Command = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Verify a function of ``MODELS``: exit status and JSON, which has ``output`` where there is none."""
    monkeypatch.setenv("TORCH_MAX_BACKEND_EXECUTOR", "auto")
    monkeypatch.setenv("TORCH_MAX_BACKEND_CACHE_DIR", str(tmp_path / "store"))
    (tmp_path / "models.py").write_text(textwrap.dedent(MODELS))
    repros = ("--repro-dir", str(tmp_path / "repros"))

    def call(name: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        all_of_it = ["verify", f"{tmp_path / 'models.py'}:{name}", *repros, "--json", *arguments]
        done = CliRunner().invoke(app, all_of_it)
        return done.exit_code, json.loads(done.stdout) if done.stdout.startswith("{") else {"output": done.output}

    return call


def the_error(found: dict[str, Any]) -> dict[str, Any]:
    (error,) = [region for region in found["regions"] if region["error"]]
    return error


# -- what is right -------------------------------------------------------------------------------------------------
def test_a_training_step_is_right(command: Command) -> None:
    status, found = command("network", "--training")
    assert status == 0, found
    assert found["wrong"] == {} and found["stage"] == ""
    assert len(found["regions"]) >= 2
    assert found["compared"] == 1 + 1 + 3 + 6, "a result, an argument, buffers, gradients"


def test_what_a_function_writes_is_compared(command: Command) -> None:
    status, found = command("writes")
    assert (status, found["compared"], len(found["regions"])) == (0, 3, 1), found


@pytest.mark.any_runner("the user's function raises")
def test_no_answer_is_status_2(command: Command) -> None:
    status, found = command("raises")
    assert status == 2 and "the function raised RuntimeError" in found["output"]
    assert command("missing")[0] == 2


# -- what is wrong in a region -------------------------------------------------------------------------------------
def test_a_wrong_rule_is_named_with_op_and_file(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch)
    status, found = command("network")
    assert status == 1
    region = the_error(found)
    assert region["op"] == "aten.tanh.default"
    assert "the loops are wrong as the rules make them" in region["error"]
    assert Path(region["repro"]).is_file()


def test_a_wrong_pass_of_the_schedule_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_per_cent_more(program: Program, _machine: Machine) -> Program:
        steps = [
            dataclasses.replace(s, body=s.body * constant(1.01, s.dtype)) if isinstance(s, Definition) else s
            for s in program.steps
        ]
        return dataclasses.replace(program, steps=steps)

    monkeypatch.setattr(plan, "unroll_windows", one_per_cent_more)
    status, found = command("tanh")
    told = "the loops are right before the pass one_per_cent_more of the schedule, and wrong behind it"
    assert status == 1 and told in the_error(found)["error"]


def test_a_wrong_kernel_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    build = programs.build_shared_library
    wrong = "= exp("
    monkeypatch.setattr(
        programs, "build_shared_library", lambda source, **how: build(source.replace("= tanh(", wrong), **how)
    )
    status, found = command("tanh")
    assert status == 1
    assert "its loops are right, so the code of kernel 0 of the part is at fault" in the_error(found)["error"]


# -- what is wrong elsewhere ---------------------------------------------------------------------------------------
def sine_for_tanh(gm: fx.GraphModule) -> None:
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.tanh.default):
        node.target = torch.ops.aten.sin.default


def test_a_wrong_graph_pass_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions are right by what the pass made of the graph; what the function returns is not."""
    changed = [*graph_passes.PASSES[:5], sine_for_tanh, *graph_passes.PASSES[5:]]
    monkeypatch.setattr(graph_passes, "PASSES", changed)
    status, found = command("network")
    assert status == 1
    assert found["regions"] and all(region["error"] is None for region in found["regions"])
    assert "elements are wrong" in found["wrong"]["result 0"]
    stage, _, file = found["stage"].partition("; ")
    assert stage == "the graph pass sine_for_tanh"
    before, after = Path(file.split(" has ")[0]).read_text().split("# Behind it")
    assert "aten.tanh" in before and "aten.tanh" not in after


def test_a_function_that_does_not_run_in_float64_has_its_regions_compared(command: Command) -> None:
    status, found = command("in_float32")
    assert status == 0 and found["regions"], found
