"""What is said of a call before it runs: an estimate for each device, and ``Admit`` or ``Reject``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torch_max_backend.base.byte_sizes import in_words
from torch_max_backend.base.errors import MaxBackendError


@dataclass(frozen=True)
class Estimate:
    """What a call needs of one device at its peak, in bytes.

    ``arguments`` are there before the call, weights among them; ``constants`` are the compiled graph's own;
    ``allocated`` is what comes to it: intermediates, workspaces, results, and ``moved``, which are arguments that must
    be copied to where kernels can read them. ``results`` is what is left of it after the call.
    """

    device: str
    arguments: int
    constants: int
    allocated: int
    moved: int
    results: int

    @property
    def needed(self) -> int:
        """All of it."""
        return self.arguments + self.constants + self.allocated

    def __str__(self) -> str:
        parts = {"arguments": self.arguments, "constants": self.constants, "to allocate": self.allocated}
        return f"{in_words(self.needed)} ({', '.join(f'{in_words(n)} {name}' for name, n in parts.items() if n)})"


@dataclass(frozen=True)
class Admit:
    """The call fits: ``needed`` bytes, of ``free`` ones, on the ``device`` that is closest to its limit."""

    needed: int
    free: int
    device: str
    estimates: tuple[Estimate, ...] = ()


@dataclass(frozen=True)
class Reject:
    """The call does not fit: ``needed`` bytes on ``device``, where ``free`` are left, and by which limit.

    Against a budget, ``needed`` is all that the call has at its peak; against what the device has free, it is what
    must still be allocated.
    """

    reason: str
    needed: int
    free: int
    device: str
    estimates: tuple[Estimate, ...] = ()

    def __str__(self) -> str:
        return f"{self.reason} (needed {self.needed} bytes, free {self.free})"


Decision = Admit | Reject


class NotAdmittedError(MaxBackendError, torch.OutOfMemoryError):
    """A call was not begun, because memory would not have sufficed. It is torch's ``OutOfMemoryError`` as well."""

    def __init__(self, message: str, decision: Reject) -> None:
        super().__init__(message)
        self.decision = decision
        self.needed, self.free = decision.needed, decision.free


class AdmissionError(MaxBackendError, ValueError):
    """Nothing can be said of a call: what was given is no compiled function, or calls no compiled graph."""
