"""Lightning: a LightningModule is compiled by name, then fitted and tested by the Trainer.

python examples/libraries/lightning_training.py
"""

from __future__ import annotations

import pytorch_lightning as lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from what_ran import print_what_ran


class Classifier(lightning.LightningModule):
    """Convolutions and batch norm on images of 8 by 8, four classes."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4)
        )
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def test_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("test_loss", nn.functional.cross_entropy(self.network(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)


def train(compiled: bool) -> float:
    """The loss on the training's own data after two epochs."""
    lightning.seed_everything(0)
    data = DataLoader(TensorDataset(torch.randn(32, 1, 8, 8), torch.randint(4, (32,))), batch_size=8)
    module = Classifier()
    if compiled:
        module = torch.compile(module, backend="max_backend")
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data)
    (result,) = trainer.test(module, data, verbose=False)
    return result["test_loss"]


def main() -> None:
    """Train in eager and compiled, and compare."""
    wanted, given = train(False), train(True)
    print(f"eager {wanted:.6f}, compiled {given:.6f}")
    assert abs(given - wanted) < 1e-4 * abs(wanted) + 1e-5
    print_what_ran()


if __name__ == "__main__":
    main()
