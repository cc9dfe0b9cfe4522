"""From a declaration to an op of ``torch.library``: fake function, kernel, gradient, autocast, vmap, decomposition."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_max_backend.capture.decompositions import decompose
from torch_max_backend.loops.libraries import add_library
from torch_max_backend.ops.declaration import LIBRARY, NAMESPACE, Declaration, gradient
from torch_max_backend.ops.eager_call import EagerCall


def register(declaration: Declaration) -> None:
    """Give an op that is defined everything else it needs."""
    name = f"{NAMESPACE}::{declaration.name}"
    call = _unseen_by_dynamo(EagerCall(declaration))
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(declaration.name, call, device)
        LIBRARY.impl(declaration.name, _autocast(declaration, f"Autocast{device}"), f"Autocast{device}")
    torch.library.register_fake(name, _fake(declaration), lib=LIBRARY)
    torch.library.register_vmap(name, _vmap(declaration), lib=LIBRARY)
    if declaration.gradient_of:
        torch.library.register_autograd(name, _second_gradient(declaration), setup_context=_keep_all, lib=LIBRARY)
    elif declaration.differentiable:
        backward, keep = _autograd(declaration)
        torch.library.register_autograd(name, backward, setup_context=keep, lib=LIBRARY)
    if declaration.kernel is None:
        decompose(declaration.overload, declaration.dense_reference)
    else:
        add_library(declaration.overload, NAMESPACE)


def _unseen_by_dynamo(kernel: EagerCall) -> Callable[..., Any]:
    """The kernel as a function that Dynamo does not trace. It takes seconds to import, so that is left to others."""
    disabled = torch._disable_dynamo(lambda *args: kernel(*args))  # of a function: it notes something there

    def call(*args: Any) -> Any:
        return (disabled if "torch._dynamo" in sys.modules else kernel)(*args)

    return call


def _fake(declaration: Declaration) -> Callable[..., Any]:
    def fake(*args: Any) -> Any:
        args = declaration.filled(args)
        shapes = declaration.result_shapes(declaration.check(args), args)
        dtypes = declaration.dtypes_of_results(args, len(shapes))
        results = [args[0].new_empty(s, dtype=d) for s, d in zip(shapes, dtypes, strict=True)]
        if declaration.returns_list:
            return results
        return results[0] if declaration.returns_one else tuple(results)

    return fake


# -- gradients -----------------------------------------------------------------------------------------------------
def _autograd(declaration: Declaration) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The backward function and what keeps its arguments; the gradient may be declared later."""
    names, same = declaration.names, declaration.same_gradient
    results = [r.name for r in declaration.overload._schema.returns]

    def needed() -> list[str]:
        own = gradient(declaration)
        if own is None:
            raise NotImplementedError(f"{declaration.name} has no gradient")
        return list(own.names[:-1])

    def keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        ctx.set_materialize_grads(True)
        returned = {"result": output} if declaration.returns_one else dict(zip(results, output))
        ctx.mark_non_differentiable(*(returned[n] for n in declaration.constant_results))
        values = {**dict(zip(names, inputs)), **returned}
        ctx.kept = {n: v for n in needed() if not isinstance(v := values.get(n), torch.Tensor)}
        ctx.tensors = [n for n in needed() if n in values and n not in ctx.kept]
        ctx.save_for_backward(*(values[n] for n in ctx.tensors))

    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        own = gradient(declaration)
        assert own is not None
        values = {**ctx.kept, **dict(zip(ctx.tensors, ctx.saved_tensors, strict=True))}
        values |= zip(["grad"] if declaration.returns_one else [f"grad_{n}" for n in results], grads, strict=True)
        asked = {n for n, is_asked in zip(names, ctx.needs_input_grad) if is_asked}
        wanted = [n in asked.union(same[m] for m in asked if m in same) for n in own.differentiable]
        found = iter(own.overload(*(values[n] for n in needed()), wanted) if any(wanted) else ())
        by_name = {n: next(found) for n, is_wanted in zip(own.differentiable, wanted) if is_wanted}
        by_name |= {n: by_name.get(m, values.get(m)) for n, m in same.items()}
        return tuple(by_name.get(n) if n in asked else None for n in names)

    return backward, keep


def _keep_all(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    ctx.set_materialize_grads(True)
    ctx.where = [k for k, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
    ctx.rest = [None if isinstance(x, torch.Tensor) else x for x in inputs]
    ctx.save_for_backward(*(inputs[k] for k in ctx.where))


def _second_gradient(declaration: Declaration) -> Callable[..., Any]:
    """The gradient of a gradient, by PyTorch's own through the reference."""

    def backward(ctx: Any, grads: Sequence[torch.Tensor]) -> Any:
        args = list(ctx.rest)
        with torch.enable_grad():
            for k, x in zip(ctx.where, ctx.saved_tensors, strict=True):
                args[k] = x.detach().requires_grad_(x.is_floating_point())
            results = declaration.reference(*args)
            asked = [k for k in ctx.where if ctx.needs_input_grad[k]]
            found = torch.autograd.grad(results, [args[k] for k in asked], list(grads), allow_unused=True)
        by_place = dict(zip(asked, found, strict=True))
        return tuple(by_place.get(k) for k in range(len(args)))

    return backward


# -- autocast and vmap ---------------------------------------------------------------------------------------------
def _autocast(declaration: Declaration, key: str) -> Callable[..., Any]:
    """What runs while autocast is on: the op with floating-point arguments cast as its declaration says."""
    device = key.removeprefix("Autocast").lower()
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def call(*args: Any) -> Any:
        floats = [x.dtype for x in args if isinstance(x, torch.Tensor) and x.is_floating_point()]
        if declaration.autocast == "lower":
            wanted = torch.get_autocast_dtype(device)
        else:
            wanted = torch.float32 if declaration.autocast == "float32" else _widest(floats)

        def cast(x: Any) -> Any:
            is_cast = isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != torch.float64
            return x.to(wanted) if is_cast else x

        with torch._C._ExcludeDispatchKeyGuard(keys):
            return declaration.overload(*map(cast, args))

    return call


def _widest(dtypes: Sequence[torch.dtype]) -> torch.dtype:
    """The dtype that all of some floating-point dtypes fit in."""
    found = dtypes[0]
    for dtype in dtypes[1:]:
        found = torch.promote_types(found, dtype)
    return found


def _vmap(declaration: Declaration) -> Callable[..., Any]:
    """The op over one more dimension: a leading one of the op itself where only arguments with ``...`` have it.

    Else there is a call for each element, as for weights of which there are several.
    """

    def over(info: Any, in_dims: Sequence[Any], *args: Any) -> Any:
        args = declaration.filled(args)
        moved = [x if d is None or isinstance(d, list) else x.movedim(d, 0) for x, d in zip(args, in_dims)]
        moved += args[len(in_dims) :]
        places = [k for k in declaration.tensors if args[k] is not None]
        has = {k: k < len(in_dims) and in_dims[k] is not None for k in places}
        can_lead = {k: declaration.patterns[declaration.names[k]].has_batch for k in places}
        if declaration.merges_batch and not declaration.gradient_of and all(can_lead[k] or not has[k] for k in places):
            for k in places:
                if can_lead[k] and not has[k]:
                    moved[k] = moved[k].expand(info.batch_size, *moved[k].shape)
            results = declaration.overload(*moved)
        else:
            each = [
                declaration.overload(*(x[i] if has.get(k) else x for k, x in enumerate(moved)))
                for i in range(info.batch_size)
            ]
            results = torch.stack(each) if declaration.returns_one else [torch.stack(r) for r in zip(*each)]
        if declaration.returns_one:
            return results, 0
        return (results, [0] * len(results)) if declaration.returns_list else (tuple(results), (0,) * len(results))

    return over
