"""The exceptions of this package: one tree, so that ``except MaxBackendError`` catches all of it.

Every message says what happened, where in the user's program, why, and what the user can do.
"""

from __future__ import annotations

from pathlib import Path


class MaxBackendError(Exception):
    """Base class of every error that this package raises on its own account."""


class OptionError(MaxBackendError, ValueError):
    """An option, mode or environment variable has an unknown name or a value out of its range."""


class EnvironmentUnsupportedError(MaxBackendError, RuntimeError):
    """The interpreter, torch, MAX or the requested device is not one this package works with."""


class RegistrationError(MaxBackendError, TypeError):
    """``@map_to`` was given something that is not an ATen op, or an op that has a lowering already."""


class Unsupported(MaxBackendError, NotImplementedError):
    """A lowering or a capability check declines one node; the message is the limit and the value received.

    Raised inside a lowering, it makes the node an island (or, in strict mode, an :class:`UnsupportedOpError`).
    """


class NeedsStatic(Unsupported):
    """A lowering needs sizes or numbers to be known while the graph is built; ``sizes`` are the ones it needs.

    Where torch knows their values, the backend specialises the graph on them and lowers the node again.
    """

    def __init__(self, message: str, *sizes: object) -> None:
        super().__init__(message)
        self.sizes = sizes


class UnsupportedOpError(MaxBackendError, NotImplementedError):
    """Strict mode (``fallback="error"``): a node cannot run on MAX. Names the op, the limit and the user's line."""


class LoweringError(MaxBackendError, RuntimeError):
    """A lowered value disagrees with the shape or dtype that torch promises for the node."""


class CompileError(MaxBackendError, RuntimeError):
    """MAX could not compile a region. Carries the compiler's diagnostics."""


class ProgramError(CompileError):
    """Mojo could not compile the kernels of a program."""


class BundleError(MaxBackendError, ValueError):
    """A file is no bundle of compiled regions, or is damaged, or could not be taken over."""


class SavedFunctionError(MaxBackendError, ValueError):
    """A function compiled ahead of time cannot be saved, or its file is damaged or made for another machine."""


class PatchError(MaxBackendError, ValueError):
    """A model cannot be patched as asked, or a patch cannot be taken back. Nothing has been changed."""


class ExecutionError(MaxBackendError, RuntimeError):
    """A compiled region raised while it ran: a zero divisor of integers, or a failure of the engine."""


class RanksDifferError(MaxBackendError, RuntimeError):
    """Ranks of a process group are about to call different collectives, or run different versions."""


class CoverageError(MaxBackendError, RuntimeError):
    """A function cannot be looked at without being run, or what should give a model gives something else."""


class EvidenceError(MaxBackendError, ValueError):
    """A study, a record or a profile was asked for that cannot be made; the message has the argument and its limit."""


class VerifyError(MaxBackendError, RuntimeError):
    """With ``verify``, a region's result differs from torch's by more than rounding.

    ``op`` is the first op that is wrong, or of a wrong result if no part is wrong by itself, ``where`` the user's line,
    ``repro`` the file that shows it.
    """

    def __init__(self, message: str, op: str = "", where: str = "", repro: Path | None = None) -> None:
        super().__init__(message)
        self.op, self.where, self.repro = op, where, repro


class OutOfRangeError(ExecutionError, IndexError):
    """An index lies outside its tensor. Torch raises ``IndexError`` or ``RuntimeError``, by op; this is both."""


class ArrayTypeError(MaxBackendError, TypeError):
    """A function of ``torch_max_backend.array`` was given a data type or an object that it doesn't take."""


class ArrayValueError(MaxBackendError, ValueError):
    """Shapes, axes or numbers given to a function of ``torch_max_backend.array`` don't fit together."""


class ArrayIndexError(MaxBackendError, IndexError):
    """An index of a ``torch_max_backend.array`` array doesn't fit its shape."""
