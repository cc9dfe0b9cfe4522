"""``generate`` with keys and values in float8: the tokens that eager picks.

    python examples/libraries/transformers_quantised_cache.py

The cache grows, so sizes are symbolic.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers_generate import SIZES, tokens
from what_ran import print_what_ran


def main() -> None:
    """Generate in eager and compiled, and compare."""
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**SIZES | {"hidden_size": 128})).eval()
    how = {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}
    wanted = tokens(llama, **how)
    llama.compile(backend="max_backend", dynamic=True)
    assert torch.equal(tokens(llama, **how), wanted), "other tokens than eager's"
    print("quantised cache: the same tokens")
    print_what_ran()


if __name__ == "__main__":
    main()
