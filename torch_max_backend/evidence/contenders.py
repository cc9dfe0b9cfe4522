"""Who is measured: eager, Inductor and this backend in their modes, each also with a patched model."""

from __future__ import annotations

import copy
import difflib
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torch_max_backend.base.errors import EvidenceError
from torch_max_backend.measurement.clocks import Call

Function = Callable[..., Any]

REFERENCE = "eager"
SETTINGS: dict[str, dict[str, Any]] = {
    REFERENCE: {},
    "inductor": {"backend": "inductor"},
    "inductor-reduce-overhead": {"backend": "inductor", "mode": "reduce-overhead"},
    "inductor-max-autotune": {"backend": "inductor", "mode": "max-autotune"},
    "inductor-freezing": {"backend": "inductor", "options": {"freezing": True}},
    "max": {"backend": "max_backend"},
    "max-reduce-overhead": {"backend": "max_backend", "mode": "reduce-overhead"},
    "max-freeze": {"backend": "max_backend", "options": {"freeze": True}},
}
"""Arguments of torch.compile. In eager, products are cuBLAS's, convolutions cuDNN's, and attention is torch's own.

Weights are frozen in inference alone.
"""

OURS = tuple(name for name, settings in SETTINGS.items() if settings.get("backend") == "max_backend")
TUNING = ("inductor-max-autotune",)
"""Contenders that choose kernels by measuring while they compile, and so need the machine to themselves."""
REPLAYING = tuple(name for name, settings in SETTINGS.items() if settings.get("mode", "default") != "default")
"""Contenders that may replay a recorded graph, whose outputs live until the next step begins."""
PATCHED = "+patch"
"""Behind a contender's name: it runs a copy of the model that ``torch_max_backend.patch`` has patched."""


def base_of(name: str) -> str:
    """A contender's name without ``+patch``."""
    return name.removesuffix(PATCHED)


def check_names(names: tuple[str, ...]) -> None:
    """Refuse contenders that do not exist.

    Raises:
        EvidenceError: There are none, one is unknown, or one is named twice.
    """
    if not names:
        raise EvidenceError(f"contenders must be one or more of {', '.join(SETTINGS)}; got none")
    for name in names:
        if base_of(name) not in SETTINGS:
            near = difflib.get_close_matches(base_of(name), SETTINGS, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise EvidenceError(
                f"contenders must be of {', '.join(SETTINGS)}, each also with {PATCHED}; got {name!r}{hint}"
            )
        if names.count(name) > 1:
            raise EvidenceError(f"contenders must be named once each, got {name!r} {names.count(name)} times")


def subject(name: str, function: Function) -> tuple[Function, str]:
    """What a contender compiles, a patched copy of the model or the function itself, and what is to be told of that.

    Raises:
        EvidenceError: A function that is no module cannot be patched.
    """
    if not name.endswith(PATCHED):
        return function, ""
    if not isinstance(function, nn.Module):
        raise EvidenceError(f"contender {name!r} needs a torch.nn.Module, got a {type(function).__name__}")
    from torch_max_backend.patching.patch import patch

    model = copy.deepcopy(function)
    changed = len(patch(model).changed)
    return model, f"{changed} module(s) patched" if changed else "the patch changed nothing"


def compiled(name: str, function: Function) -> Function:
    """What a contender makes of a function; nothing is compiled before its first call.

    Each contender gets code of its own: Dynamo keeps compiled code with the code object, and would look through
    the other contenders' in every call.
    """
    settings = dict(SETTINGS[base_of(name)])
    if not settings:
        return function
    if settings["backend"] == "max_backend":
        from torch_max_backend import max_backend

        settings["backend"] = max_backend  # the function, since only an installed package is found by its name
    called = function if isinstance(function, types.FunctionType) else _calling(function)
    word = name.replace("-", "_").replace("+", "_")
    code = called.__code__.replace(co_name=word)
    own = types.FunctionType(code, called.__globals__, word, called.__defaults__, called.__closure__)
    own.__kwdefaults__ = called.__kwdefaults__
    return torch.compile(own, dynamic=False, **settings)


def _calling(function: Function) -> types.FunctionType:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    assert isinstance(call, types.FunctionType)
    return call


def stepping(name: str, call: Call) -> Call:
    """The call, which says that a new step begins where a recorded graph may be replayed."""
    if base_of(name) not in REPLAYING or not torch.cuda.is_available():
        return call
    begin: Callable[[], None] = torch.compiler.cudagraph_mark_step_begin

    def step(number: int) -> Any:
        begin()
        return call(number)

    step.__wrapped__ = call  # type: ignore[attr-defined]
    return step
