"""The training suites: steps of a model under autocast, with AdamW, on one batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.models import precision_for, upcast
from benchmarks.suites import Case, SuiteError
from benchmarks.work import Call, Function, Piece, Work, listed

Inputs = dict[str, torch.Tensor]
LEARNING_RATE = 1e-4


def gpt2(p: dict[str, Any]) -> tuple[nn.Module, Inputs, str, int]:
    """GPT-2 small without dropout, which contenders would draw from other random numbers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    ends = {"bos_token_id": 0, "eos_token_id": 0}
    small = {"n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 1001, **ends} if p.get("small") else {}
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **small)
    tokens = torch.randint(0, config.vocab_size, (p["batch"], p["length"]))
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # the default, but with a warning that breaks the graph before the loss
    return model, {"input_ids": tokens, "labels": tokens}, "token", tokens.numel()


def resnet50(p: dict[str, Any]) -> tuple[nn.Module, Inputs, str, int]:
    """ResNet-50, channels last. The small one is ResNet-18 on small images."""
    from timm import create_model

    name, size = ("resnet18", 64) if p.get("small") else ("resnet50", 224)
    last, batch = {"memory_format": torch.channels_last}, p["batch"]
    inputs = {"x": torch.randn(batch, 3, size, size).to(**last), "labels": torch.randint(0, 1000, (batch,))}
    return create_model(name, pretrained=False).to(**last), inputs, "image", batch


MODELS = {f.__name__: f for f in (gpt2, resnet50)}


def loss_of(model: nn.Module, inputs: Inputs) -> torch.Tensor:
    """The model's own loss, or the cross-entropy of its class scores."""
    if "x" in inputs:
        return F.cross_entropy(model(inputs["x"]), inputs["labels"])
    return model(**inputs).loss


class Training:
    """A model that is trained, its optimizer and what a contender made of the loss: a call is a step.

    Args:
        compute: The loss of a model and its inputs.
        make_update: Makes of the optimizer's step the function that is called.
        settings: Of AdamW.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        compute: Function,
        make_update: Callable[[Function], Function] = lambda update: update,
        **settings: Any,
    ) -> None:
        self.model, self.inputs, self.compute = model.train(), inputs, compute
        optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, **settings)
        self.zero = optimizer.zero_grad

        def update() -> None:
            optimizer.step()

        self.update = make_update(update)

    def gradients(self) -> list[torch.Tensor]:
        """Forward and backward; the loss and every gradient."""
        self.zero()
        with torch.enable_grad():
            loss = self.compute(self.model, self.inputs)
            loss.backward()
        return [loss.detach(), *(p.grad for p in self.model.parameters() if p.grad is not None)]

    def __call__(self, number: int = 0) -> None:
        """A whole step; ``number`` is of no use here."""
        self.gradients()
        self.update()


def build(case: Case, to_time: bool = True) -> Work:
    """The work of a training case. What is compared is the loss and the gradients at the first parameters."""
    if case.what not in MODELS:
        raise SuiteError(f"no trained model is called {case.what!r}; there are {', '.join(MODELS)}")
    model, inputs, unit, units = MODELS[case.what](case.parameters)
    model = model.to(case.device).train()
    inputs = {name: tensor.to(case.device) for name, tensor in inputs.items()}
    kind, dtype = torch.device(case.device).type, getattr(torch, case.dtype)
    precision = precision_for(case)

    def compute(model: nn.Module, inputs: Inputs) -> torch.Tensor:
        with torch.autocast(kind, dtype, enabled=dtype != torch.float32):
            return loss_of(model, inputs)

    def caller(compiled: Function) -> Call:
        return Training(copy.deepcopy(model), inputs, compiled, fused=True)

    def answers(call: Call) -> list[torch.Tensor]:
        assert isinstance(call, Training)
        with torch.no_grad():
            for own, first in zip(call.model.parameters(), model.parameters(), strict=True):
                own.copy_(first)
        return listed(call.gradients())

    def exact() -> Iterator[Piece]:
        wide = {k: v.to(precision) if v.is_floating_point() else v for k, v in inputs.items()}
        with upcast(model, precision):
            found = Training(model, wide, loss_of).gradients()
        model.zero_grad()
        yield from ((number, (), tensor) for number, tensor in enumerate(found))

    return Work(
        compute, caller, answers, exact, unit=unit, units=units, precision=str(precision).removeprefix("torch.")
    )
