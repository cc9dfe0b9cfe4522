"""Making a public op: ``@public_op`` over its reference, ``@gradient_of`` over its gradient."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from torch_max_backend.base.errors import RegistrationError
from torch_max_backend.ops.arguments import Pattern, Sizes
from torch_max_backend.ops.declaration import (
    FLOATS,
    Declaration,
    Results,
    Tolerance,
    declaration_of,
    define,
    keep,
)
from torch_max_backend.ops.registration import register

F = TypeVar("F", bound=Callable[..., Any])


def public_op(
    schema: str,
    *,
    shapes: Mapping[str, str],
    results: Results,
    tolerance: Tolerance,
    flops: Callable[[Sizes], Any],
    differentiable: Sequence[str] = (),
    **facts: Any,
) -> Callable[[F], F]:
    """Make an op of its reference, the decorated function, which is plain PyTorch and takes the schema's arguments.

    Args:
        schema: ``name(arguments) -> results``, as for ``torch.library``. The first argument is a tensor.
        shapes: The pattern of each tensor argument (see ``arguments.py``).
        results: A pattern for each result, or a function of sizes and all arguments that gives shapes.
        tolerance: Against the reference in float64.
        flops: Arithmetic operations of a call.
        differentiable: The arguments that have gradients, in the order in which the gradient function returns them.
        facts: Further fields of :class:`Declaration`.

    Returns:
        A function with the reference's signature that calls the op.

    Raises:
        RegistrationError: A name is taken, or shapes and schema have different tensors.
    """

    def make(reference: F) -> F:
        declaration = _declare(
            schema,
            reference,
            patterns={name: Pattern.of(text) for name, text in shapes.items()},
            results=results,
            tolerance=tolerance,
            flops=flops,
            differentiable=tuple(differentiable),
            **facts,
        )
        return _caller(declaration)

    return make


def _declare(schema: str, reference: Callable[..., Any], **facts: Any) -> Declaration:
    overload, name = define(schema), schema.partition("(")[0]
    tensors = [a.name for a in overload._schema.arguments if "Tensor" in str(a.type)]
    if tensors != list(facts["patterns"]):
        raise RegistrationError(f"{name} has the tensors {tensors}, and shapes of {list(facts['patterns'])}")
    declaration = Declaration(name, overload, reference, **facts)
    keep(declaration)
    register(declaration)
    return declaration


def _caller(declaration: Declaration) -> Any:
    overload = declaration.overload

    @functools.wraps(declaration.reference)
    def call(*args: Any, **kwargs: Any) -> Any:
        return overload(*args, **kwargs)

    return call


def gradient_of(name: str, flops: Callable[[Sizes], Any] | None = None, **facts: Any) -> Callable[[F], F]:
    """Make the gradient of an op of the decorated function, an op of its own, ``<name>_backward``.

    The function is plain PyTorch. Its parameters are what it needs: ``grad``, or ``grad_<result>`` for an op of several
    results, ``result`` for the result, and arguments of the op under their names. It returns the gradients of the op's
    differentiable arguments, in order. The op returns those that are wanted, as a list.

    Args:
        name: The op.
        flops: Arithmetic operations; those of the op twice where they are missing.
        facts: Further fields of :class:`Declaration`.
    """

    def make(function: F) -> F:
        op = declaration_of(name)
        written = _schema_types(op)
        needed = list(inspect.signature(function).parameters)
        outputs = _gradient_arguments(op)
        words = [f"{written.get(n, 'Tensor')} {n}" for n in needed]
        patterns = {n: op.patterns.get(n) or outputs[n] for n in needed if n in outputs or n in op.patterns}
        given = {n: d for n, d in op.dtypes.items() if n in needed}
        if op.result_dtypes:
            given |= {n: (d, torch.float64) for n, d in _fixed_dtypes(op).items() if n in needed}
            given |= {n: FLOATS for n in op.differentiable if n in needed and n not in given}
        _declare(
            f"{name}_backward({', '.join(words)}, bool[] wanted) -> Tensor[]",
            _wanted(function),
            patterns=patterns,
            results=functools.partial(_gradient_shapes, op),
            tolerance=facts.pop("tolerance", op.tolerance),
            flops=flops or (lambda sizes: 2 * op.flops(sizes)),
            differentiable=tuple(n for n in op.differentiable if n not in op.same_gradient),
            dtypes=given,
            gradient_of=name,
            **{"merges_batch": op.merges_batch, "dim_names": op.dim_names, **facts},
        )
        return function

    return make


def _schema_types(op: Declaration) -> dict[str, str]:
    """The type of each argument as the schema spells it."""
    inside = str(op.overload._schema).partition("(")[2].rpartition(") ->")[0]
    words = [part.strip().partition("=")[0].split() for part in inside.split(", ")]
    return {w[-1]: " ".join(w[:-1]) for w in words}


def _gradient_arguments(op: Declaration) -> dict[str, Pattern]:
    """What a gradient may ask for beside the op's arguments, with its pattern."""
    returns = op.overload._schema.returns
    patterns = list(map(Pattern.of, ["*"] * len(returns) if callable(op.results) else op.results))
    if op.returns_one:
        return {"grad": patterns[0], "result": patterns[0]}
    results = {r.name: p for r, p in zip(returns, patterns, strict=True)}
    return {f"grad_{name}": p for name, p in results.items()} | results


def _fixed_dtypes(op: Declaration) -> dict[str, torch.dtype]:
    """The dtypes of what a gradient may ask for, where they are not the first argument's."""
    names = ["result"] if op.returns_one else [r.name for r in op.overload._schema.returns]
    found = {n: d for n, d in zip(names, op.result_dtypes) if d is not None}
    return found | {"grad" if op.returns_one else f"grad_{n}": d for n, d in found.items()}


def _gradient_shapes(op: Declaration, sizes: Sizes, *args: Any) -> list[tuple[Any, ...]]:
    backward = declaration_of(f"{op.name}_backward")
    wanted = [n for n, is_wanted in zip(backward.differentiable, args[-1]) if is_wanted]
    own = backward.given(args)
    return [tuple(own[n].shape) if n in own else op.patterns[n].shape(sizes) for n in wanted]


def _wanted(function: Callable[..., Any]) -> Callable[..., list[torch.Tensor]]:
    def reference(*args: Any) -> list[torch.Tensor]:
        *own, wanted = args
        return [g for g, is_wanted in zip(function(*own), wanted) if is_wanted]

    return reference
