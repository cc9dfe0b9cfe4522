"""Image classification with timm's ResNet-18, compiled by max_backend.

    uv run python examples/classify.py

The weights are random and the image is drawn here, so nothing is downloaded; what counts is that the compiled model
gives eager's five best classes and their probabilities. The first run compiles (a minute or two), later ones load.
"""

from __future__ import annotations

import time

import timm
import torch

from torch_max_backend import reports


def image(size: int = 224) -> torch.Tensor:
    """A red disc on a gradient, normalised as ImageNet models expect: float32, shape [1, 3, size, size]."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    disc = (x.square() + y.square() < 0.4).float()
    pixels = torch.stack([disc, (x + 1) / 2 * (1 - disc), (y + 1) / 2 * (1 - disc)])
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return ((pixels - mean[:, None, None]) / std[:, None, None])[None]


@torch.inference_mode()
def main() -> None:
    """Classify in eager and compiled, and compare."""
    torch.manual_seed(0)
    model = timm.create_model("resnet18", pretrained=False).eval()
    compiled = torch.compile(model, backend="max_backend")
    pixels = image()

    wanted = model(pixels).softmax(-1)[0].topk(5)
    start = time.perf_counter()
    given = compiled(pixels).softmax(-1)[0].topk(5)
    first_s = time.perf_counter() - start

    print("class  eager     compiled")
    for k in range(5):
        print(f"{int(given.indices[k]):5d}  {float(wanted.values[k]):.6f}  {float(given.values[k]):.6f}")
    for report in reports():
        print(report.summary())
    print(f"first call: {first_s:.1f} s")
    assert reports(), "nothing was compiled"
    assert torch.equal(given.indices, wanted.indices), "the five best classes differ from eager's"
    torch.testing.assert_close(given.values, wanted.values, rtol=1e-4, atol=1e-7)
    print("The same five classes as eager.")


if __name__ == "__main__":
    main()
