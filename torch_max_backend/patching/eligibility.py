"""Why a rule is not applied to one module: what would see the difference, or could not be taken back."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.utils import parametrize

from torch_max_backend.patching.patched_class import original
from torch_max_backend.patching.rule import Rule, qualified_name

HOOKS = {
    "_forward_hooks": "a forward hook",
    "_forward_pre_hooks": "a forward pre-hook",
    "_backward_hooks": "a backward hook",
    "_backward_pre_hooks": "a backward pre-hook",
}
_PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)
_CONV1D = "transformers.pytorch_utils.Conv1D"


def reason_against(rule: Rule, module: nn.Module, recognised: type) -> str | None:
    """Why the rule must not be applied to a module that it selects; None if it may.

    Args:
        recognised: The class by which the rule knows the module.
    """
    return next(_reasons(rule, module, recognised), None)


def is_plain_linear(module: nn.Module) -> bool:
    """Whether nothing would be lost by reading the weights of the module in place of calling it.

    It is asked in every call, since an adapter may take the place of a layer, or a hook be registered on it.
    """
    return _not_plain(module) is None


def _not_plain(module: nn.Module) -> str | None:
    if type(module) is not nn.Linear and qualified_name(type(module)) != _CONV1D:
        return f"is a {type(module).__qualname__}"
    if "forward" in module.__dict__:
        return "has a forward set on the instance"
    return next((f"has {what}" for hooks, what in HOOKS.items() if getattr(module, hooks)), None)


def _reasons(rule: Rule, module: nn.Module, recognised: type) -> Iterator[str]:
    cls = original(type(module))
    if isinstance(module, torch.jit.ScriptModule):
        yield "it is a ScriptModule"
    yield from _of_weights(module)
    for method in ("__deepcopy__", "__reduce__", "__reduce_ex__"):
        if getattr(cls, method, None) is not getattr(object, method, None):
            yield f"it copies or pickles itself in its own way ({method})"
    if getattr(cls, rule.attribute, None) is None:
        yield f"it has no {rule.attribute}"
    elif getattr(cls, rule.attribute) is not getattr(recognised, rule.attribute, None):
        yield f"{cls.__qualname__} overrides {rule.attribute} of {recognised.__qualname__}"
    if rule.attribute in vars(module):
        yield f"its {rule.attribute} is set on the instance"
    if rule.attribute == "forward":
        yield from (f"it has {what}" for hooks, what in HOOKS.items() if getattr(module, hooks))
    for path in rule.reads:
        yield from _of_child(module, path)
    told = rule.fits(module) if rule.fits is not None else None
    if told is not None:
        yield told


def _of_weights(module: nn.Module) -> Iterator[str]:
    if parametrize.is_parametrized(module):
        yield "it is parametrized: " + ", ".join(module.parametrizations)
    for name, tensor in module.named_parameters(recurse=False):
        if type(tensor) not in _PLAIN:
            yield f"its {name} is a {type(tensor).__qualname__}"
        elif not tensor.is_floating_point():
            yield f"its {name} is quantised to {tensor.dtype}"


def _of_child(module: nn.Module, path: str) -> Iterator[str]:
    try:
        child = module.get_submodule(path)
    except AttributeError:
        yield f"it has no layer {path}"
        return
    told = _not_plain(child)
    if told is not None:
        yield f"its {path} {told}"
    yield from (f"in {path}, {reason}" for reason in _of_weights(child))
