"""One spelling of a cross-entropy: what is written is read again, whoever wrote it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from torch_max_backend.capture.cross_entropy import GRADIENT, LOG_PROBABILITIES, Step, read, readers_of, write

aten = torch.ops.aten


def log_probabilities(x: torch.Tensor) -> torch.Tensor:
    distance = x - x.amax(1, keepdim=True)
    return distance - distance.exp().sum(1, keepdim=True).log()


def with_two_exponentials(x: torch.Tensor) -> torch.Tensor:
    largest = x.amax(1, keepdim=True)
    return (x - largest) - (x - largest).exp().sum(1, keepdim=True).log()


def of_columns(x: torch.Tensor) -> torch.Tensor:
    distance = x - x.amax(0, keepdim=True)
    return distance - distance.exp().sum(0, keepdim=True).log()


def last_of(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> fx.Node:
    """What gives the result of a function, traced as AOTAutograd traces it."""
    (node,) = make_fx(function)(*inputs).graph.output_node().all_input_nodes
    return node


@pytest.mark.parametrize(
    ("program", "is_one"), [(log_probabilities, True), (with_two_exponentials, False), (of_columns, False)]
)
def test_a_program_that_spells_it_out(program: Callable[[torch.Tensor], torch.Tensor], is_one: bool) -> None:
    found = read(last_of(program, torch.randn(3, 4)), LOG_PROBABILITIES)
    assert bool(found) is is_one
    if is_one:
        assert found["x"].op == "placeholder"
        assert found["largest"].target is aten.amax.default
        assert readers_of("distance", LOG_PROBABILITIES, found) == {found["exponentials"], found["logarithms"]}


@pytest.mark.parametrize(
    ("steps", "given"), [(LOG_PROBABILITIES, ["x"]), (GRADIENT, ["x", "opposite", "logarithm", "first"])]
)
def test_what_is_written_is_read(steps: tuple[Step, ...], given: list[str]) -> None:
    wide, narrow = torch.randn(3, 4), torch.randn(3, 1)
    inputs = [wide if name in ("x", "first") else narrow for name in given]
    gm = make_fx(lambda *tensors: tensors, tracing_mode="fake")(*inputs)
    placeholders = gm.graph.find_nodes(op="placeholder")
    with gm.graph.inserting_before(gm.graph.output_node()):
        written = write(gm, steps, dict(zip(given, placeholders, strict=True)), placeholders[0])
    assert read(written[steps[-1].name], steps) == written
    assert not read(written[steps[0].name], steps)
