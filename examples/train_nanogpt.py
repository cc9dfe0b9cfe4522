"""A character-level GPT, trained on this repository's own documentation, compiled against eager.

    uv run python examples/train_nanogpt.py
    uv run python examples/train_nanogpt.py --layers 2 --steps 20

Six layers, dropout on, AdamW. The compiled run must follow eager's loss at every step (see `check` in training.py); the
curves are written as a PNG. The first run compiles (two or three minutes), later ones load.
"""

from __future__ import annotations

from pathlib import Path

import torch
import typer
from torch import nn
from torch.nn import functional as F
from training import Batch, compare

TEXT = Path(__file__).resolve().parents[1] / "docs"


class Layer(nn.Module):
    """Causal attention and a feed-forward block, each on a normed input and added to it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm, self.qkv, self.mix = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.norm, self.wide, self.narrow = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` is [batch, length, width]."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + F.dropout(self.mix(mixed), self.dropout, self.training)
        return x + F.dropout(self.narrow(F.gelu(self.wide(self.norm(x)))), self.dropout, self.training)


class GPT(nn.Module):
    """Logits of the next character."""

    def __init__(self, characters: int, length: int, layers: int, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters, bias=False)
        self.head.weight = self.characters.weight
        for table in (self.characters, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """``text`` is int64 [batch, length]; the logits are [batch, length, characters]."""
        x = self.characters(text) + self.places(torch.arange(text.shape[1], device=text.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss_of(model: nn.Module, text: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the next character."""
    return F.cross_entropy(model(text).flatten(0, 1), following.flatten())


def batches(steps: int, batch: int, length: int) -> tuple[list[Batch], int]:
    """Random pieces of the documentation and, shifted by one, what follows; and the number of different characters."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(TEXT.glob("*.md")))
    characters = {c: i for i, c in enumerate(sorted(set(text)))}
    data = torch.tensor([characters[c] for c in text])
    generator = torch.Generator().manual_seed(0)
    found = []
    for starts in torch.randint(len(data) - length - 1, (steps, batch), generator=generator):
        pieces = torch.stack([data[s : s + length + 1] for s in starts])
        found.append((pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()))
    return found, len(characters)


def main(
    layers: int = 6,
    width: int = 128,
    length: int = 64,
    batch: int = 16,
    steps: int = 300,
    plot: Path = Path("gpt.png"),
    backend: str = "max_backend",
) -> None:
    """Train and compare."""
    data, characters = batches(steps, batch, length)
    torch.manual_seed(0)
    model = GPT(characters, length, layers, width, heads=4, dropout=0.1)
    compare(model, data, loss_of, 1e-3, plot, f"GPT, {layers} layers, {characters} characters", backend)


if __name__ == "__main__":
    typer.run(main)
