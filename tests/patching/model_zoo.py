"""Small models of transformers and timm with random weights, their inputs, and the rules that fit them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

SMALL = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = {**SMALL, "intermediate_size": 56, "num_key_value_heads": 2, "head_dim": 8}
ENCODER = {**SMALL, "intermediate_size": 64, "max_position_embeddings": 32}
BART = {
    "vocab_size": 96, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 32,
}  # fmt: skip
T5 = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
T5 |= {"feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0}
VIT = {**SMALL, "intermediate_size": 64, "image_size": 16, "patch_size": 4}
GATED = {"rms_norm", "gated_mlp", "silu", "rotary_embedding", "causal_lm_loss"}


@dataclass(frozen=True)
class Zoo:
    """A model: its name in the library and there the configuration, what it takes, and the rules applied to it."""

    name: str
    config: str
    settings: dict[str, Any]
    rules: set[str]
    inputs: str = "tokens"

    def make(self) -> nn.Module:
        """The model in evaluation mode; all parameters are random, so that none of them could be left out unseen."""
        torch.manual_seed(0)
        if self.config == "timm":
            model = importlib.import_module("timm").create_model(self.name, **self.settings)
        else:
            library = importlib.import_module("transformers")
            model = getattr(library, self.name)(getattr(library, self.config)(**self.settings))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        return model.eval()

    def call(self, model: Any, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """The model's output and a loss."""
        torch.manual_seed(1)
        tokens = torch.randint(3, 96, (2, 10))
        if self.inputs == "tokens":
            out = model(input_ids=tokens, labels=tokens)
            return out.logits, out.loss
        if self.config == "timm":
            out = model(torch.randn(2, 3, 32, 32, dtype=dtype))
            return out, out.square().mean()
        out = model(pixel_values=torch.randn(2, 3, 16, 16, dtype=dtype)).logits
        return out, out.square().mean()

    def results(self, model: nn.Module, dtype: torch.dtype) -> list[torch.Tensor]:
        """The output, the loss and the gradients of all parameters."""
        out, loss = self.call(model, dtype)
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
        return [out.detach(), loss.detach(), *gradients]


MODELS = [
    Zoo("LlamaForCausalLM", "LlamaConfig", DECODER, GATED),
    Zoo(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32},
        {"gpt2_mlp", "gelu_tanh", "causal_lm_loss"},
    ),
    Zoo("Qwen2ForCausalLM", "Qwen2Config", DECODER, GATED),
    Zoo("Qwen3ForCausalLM", "Qwen3Config", DECODER, GATED),
    Zoo("MistralForCausalLM", "MistralConfig", DECODER, GATED),
    Zoo("GemmaForCausalLM", "GemmaConfig", DECODER, GATED - {"rms_norm", "silu"} | {"rms_norm_offset", "gelu_tanh"}),
    Zoo("Phi3ForCausalLM", "Phi3Config", {**DECODER, "pad_token_id": 0}, GATED - {"gated_mlp"} | {"packed_gated_mlp"}),
    Zoo("PhiForCausalLM", "PhiConfig", DECODER, {"mlp", "gelu_tanh", "rotary_embedding", "causal_lm_loss"}),
    Zoo("GPTNeoXForCausalLM", "GPTNeoXConfig", ENCODER, {"gpt_neox_mlp", "gelu", "rotary_embedding", "causal_lm_loss"}),
    Zoo("BertForMaskedLM", "BertConfig", ENCODER, {"gelu"}),
    Zoo("RobertaForMaskedLM", "RobertaConfig", {**ENCODER, "pad_token_id": 1}, {"gelu"}),
    Zoo("T5ForConditionalGeneration", "T5Config", T5, {"rms_norm", "gelu_tanh"}),
    Zoo("BartForConditionalGeneration", "BartConfig", BART, {"gelu"}),
    Zoo("ViTForImageClassification", "ViTConfig", VIT, {"mlp", "gelu"}, inputs="images"),
    Zoo(
        "convnext_atto",
        "timm",
        {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32), "num_classes": 10},
        {"layer_norm_2d"},
        inputs="images",
    ),
    Zoo(
        "swin_tiny_patch4_window7_224",
        "timm",
        {"img_size": 32, "window_size": 4, "embed_dim": 16, "depths": (1, 2), "num_heads": (2, 4), "num_classes": 10},
        {"timm_mlp"},
        inputs="images",
    ),
]
