"""Cross-entropies: one ``F.cross_entropy``, and no log message in the middle of a graph."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from torch_max_backend.patching.rule import Rule, qualified_name

IGNORED = -100
"""The label of positions without a loss, as in ``F.cross_entropy``."""


def causal_lm_loss(
    logits: torch.Tensor,
    labels: torch.Tensor | None,
    vocab_size: int,
    num_items_in_batch: Any = None,
    ignore_index: int = IGNORED,
    shift_labels: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """The mean cross-entropy of each position's logits and the next position's label, in float32.

    Args:
        logits: ``[..., length, vocabulary]``.
        labels: ``[..., length]``; not read where ``shift_labels`` has the labels of the next positions already.
        num_items_in_batch: What the sum is divided by instead of the number of labels.
    """
    if shift_labels is None:
        assert labels is not None
        shift_labels = F.pad(labels[..., 1:], (0, 1), value=ignore_index)
    rows, wanted = logits.float().view(-1, vocab_size), shift_labels.reshape(-1).to(logits.device)
    if num_items_in_batch is None:
        return F.cross_entropy(rows, wanted, ignore_index=ignore_index)
    if isinstance(num_items_in_batch, torch.Tensor):
        num_items_in_batch = num_items_in_batch.to(logits.device)
    return F.cross_entropy(rows, wanted, ignore_index=ignore_index, reduction="sum") / num_items_in_batch


def _loss_of(model: Any) -> Any:
    """What is read as ``model.loss_function``; the model's own setter writes ``_loss_function``."""
    return vars(model).get("_loss_function", causal_lm_loss)


def label_smoothing(module: Any, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of ``x`` ``[n, classes]`` and ``target`` ``[n]`` with smoothed labels."""
    return F.cross_entropy(x, target, label_smoothing=module.smoothing)


def soft_target(module: Any, x: torch.Tensor, target: torch.Tensor) -> Any:
    """Mean cross-entropy of ``x`` and probabilities ``target``, both ``[n, classes]``."""
    if x.dim() != 2 or x.shape != target.shape or not target.is_floating_point():
        return NotImplemented
    return F.cross_entropy(x, target)


def _has_the_causal_loss(model: Any) -> str | None:
    """None if its loss is transformers' for the next token and computes what ``causal_lm_loss`` does."""
    if "_loss_function" in vars(model):
        return "its loss_function is set on the instance"
    theirs = type(model).loss_function.fget(model)
    name = f"{theirs.__module__}.{theirs.__qualname__}"
    if name != "transformers.loss.loss_utils.ForCausalLMLoss":
        return f"its loss is {name}"
    logits = torch.linspace(-3, 3, 30, device="cpu").view(2, 3, 5).sin()
    labels = torch.tensor([[0, 4, 1], [2, IGNORED, 3]], device="cpu")
    wanted, given = (loss(logits, labels, vocab_size=5) for loss in (theirs, causal_lm_loss))
    return None if torch.equal(wanted, given) else f"its loss is {wanted} where this one is {given}"


def _is_causal_lm(model: nn.Module) -> bool:
    """Whether it is one of transformers' models with a head for the next token."""
    bases = [qualified_name(c) for c in type(model).__mro__]
    return "transformers.modeling_utils.PreTrainedModel" in bases and getattr(model, "loss_type", None) in (
        None,
        "ForCausalLM",
    )


def _labelled(module: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 5), torch.tensor([0, 4, 1, 2])


def _weighted(module: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 5), torch.randn(4, 5).softmax(-1)


LOSSES = (
    Rule(
        "causal_lm_loss",
        _loss_of,
        "F.cross_entropy",
        types=("transformers.models.*ForCausalLM", "transformers.models.*LMHeadModel"),
        where=_is_causal_lm,
        attribute="loss_function",
        fits=_has_the_causal_loss,
    ),
    Rule(
        "label_smoothing",
        label_smoothing,
        "F.cross_entropy(label_smoothing=)",
        types=("timm.loss.cross_entropy.LabelSmoothingCrossEntropy",),
        sample=_labelled,
    ),
    Rule(
        "soft_target",
        soft_target,
        "F.cross_entropy",
        types=("timm.loss.cross_entropy.SoftTargetCrossEntropy",),
        sample=_weighted,
    ),
)
