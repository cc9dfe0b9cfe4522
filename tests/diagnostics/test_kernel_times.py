"""The option ``profile``: a range for every kernel, and the table that is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torch_max_backend import kernel_times, reports
from torch_max_backend.codegen.program_writer import WrittenProgram
from torch_max_backend.diagnostics import kernel_times as kernel_times_module
from torch_max_backend.diagnostics.kernel_times import KernelTimes, Row
from torch_max_backend.loops import small_products
from torch_max_backend.runtime.profiler_ranges import label, parsed

Programs = list[WrittenProgram]


@pytest.fixture(autouse=True)
def _no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_times_module, "copy_speed", lambda: (1e9, "a test"))
    monkeypatch.setattr(small_products, "SMALL", 0)  # products are a library's


def three_kernels(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.softmax(x + 1, -1) @ w
    return (y * 2).sum(0), torch.relu(y).sum(-1) + y.sum()


def compiled(function: Callable[..., Any], profile: bool, **more: Any) -> Callable[..., Any]:
    options = {"executor": "auto", "fallback": "error", "profile": profile}
    return torch.compile(function, backend="max_backend", options=options, **more)


def profiled(function: Callable[[], Any], calls: int) -> Any:
    function()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(calls):
            function()
    return profile


X, W = torch.randn(32, 48), torch.randn(48, 16)


def test_there_is_a_row_for_every_kernel() -> None:
    call = compiled(three_kernels, profile=True)
    profile = profiled(lambda: call(X, W), calls=3)
    torch.testing.assert_close(call(X, W), three_kernels(X, W))
    times, report = kernel_times(profile), reports()[-1]
    kernels = [row for row in times.rows if row.kind == "kernel"]
    assert sum(row.launches for row in kernels) == 3 * report.launches
    assert sum(row.bytes_moved or 0 for row in kernels) == pytest.approx(report.bytes_moved, rel=1e-3)
    (library,) = [row for row in times.rows if row.kind == "library"]
    assert (library.name, library.launches, library.bytes_moved) == ("ATen aten.mm.default", 3, None)
    (between,) = [row for row in times.rows if row.kind == "between"]
    assert between.launches == 3
    (softmax,) = [row for row in kernels if "softmax" in row.name]
    assert softmax.name == "kernel0 add,softmax"
    assert softmax.bytes_moved == pytest.approx(4 * 2 * 32 * 48, rel=1e-3)  # exponentials stay in a thread's memory
    assert softmax.bytes_per_second == pytest.approx(softmax.bytes_moved * 3 / softmax.seconds)
    assert times.share_of_copy(softmax) == pytest.approx(softmax.bytes_per_second / 1e9)
    names = [event.key for event in profile.key_averages()]
    assert f"max_backend::kernel0 add,softmax [{4 * 2 * 32 * 48 / 1000:.4g} KB]" in names


def test_without_the_option_a_call_does_no_more(written: Programs) -> None:
    for profile in (False, True):
        torch._dynamo.reset()
        compiled(three_kernels, profile)(X, W)
    plain, ranged = written
    assert "profiler_range" not in plain.spec.source
    assert len(plain.spec.segments) < plain.spec.launches, "kernels that follow each other are one call"
    assert len(ranged.spec.segments) == ranged.spec.launches == plain.spec.launches
    assert ranged.spec.source.count("with profiler_range(") == ranged.spec.launches + 1
    assert ranged.spec.bytes_moved == plain.spec.bytes_moved


def test_bytes_are_those_of_the_sizes_of_a_call() -> None:
    call = compiled(lambda x: torch.softmax(x, -1), profile=True, dynamic=True)
    for rows in (64, 200):
        x = torch.randn(rows, 300)
        times = kernel_times(profiled(lambda x=x: call(x), calls=2))
        (kernel,) = [row for row in times.rows if row.kind == "kernel"]
        assert kernel.bytes_moved == pytest.approx(4 * 3 * rows * 300, rel=1e-3)
    assert len(reports()[-1].programs) == 1


def test_ops_that_torch_runs_have_a_row() -> None:
    options = {"executor": "auto", "profile": True, "torch_executed_ops": ["aten.flip"], "min_block_size": 1}
    call = torch.compile(lambda x: (x * 2).flip(0).sin(), backend="max_backend", options=options)
    times = kernel_times(profiled(lambda: call(X), calls=2))
    (island,) = [row for row in times.rows if row.kind == "torch"]
    assert (island.name, island.launches) == ("torch aten.flip.default", 2)


@pytest.mark.any_runner("nothing is compiled")
def test_a_profile_without_kernels_says_what_to_do() -> None:
    with pytest.raises(ValueError, match='"profile": True'):
        kernel_times(profiled(lambda: X.sin(), calls=1))


@pytest.mark.any_runner("a table of rows that are given")
def test_the_table_has_shares() -> None:
    rows = (
        Row("kernel", "kernel0 add", 4, 2e-3, 250_000),
        Row("library", "ATen aten.mm.default", 2, 1e-3),
        Row("region", "region1", 2, 1e-3),
    )
    times = KernelTimes(rows, copy_bytes_per_second=1e9)
    assert times.seconds == pytest.approx(4e-3)
    assert times.share_of_copy(rows[0]) == pytest.approx(0.5)
    assert times.share_of_copy(rows[1]) is None
    lines = str(times).splitlines()
    assert "a copy moves 1 GB/s (measured now)" in lines[0]
    (kernel,) = [line for line in lines if "kernel0 add" in line]
    assert [cell.strip() for cell in kernel.strip("│ ").split("│")] == [
        "kernel0 add", "4", "500.0", "50.0%", "250 KB", "0.5", "50%",
    ]  # fmt: skip
    assert any("region1 (MAX graph)" in line for line in lines)


@pytest.mark.any_runner("labels")
@pytest.mark.parametrize(
    ("moved", "text"),
    [(None, ""), (0, " [0 B]"), (999, " [999 B]"), (3_145_728, " [3.146 MB]"), (2 * 10**9, " [2 GB]")],
)
def test_a_label_tells_the_bytes(moved: int | None, text: str) -> None:
    assert label("kernel3 softmax,add", moved) == "max_backend::kernel3 softmax,add" + text
    name, found = parsed(label("kernel3 softmax,add", moved))
    assert name == "kernel3 softmax,add"
    assert found == (None if moved is None else pytest.approx(moved, rel=1e-3))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.activation = nn.Linear(48, 48), nn.Softmax(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.inner(x))


def test_kernels_are_inside_the_module_that_they_belong_to() -> None:
    """Forward and backward, with kernels, library calls and what is outside of all modules."""
    model = nn.Sequential(Block(), Block())
    call = compiled(lambda x: model(x).cumsum(0), profile=True)
    profile = profiled(lambda: call(X).sum().backward(), calls=2)
    inside: dict[str, set[str]] = {}
    for event in profile.events():
        parent = event.cpu_parent
        if event.name.startswith("max_backend::kernel") or ("aten." in event.name and event.name.startswith("max_")):
            name = parent.name.removeprefix("max_backend::") if parent is not None else ""
            inside.setdefault(name, set()).add(parsed(event.name)[0].split(" ", 1)[1])
    assert any("softmax" in name for name in inside["module 0.activation"])
    assert any("softmax" in name for name in inside["module 1.activation"])
    assert any("mm" in name for name in inside["module 0.inner"])
    assert any("softmax_backward_data" in name for name in inside["module 0.activation"])
    assert any("cumsum" in name for name in inside["program0"]), "no module of the user's has it"
    rows = kernel_times(profile).rows
    assert not any("module" in row.name for row in rows)


def test_what_a_pass_makes_is_in_the_module_of_what_it_replaces(written: Programs) -> None:
    """Softmaxes and norms are written anew before forward and backward are cut."""
    for last in (nn.Softmax(-1), nn.LayerNorm(48)):
        torch._dynamo.reset()
        compiled(nn.Sequential(nn.Linear(48, 48), last), profile=True)(X).sum().backward()
    for program in written:
        kernels = [line for line in program.spec.source.splitlines() if "profiler_range('kernel" in line]
        assert kernels and all(line.strip().startswith("with module_range('") for line in kernels)
