"""What PyTorch's accuracy minifier wants of a compiled function, under ``TORCHDYNAMO_REPRO_AFTER=dynamo``.

:mod:`torch_max_backend.frontend.after_aot` is about ``TORCHDYNAMO_REPRO_AFTER=aot``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch._functorch.config


def ready_for_minifier(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function that takes its arguments one by one what the minifier asks it for.

    It would hand all of them over in a list to AOTAutograd's function, which carries the mark of the boxed function
    inside it and is not one. It compares gradients of parameters and buffers by name, which AOTAutograd's function has
    and a graph that is called directly has none of.
    """
    function._boxed_call = False  # type: ignore[attr-defined]
    if not hasattr(function, "named_parameters"):
        function.named_parameters = function.named_buffers = tuple  # type: ignore[attr-defined]
    return function


def backward_for_minifier() -> AbstractContextManager[Any]:
    """Have backwards compiled with their forward while the minifier is on.

    It calls them while Dynamo compiles, when torch cannot count another compile.
    """
    has_choice = hasattr(torch._functorch.config, "force_non_lazy_backward_lowering")
    if torch._dynamo.config.repro_after != "dynamo" or not has_choice:
        return nullcontext()
    return torch._functorch.config.patch(force_non_lazy_backward_lowering=True)


def is_after_aot() -> bool:
    """Whether the minifier looks at the graphs that AOTAutograd makes."""
    return torch._dynamo.config.repro_after == "aot"
