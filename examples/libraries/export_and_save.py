"""``torch.export``: an exported program is compiled by name, and one function is saved with its compiled code.

python examples/libraries/export_and_save.py
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.export import Dim
from what_ran import print_what_ran


class Encoder(nn.Module):
    """A transformer layer and a mean over positions: [batch, length, 32] to [batch, 32]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).mean(1)


@torch.no_grad()
def main() -> None:
    """Export, save, load, compile and compare."""
    torch.manual_seed(0)
    model = Encoder().eval()
    x, longer = torch.randn(2, 6, 32), torch.randn(3, 9, 32)
    sizes = {"x": {0: Dim("batch"), 1: Dim("length", min=2, max=64)}}
    file = io.BytesIO()
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes=sizes), file)
    file.seek(0)
    program = torch.export.load(file).module()
    compiled = torch.compile(program, backend="max_backend", dynamic=True)
    for given in (x, longer):
        torch.testing.assert_close(compiled(given), model(given), rtol=1e-4, atol=1e-5)
    print("an exported program: the same for two sizes")

    with torch._dynamo.config.patch(enable_aot_compile=True):
        function = torch.compile(model, backend="max_backend", fullgraph=True)
        place = Path(tempfile.mkdtemp()) / "encoder.aot"
        function.forward.aot_compile(((x,), {})).save_compiled_function(str(place))
    with place.open("rb") as stream:
        loaded = torch.compiler.load_compiled_function(stream)
    torch.testing.assert_close(loaded(model, x), model(x), rtol=1e-4, atol=1e-5)
    print(f"a saved function of {place.stat().st_size} bytes: the same")
    print_what_ran()


if __name__ == "__main__":
    main()
