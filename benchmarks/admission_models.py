"""Twenty small models of transformers and timm with random weights, for estimates of what a call needs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.models import Only

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]

_SMALL = {"vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
_DECODER = {**_SMALL, "intermediate_size": 352, "num_key_value_heads": 2, "head_dim": 32, "use_cache": False}
_ENCODER = {**_SMALL, "intermediate_size": 512, "max_position_embeddings": 256}
_BART = {
    "vocab_size": 1000, "d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512, "use_cache": False,
}  # fmt: skip
_T5 = {"vocab_size": 1000, "d_model": 128, "d_kv": 32, "d_ff": 352, "num_layers": 2, "num_heads": 4, "use_cache": False}
_GPT2 = {"vocab_size": 1000, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 256, "use_cache": False}
_VIT = {**_SMALL, "intermediate_size": 512, "image_size": 64, "patch_size": 8}
BATCH, LENGTH, IMAGE = 4, 128, 96


def _text(name: str, config: str, settings: dict[str, Any], output: str = "logits") -> Built:
    import transformers

    model = getattr(transformers, name)(getattr(transformers, config)(**settings))
    tokens = torch.randint(3, 1000, (BATCH, LENGTH))
    if config in ("BartConfig", "T5Config"):
        return Only(model, output, "input_ids", "decoder_input_ids"), (tokens, tokens.flip(1))
    return Only(model, output, "input_ids"), (tokens,)


def _patches() -> Built:
    import transformers

    model = transformers.ViTForImageClassification(transformers.ViTConfig(**_VIT, num_labels=10))
    return Only(model, "logits", "pixel_values"), (torch.randn(BATCH, 3, 64, 64),)


def _image(name: str, size: int = IMAGE, **settings: Any) -> Built:
    import timm

    return timm.create_model(name, num_classes=10, **settings), (torch.randn(BATCH, 3, size, size),)


def _mixer() -> Built:
    from timm.models.mlp_mixer import MlpMixer

    model = MlpMixer(num_classes=10, img_size=64, patch_size=8, embed_dim=128, num_blocks=2)
    return model, (torch.randn(BATCH, 3, 64, 64),)


_small_vit = {"img_size": 64, "patch_size": 8, "embed_dim": 96, "depth": 2, "num_heads": 3}
_causal = "ForCausalLM"
MODELS: dict[str, Callable[[], Built]] = {
    "gpt2": functools.partial(_text, "GPT2LMHeadModel", "GPT2Config", _GPT2),
    "llama": functools.partial(_text, f"Llama{_causal}", "LlamaConfig", _DECODER),
    "qwen2": functools.partial(_text, f"Qwen2{_causal}", "Qwen2Config", _DECODER),
    "qwen3": functools.partial(_text, f"Qwen3{_causal}", "Qwen3Config", _DECODER),
    "mistral": functools.partial(_text, f"Mistral{_causal}", "MistralConfig", _DECODER),
    "gemma": functools.partial(_text, f"Gemma{_causal}", "GemmaConfig", _DECODER),
    "bert": functools.partial(_text, "BertForMaskedLM", "BertConfig", _ENCODER),
    "roberta": functools.partial(_text, "RobertaForMaskedLM", "RobertaConfig", _ENCODER),
    "electra": functools.partial(_text, "ElectraForMaskedLM", "ElectraConfig", {**_ENCODER, "embedding_size": 128}),
    "bart": functools.partial(_text, "BartForConditionalGeneration", "BartConfig", _BART),
    "t5": functools.partial(_text, "T5ForConditionalGeneration", "T5Config", _T5),
    "vit": _patches,
    "resnet18": functools.partial(_image, "resnet18"),
    "mobilenetv3": functools.partial(_image, "mobilenetv3_small_050"),
    "efficientnet": functools.partial(_image, "efficientnet_lite0"),
    "convnext": functools.partial(_image, "convnext_atto"),
    "regnet": functools.partial(_image, "regnetx_002"),
    "timm-vit": functools.partial(_image, "vit_tiny_patch16_224", 64, **_small_vit),
    "mixer": _mixer,
    "ghostnet": functools.partial(_image, "ghostnet_050"),
}
"""A maker of the model and its inputs, by name."""
