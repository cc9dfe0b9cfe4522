"""Lowering the chains of ``row_chains.py``: where each kernel is called, and who gets which of its results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from max.graph import Dim, TensorValue
from torch import fx

from torch_max_backend.aten_functions.common import numel, reshape
from torch_max_backend.aten_functions.normalization import default_eps, finish_all
from torch_max_backend.aten_functions.registry import aten
from torch_max_backend.aten_functions.rows import Chosen, Normed, row_norm
from torch_max_backend.aten_functions.softmax import (
    choose,
    choose_with,
    nll_loss_of_logits,
)
from torch_max_backend.compiler.row_chains import (
    AddedNorm,
    Likelihood,
    NormChain,
    OnGpu,
    added_norms,
    likelihoods,
    norm_chains,
)
from torch_max_backend.graph.region import Region


class RowLowering:
    """The chains of a region.

    ``inside`` are nodes that need no lowering of their own; ``serves`` tells which are lowered by :meth:`call`.
    """

    def __init__(
        self,
        region: Region,
        on_gpu: OnGpu,
        argument: Callable[[fx.Node], Any],
        shape_of: Callable[[fx.Node], list[Dim]],
        products_add: bool,
    ) -> None:
        self.argument, self.shape_of = argument, shape_of
        norms = norm_chains(region, on_gpu)
        self.norms: dict[fx.Node, NormChain] = {c.last: c for c in norms}
        self.sums: dict[fx.Node, AddedNorm] = {a.add: a for a in added_norms(region, norms, on_gpu, products_add)}
        self.after_sums = {a.norm for a in self.sums.values()}
        losses = likelihoods(region, on_gpu)
        self.losses: dict[fx.Node, Likelihood] = {c.last: c for c in losses}
        self.losses |= {n: c for c in losses if c.has_kernel for n in (c.largest, c.logarithm) if n is not None}
        chained = [c.inside for c in norms] + [c.inside for c in losses]
        self.inside = {node for nodes in chained for node in nodes}
        self.ready: dict[fx.Node, Normed] = {}
        self.chosen: dict[fx.Node, Chosen] = {}
        self.served = (self.norms, self.sums, self.after_sums, self.losses)

    def serves(self, node: fx.Node) -> bool:
        """Whether :meth:`call` lowers this node."""
        return any(node in nodes for nodes in self.served)

    def call(self, node: fx.Node) -> Any:
        """The node's value, or values."""
        if node in self.sums:
            found = self.sums[node]
            x, addend = (self._rows(a) for a in node.args)
            self.ready[found.norm] = normed = self._normed(found.norm, x, addend)
            return reshape(normed.total, self.argument(node.args[0]).shape)
        if node in self.losses:
            return self._of_likelihood(node, self.losses[node])
        if node in self.norms:
            source = self.norms[node].source
            normed = self.ready.get(node) or self._normed(node, self._rows(source), None)
            return reshape(normed.y, self.argument(source).shape)
        normed = self.ready[node]
        is_centred = node.target is aten.native_layer_norm.default
        return finish_all([normed.y, normed.mean, normed.rstd] if is_centred else [normed.y, normed.rstd])

    def _of_likelihood(self, node: fx.Node, loss: Likelihood) -> Any:
        """The loss, a row's maximum or its logarithm: the first of them that is asked for has all computed."""
        target, weight, reduction, ignore_index = (self._value(a) for a in loss.last.args[1:])
        shape = self.shape_of(loss.last.args[0])
        if loss.last not in self.chosen:
            x = reshape(self.argument(loss.source), shape)
            if loss.has_kernel:
                chosen = choose(x, target, ignore_index)
            else:
                assert loss.largest is not None and loss.logarithm is not None, (
                    "a loss without a kernel is made of both"
                )
                chosen = choose_with(
                    x, self.argument(loss.largest), self.argument(loss.logarithm), target, ignore_index
                )
            self.chosen[loss.last] = chosen
        chosen = self.chosen[loss.last]
        if node is loss.last:
            return nll_loss_of_logits(chosen, shape, target, weight, reduction, ignore_index)
        return reshape(chosen.largest if node is loss.largest else chosen.logarithm, self.shape_of(node))

    def _normed(self, norm: fx.Node, x: TensorValue, addend: TensorValue | None) -> Normed:
        chain = self.norms.get(norm)
        if chain is not None:
            weight = None if chain.weight is None else self.argument(chain.weight)
            return row_norm(x, weight, None, chain.eps, False, addend, chain.is_rounded)
        # native_layer_norm(input, normalized_shape, weight, bias, eps), _fused_rms_norm(input, shape, weight, eps)
        weight, *rest, eps = (self._value(a) for a in norm.args[2:])
        bias = rest[0] if rest else None
        eps = default_eps(x.dtype) if eps is None else eps
        return row_norm(x, weight, bias, eps, norm.target is aten.native_layer_norm.default, addend)

    def _rows(self, node: fx.Node) -> TensorValue:
        x = self.argument(node)
        return reshape(x, [numel(x.shape[:-1]), x.shape[-1]])

    def _value(self, argument: Any) -> Any:
        return self.argument(argument) if isinstance(argument, fx.Node) else argument
