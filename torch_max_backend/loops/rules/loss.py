"""Losses that torch does not take apart: negative log-likelihood, forward and backward."""

from __future__ import annotations

import torch

from torch_max_backend.loops.expr import Scalar, as_index, cast, compare_index, constant, from_index, select
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.rules.reduce import over, pointwise_of
from torch_max_backend.loops.rules.registry import aten, rule
from torch_max_backend.loops.tensor import Shape, Tensor, checked_index, computed_in, define, pointwise

OUT_OF_BOUNDS = "Target {index} is out of bounds."
MEAN, SUM = 1, 2
"""Torch's numbers of reductions; with 0 there is none."""


def _class_dim(x: Tensor) -> int:
    """Where the classes are: the only dimension of a vector, else the second."""
    return 0 if x.rank == 1 else 1


def _target_at(target: Tensor, index: Shape) -> Scalar:
    """The class of an element; that of a vector is a number, or the only one of a vector."""
    return cast(target.at(index if target.rank == len(index) else (Index.of(0),) * target.rank), torch.int64)


class _Classes:
    """The class of every element of a loss, and what follows from it."""

    def __init__(self, x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> None:
        self.x, self.target, self.weight, self.ignore_index = x, target, weight, ignore_index
        self.dim, self.compute = _class_dim(x), computed_in(x.dtype)
        self.shape = tuple(s for d, s in enumerate(x.shape) if d != self.dim)

    def _place(self, index: Shape) -> tuple[Scalar, Index]:
        """Whether an element is ignored, and its class, which is checked if it is not."""
        number = _target_at(self.target, index)
        ignored = number.equals(self.ignore_index)
        counted = select(ignored, constant(0, torch.int64), number)
        return ignored, checked_index(counted, self.x.shape[self.dim], OUT_OF_BOUNDS)

    def weight_at(self, index: Shape) -> Scalar:
        """The weight of an element's class, by default 1, and 0 where it is ignored."""
        ignored, place = self._place(index)
        one = constant(1, self.compute)
        weight = one if self.weight is None else cast(self.weight.at((place,)), self.compute)
        return select(ignored, constant(0, self.compute), weight)

    def loss_at(self, index: Shape) -> Scalar:
        """The weighted loss of an element: 0 where it is ignored."""
        ignored, place = self._place(index)
        chosen = cast(self.x.at((*index[: self.dim], place, *index[self.dim :])), self.compute)
        return select(ignored, constant(0, self.compute), -chosen * self.weight_at(index))


# nll_loss_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index)
#     -> (Tensor output, Tensor total_weight)
@rule(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    classes = _Classes(self, target, weight, ignore_index)
    losses = Tensor(classes.shape, classes.compute, classes.loss_at)
    weights = Tensor(classes.shape, classes.compute, classes.weight_at)
    if reduction not in (MEAN, SUM):
        total = define((), self.dtype, lambda index: constant(0, self.dtype))
        return define(classes.shape, self.dtype, classes.loss_at), total
    loss, total = (over("sum", x, None, compute=classes.compute) for x in (losses, weights))
    if reduction == MEAN:
        loss = pointwise(lambda a, b: a / b, loss, total, compute=classes.compute, dtype=classes.compute)
    return tuple(pointwise_of(x, lambda e: e, self.dtype) for x in (loss, total))  # type: ignore[return-value]


# nll_loss_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index,
#     Tensor total_weight) -> Tensor
@rule(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    dim, compute = _class_dim(self), computed_in(self.dtype)

    def at(index: Shape) -> Scalar:
        element = (*index[:dim], *index[dim + 1 :])
        number = _target_at(target, element)
        grad = -cast(grad_output.at(element if grad_output.rank == len(element) else ()), compute)
        if weight is not None:
            grad = grad * cast(weight.at((index[dim],)), compute)
        if reduction == MEAN:
            grad = grad / cast(total_weight.at(()), compute)
        hit = _equals(index[dim], number) & ~number.equals(ignore_index)
        return select(hit, grad, constant(0, compute))

    return define(self.shape, self.dtype, at)


def _equals(index: Index, number: Scalar) -> Scalar:
    return compare_index("eq", index, as_index(number)) if index.is_constant else from_index(index).equals(number)
