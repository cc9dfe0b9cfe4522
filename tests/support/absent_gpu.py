"""Functions of tensors on a GPU, traced where there is none: graphs, plans and loop programs, of which nothing runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_max_backend.base.target import Machine
from torch_max_backend.compile.programs import Program
from torch_max_backend.frontend import pipeline
from torch_max_backend.frontend.prebuild import regions_of
from torch_max_backend.partition.partitioner import Plan

Plans = list[tuple[Plan, dict[int, Program]]]
"""Of each graph how it is cut, and the programs of its regions by position."""


def noted_plans(monkeypatch: pytest.MonkeyPatch) -> Plans:
    """A list that will have what becomes of every graph; each that is cut anew stands in it once more."""
    found: Plans = []
    plan = pipeline._Cut.plan

    def noted(cut: pipeline._Cut) -> tuple[Plan, dict[int, Program]]:
        found.append(plan(cut))
        return found[-1]

    monkeypatch.setattr(pipeline._Cut, "plan", noted)
    return found


def trace(function: Callable[..., Any], *inputs: Callable[[], torch.Tensor]) -> None:
    """Compile ``function`` strictly for programs, up to the kernels, with inputs that are made as fake tensors."""

    def run() -> None:
        options = {"executor": "auto", "fallback": "error"}
        torch.compile(function, backend="max_backend", options=options)(*[make() for make in inputs])

    with Machine.parse("cuda:sm_90a").pretended(), torch.no_grad():
        regions_of(run, "cuda")
