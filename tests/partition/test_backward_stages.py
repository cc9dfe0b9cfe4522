"""A backward is cut into stages, so that activations are freed before it ends."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import fx, nn

from torch_max_backend.compile.compiler import put_off
from torch_max_backend.partition import backward_stages
from torch_max_backend.partition.partitioner import Plan


class Tied(nn.Module):
    """Layers between a table and its transpose, whose two gradients are made at the two ends of a backward."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(83, 32)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + torch.tanh(layer(norm(x)))
        return x @ self.table.weight.t()


def gradients(function: nn.Module, model: nn.Module, tokens: torch.Tensor) -> list[torch.Tensor]:
    function(tokens).square().mean().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_backward_in_stages(monkeypatch: pytest.MonkeyPatch, plans: list[Plan]) -> None:
    monkeypatch.setattr(backward_stages, "STAGE_BYTES", 10_000)
    model, tokens = Tied(3), torch.randint(83, (4, 9))
    with put_off():  # nothing of it depends on the compiler
        gradients(torch.compile(model, backend="max_backend", options={"fallback": "error"}), model, tokens)
    forward, backward = plans
    assert len(forward.regions) == 1
    assert len(backward.regions) > 2
    kept = [{p.node for p in region.inputs} for region in backward.regions]
    saved = {n for n in kept[0] if n.op == "placeholder" and not n.name.startswith("primals")}
    assert any(all(n not in later for later in kept[1:]) for n in saved), "nothing is freed after the first stage"
    last = {n.name for n in backward.regions[-1].nodes}
    (table,) = (n for n in last if n.startswith("embedding_dense_backward"))
    assert any(n.startswith("mm") for n in last), f"the other part of {table} was made before, and kept"


def test_readers_outside_a_region_are_seen_once_each() -> None:
    """Each of them by two ways from the one before: as many ways as 2 to the power of their number."""
    graph = fx.Graph()
    first = node = graph.placeholder("tangents_1")
    for _ in range(64):
        node = graph.call_function(torch.ops.aten.add.Tensor, (node, node.graph.call_function(torch.neg, (node,))))
    inside = [graph.call_function(torch.neg, (node,)) for _ in range(3)]
    assert backward_stages._last_reads(graph, {n: k for k, n in enumerate(inside)})[first] == 2


@pytest.mark.full
def test_gradients_in_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backward_stages, "STAGE_BYTES", 10_000)
    model, tokens = Tied(3), torch.randint(83, (4, 9))
    copied = copy.deepcopy(model)
    wanted = gradients(copied, copied, tokens)
    given = gradients(torch.compile(model, backend="max_backend", options={"fallback": "error"}), model, tokens)
    torch.testing.assert_close(given, wanted)


@pytest.mark.full
def test_small_backward_stays_whole(plans: list[Plan]) -> None:
    model, tokens = Tied(1), torch.randint(83, (4, 9))
    gradients(torch.compile(model, backend="max_backend", options={"fallback": "error"}), model, tokens)
    assert [len(plan.regions) for plan in plans] == [1, 1]
