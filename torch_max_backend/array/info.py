"""What the library can do, as the standard asks for it."""

from __future__ import annotations

from typing import Any

import torch

from torch_max_backend.array import dtypes
from torch_max_backend.array.declaration import INFORMATION, function


class Info:
    """``__array_namespace_info__()``: capabilities, devices and data types."""

    def capabilities(self) -> dict[str, Any]:
        """What of the standard's optional parts there is."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> torch.device:
        """Where arrays are if nothing is said."""
        return torch.device("cpu")

    def default_dtypes(self, *, device: Any = None) -> dict[str, torch.dtype]:
        """Data types of Python numbers."""
        return {
            "real floating": dtypes.default_floating(),
            "complex floating": dtypes.default_complex(),
            "integral": dtypes.int64,
            "indexing": dtypes.int64,
        }

    def devices(self) -> list[torch.device]:
        """The CPU, and the GPUs that torch sees."""
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return [torch.device("cpu"), *(torch.device("cuda", k) for k in range(gpus))]

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, torch.dtype]:
        """The standard's data types by name: all of them, or those of a kind or of several."""
        if kind is None:
            return dict(dtypes.NAMES)
        if isinstance(kind, tuple):
            return {n: d for k in kind for n, d in self.dtypes(kind=k).items()}
        return {n: d for n, d in dtypes.NAMES.items() if d in dtypes.KINDS[kind]}


@function("inspection", INFORMATION)
def __array_namespace_info__() -> Info:
    """What the library can do."""
    return Info()
