"""Who is measured: eager, Inductor in its three modes, and this backend in its modes."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.work import Call, Function

REFERENCE = "eager"
SETTINGS: dict[str, dict[str, Any]] = {
    REFERENCE: {},
    "inductor": {"backend": "inductor"},
    "inductor-reduce-overhead": {"backend": "inductor", "mode": "reduce-overhead"},
    "inductor-max-autotune": {"backend": "inductor", "mode": "max-autotune"},
    "max": {"backend": "max_backend"},
    "max-reduce-overhead": {"backend": "max_backend", "mode": "reduce-overhead"},
}
"""Arguments of torch.compile. In eager, products are cuBLAS's, convolutions cuDNN's, and attention is torch's own."""

OURS = tuple(name for name, settings in SETTINGS.items() if settings.get("backend") == "max_backend")
TUNING = ("inductor-max-autotune",)
"""Contenders that choose kernels by measuring while they compile, and so need the machine to themselves."""
REPLAYING = tuple(name for name, settings in SETTINGS.items() if settings.get("mode", "default") != "default")
"""Contenders that may replay a recorded graph, whose outputs live until the next step begins."""


def compiled(name: str, function: Function) -> Function:
    """What a contender makes of a function; nothing is compiled before its first call.

    Each contender gets code of its own: Dynamo keeps compiled code with the code object, and would look through
    the other contenders' in every call.
    """
    if name == REFERENCE:
        return function
    assert isinstance(function, types.FunctionType)
    settings = dict(SETTINGS[name])
    if settings["backend"] == "max_backend":
        from torch_max_backend import max_backend

        settings["backend"] = max_backend  # the function, since only an installed package is found by its name
    word = name.replace("-", "_")
    own = types.FunctionType(
        function.__code__.replace(co_name=word), function.__globals__, word, function.__defaults__, function.__closure__
    )
    return torch.compile(own, dynamic=False, **settings)


def stepping(name: str, call: Call) -> Call:
    """The call, which says that a new step begins where a recorded graph may be replayed."""
    if name not in REPLAYING or not torch.cuda.is_available():
        return call
    begin: Callable[[], None] = torch.compiler.cudagraph_mark_step_begin

    def step(number: int) -> Any:
        begin()
        return call(number)

    step.__wrapped__ = call  # type: ignore[attr-defined]
    return step
