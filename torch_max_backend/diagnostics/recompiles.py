"""Saying so when torch gives up compiling a function again, which is easy to miss: its calls then run in eager.

Torch reports it in its own log, as one of many lines. A handler there sees the report and says what it means for
functions compiled with this backend. A torch that words it differently is not understood, and nothing is said.
"""

from __future__ import annotations

import logging
import sys
import weakref
from types import CodeType

log = logging.getLogger("torch_max_backend")
_BEGINS = "torch._dynamo hit config."
_ours: weakref.WeakValueDictionary[int, CodeType] = weakref.WeakValueDictionary()
_told: set[str] = set()


def watch() -> None:
    """Note that the function which torch compiles now uses this backend."""
    code = function_compiled_now()
    if code is not None:
        _ours[id(code)] = code
    torch_log = logging.getLogger("torch._dynamo.convert_frame")
    if not any(isinstance(h, _Listener) for h in torch_log.handlers):
        torch_log.addHandler(_Listener(logging.WARNING))


def function_compiled_now() -> CodeType | None:
    """The function that torch compiles in a caller of this one. Torch's numbers for them repeat after a reset."""
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        if frame.f_code.co_name == "_compile" and frame.f_globals.get("__name__") == "torch._dynamo.convert_frame":
            code = frame.f_locals.get("code")
            return code if isinstance(code, CodeType) else None
    return None


class _Listener(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        parts = record.args
        if not str(record.msg).startswith(_BEGINS) or not isinstance(parts, tuple) or len(parts) < 4:
            return
        limit, count, function, reason = parts[:4]
        if id(function_compiled_now()) not in _ours or str(function) in _told:
            return
        _told.add(str(function))
        log.warning(
            "torch compiled %s %s times and stops there: calls for which it has no version run in eager. "
            "The guard that failed last: %s. If a size or a number differs from call to call, mark it with "
            "torch._dynamo.mark_dynamic, or compile with dynamic=True (docs/symbolic-sizes.md); "
            "torch._dynamo.config.%s is the limit.",
            function,
            count,
            str(reason).strip(),
            limit,
        )
