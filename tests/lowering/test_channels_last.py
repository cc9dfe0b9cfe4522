"""Networks of convolutions, lowered for a GPU: images keep their channels last, and nothing transposes them on the way.

That the results are right is tested on a GPU; what is looked at here are the graphs that MAX gets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from max.graph import Graph, Module, StaticDim
from torch import nn

from torch_max_backend.aten_functions.support.broadcast_analysis import operands_of, shape_of
from torch_max_backend.base.target import Machine
from torch_max_backend.frontend.prebuild import regions_of
from torch_max_backend.lowering.graph_builder import build_graph

SMALL = 4096
"""Up to so many elements, a transpose costs nothing that counts: vectors over channels are turned around."""


def transposes(function: Callable[[torch.device], object], monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Shapes of the large tensors that a function's only region transposes, apart from unread ones."""
    outputs: list[Any] = []
    machine = Machine.parse("cuda:sm_90a")
    with machine.pretended():
        (job,) = regions_of(function, machine.device).jobs.values()
        with monkeypatch.context() as patch:
            finish = Graph.output
            patch.setattr(Graph, "output", lambda graph, *values: outputs.extend(values) or finish(graph, *values))
            build_graph(job.region, "network", Module(), job.settings)
    seen, stack, found = set(), [v._mlir_value for v in outputs], []
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        stack += operands_of(value)
        shape = shape_of(value)
        if "Transpose" in type(value.owner).__name__ and shape is not None:
            sizes = [int(d) if isinstance(d, StaticDim) else 8 for d in shape]
            if torch.Size(sizes).numel() > SMALL:
                found.append(sizes)
    return found


class Block(nn.Module):
    """A stem with a pool, and a bottleneck with a sum around it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16)
        self.wide, self.second = nn.Conv2d(16, 16, 3, 1, 1, groups=4), nn.BatchNorm2d(16)
        self.pool, self.relu = nn.MaxPool2d(3, 2, 1), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.relu(self.first(self.stem(x))))
        x = self.relu(self.second(self.wide(x)) + x)
        x = torch.cat([x, nn.functional.silu(nn.functional.avg_pool2d(x, 3, 1, 1))], 1)
        return x.mean((2, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dynamic", [False, True])
def test_inference_transposes_nothing(dtype: torch.dtype, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(device: torch.device) -> None:
        model = Block().eval().to(device, dtype).to(memory_format=torch.channels_last)
        image = torch.randn(8, 3, 64, 64, device=device, dtype=dtype).to(memory_format=torch.channels_last)
        if dynamic:
            torch._dynamo.mark_dynamic(image, 0)
        with torch.no_grad():
            torch.compile(model, backend="max_backend", fullgraph=True, options={"fallback": "error"})(image)

    assert transposes(run, monkeypatch) == []


def test_torchs_own_layout_is_turned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image and the filters are given with channels first; between convolutions nothing is."""

    def run(device: torch.device) -> None:
        model = Block().eval().to(device, torch.bfloat16)
        image = torch.randn(8, 3, 64, 64, device=device, dtype=torch.bfloat16)
        with torch.no_grad():
            torch.compile(model, backend="max_backend", fullgraph=True, options={"fallback": "error"})(image)

    assert transposes(run, monkeypatch) == [[8, 64 * 64, 3]]
