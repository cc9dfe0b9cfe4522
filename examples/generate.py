"""Text generation with transformers and a static cache, the decoding step compiled by max_backend.

    uv run python examples/generate.py

The model is a small Llama with random weights, so nothing is downloaded and the text means nothing; what counts is that
the compiled model picks the tokens that eager picks. The first run compiles (a minute or two), later ones load.
"""

from __future__ import annotations

import time

import torch
from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM

from torch_max_backend import reports

NEW_TOKENS = 32


def model() -> LlamaForCausalLM:
    """A Llama of about a million parameters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=256,
        initializer_range=0.1,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def generate(llama: LlamaForCausalLM, prompt: torch.Tensor, **how: object) -> tuple[torch.Tensor, float]:
    """The new tokens (greedy), and the seconds they took."""
    start = time.perf_counter()
    tokens = llama.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        cache_implementation="static",
        **how,
    )
    return tokens[0, prompt.shape[1] :], time.perf_counter() - start


def main() -> None:
    """Generate in eager and compiled, and compare."""
    llama = model()
    prompt = torch.randint(3, 1000, (1, 12))
    config = CompileConfig(backend="max_backend", mode="default")
    # By itself, transformers compiles on accelerators only. This switch has it compile on a CPU as well.
    config._compile_all_devices = True

    wanted, _ = generate(llama, prompt, disable_compile=True)
    _, eager_s = generate(llama, prompt, disable_compile=True)
    given, first_s = generate(llama, prompt, compile_config=config)
    again, compiled_s = generate(llama, prompt, compile_config=config)

    print(f"prompt: {prompt[0].tolist()}")
    print(f"eager:    {wanted.tolist()}")
    print(f"compiled: {given.tolist()}")
    for report in reports():
        print(report.summary())
    print(f"{NEW_TOKENS} tokens: eager {eager_s:.2f} s; compiled {first_s:.2f} s at first, then {compiled_s:.2f} s")
    assert reports(), "nothing was compiled"
    assert torch.equal(given, wanted), "the tokens differ from eager's"
    assert torch.equal(again, wanted), "the tokens of the second run differ from eager's"
    print("The same tokens as eager.")


if __name__ == "__main__":
    main()
