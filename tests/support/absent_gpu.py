"""Functions of tensors on a GPU, traced where there is none: graphs, plans and loop programs, of which nothing runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_max_backend.base.target import Machine
from torch_max_backend.frontend.prebuild import regions_of


def trace(function: Callable[..., Any], *inputs: Callable[[], torch.Tensor]) -> None:
    """Compile ``function`` strictly for programs, up to the kernels, with inputs that are made as fake tensors."""

    def run() -> None:
        options = {"executor": "auto", "fallback": "error"}
        torch.compile(function, backend="max_backend", options=options)(*[make() for make in inputs])

    with Machine.parse("cuda:sm_90a").pretended(), torch.no_grad():
        regions_of(run, "cuda")
