"""Whether a replacement computes what a module computes: both run on a small copy, forward and backward.

The copy is on the CPU, in float64, with small random parameters. So a rule may select by a loose name, such as every
class called RMSNorm: those that scale by one plus the weight fail the check of the rule that scales by the weight.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from torch_max_backend.patching.patched_class import Applied, with_patches

TOLERANCE = 1e-5
"""Largest difference beside the largest value. Norms of transformers round to float32 (6e-8) in the middle of a float64
computation; a sum over a row and its gradient take some tens of such roundings. Another formula is off by percents."""


class Checks:
    """The checks of one call of ``patch``: modules that differ in nothing but their weights are checked once."""

    def __init__(self) -> None:
        self._told: dict[Any, str | None] = {}

    def reason_against(self, applied: Applied, module: nn.Module) -> str | None:
        """How the replacement differs from the module's own code on the rule's sample, or None."""
        if applied.rule.sample is None:
            return None
        key = (applied, _description(module))
        if key not in self._told:
            self._told[key] = _difference(applied, module)
        return self._told[key]


def _difference(applied: Applied, module: nn.Module) -> str | None:
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad(), torch.device("cpu"):
            torch.default_generator.manual_seed(0)  # the CPU's alone: torch.manual_seed changes every device's
            twin = small_copy(module)
            inputs = applied.rule.sample(twin)  # type: ignore[misc]  # Checks has looked
            expected = _results(twin, inputs)
            twin.__class__ = with_patches(type(twin), [applied])
            given = _results(twin, inputs)
    except Exception as error:  # of code that is not ours: the reason is told, and the module left alone
        return f"the check raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    for (what, wanted), (_, got) in zip(expected, given, strict=True):
        told = _compared(wanted, got)
        if told is not None:
            return f"{what} is not the same: {told}"
    return None


def _compared(wanted: torch.Tensor | None, got: torch.Tensor | None) -> str | None:
    if wanted is None or got is None:
        return None if wanted is got else "only one of both has it"
    if (wanted.shape, wanted.dtype) != (got.shape, got.dtype):
        return f"{tuple(got.shape)} of {got.dtype} for {tuple(wanted.shape)} of {wanted.dtype}"
    difference, size = float((got - wanted).abs().max()), float(wanted.abs().max())
    return None if difference <= TOLERANCE * max(1.0, size) else f"off by {difference:.2g} beside {size:.2g}"


def _results(twin: nn.Module, inputs: tuple[Any, ...]) -> list[tuple[str, torch.Tensor | None]]:
    """Outputs, and gradients of inputs and parameters for fixed gradients of the outputs."""
    inputs = tuple(x.double().requires_grad_() if _is_float(x) else x for x in inputs)
    result = twin(*inputs)
    outputs = list(result) if isinstance(result, tuple) else [result]
    named = [(f"output {i}", out.detach()) for i, out in enumerate(outputs)]
    outputs = [out for out in outputs if out.requires_grad]
    if not outputs:
        return named
    leaves = [x for x in inputs if _is_float(x)] + list(twin.parameters())
    cotangents = [torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape) for out in outputs]
    gradients = torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)
    return [*named, *((f"gradient {i}", g) for i, g in enumerate(gradients))]


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def small_copy(module: nn.Module) -> nn.Module:
    """A copy on the CPU in evaluation mode with random parameters, and with all sizes divided by what divides them.

    A layer of 4096 x 11008 becomes one of 16 x 43: products with matrices have the same form at every size.
    """
    divisor = _divisor(module)
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        small = torch.randn([size // divisor for size in parameter.shape], dtype=torch.float64)
        memo[id(parameter)] = nn.Parameter(small / 2)
    for config in (vars(m).get("config") for m in module.modules()):
        memo[id(config)] = config  # large, and read alone
    twin = copy.deepcopy(module, memo).cpu().double().eval()
    sizes = {size for p in module.parameters() for size in p.shape}
    for part in twin.modules():
        for name, value in vars(part).items():
            if type(value) is int and value in sizes:
                setattr(part, name, value // divisor)
    return twin


def _divisor(module: nn.Module) -> int:
    """What all sizes of parameters have in common, if they include matrices; otherwise 1."""
    parameters = list(module.parameters())
    if not any(p.dim() == 2 for p in parameters):
        return 1
    return max(1, math.gcd(*(size for p in parameters for size in p.shape)))


def _description(module: nn.Module) -> tuple[Any, ...]:
    """What tells modules apart that are not checked together: classes, plain attributes, sizes."""
    return tuple(_described(module))


def _described(module: nn.Module) -> Iterator[Any]:
    plain = (bool, int, float, str, torch.dtype, tuple, type(None))
    for path, part in module.named_modules():
        yield path, type(part)
        yield from ((n, repr(v) if isinstance(v, plain) else _code(v)) for n, v in vars(part).items() if n[0] != "_")
    yield from ((name, tuple(p.shape)) for name, p in module.named_parameters())


def _code(value: Any) -> Any:
    """What an attribute runs if it is a function; of others the class."""
    return getattr(value, "__func__", None) or getattr(value, "__code__", None) or type(value)
