"""What is measured: models with their arguments, by name."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from torch_max_backend.base.errors import EvidenceError
from torch_max_backend.diagnostics.coverage import model_and_arguments
from torch_max_backend.frontend.prebuild import load_function
from torch_max_backend.measurement.clocks import Call


@dataclass(frozen=True)
class Case:
    """A model or function and what it is called with.

    ``name`` is for the reports. ``origin`` is what gave it, as ``path/to/file.py:function``, if another process is to
    make it again.
    """

    name: str
    function: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""

    def caller(self, function: Callable[..., Any], parameters: Sequence[torch.Tensor], training: bool) -> Call:
        """A call of what a contender made of the model, on arguments of its own.

        Args:
            parameters: With ``training``, what gradients are taken of, beside the arguments that want one.
            training: A call computes gradients of its results, and gives both; else it only gives the results.
        """
        args, kwargs = copy.deepcopy((self.args, dict(self.kwargs)))
        if not training:
            return lambda number: function(*args, **kwargs)
        leaves = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        wanted = [x for x in (*parameters, *leaves) if x.requires_grad]

        def step(number: int) -> Any:
            results = function(*args, **kwargs)
            roots = [x for x in pytree.tree_leaves(results) if isinstance(x, torch.Tensor) and x.requires_grad]
            if not (roots and wanted):
                raise EvidenceError(f"training: case {self.name} has nothing that wants a gradient")
            ones = [torch.ones_like(x) for x in roots]
            return results, torch.autograd.grad(roots, wanted, ones, allow_unused=True)

        return step


def cases_of(make: Callable[..., Any], name: str, device: str, origin: str = "") -> list[Case]:
    """The cases that a user's function gives, on a device.

    Args:
        make: Gives ``(model, args)`` or ``(model, args, kwargs)``, as for ``coverage``, or a dict of them by name. It
            gets the device if it takes an argument.
        name: What the only case is called.

    Raises:
        EvidenceError: A dict is empty.
        CoverageError: It gives something else.
    """
    made = make(*((device,) if inspect.signature(make).parameters else ()))
    if not isinstance(made, dict):
        return [_case(name, made, device, origin)]
    if not made:
        raise EvidenceError(f"{name} must give at least one case, got an empty dict")
    return [_case(f"{name}[{key}]", value, device, origin) for key, value in made.items()]


def load_cases(target: str, device: str) -> list[Case]:
    """The cases of ``path/to/file.py:function`` or ``module:function``, named after file and function.

    Raises:
        MaxBackendError: There is no such file, module or function, or it gives something else.
    """
    place, _, function = target.rpartition(":")
    name = f"{Path(place).stem if place.endswith('.py') else place}:{function}"
    return cases_of(load_function(target), name, device, target)


def _case(name: str, made: Any, device: str, origin: str) -> Case:
    function, args, kwargs = model_and_arguments(made)
    if isinstance(function, nn.Module):
        function = function.to(device)
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda x: x.to(device), (args, kwargs))
    return Case(name, function, args, kwargs, origin)
