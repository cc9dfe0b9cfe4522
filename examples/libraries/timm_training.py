"""timm's training script in small: stochastic depth, soft targets, its optimizer, schedule and weight averaging.

python examples/libraries/timm_training.py
"""

from __future__ import annotations

import timm
import torch
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from what_ran import print_what_ran


def train(compiled: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each of four steps, and the averaged model's answer for one image, shape [1, 10]."""
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=10, img_size=32, drop_path_rate=0.1)
    average = ModelEmaV3(model, decay=0.9)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    schedule = CosineLRScheduler(optimizer, t_initial=4, warmup_t=1, warmup_lr_init=1e-5)
    run = torch.compile(model, backend="max_backend") if compiled else model
    images, labels = torch.randn(4, 8, 3, 32, 32), torch.randn(4, 8, 10).softmax(-1)
    losses = []
    for step in range(4):
        schedule.step(step)
        loss = SoftTargetCrossEntropy()(run(images[step]), labels[step])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        losses.append(loss.detach())
    with torch.no_grad():
        return torch.stack(losses), average.module.eval()(images[0, :1])


def main() -> None:
    """Train in eager and compiled, and compare."""
    (wanted, answer), (given, other) = train(False), train(True)
    print(f"eager    {wanted.tolist()}\ncompiled {given.tolist()}")
    torch.testing.assert_close(given, wanted, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(other, answer, rtol=1e-2, atol=1e-3)
    print_what_ran()


if __name__ == "__main__":
    main()
