"""A training loop of accelerate, with gradient accumulation and mixed precision, on a compiled model.

    python examples/libraries/accelerate_training.py

``Accelerator(dynamo_backend=...)`` takes the names of its own list only. A model that is compiled already is taken as
it is.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from what_ran import print_what_ran


def train(compiled: bool) -> torch.Tensor:
    """The loss of each batch, shape [8]."""
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16", cpu=True)
    model = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 1))
    if compiled:
        model = torch.compile(model, backend="max_backend")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    loader = DataLoader(TensorDataset(torch.randn(64, 16), torch.randn(64, 1)), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for inputs, wanted in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), wanted)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def main() -> None:
    """Train in eager and compiled, and compare; bfloat16 has eight bits."""
    wanted, given = train(False), train(True)
    print(f"eager    {wanted.tolist()}\ncompiled {given.tolist()}")
    torch.testing.assert_close(given, wanted, rtol=2e-2, atol=2e-2)
    print_what_ran()


if __name__ == "__main__":
    main()
