"""The picture of a graph has its ops in order, in the colour of who runs them."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.testing import CliRunner

from torch_max_backend.cli import app
from torch_max_backend.diagnostics.dry_run import ISLAND, LIBRARY, LOOP, GraphCoverage, NodeCoverage
from torch_max_backend.diagnostics.graph_plot import COLOURS, LEFT, WIDTH, boxes, svg

MODEL = """
import torch

def make():
    return (lambda x: torch.fft.rfft(torch.tanh(x @ x)).abs().sum(-1).exp()), (torch.randn(8, 8),)
"""
SVG = "{http://www.w3.org/2000/svg}"


def node(runner: str, size: int, op: str = "aten.sin.default", detail: str = "") -> NodeCoverage:
    return NodeCoverage(op, runner, detail, "", size)


@pytest.mark.any_runner("facts that are given")
def test_boxes_are_as_wide_as_their_bytes() -> None:
    nodes = (node(LIBRARY, 300), node(LOOP, 50), node(LOOP, 50), node(ISLAND, 100, "aten.x", "no <lowering>"))
    graph = GraphCoverage("inference", nodes, "")
    found = list(boxes(graph))
    assert [b.runner for b in found] == [LIBRARY, LOOP, ISLAND]
    widths = [b.end - b.begin for b in found]
    assert widths[0] > 2 * widths[1] > widths[2] > 0
    assert found[0].begin == LEFT and found[-1].end <= WIDTH
    assert all(a.end == b.begin for a, b in itertools.pairwise(found))
    assert "2 x aten.sin.default" in found[1].title and "no <lowering>" in found[2].title
    assert "no &lt;lowering&gt;" in svg([graph])


@pytest.mark.any_runner("facts that are given")
def test_a_graph_without_ops() -> None:
    assert ElementTree.fromstring(svg([GraphCoverage("inference", (), "")])) is not None


def test_the_command_writes_it(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    picture, report = tmp_path / "graphs.svg", tmp_path / "report.md"
    command = ["coverage", f"{tmp_path / 'model.py'}:make", "--plot", str(picture)]
    assert CliRunner().invoke(app, command).exit_code == 1, "there are islands"
    rects = ElementTree.parse(picture).getroot().findall(f"{SVG}rect[@data-runner]")
    assert ISLAND in [r.get("data-runner") for r in rects]
    assert {r.get("fill") for r in rects} <= set(COLOURS.values())
    done = CliRunner().invoke(app, ["report", f"{tmp_path / 'model.py'}:make", "-o", str(report)])
    assert done.exit_code == 0 and '<svg xmlns="http' in report.read_text()
