"""The model suites: configurations from transformers and timm with random weights, so that nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.suites import Case, SuiteError
from benchmarks.work import Piece, Work, listed

SETS = 2
Maker = Callable[[], tuple[torch.Tensor, ...]]
Built = tuple[nn.Module, Maker, str, int]
"""A model in float32 on the CPU, a maker of inputs, and what a call delivers."""


class Only(nn.Module):
    """A model of transformers that returns one of its outputs."""

    def __init__(self, model: nn.Module, output: str, *names: str, **constants: Any) -> None:
        super().__init__()
        self.model, self.output, self.names, self.constants = model, output, names, constants

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return getattr(self.model(**dict(zip(self.names, inputs)), **self.constants), self.output)


def gpt2_model(p: dict[str, Any]) -> nn.Module:
    """GPT-2 small, 124 M parameters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    ends = {"bos_token_id": 0, "eos_token_id": 0}
    small = {"n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 1001, **ends} if p.get("small") else {}
    return GPT2LMHeadModel(GPT2Config(**small))


def llama_model(p: dict[str, Any]) -> nn.Module:
    """The shape of Llama 3.2 1B: 16 layers of width 2048, 32 heads that share 8 keys, a vocabulary of 128256."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
    }
    if p.get("small"):
        shape |= {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 1000}
        shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    return LlamaForCausalLM(LlamaConfig(**shape, max_position_embeddings=8192, tie_word_embeddings=True))


def _tokens(model: nn.Module, batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, model.config.vocab_size, (batch, length))


def _language(model: nn.Module, p: dict[str, Any]) -> Built:
    batch, length = p["batch"], p["length"]
    only = Only(model, "logits", "input_ids", use_cache=False)
    return only, lambda: (_tokens(model, batch, length),), "token", batch * length


def gpt2(p: dict[str, Any]) -> Built:
    """Logits of GPT-2 for every position."""
    return _language(gpt2_model(p), p)


def llama(p: dict[str, Any]) -> Built:
    """Logits of Llama for every position."""
    return _language(llama_model(p), p)


def bert(p: dict[str, Any]) -> Built:
    """Last hidden states of BERT-base."""
    from transformers import BertConfig, BertModel

    small = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 128}
    model = BertModel(BertConfig(**(small if p.get("small") else {})), add_pooling_layer=False)
    batch, length = p["batch"], p["length"]
    only = Only(model, "last_hidden_state", "input_ids")
    return only, lambda: (_tokens(model, batch, length),), "token", batch * length


def t5(p: dict[str, Any]) -> Built:
    """Logits of T5-base for a decoded text of its own length."""
    from transformers import T5Config, T5ForConditionalGeneration

    shape = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "d_kv": 64}
    if p.get("small"):
        shape = {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "d_kv": 16, "vocab_size": 1001}
    model = T5ForConditionalGeneration(T5Config(**shape))
    batch, length, decoded = p["batch"], p["length"], p["decoded"]
    only = Only(model, "logits", "input_ids", "decoder_input_ids", use_cache=False)
    return (
        only,
        lambda: (_tokens(model, batch, length), _tokens(model, batch, decoded)),
        "token",
        batch * (length + decoded),
    )


def vit(p: dict[str, Any]) -> Built:
    """Class scores of ViT-B/16."""
    from timm import create_model

    small = {"embed_dim": 64, "depth": 2, "num_heads": 4, "img_size": 64} if p.get("small") else {}
    size = small.get("img_size", 224)
    model = create_model("vit_base_patch16_224", pretrained=False, **small)
    return model, lambda: (torch.randn(p["batch"], 3, size, size),), "image", p["batch"]


def resnet50(p: dict[str, Any]) -> Built:
    """Class scores of ResNet-50, channels last. The small one is ResNet-18 on small images."""
    from timm import create_model

    name, size = ("resnet18", 64) if p.get("small") else ("resnet50", 224)
    model = create_model(name, pretrained=False)
    _random_statistics(model)
    last = {"memory_format": torch.channels_last}
    return model.to(**last), lambda: (torch.randn(p["batch"], 3, size, size).to(**last),), "image", p["batch"]


def _random_statistics(model: nn.Module) -> None:
    """Norms that change something: fresh ones have mean 0 and variance 1, and the last of a block has weight 0."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.normal_(module.bias, std=0.1)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)


def dit(p: dict[str, Any]) -> Built:
    """One denoising step of a diffusion transformer of ViT-B's size on latent images of 32 x 32."""
    from benchmarks.diffusion_transformer import DiffusionTransformer

    small = {"size": 8, "width": 64, "depth": 2, "heads": 4} if p.get("small") else {}
    size, batch = small.get("size", 32), p["batch"]
    return (
        DiffusionTransformer(**small),
        lambda: (torch.randn(batch, 4, size, size), torch.randint(0, 1000, (batch,)), torch.randint(0, 1000, (batch,))),
        "image",
        batch,
    )


MODELS: dict[str, Callable[[dict[str, Any]], Built]] = {
    f.__name__: f for f in (gpt2, llama, bert, t5, vit, resnet50, dit)
}


def build(case: Case, to_time: bool = True) -> Work:
    """The work of a model's case."""
    if case.what not in MODELS:
        raise SuiteError(f"no model is called {case.what!r}; there are {', '.join(MODELS)}")
    model, maker, unit, units = MODELS[case.what](case.parameters)
    dtype = getattr(torch, case.dtype)
    model = model.eval().requires_grad_(False).to(device=case.device, dtype=dtype)

    def moved(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(x.to(case.device, dtype if x.is_floating_point() else x.dtype) for x in inputs)

    count = SETS if to_time else 1
    sets = [moved(maker()) for _ in range(count)]
    precision = precision_for(case)
    return Work(
        lambda *inputs: model(*inputs),
        caller=lambda compiled: lambda i: compiled(*sets[i % count]),
        answers=lambda call: listed(call(0)),
        exact=lambda: exact(model, sets[0], precision),
        sets=count,
        unit=unit,
        units=units,
        precision=str(precision).removeprefix("torch."),
    )


def precision_for(case: Case) -> torch.dtype:
    """What a model's outputs are compared with: float64 where it computes in float32, else float32."""
    return torch.float64 if case.dtype == "float32" else torch.float32


def exact(model: nn.Module, inputs: tuple[torch.Tensor, ...], precision: torch.dtype) -> Iterator[Piece]:
    """The model's output with its own weights and inputs in a higher precision."""
    with upcast(model, precision):
        output = model(*(x.to(precision) if x.is_floating_point() else x for x in inputs))
    yield 0, (), output


class upcast:
    """Inside, the model's weights are in another precision, and float32 is computed as such; afterwards all is back.

    The very tensors are put back: compiled functions know them by their memory. Dynamo guards on the precision of
    products, and tells apart "highest" that was set from "highest" that nobody ever set; so it is not set needlessly.
    """

    def __init__(self, model: nn.Module, precision: torch.dtype) -> None:
        self.model, self.precision = model, precision

    def __enter__(self) -> None:
        self.kept = [(t, t.data) for t in (*self.model.parameters(), *self.model.buffers()) if t.is_floating_point()]
        self.tf32 = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        self._set("highest")
        torch.backends.cudnn.allow_tf32 = False
        for tensor, data in self.kept:
            tensor.data = data.to(self.precision)

    def __exit__(self, *_: object) -> None:
        for tensor, data in self.kept:
            tensor.data = data
        self._set(self.tf32[0])
        torch.backends.cudnn.allow_tf32 = self.tf32[1]

    @staticmethod
    def _set(precision: str) -> None:
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)
