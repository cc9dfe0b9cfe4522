"""Lowering the chains of ``row_fusion.py``: where each kernel is called, and who gets which of its results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from max.dtype import DType
from max.graph import Dim, TensorValue
from torch import fx

from torch_max_backend.aten_functions.norm.layer_norm import default_eps, finish_all, gradients_of_rows
from torch_max_backend.aten_functions.reduce.softmax import (
    Loss,
    gradient_of_logits,
    losses_beside,
    losses_of_logits,
    nll_loss_of_rows,
)
from torch_max_backend.aten_functions.registry import aten
from torch_max_backend.aten_functions.support.dtypes import max_dtype
from torch_max_backend.aten_functions.support.node_context import out_dtype
from torch_max_backend.aten_functions.support.row_kernels import Normed, NormGradients, RowLosses, row_norm
from torch_max_backend.aten_functions.support.tensor_ops import before_widening, numel, reshape
from torch_max_backend.capture.fake_tensors import tensor_of
from torch_max_backend.lowering.row_fusion import (
    AddedNorm,
    Likelihood,
    LikelihoodGradient,
    NormChain,
    NormGradient,
    OnGpu,
    added_norms,
    likelihood_gradients,
    likelihoods,
    norm_chains,
    norm_gradients,
    rounded_norms,
)
from torch_max_backend.partition.region import Region


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
        slopes = norm_gradients(region, on_gpu)
        self.slopes: dict[fx.Node, NormGradient] = {
            n: s for s in slopes for n in (s.norm, s.add, *s.copies) if n is not None
        }
        norms = norm_chains(region, on_gpu)
        self.norms: dict[fx.Node, NormChain] = {c.last: c for c in norms}
        added = added_norms(region, norms, on_gpu, products_add)
        self.sums: dict[fx.Node, AddedNorm] = {a.add: a for a in added if a.add not in self.slopes}
        self.after_sums = {a.norm for a in self.sums.values()}
        losses = likelihoods(region, on_gpu)
        self.losses: dict[fx.Node, Likelihood] = {c.last: c for c in losses}
        self.losses |= {n: c for c in losses if c.has_kernel for n in (c.largest, c.logarithm) if n is not None}
        gradients = likelihood_gradients(region, on_gpu)
        self.gradients: dict[fx.Node, LikelihoodGradient] = {c.last: c for c in gradients}
        chained = [c.inside for c in norms] + [c.inside for c in losses] + [c.inside for c in gradients]
        self.inside = {node for nodes in chained for node in nodes}
        self.shorter = {n: max_dtype(dtype) for n, dtype in rounded_norms(region, on_gpu).items()}
        self.found: dict[fx.Node, NormGradients] = {}
        self.ready: dict[fx.Node, Normed] = {}
        self.found_losses: dict[fx.Node, RowLosses] = {}
        self.served = (self.norms, self.sums, self.after_sums, self.losses, self.gradients, self.shorter, self.slopes)

    def serves(self, node: fx.Node) -> bool:
        """Whether :meth:`call` lowers this node."""
        return any(node in nodes for nodes in self.served)

    def checked_as(self, node: fx.Node) -> fx.Node:
        """The node whose indices are read where this one is lowered: a loss is computed where its first part is."""
        return self.losses[node].last if node in self.losses else node

    def call(self, node: fx.Node) -> Any:
        """The node's value, or values."""
        if node in self.sums:
            found = self.sums[node]
            x, addend = (before_widening(self._rows(a)) for a in node.args)
            self.ready[found.norm] = normed = self._normed(found.norm, x, addend, out_dtype())
            return reshape(normed.total, self.argument(node.args[0]).shape)
        if node in self.slopes:
            return self._norm_gradient(node, self.slopes[node])
        if node in self.losses:
            return self._of_likelihood(node, self.losses[node])
        if node in self.gradients:
            return self._gradient_of_likelihood(self.gradients[node])
        if node in self.norms:
            source = self.norms[node].source
            normed = self.ready.get(node) or self._normed(node, self._rows(source), None)
            return reshape(normed.y, self.argument(source).shape)
        normed = self.ready.get(node) or self._normed(node, self._rows(node.args[0]), None)
        is_centred = node.target is aten.native_layer_norm.default
        return finish_all([normed.y, normed.mean, normed.rstd] if is_centred else [normed.y, normed.rstd])

    def _of_likelihood(self, node: fx.Node, loss: Likelihood) -> Any:
        """The loss, a row's maximum or its logarithm: the first of them that is asked for has all computed."""
        arguments = Loss(*(self._value(a) for a in loss.last.args[1:]))
        shape = self.shape_of(loss.last.args[0])
        if loss.last not in self.found_losses:
            x = reshape(self.argument(loss.source), shape)
            if loss.has_kernel:
                found = losses_of_logits(x, arguments, max_dtype(tensor_of(loss.last).dtype))
            else:
                assert loss.largest is not None and loss.logarithm is not None, (
                    "a loss without a kernel is made of both"
                )
                found = losses_beside(x, self.argument(loss.largest), self.argument(loss.logarithm), arguments)
            self.found_losses[loss.last] = found
        found = self.found_losses[loss.last]
        if node is loss.last:
            return nll_loss_of_rows(found.loss, shape[1], arguments)
        return reshape(found.largest if node is loss.largest else found.logarithm, self.shape_of(node))

    def _gradient_of_likelihood(self, gradient: LikelihoodGradient) -> TensorValue:
        grad, _, target, _, reduction, ignore_index, total = (self._value(a) for a in gradient.first.args)
        y = gradient_of_logits(
            reshape(self.argument(gradient.source), self.shape_of(gradient.first)),
            self.argument(gradient.opposite),
            self.argument(gradient.logarithm),
            (grad, target, reduction, ignore_index, total),
            has_kernel=gradient.has_kernel,
            pads=gradient.pads,
        )
        return reshape(y, self.shape_of(gradient.last))

    def _norm_gradient(self, node: fx.Node, slope: NormGradient) -> Any:
        """The gradients, with the sum in the place of the first, which only the sum reads; or the sum, or a copy."""
        if node is slope.norm:
            grad, x, _, mean, rstd, weight, _, mask = (self._value(a) for a in node.args)
            addend = None if slope.addend is None else self.argument(slope.addend)
            copy = max_dtype(tensor_of(slope.copies[0]).dtype) if slope.copies else None
            self.found[node] = found = gradients_of_rows(grad, x, mean, rstd, weight, addend, copy)
            return finish_all([found.x, found.weight if mask[1] else None, found.bias if mask[2] else None])
        found = self.found[slope.norm]
        return reshape(found.x if node is slope.add else found.copy, self.shape_of(node))

    def _normed(self, norm: fx.Node, x: TensorValue, addend: TensorValue | None, total: DType | None = None) -> Normed:
        chain = self.norms.get(norm)
        if chain is not None:
            weight = None if chain.weight is None else self.argument(chain.weight)
            return row_norm(x, weight, None, chain.eps, False, addend, chain.is_rounded, total)
        # native_layer_norm(input, normalized_shape, weight, bias, eps), _fused_rms_norm(input, shape, weight, eps)
        weight, *rest, eps = (self._value(a) for a in norm.args[2:])
        bias = rest[0] if rest else None
        eps = default_eps(total or x.dtype) if eps is None else eps
        is_centred = norm.target is aten.native_layer_norm.default
        return row_norm(x, weight, bias, eps, is_centred, addend, total=total, out=self.shorter.get(norm))

    def _rows(self, node: fx.Node) -> TensorValue:
        x = self.argument(node)
        return reshape(x, [numel(x.shape[:-1]), x.shape[-1]])

    def _value(self, argument: Any) -> Any:
        return self.argument(argument) if isinstance(argument, fx.Node) else argument
