"""A plain interpreter of loop programs, in torch: what schedules, passes and generated code are tested against.

It computes what a definition says for every index at once, one torch op an operation, and knows nothing of speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torch_max_backend.loops.expr import CASTS, Checked, Const, FromIndex, Guarded, Load, Op, Scalar
from torch_max_backend.loops.index import Atom, Computed, Div, Index, Least, Mod, Product, Sym, Var
from torch_max_backend.loops.program import Call, Definition, Program, Reduction, Ref, Scan, Scatter, Sort

Tensors = dict[str, torch.Tensor]

_TORCH: dict[str, Callable[..., torch.Tensor]] = {
    "neg": torch.neg,
    "absolute": torch.abs,
    "maximum_so_far": lambda a, b: torch.where((b > a) | b.isnan(), b, a),  # of zeros the first
    "minimum_so_far": lambda a, b: torch.where((b < a) | b.isnan(), b, a),
    "round_even": torch.round,
    "erfc": torch.erfc,
    "one_plus_erf": lambda x: 1 + torch.erf(x),
    "sub": torch.sub,
    "fma": lambda a, b, c: torch.addcmul(c, a, b),
    "div": torch.true_divide,
    "floor_div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "bit_and": torch.bitwise_and,
    "bit_or": torch.bitwise_or,
    "bit_xor": torch.bitwise_xor,
    "bit_not": torch.bitwise_not,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "select": torch.where,
    "is_nan": torch.isnan,
    "is_inf": torch.isinf,
    "is_finite": torch.isfinite,
}


class Interpreter:
    """Runs a program on tensors.

    Args:
        symbols: The values of symbolic sizes, by name.
    """

    def __init__(self, program: Program, symbols: Mapping[str, int] | None = None) -> None:
        self.program = program
        self.symbols = dict(symbols or {})
        self.tensors: Tensors = {}

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs, in order; inputs that the program stores into are written."""
        self.tensors = dict(zip(self.program.inputs, inputs, strict=True))
        for step in self.program.steps:
            if isinstance(step, Call):
                self._call(step)
            else:
                self.tensors[step.name] = self._define(step)
        for target, source in self.program.stores:
            written = self.tensors[target]
            written.copy_(self.tensors[source].reshape(written.shape))
        return [self._leaving(name) for name, _ in self.program.outputs]

    def _leaving(self, name: str) -> torch.Tensor:
        """An output; of a library's result that leaves in other dimensions, the memory as the library has it."""
        if name not in self.program.views:
            return self.tensors[name]
        sizes, strides = ([self._size(n) for n in of] for of in self.program.views[name])
        return self.tensors[name].contiguous().as_strided(sizes, strides)

    # -- steps -------------------------------------------------------------------------------------------------
    def _define(self, d: Definition) -> torch.Tensor:
        sizes = [self._size(v.size) for v in d.variables]
        if isinstance(d.how, Scatter):
            return self._scatter(d, d.how, sizes)
        over = [self._most(v.size) for v in d.reduced]
        values = self._values((*d.variables, *d.reduced), sizes + over, d.body)
        if isinstance(d.how, Reduction):
            values = self._without_excess(d, d.how.combiner, values)
            if d.how.combiner == "sum" and d.dtype is torch.float64:
                values = values.double()
            values = _reduced(d.how.combiner, values.reshape(*sizes, math.prod(over))).to(d.dtype)
        elif isinstance(d.how, Scan):
            values = _SCANS[d.how.combiner](values, d.variables.index(d.how.variable)).to(d.dtype)
        elif isinstance(d.how, Sort):
            ordered = values.sort(stable=True, dim=d.variables.index(d.how.variable))
            values = ordered.indices if d.how.gives_places else ordered.values
        if values.dtype is not d.dtype:
            raise TypeError(f"{d.name} is declared {d.dtype} and computed in {values.dtype}")
        return values

    def _without_excess(self, d: Definition, combiner: str, values: torch.Tensor) -> torch.Tensor:
        """``values``, where reduced variables run further than their size there, as what changes no result."""
        grid = _grid((*d.variables, *d.reduced), values.shape)
        for v in d.reduced:
            if isinstance(v.size, Index) and v.size.variables:
                within = grid[v] < self._index(v.size, grid, {})
                values = torch.where(within, values, _nothing(combiner, values.dtype))
        return values

    def _values(self, variables: Sequence[Var], sizes: Sequence[int], body: Scalar) -> torch.Tensor:
        values = self._scalar(body, _grid(variables, sizes), {}).expand(list(sizes))
        return values.clone(memory_format=torch.contiguous_format)  # it may be a view of an input that is written

    def _scatter(self, d: Definition, how: Scatter, sizes: list[int]) -> torch.Tensor:
        result = self._values(d.variables, sizes, d.body)
        over = [self._size(v.size) for v in how.variables]
        source = self._values(how.variables, over, how.source).flatten()
        flat = torch.zeros(over, dtype=torch.int64)
        grid = _grid(how.variables, over)
        for index, size in zip(how.target, sizes, strict=True):
            flat = flat * size + self._index(index, grid, {})
        flat, out = flat.expand(over).flatten(), result.flatten()
        for at, x in zip(flat.tolist(), source, strict=True):
            out[at] = x if how.combiner == "set" else _combine(how.combiner, out[at], x)
        return out.reshape(result.shape)

    def _call(self, call: Call) -> None:
        results = call.target(*_with_tensors(call.args, self._given), **_with_tensors(call.kwargs, self._given))
        results = results if isinstance(results, list | tuple) else [results]
        for named, value in zip(call.results, results, strict=False):
            if named is not None:
                self.tensors[named.name] = value

    def _given(self, ref: Ref | Index) -> torch.Tensor | int:
        if isinstance(ref, Index):
            return self._size(ref)
        x = self.tensors[ref.name]
        sizes, strides = ([self._size(s) for s in of] for of in (ref.sizes, ref.strides))
        return x.as_strided(sizes, strides, x.storage_offset() + self._size(ref.offset))

    # -- scalars, for every index at once ----------------------------------------------------------------------
    def _scalar(self, x: Scalar, grid: Mapping[Var, torch.Tensor], done: dict[Scalar, torch.Tensor]) -> torch.Tensor:
        if x not in done:
            done[x] = self._one(x, grid, done)
        return done[x]

    def _one(self, x: Scalar, grid: Mapping[Var, torch.Tensor], done: dict[Scalar, torch.Tensor]) -> torch.Tensor:
        if isinstance(x, Const):
            return torch.tensor(x.value, dtype=x.dtype)
        if isinstance(x, FromIndex):
            return self._index(x.index, grid, done)
        if isinstance(x, Load):
            return self._load(x, grid, done)
        if isinstance(x, Guarded):
            condition = self._scalar(x.condition, grid, done)
            return torch.where(condition, self._scalar(x.value, grid, done), self._scalar(x.other, grid, done))
        if isinstance(x, Checked):  # as a kernel goes on with it
            at, size = self._scalar(x.value, grid, done), self._size(x.size)
            return torch.where(at < 0, at + size, at).clamp(0, size - 1) if x.wraps else at.clamp(0, size - 1)
        assert isinstance(x, Op)
        args = [self._scalar(a, grid, done) for a in x.args]
        if x.name in CASTS:
            return args[0].to(x.dtype)
        if x.name == "bitcast":
            return args[0].view(x.dtype)
        function = _TORCH.get(x.name) or getattr(torch, x.name)
        if x.name in ("floor_div", "trunc_div", "remainder", "fmod") and not x.dtype.is_floating_point:
            safe = torch.where(args[1] == 0, torch.ones_like(args[1]), args[1])
            return torch.where(args[1] == 0, torch.zeros_like(args[1]), function(args[0], safe))
        return function(*args)

    def _load(self, x: Load, grid: Mapping[Var, torch.Tensor], done: dict[Scalar, torch.Tensor]) -> torch.Tensor:
        source = self.tensors[x.source]
        if source.numel() == 0:
            return torch.zeros((), dtype=source.dtype)
        at = [self._index(i, grid, done) for i in x.index]
        # a guarded load may be out of range where its guard does not hold
        return source[tuple(torch.clamp(i, 0, n - 1) for i, n in zip(at, source.shape, strict=True))]

    # -- indices -----------------------------------------------------------------------------------------------
    def _size(self, size: int | Index) -> int:
        return int(self._index(Index.of(size), {}, {}))

    def _most(self, size: int | Index) -> int:
        """The size, or the largest one of a variable whose size depends on others."""
        size = Index.of(size)
        known = size.substitute({a: Index.of(self.symbols[a.name]) for a in size.atoms if isinstance(a, Sym)})
        return int(known.bounds[1]) if known.variables else self._size(known)

    def _index(self, x: Index, grid: Mapping[Var, torch.Tensor], done: dict[Scalar, torch.Tensor]) -> torch.Tensor:
        result = torch.tensor(x.constant)
        for atom, k in x.terms:
            result = result + k * self._atom(atom, grid, done)
        return result

    def _atom(self, a: Atom, grid: Mapping[Var, torch.Tensor], done: dict[Scalar, torch.Tensor]) -> torch.Tensor:
        if isinstance(a, Var):
            return grid[a]
        if isinstance(a, Sym):
            return torch.tensor(self.symbols[a.name])
        if isinstance(a, Computed):
            return self._scalar(a.value, grid, done).to(torch.int64)
        if isinstance(a, Product):
            result = torch.tensor(1)
            for factor in a.factors:
                result = result * self._atom(factor, grid, done)
            return result
        if isinstance(a, Least):
            return torch.minimum(self._index(a.left, grid, done), self._index(a.right, grid, done))
        left, right = self._index(a.dividend, grid, done), self._index(a.divisor, grid, done)
        return torch.div(left, right, rounding_mode="floor") if isinstance(a, Div) else _modulo(a, left, right)


def _modulo(a: Mod, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return torch.remainder(left, right)


def _grid(variables: Sequence[Var], sizes: Sequence[int]) -> dict[Var, torch.Tensor]:
    """The values of each variable, along a dimension of its own."""
    rank = len(sizes)
    return {
        v: torch.arange(n).reshape([n if i == k else 1 for i in range(rank)])
        for k, (v, n) in enumerate(zip(variables, sizes, strict=True))
    }


def _nothing(combiner: str, dtype: torch.dtype) -> torch.Tensor:
    """What a combiner leaves the other operand with."""
    if combiner in ("maximum", "minimum"):
        sign = -1 if combiner == "maximum" else 1
        limits = torch.iinfo(dtype) if not dtype.is_floating_point else None
        value = sign * math.inf if limits is None else limits.min if sign < 0 else limits.max
        return torch.tensor(value, dtype=dtype)
    return torch.tensor({"sum": 0, "product": 1, "any": 0, "all": 1}[combiner], dtype=dtype)


def _reduced(combiner: str, values: torch.Tensor) -> torch.Tensor:
    if combiner == "sum":
        return values.sum(-1, dtype=values.dtype)
    if combiner == "product":
        return values.prod(-1, dtype=values.dtype)
    if combiner in ("any", "all"):
        return getattr(values, combiner)(-1)
    if combiner in ("argmax", "argmin"):
        return getattr(values, combiner)(-1)
    return values.amax(-1) if combiner == "maximum" else values.amin(-1)


def _combine(combiner: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    functions = {"sum": torch.add, "product": torch.mul, "maximum": torch.maximum, "minimum": torch.minimum}
    return functions[combiner](a, b)


_SCANS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "sum": lambda x, axis: torch.cumsum(x, axis, dtype=x.dtype),
    "product": lambda x, axis: torch.cumprod(x, axis, dtype=x.dtype),
    "maximum": lambda x, axis: torch.cummax(x, axis).values,
    "minimum": lambda x, axis: torch.cummin(x, axis).values,
    "argmax": lambda x, axis: torch.cummax(x, axis).indices,
    "argmin": lambda x, axis: torch.cummin(x, axis).indices,
    "log_sum_exp": torch.logcumsumexp,
}


def _with_tensors(value: Any, tensor: Callable[[Ref | Index], torch.Tensor | int]) -> Any:
    if isinstance(value, Ref | Index):
        return tensor(value)
    if isinstance(value, list | tuple):
        return type(value)(_with_tensors(v, tensor) for v in value)
    if isinstance(value, dict):
        return {k: _with_tensors(v, tensor) for k, v in value.items()}
    return value
