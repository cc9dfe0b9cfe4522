"""transformers' Trainer on a model that is compiled in place: the losses of eager's training.

    python examples/libraries/transformers_trainer.py

``TrainingArguments(torch_compile_backend=...)`` hands the name to accelerate, which has a list of backends and knows
none beside them. ``Module.compile`` asks nobody.
"""

from __future__ import annotations

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from what_ran import print_what_ran


class Sentences(Dataset):
    """Random sentences of 16 tokens with one of two labels."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(1, 100, (32, 16), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[i], "attention_mask": torch.ones(16).long(), "labels": self.tokens[i, 0] % 2}


def train(compiled: bool) -> list[float]:
    """The loss of each of eight steps."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    model = BertForSequenceClassification(config)
    if compiled:
        model.compile(backend="max_backend")
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=8,
            num_train_epochs=2,
            learning_rate=1e-3,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(model, arguments, train_dataset=Sentences())
        trainer.train()
    return [step["loss"] for step in trainer.state.log_history if "loss" in step]


def main() -> None:
    """Train in eager and compiled, and compare."""
    wanted, given = train(False), train(True)
    print(f"eager    {wanted}\ncompiled {given}")
    torch.testing.assert_close(torch.tensor(given), torch.tensor(wanted), rtol=1e-3, atol=1e-4)
    print_what_ran()


if __name__ == "__main__":
    main()
