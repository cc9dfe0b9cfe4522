"""Constant folding inside a MAX graph: arithmetic that lowerings do on constants.

MAX compiles what depends on constants alone as a module of its own, before it compiles the graph: 10 to 15 s for a
division of two numbers. So the graph gets the results instead. What is not in :data:`RULES` is left to MAX.

Dividing anything by a constant takes MAX as long, for whatever it looks for in the divisor. So divisors are hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from max._core import Operation as MlirOperation
from max._core import Value as MlirValue
from max.graph import Graph, StaticDim, TensorValue, ops
from torch.utils._python_dispatch import _disable_current_modes

from torch_max_backend.aten_functions.support.dtypes import torch_dtype

LARGEST_CONSTANT = 1 << 20
"""Bytes of a folded value; constants are embedded in the artifact."""

FREE = frozenset({"rmo.broadcast_to", "rmo.reshape", "rmo.mo.range"})
"""Ops that MAX fuses into what reads them, also when their operands are constants."""


def _cast(x: torch.Tensor, like: TensorValue) -> torch.Tensor | None:
    target = torch_dtype(like.dtype)
    if x.is_floating_point() and not target.is_floating_point:
        return None  # the value of what is out of range differs from processor to processor
    return x.to(target)


def _divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor | None:
    return x / y if x.is_floating_point() else None


def _bitwise(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor | None]:
    return lambda *values: function(*values) if all(v.dtype == torch.bool for v in values) else None


def _without_nan(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor | None]:
    return lambda *values: None if any(v.isnan().any() for v in values) else function(*values)


RULES: dict[str, Callable[..., torch.Tensor | None]] = {
    "rmo.add": torch.add,
    "rmo.sub": torch.sub,
    "rmo.mul": torch.mul,
    "rmo.div": _divide,
    "rmo.max": _without_nan(torch.maximum),
    "rmo.min": _without_nan(torch.minimum),
    "rmo.equal": torch.eq,
    "rmo.not_equal": _without_nan(torch.ne),
    "rmo.greater": torch.gt,
    "rmo.greater_equal": torch.ge,
    "rmo.and": _bitwise(torch.logical_and),
    "rmo.or": _bitwise(torch.logical_or),
    "rmo.xor": _bitwise(torch.logical_xor),
    "rmo.mo.not": _bitwise(torch.logical_not),
    "rmo.mo.negative": torch.neg,
    "rmo.mo.abs": torch.abs,
    "rmo.mo.trunc": torch.trunc,
    "rmo.mo.floor": torch.floor,
    "rmo.mo.is_nan": torch.isnan,
    "rmo.mo.is_inf": torch.isinf,
    "rmo.select": torch.where,
    "rmo.mo.range": torch.arange,
}
"""The value of an op's result, by its name; ``None`` where MAX shall compute it. It is torch's value, as in eager."""

SHAPED = {
    "mo.cast": _cast,
    "rmo.reshape": lambda x, like: x.reshape([int(d) for d in like.shape]),
    "rmo.broadcast_to": lambda x, like: x.expand([int(d) for d in like.shape]),
}
"""The same for ops whose result's type says what they do."""


def fold_constant_ops(graph: Graph) -> None:
    """Replace values of ``graph`` that depend on constants alone, if MAX would compile them separately.

    Must run inside the graph's context, after its outputs are set.
    """
    with _disable_current_modes():
        _fold(graph)
    _hide_divisors(graph)


def _fold(graph: Graph) -> None:
    values: dict[Any, torch.Tensor] = {}
    folded = []
    for op in list(graph._graph_body.operations):
        if len(op.results) != 1:
            continue
        result, operands = op.results[0], list(op.operands)
        if op.operation.name == "mo.constant":
            values[result] = _value_of_constant(result)
        elif operands and all(o in values for o in operands):
            value = _evaluate(op.operation.name, [values[o] for o in operands], _tensor(result))
            if value is not None:
                values[result] = value
                folded.append(op)
    for op in reversed(folded):  # readers first, so that what only they read has no uses left
        result = op.results[0]
        uses = {use.owner.operation.name for use in result.uses}
        if not uses:
            op.operation.erase()
        elif op.operation.name not in FREE:
            new = _constant(graph, values[result], _tensor(result))
            new.operation.move_before(op.operation)
            result.replace_all_uses_with(new.results[0])
            op.operation.erase()


def _hide_divisors(graph: Graph) -> None:
    """Divide by ``where(x == x, constant, x)`` instead of a constant: the same quotient, also of NaN."""
    constants: set[Any] = set()
    for op in list(graph._graph_body.operations):
        operands = list(op.operands)
        if op.operation.name == "mo.constant" or (operands and all(o in constants for o in operands)):
            constants.update(op.results)
        elif op.operation.name == "rmo.div" and operands[1] in constants:
            x, y = (_tensor(o) for o in operands)
            known = len(list(graph._graph_body.operations))
            hidden = ops.where(ops.equal(x, x), y, x)
            for new in list(graph._graph_body.operations)[known:]:
                new.operation.move_before(op.operation)
            MlirOperation._from_cmlir(op.operation).operands[1].value = hidden._mlir_value


def _tensor(result: Any) -> TensorValue:
    return TensorValue(MlirValue._from_cmlir(result))


def _value_of_constant(result: Any) -> torch.Tensor:
    tensor = _tensor(result)
    attribute = tensor._mlir_value.owner.value
    data = bytearray(attribute.data.data)
    dtype = torch_dtype(tensor.dtype)
    shape = [int(d) for d in tensor.shape]
    return torch.frombuffer(data, dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)


def _evaluate(name: str, operands: list[torch.Tensor], result: TensorValue) -> torch.Tensor | None:
    """The value of an op, or ``None`` if it is not to be folded."""
    if not all(isinstance(d, StaticDim) for d in result.shape):
        return None
    dtype = torch_dtype(result.dtype)
    if torch.Size(int(d) for d in result.shape).numel() * dtype.itemsize > LARGEST_CONSTANT:
        return None
    if name in SHAPED:
        value = SHAPED[name](operands[0], result)
    else:
        rule = RULES.get(name)
        value = rule(*operands) if rule is not None else None
    if value is None or value.dtype != dtype or list(value.shape) != [int(d) for d in result.shape]:
        return None
    if dtype.is_floating_point and not value.any():
        return None  # with a zero that it can see, MAX takes x * 0 for 0, also where x is NaN
    return value


def _constant(graph: Graph, value: torch.Tensor, like: TensorValue) -> Any:
    ops.constant(value.contiguous(), like.dtype, like.device)
    return list(graph._graph_body.operations)[-1]
