"""torchvision: a classifier on preprocessed images, a segmentation model, a detector with its boxes.

python examples/libraries/torchvision_models.py
"""

from __future__ import annotations

import torch
from torchvision.models import mobilenet_v3_small
from torchvision.models.detection import ssdlite320_mobilenet_v3_large
from torchvision.models.segmentation import lraspp_mobilenet_v3_large
from torchvision.transforms import v2
from what_ran import print_what_ran


@torch.no_grad()
def main() -> None:
    """Run in eager and compiled, and compare."""
    torch.manual_seed(0)
    prepare = v2.Compose(
        [v2.Resize((64, 64), antialias=True), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3)]
    )
    pixels = torch.randint(0, 256, (2, 3, 80, 96), dtype=torch.uint8)
    prepared = torch.compile(prepare, backend="max_backend")(pixels)
    torch.testing.assert_close(prepared, prepare(pixels), rtol=1e-4, atol=2e-2)  # a step of 1/255, divided by 0.2
    images = prepare(pixels)

    classifier = mobilenet_v3_small(weights=None, num_classes=10).eval()
    wanted = classifier(images)
    torch.testing.assert_close(torch.compile(classifier, backend="max_backend")(images), wanted, rtol=1e-3, atol=1e-4)
    print("classifier: the same")

    segmenter = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4).eval()
    wanted = segmenter(images)["out"]
    compiled = torch.compile(segmenter, backend="max_backend")
    torch.testing.assert_close(compiled(images)["out"], wanted, rtol=1e-3, atol=1e-4)
    print("segmentation: the same")

    detector = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4).eval()
    wanted = detector([images[0]])[0]
    given = torch.compile(detector, backend="max_backend")([images[0]])[0]
    torch.testing.assert_close(given["scores"], wanted["scores"], rtol=1e-3, atol=1e-4)
    print(f"detector: the same scores for {len(wanted['scores'])} boxes")
    print_what_ran()


if __name__ == "__main__":
    main()
