"""Ask what would be decided of a call, without running it: ``torch_max_backend.admission(compiled, *inputs)``."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol, runtime_checkable

import torch

from torch_max_backend.admission_control.decision import AdmissionError, Decision

_thread = threading.local()


class AskedError(BaseException):
    """Ends a call that was made in order to ask. No handler of the program's own errors shall catch it."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision)
        self.decision = decision


@runtime_checkable
class Asked(Protocol):
    """A gate, which judges the next call even if it admitted such a call before."""

    def forget(self) -> None:
        """Judge calls anew."""


_gates: weakref.WeakSet[Any] = weakref.WeakSet()


def add(gate: Asked) -> None:
    """Have a gate take part."""
    _gates.add(gate)


def is_asking() -> bool:
    """Whether this thread asks, and does not want the call to run."""
    return getattr(_thread, "asks", False)


def admission(compiled: Any, *inputs: Any, **named: Any) -> Decision:
    """What would be decided of ``compiled(*inputs, **named)`` now. Nothing of it runs on a device.

    The function is compiled for these inputs if it was not. Where Dynamo cuts it into several graphs, the decision is
    about the first one, and the program's own code before that graph runs; ``fullgraph=True`` makes sure that there is
    one. A backward is a graph of its own, which is judged when it is called.

    Args:
        compiled: What ``torch.compile(..., backend="max_backend")`` gave.
        inputs: Its arguments.
        named: Its keyword arguments.

    Returns:
        ``Admit`` or ``Reject``, with the bytes that the call needs and those that are free for it.

    Raises:
        AdmissionError: ``compiled`` is no compiled function, or these inputs reach no graph of this backend, as where a
            graph is still compiled in the background, or played back from a recording. Then the call has run.
    """
    if not (isinstance(compiled, torch._dynamo.OptimizedModule) or hasattr(compiled, "_torchdynamo_orig_callable")):
        raise AdmissionError(
            f"compiled is {compiled!r}: expected what torch.compile(..., backend='max_backend') returns"
        )
    for gate in list(_gates):
        gate.forget()
    before, _thread.asks = is_asking(), True
    try:
        compiled(*inputs, **named)
    except AskedError as told:
        return told.decision
    finally:
        _thread.asks = before
    raise AdmissionError(
        f"compiled is {compiled!r}: called with {len(inputs) + len(named)} argument(s) it reached no graph of "
        "max_backend; it may be compiled in the background still, recorded as a device graph, or have another backend"
    )
