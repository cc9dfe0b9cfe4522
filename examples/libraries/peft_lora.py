"""Fine-tuning by low-rank adapters (peft) with gradient checkpointing: the losses of eager's training.

python examples/libraries/peft_lora.py
"""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
from what_ran import print_what_ran


def train(compiled: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each of four steps, and the logits of the merged model, shape [1, 12, 200]."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=200,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    adapter = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(LlamaForCausalLM(config), adapter)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    if compiled:
        model.compile(backend="max_backend")
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), 1e-2)
    tokens, losses = torch.randint(3, 200, (4, 2, 12)), []
    for batch in tokens:
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    with torch.no_grad():
        return torch.stack(losses), model.merge_and_unload().eval()(tokens[0, :1]).logits


def main() -> None:
    """Train in eager and compiled, and compare."""
    (wanted, logits), (given, others) = train(False), train(True)
    print(f"eager    {wanted.tolist()}\ncompiled {given.tolist()}")
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(others, logits, rtol=1e-2, atol=1e-3)
    print_what_ran()


if __name__ == "__main__":
    main()
