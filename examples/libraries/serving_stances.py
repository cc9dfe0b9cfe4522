"""Serving by stances: warm up, then never compile while a request waits, and leave compiled code when told to.

python examples/libraries/serving_stances.py
"""

from __future__ import annotations

import torch
from torch import nn
from what_ran import print_what_ran


@torch.inference_mode()
def main() -> None:
    """Serve warm sizes compiled, others in eager, and show what each stance does."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 4)).eval()
    compiled = torch.compile(model, backend="max_backend", dynamic=False)
    compiled(torch.zeros(8, 16))  # the warm-up

    request, odd = torch.randn(8, 16), torch.randn(3, 16)
    with torch.compiler.set_stance("eager_on_recompile"):
        torch.testing.assert_close(compiled(request), model(request), rtol=1e-4, atol=1e-5)
        assert torch.equal(compiled(odd), model(odd)), "a size that is not warm is served in eager, to the bit"
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(request)
        try:
            compiled(odd)
        except RuntimeError as error:
            print(f"fail_on_recompile: {str(error).splitlines()[0]}")
        else:
            raise AssertionError("a size that is not warm was served")
    with torch.compiler.set_stance("force_eager"):
        assert torch.equal(compiled(request), model(request))
    print("warm sizes compiled, others in eager")
    print_what_ran()


if __name__ == "__main__":
    main()
