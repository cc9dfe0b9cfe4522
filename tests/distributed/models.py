"""What ranks train: a small transformer of this file's own, and small sizes of GPT-2 and ResNet-18."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WORDS, WIDTH, HEADS = 64, 32, 4
STAGES = 4
"""Into which a model can be cut for a pipeline."""

Batch = tuple[torch.Tensor, torch.Tensor]


class Block(nn.Module):
    """Attention and a perceptron, of whose products each reads what another one made."""

    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self._forward, x, use_reentrant=False) if self.checkpointed else self._forward(x)

    def _forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.before(x)
        q, k, v = (f(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Model(nn.Module):
    """A language model of two blocks."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(checkpointed) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return loss_of(self.head(x), wanted)


class WithLoss(nn.Module):
    """A model of a library and the loss of what it gives, or of that output's ``logits``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        found = self.model(x)
        return loss_of(getattr(found, "logits", found), wanted)


class Words(nn.Module):
    """How GPT-2 begins."""

    def __init__(self, words: nn.Module, places: nn.Module) -> None:
        super().__init__()
        self.words, self.places = words, places

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))


def loss_of(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Cross-entropy over classes, which come last."""
    return F.cross_entropy(found.flatten(0, -2), wanted.flatten())


@dataclass(frozen=True)
class Kind:
    """A model that ranks train.

    Args:
        make: Gives one, with activation checkpointing or not.
        blocks: Its parts that FSDP2 gathers one at a time.
        plan: How tensor parallel shares a block out, or a part of the model that bears that name.
        stages: Its parts in a pipeline, :data:`STAGES` of them.
        batch: Inputs and what is wanted.
        rate: Of stochastic gradient descent.
        dynamic: As `torch.compile` has it: blocks of one code see images of several sizes, each of which is a graph.
        dtype: Of parameters, images and arithmetic.
    """

    make: Callable[[bool], nn.Module]
    blocks: Callable[[Any], Sequence[nn.Module]]
    plan: Callable[[Any], list[tuple[nn.Module, dict[str, Any]]]]
    stages: Callable[[Any], list[nn.Module]]
    batch: Callable[[torch.Generator], Batch]
    rate: float
    dynamic: bool | None = None
    dtype: torch.dtype = torch.float32


# -- the small transformer -----------------------------------------------------------------------------------------
def _own_plan(model: Model) -> list[tuple[nn.Module, dict[str, Any]]]:
    """Share products out by columns and rows, as Megatron does."""
    columns, rows = ("q", "k", "v", "up"), ("out", "down")
    plan = {**{n: ColwiseParallel() for n in columns}, **{n: RowwiseParallel() for n in rows}}
    return [(block, plan) for block in model.blocks]


def _text(words: int, batch: int, length: int) -> Callable[[torch.Generator], Batch]:
    def batch_of(generator: torch.Generator) -> Batch:
        tokens = torch.randint(words, (batch, length + 1), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]

    return batch_of


# -- GPT-2 ---------------------------------------------------------------------------------------------------------
def _gpt2(checkpointed: bool) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=256, n_positions=64, **off, **ends)
    model = GPT2LMHeadModel(config)
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    from benchmarks.distributed_models import linear

    for block in model.transformer.h:
        block.mlp.c_fc, block.mlp.c_proj = linear(block.mlp.c_fc), linear(block.mlp.c_proj)
    return WithLoss(model)


def _gpt2_plan(model: Any) -> list[tuple[nn.Module, dict[str, Any]]]:
    """Attention stays whole: its queries, keys and values are one product."""
    plan = {"mlp.c_fc": ColwiseParallel(), "mlp.c_proj": RowwiseParallel()}
    return [(block, plan) for block in model.model.transformer.h]


def _gpt2_stages(model: Any) -> list[nn.Module]:
    own = model.model.transformer
    return [Words(own.wte, own.wpe), *own.h, nn.Sequential(own.ln_f, model.model.lm_head)]


# -- ResNet-18 -----------------------------------------------------------------------------------------------------
def _resnet18(checkpointed: bool) -> nn.Module:
    from torchvision.models import resnet18

    return WithLoss(resnet18(num_classes=8))


def _resnet18_blocks(model: Any) -> list[nn.Module]:
    return [getattr(model.model, f"layer{k}") for k in range(1, 5)]


def _resnet18_stages(model: Any) -> list[nn.Module]:
    own = model.model
    first = nn.Sequential(own.conv1, own.bn1, own.relu, own.maxpool, own.layer1)
    return [first, own.layer2, own.layer3, nn.Sequential(own.layer4, own.avgpool, nn.Flatten(), own.fc)]


def _images(generator: torch.Generator) -> Batch:
    return torch.randn(16, 3, 32, 32, generator=generator), torch.randint(8, (16,), generator=generator)


KINDS = {
    "small": Kind(
        Model,
        lambda m: list(m.blocks),
        _own_plan,
        lambda m: [m.words, *m.blocks, m.head],
        _text(WORDS, 4, 16),
        0.1,
    ),
    "gpt2": Kind(_gpt2, lambda m: list(m.model.transformer.h), _gpt2_plan, _gpt2_stages, _text(256, 4, 32), 0.1),
    "resnet18": Kind(
        _resnet18,
        _resnet18_blocks,
        lambda m: [(m.model, {"fc": ColwiseParallel(output_layouts=Replicate())})],
        _resnet18_stages,
        _images,
        1e-5,  # with larger steps and batches this small, a difference grows tenfold in each
        False,
        torch.float64,  # in float32 what is rounded decides on which side of a rectifier's kink an element is
    ),
}
