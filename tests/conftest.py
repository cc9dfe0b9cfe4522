"""Shared set-up: the package's calls are type-checked, shapes and devices are fixtures."""

from __future__ import annotations

import os
import warnings

os.environ.setdefault("TORCH_MAX_BACKEND_BEARTYPE", "1")  # before the package is imported
os.environ.setdefault("TORCH_MAX_BACKEND_EXECUTOR", "graph")  # tests of programs ask for them
os.environ.setdefault("MODULAR_DEVICE_CONTEXT_MEMORY_MANAGER_SIZE_PERCENT", "5")  # many processes share a GPU

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.support import all_to_torch
from tests.support.processes import Processes
from tests.support.selection import selection, share_of
from torch_max_backend import get_accelerators
from torch_max_backend.capture import onednn_products
from torch_max_backend.codegen.program_writer import WrittenProgram
from torch_max_backend.compile import programs
from torch_max_backend.frontend.pipeline import OP_BY_OP
from torch_max_backend.partition.partitioner import Plan, _Cut


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--hand-all-to-torch", action="store_true", help="torch runs every op: tests of lowerings fail")
    parser.addoption("--executor", default="auto", choices=["auto", "graph", "program"], help="of tests/gpu")
    parser.addoption("--all-ops", action="store_true", help="all op cases, and not those alone that a change concerns")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hand-all-to-torch"):
        all_to_torch.install()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Say which op cases there are: ``-q`` leaves pytest's own header out."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(session.config, "workerinput"):
        told = "all" if session.config.getoption("--all-ops") else selection().told
        terminal.write_line(f"op cases: {told}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sampled tests are thinned out. Where torch runs every op, a test must fail, or say by a marker why it holds."""
    _thin_out(config, items)
    for item in items:
        marks = list(item.iter_markers("any_runner"))
        if any(not (m.args and isinstance(m.args[0], str)) for m in marks):
            raise pytest.UsageError(f"{item.nodeid}: any_runner wants the reason as a text")
        if not marks and config.getoption("--hand-all-to-torch"):
            item.add_marker(pytest.mark.xfail(strict=True, reason="torch runs every op"))


def _thin_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave of each module's tests that are marked as sampled the share that ``SAMPLED_SHARE`` says."""
    modules: dict[str, list[str]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            modules.setdefault(item.path.name, []).append(item.nodeid)
    drawn = {name for names in modules.values() for name in share_of(names, "SAMPLED_SHARE")}
    is_left_out = {item: bool(item.get_closest_marker("sampled")) and item.nodeid not in drawn for item in items}
    if any(is_left_out.values()):
        config.hook.pytest_deselected(items=[item for item in items if is_left_out[item]])
        items[:] = [item for item in items if not is_left_out[item]]


@pytest.fixture(autouse=True)
def fresh_dynamo(request: pytest.FixtureRequest) -> Iterator[None]:
    """No compiled function of one test is seen by the next, nor by the next run: tests look at tracing and lowering."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        yield
    torch._dynamo.reset()
    for name in ("assume_static_by_default", "automatic_dynamic_shapes"):
        if not getattr(torch._dynamo.config, name):  # all tests after this one would be dynamic, or none of them
            warnings.warn(f"{request.node.nodeid} left torch._dynamo.config.{name} unset", stacklevel=1)
            setattr(torch._dynamo.config, name, True)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Every device that MAX can use: the CPU always, a GPU where there is one."""
    if request.param == "cuda" and not (get_accelerators() and torch.cuda.is_available()):
        pytest.skip("needs a GPU that MAX and torch can use")
    return request.param


@pytest.fixture(params=[(3, 4), (1, 4), (4,), (2, 3, 4), (0, 4), ()], ids=str)
def shape(request: pytest.FixtureRequest) -> tuple[int, ...]:
    """Shapes with and without size 1, size 0 and dimensions."""
    return request.param


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """How graphs are partitioned from here on, a plan for each; without the plan by which torch could run all of it."""
    found: list[Plan] = []
    make = _Cut.plan

    def spy(self: _Cut) -> Plan:
        plan = make(self)
        if not plan.islands or any(island.reason != OP_BY_OP for island in plan.islands):
            found.append(plan)
        return plan

    monkeypatch.setattr(_Cut, "plan", spy)
    return found


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    """Programs in processes of their own."""
    server = Processes()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def quick_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a test starts do not check types: that takes six seconds of each, and this process checks them."""
    monkeypatch.setenv("TORCH_MAX_BACKEND_BEARTYPE", "0")


@pytest.fixture(autouse=True)
def products_by_mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the processor, so that tests of library calls hold on each. Those of oneDNN's products say so."""
    monkeypatch.setattr(onednn_products, "is_faster", lambda: False)
    monkeypatch.setattr(onednn_products, "_threads", lambda: 2)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[WrittenProgram]:
    """Each program that is written."""
    found: list[WrittenProgram] = []
    write = programs.write_program

    def noted(*args: Any) -> WrittenProgram:
        found.append(write(*args))
        return found[-1]

    monkeypatch.setattr(programs, "write_program", noted)
    return found
