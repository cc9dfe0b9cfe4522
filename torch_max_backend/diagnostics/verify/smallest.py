"""The first wrong node of a region, and the smallest part of the region that is wrong by itself.

Parts are compiled by ``torch.compile`` with this backend, as the file that shows the difference does it. First all of
the region in one go, with every node's value as a result: the first wrong one, in order, has right operands. Then that
node alone, with what is computed before it as torch has it; and if it is right alone, with more and more of what is
before it. Where every value is right once it is asked for, parts before a wrong result are tried in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torch_max_backend.capture.constant_folding import UNINITIALIZED
from torch_max_backend.capture.fake_tensors import tensors_of, value_of
from torch_max_backend.diagnostics.verify.judgement import Difference, judge
from torch_max_backend.diagnostics.verify.references import Values, spreads, values_in_float64, values_in_torch
from torch_max_backend.diagnostics.verify.region_graph import computed, cone, part

log = logging.getLogger("torch_max_backend")


@dataclass(frozen=True)
class Compiled:
    """How parts are compiled: by which options, and whether sizes are symbolic."""

    options: dict[str, Any]
    dynamic: bool

    def __call__(self, function: Any, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The results of ``function``, compiled."""
        compiled = torch.compile(
            function, backend="max_backend", fullgraph=True, dynamic=self.dynamic, options=self.options
        )
        with torch.no_grad():
            return compiled(*inputs)


@dataclass(frozen=True)
class Wrong:
    """A graph that is wrong by itself.

    ``node`` is the one whose value is wrong, ``difference`` of its result ``result``.
    """

    gm: fx.GraphModule
    inputs: list[Any]
    node: fx.Node
    result: int
    difference: Difference


class References:
    """A graph's values in torch, which are computed when they are first asked for."""

    def __init__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
        self.gm, self.inputs = gm, inputs
        self.eager = values_in_torch(gm, inputs)
        self.exact = values_in_float64(gm, inputs)
        self._spreads: Values | None = None

    def spread(self, node: fx.Node) -> torch.Tensor:
        """How far the elements of a node's value move with its rounding."""
        if self._spreads is None:
            self._spreads = spreads(self.gm, self.inputs, self.eager)
        return self._spreads[node.name]

    def difference(self, node: fx.Node, ours: torch.Tensor) -> Difference | None:
        """What is wrong with a value of ``node``, if anything is."""
        eager, exact = self.eager[node.name], self.exact[node.name]
        if getattr(node.target, "overloadpacket", None) in UNINITIALIZED:  # whatever was in memory
            return None
        if node.target is torch.ops.aten._grouped_mm.default and (rows := self._rows(node)) is not None:
            return judge(ours[:rows], eager[:rows], exact[:rows], lambda: self.spread(node)[:rows])
        return judge(ours, eager, exact, lambda: self.spread(node))

    # _grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor
    def _rows(self, node: fx.Node) -> int | None:
        """How many rows of a grouped product torch writes; those behind the last group are whatever was in memory."""
        mat1, mat2, offs = (*node.args, None)[:3]
        ranks = [value_of(m).dim() for m in (mat1, mat2)]  # type: ignore[attr-defined]
        return int(self.eager[offs.name][-1]) if offs is not None and ranks == [2, 3] else None


def results_of(gm: fx.GraphModule) -> list[fx.Node]:
    """The nodes that a graph returns."""
    return list(gm.graph.output_node().args[0])


def wrong_results(gm: fx.GraphModule, inputs: Sequence[Any], compiled: Compiled) -> list[Wrong]:
    """Which of a graph's results are wrong when it is compiled by itself, in order."""
    references = References(gm, inputs)
    found = []
    for k, (node, ours) in enumerate(zip(results_of(gm), compiled(gm, inputs), strict=True)):
        difference = references.difference(node, ours)
        if difference is not None:
            found.append(Wrong(gm, list(inputs), node, k, difference))
    return found


def smallest_wrong_part(
    gm: fx.GraphModule, inputs: Sequence[Any], suspects: Sequence[fx.Node], compiled: Compiled
) -> Wrong | None:
    """The smallest part of a graph that is found wrong by itself; ``None`` if none is.

    Args:
        gm: A region's graph.
        inputs: Its arguments.
        suspects: Nodes of it whose values were wrong when the region was called.
    """
    whole, given = part(gm, [n for n in gm.graph.nodes if n.op == "call_function"], computed(gm))
    own = dict(zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True))
    found = wrong_results(whole, [own[n] for n in given], compiled)
    by_name = {n.name: n for n in computed(gm)}
    candidates = [by_name[w.node.name] for w in found[:1]] or list(suspects)
    values = values_in_torch(gm, inputs)
    for node in candidates:
        smallest = _around(gm, node, values, compiled)
        if smallest is not None:
            return smallest
    if found:
        return found[0]
    again = wrong_results(fx.GraphModule(gm, gm.graph), inputs, compiled)  # code that Dynamo has not seen
    return again[0] if again else None


def _around(gm: fx.GraphModule, node: fx.Node, values: Values, compiled: Compiled) -> Wrong | None:
    """The smallest part that ends in ``node`` and is wrong, as far as steps before it are concerned."""

    def wrong_at(depth: int) -> Wrong | None:
        small, given = part(gm, cone(node, depth), [node])
        found = wrong_results(small, [values[n.name] for n in given], compiled)
        return found[0] if found else None

    right, depth = -1, 0
    while (wrong := wrong_at(depth)) is None:
        if cone(node, depth) == cone(node, depth + 1):
            return None
        right, depth = depth, 2 * depth + 1
    while depth - right > 1:
        middle = (right + depth) // 2
        found = wrong_at(middle)
        if found is None:
            right = middle
        else:
            wrong, depth = found, middle
    return wrong


def has_symbols(gm: fx.GraphModule) -> bool:
    """Whether any size in a graph is symbolic."""
    values = [value_of(n) for n in gm.graph.nodes]
    sizes = [d for v in values for t in tensors_of(v) for d in (*t.shape, *t.stride())]
    return any(isinstance(x, torch.SymInt | torch.SymFloat) for x in (*values, *sizes))
