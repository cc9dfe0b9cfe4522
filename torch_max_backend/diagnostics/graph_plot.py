"""A picture of graphs: their ops in order, as wide as the bytes that they move, in the colour of who runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

from torch_max_backend.diagnostics.dry_run import HOST, ISLAND, LIBRARY, LOOP, MAX, RUNNERS, TORCH, GraphCoverage

COLOURS = {
    LOOP: "#3b82c4",
    LIBRARY: "#7cb5e0",
    MAX: "#5aa469",
    TORCH: "#b8b8b8",
    ISLAND: "#d9534f",
    HOST: "#e8e8e8",
}
WIDTH, LEFT, ROW, GAP = 960, 90, 34, 14
"""Pixels: of the picture, before a row, of a row's height, and between rows."""
LEAST = 2.0
"""Pixels of an op that moves nothing, so that each can be seen."""


@dataclass(frozen=True)
class Box:
    """A run of ops that one of several runs: where it begins and ends, and what is told of it."""

    runner: str
    begin: float
    end: float
    title: str


def svg(graphs: Sequence[GraphCoverage]) -> str:
    """The graphs as an SVG picture of its own, without fonts or scripts from elsewhere.

    A row is a graph. A box is a run of ops in the same place: its width is the share of the bytes that its ops read and
    give, each as if it ran alone, and its title names the ops, bytes and, for islands, the reasons.
    """
    height = len(graphs) * (ROW + GAP) + GAP + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for k, graph in enumerate(graphs):
        top = GAP + k * (ROW + GAP)
        edge = 'stroke="#ffffff" stroke-width="0.5"'
        lines.append(f'<text x="8" y="{top + ROW / 2 + 4}" fill="#222222">{escape(graph.kind)}</text>')
        for box in boxes(graph):
            lines += [
                f'<rect x="{box.begin:.1f}" y="{top}" width="{box.end - box.begin:.1f}" height="{ROW}" '
                f'fill="{COLOURS[box.runner]}" {edge} data-runner={quoteattr(box.runner)}>',
                f"<title>{escape(box.title)}</title></rect>",
            ]
    return "\n".join([*lines, *_legend(graphs, height - 24), "</svg>"]) + "\n"


def boxes(graph: GraphCoverage) -> Iterator[Box]:
    """The boxes of a graph, from left to right."""
    nodes = graph.nodes
    moved = max(1, sum(n.bytes for n in nodes))
    room = max(0.0, WIDTH - LEFT - 8 - LEAST * len(nodes))
    x = float(LEFT)
    for runner, run in groupby(nodes, lambda n: n.runner):
        group = list(run)
        size = sum(n.bytes for n in group)
        width = LEAST * len(group) + room * size / moved
        ops = {n.op: sum(m.op == n.op for m in group) for n in group}
        told = [f"{RUNNERS[runner]}: {len(group)} op(s), {size} bytes"]
        told += [f"{count} x {op}" for op, count in ops.items()]
        told += dict.fromkeys(n.detail for n in group if n.detail and runner in (ISLAND, TORCH))
        yield Box(runner, x, x + width, "\n".join(told))
        x += width


def _legend(graphs: Sequence[GraphCoverage], top: float) -> Iterator[str]:
    x = LEFT
    there = {n.runner for graph in graphs for n in graph.nodes}
    for runner in (r for r in RUNNERS if r in there):
        yield f'<rect x="{x}" y="{top}" width="12" height="12" fill="{COLOURS[runner]}"/>'
        yield f'<text x="{x + 17}" y="{top + 10}" fill="#222222">{escape(RUNNERS[runner])}</text>'
        x += 34 + 7 * len(RUNNERS[runner])
