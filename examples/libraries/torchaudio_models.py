"""torchaudio: a mel spectrogram and Conformer on it.

python examples/libraries/torchaudio_models.py
"""

from __future__ import annotations

import torch
from torchaudio.models import Conformer
from torchaudio.transforms import AmplitudeToDB, MelSpectrogram
from what_ran import print_what_ran


@torch.no_grad()
def main() -> None:
    """Run in eager and compiled, and compare."""
    torch.manual_seed(0)
    features = torch.nn.Sequential(MelSpectrogram(16000, n_fft=128, n_mels=16), AmplitudeToDB())
    sound = torch.randn(2, 4000)
    wanted = features(sound)
    given = torch.compile(features, backend="max_backend")(sound)
    torch.testing.assert_close(given, wanted, rtol=1e-3, atol=1e-3)
    print("mel spectrogram: the same")

    model = Conformer(16, num_heads=2, ffn_dim=32, num_layers=2, depthwise_conv_kernel_size=7).eval()
    frames, lengths = wanted.transpose(1, 2), torch.tensor([63, 40])
    wanted, _ = model(frames, lengths)
    given, _ = torch.compile(model, backend="max_backend")(frames, lengths)
    torch.testing.assert_close(given, wanted, rtol=1e-3, atol=1e-4)
    print("Conformer: the same")
    print_what_ran()


if __name__ == "__main__":
    main()
