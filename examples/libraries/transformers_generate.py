"""``generate`` of transformers with each of its caches, and with a draft model: the tokens that eager picks.

python examples/libraries/transformers_generate.py
"""

from __future__ import annotations

import torch
from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from what_ran import print_what_ran

SIZES = {
    "vocab_size": 200,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}


def tokens(model: LlamaForCausalLM | MistralForCausalLM, **how: object) -> torch.Tensor:
    """Sixteen new tokens (greedy), shape [1, 16]."""
    prompt = torch.arange(3, 15)[None]
    found = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False, **how)
    return found[:, 12:]


def main() -> None:
    """Generate in eager and compiled, and compare."""
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    mistral = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8)).eval()
    compiled = CompileConfig(backend="max_backend", mode="default")
    compiled._compile_all_devices = True  # by itself, transformers compiles on accelerators only

    for name, model in (("static", llama), ("static, sliding window of 8", mistral)):
        wanted = tokens(model, cache_implementation="static", disable_compile=True)
        given = tokens(model, cache_implementation="static", compile_config=compiled)
        assert torch.equal(given, wanted), f"{name}: other tokens than eager's"
        print(f"{name} cache: the same tokens")

    draft = LlamaForCausalLM(LlamaConfig(**SIZES | {"num_hidden_layers": 1})).eval()
    wanted = tokens(llama)
    dynamic = tokens(llama, assistant_model=draft)
    llama.compile(backend="max_backend", dynamic=True)
    draft.compile(backend="max_backend", dynamic=True)
    assert torch.equal(dynamic, wanted) and torch.equal(tokens(llama, assistant_model=draft), wanted)
    print("assisted decoding: the same tokens")
    print_what_ran()


if __name__ == "__main__":
    main()
