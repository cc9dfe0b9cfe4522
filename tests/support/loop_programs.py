"""Random loop programs, and their outputs by every stage of the compiler.

Most programs are *exact*: their numbers are small integers, whatever the dtype, so that neither the order of a sum nor
an omitted rounding changes a bit, and results must be equal. *Smooth* ones have exponentials and divisions, and results
must agree within the rounding errors of their longest sum. Programs with symbolic sizes run at several values of these.
"""

from __future__ import annotations

import copy
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from torch_max_backend.codegen.program_writer import WrittenProgram, write_program
from torch_max_backend.compile.mojo_build import build_shared_library
from torch_max_backend.frontend import pipeline
from torch_max_backend.loops import program as loop_program
from torch_max_backend.loops.expr import Scalar, as_index, cast, constant, from_index, op, select
from torch_max_backend.loops.index import Index, Sym, product
from torch_max_backend.loops.interpreter import Interpreter
from torch_max_backend.loops.program import Call, Called, Input, Program, Ref, dense_strides
from torch_max_backend.loops.rules import norm, reduce, views
from torch_max_backend.loops.rules.pointwise import clamp_to, to_copy
from torch_max_backend.loops.simplify import without_dead_definitions
from torch_max_backend.loops.tensor import Builder, Tensor, building, computed_in, define, named, pointwise
from torch_max_backend.partition.region import Port, Region
from torch_max_backend.runtime.program import Library
from torch_max_backend.schedule.machine import CPU, Machine
from torch_max_backend.schedule.plan import passes, schedule


def noted_programs(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """A list that will have the loop program of every region that becomes one."""
    found: list[Program] = []
    made = pipeline.programs_of

    def noted(*args: Any, **kwargs: Any) -> Any:
        programs = made(*args, **kwargs)
        found.extend(p.loops for p in programs.values())
        return programs

    monkeypatch.setattr(pipeline, "programs_of", noted)
    return found


SIZES = (1, 2, 3, 5, 16, 17, 33, 64)
FLOATS = (torch.float32, torch.float32, torch.float64, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.bool)
MOST = 6000
"""Elements of a tensor: programs stay quick."""
SYMBOLS = (("n0", 4), ("n1", 3))
"""Symbolic sizes, with the least that they may be."""
VALUES = ((33, 17), (4, 3), (16, 5))
"""What symbolic sizes are; the first are hints, and the largest."""
LARGEST = 64
"""Numbers of exact programs stay within this; bfloat16 holds integers up to 256."""


@dataclass
class LoopProgram:
    """A program with inputs for it; ``smooth`` ones are compared within a tolerance.

    ``symbols`` are the values of symbolic sizes, ``others`` is the same program at other values. Passes and kernels are
    those for ``machine``.
    """

    seed: int
    program: Program
    inputs: list[torch.Tensor]
    smooth: bool
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    symbols: dict[str, int] = field(default_factory=dict)
    others: list[LoopProgram] = field(default_factory=list)
    machine: Machine = CPU

    def fresh(self) -> list[torch.Tensor]:
        """Copies of the inputs with their strides."""
        return [copy.deepcopy(x) for x in self.inputs]

    def expected(self, program: Program | None = None) -> list[torch.Tensor]:
        """The outputs, and the inputs as they are afterwards, by the interpreter."""
        inputs = self.fresh()
        outputs = Interpreter(program or self.program, self.symbols).run(inputs)
        return [x.reshape(s) for x, s in zip(outputs, self.shapes, strict=True)] + inputs

    def region(self) -> Region:
        """What the writer of programs wants to know of outputs."""
        graph = fx.Graph()
        ports = []
        for k, ((_, order), shape) in enumerate(zip(self.program.outputs, self.shapes, strict=True)):
            node = graph.placeholder(f"out{k}")
            node.meta["val"] = torch.empty(shape, device="meta")
            ports.append(Port(node, order))
        return Region([], [], ports)

    def written(self) -> WrittenProgram:
        """Its Python function and its kernels."""
        gpu = 0 if self.machine.has_grid else None
        return write_program(self.region(), schedule(self.program, self.machine), [False] * len(self.inputs), gpu)

    def check(self, given: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], stage: str) -> None:
        """Compare outputs with those of the interpreter."""
        for k, (x, y) in enumerate(zip(given, wanted, strict=True)):
            assert x.dtype is y.dtype and x.shape == y.shape, f"seed {self.seed}, {stage}, {k}: {x.shape}, {y.shape}"
            rtol, atol = (0.0, 0.0) if not self.smooth or not x.dtype.is_floating_point else self._tolerance(x.dtype, y)
            torch.testing.assert_close(
                x, y, rtol=rtol, atol=atol, equal_nan=True,
                msg=lambda text, k=k: f"seed {self.seed}, {stage}, result {k}: {text}\n{self.program}",
            )  # fmt: skip

    def _tolerance(self, dtype: torch.dtype, y: torch.Tensor) -> tuple[float, float]:
        """A sum of n terms has at most n roundings; what is computed around it has some 32 more.

        The epsilon of the coarsest dtype on the way counts. Values are of order 1, except where the result says else.
        """
        dtypes = {d.dtype for d in self.program.definitions()} | {x.dtype for x in self.inputs} | {dtype}
        dtypes = {d for d in dtypes if d.is_floating_point}
        counts = [math.prod(Index.of(v.size).typical for v in d.reduced) for d in self.program.definitions()]
        wide = max(counts, default=1) * max(torch.finfo(computed_in(d)).eps for d in dtypes)
        coarse = 32 * max(torch.finfo(d).eps for d in dtypes)
        return wide + coarse, (wide + coarse) * max(1.0, float(y.abs().max()) if y.numel() else 1.0)


# -- random programs ---------------------------------------------------------------------------------------------------
class _Maker:
    """Makes tensors at random. In exact programs each op ends in a clamp, in smooth ones numbers are of order 1."""

    def __init__(self, seed: int, builder: Builder, symbolic: bool = False) -> None:
        self.random = random.Random(seed)
        largest = VALUES[0]
        self.symbols = [Sym(name, low, hint) for (name, low), hint in zip(SYMBOLS, largest)] if symbolic else []
        builder.program.symbols = {s: s.name for s in self.symbols}
        self.seed, self.builder = seed, builder
        self.smooth = self.random.random() < 0.25
        self.has_nan = not self.smooth and self.random.random() < 0.15
        self.generator = torch.Generator().manual_seed(seed)
        self.inputs: list[torch.Tensor] = []
        self.given: list[_Given] = []
        self.pool: list[Tensor] = []
        self.read_by_calls: set[str] = set()

    # -- inputs ------------------------------------------------------------------------------------------------
    def shape(self) -> list[Index]:
        rank = self.random.choice([0, 1, 1, 2, 2, 2, 3, 3, 4])
        shape: list[Index] = []
        for _ in range(rank):
            size = Index.of(0 if self.random.random() < 0.01 else self.random.choice(SIZES))
            if self.symbols and self.random.random() < 0.6:
                n = Index.of(self.random.choice(self.symbols))
                size = self.random.choice([n, n, n, n * 4, n + 1, n * Index.of(self.symbols[0])])
            shape.append(size if _most([*shape, size]) <= MOST else Index.of(self.random.choice([1, 2])))
        return shape

    def input(self) -> Tensor:
        shape = self.shape()
        if self.pool and self.random.random() < 0.6:
            chosen = self.random.choice(self.pool).shape
            shape = [s if self.random.random() < 0.85 else Index.of(1) for s in chosen]
        dtype = self.random.choice(FLOATS if self.smooth else DTYPES)
        order = self.random.sample(range(len(shape)), len(shape))
        gap = bool(shape) and self.random.random() < 0.15
        made = _Given(tuple(shape), dtype, order, gap)
        name = f"x{len(self.inputs)}"
        if self.symbols:
            strides = made.strides()
            self.inputs.append(self.values_of(made, dict(zip(map(str, self.symbols), VALUES[0]))))
        else:
            self.inputs.append(self.values_of(made, {}))
            strides = tuple(map(Index.of, self.inputs[-1].stride()))
        self.given.append(made)
        self.builder.program.inputs[name] = Input(name, dtype, made.sizes, strides)
        return named(name, made.sizes, dtype)

    def values_of(self, made: _Given, symbols: dict[str, int]) -> torch.Tensor:
        """Numbers for an input."""
        stretched = [_at(made.sizes[d], symbols) for d in made.order]
        if made.gap:
            stretched[-1] *= 2
        x = self.numbers(stretched, made.dtype)
        x = x[..., ::2] if made.gap else x
        return x.permute([made.order.index(d) for d in range(len(made.sizes))])

    def numbers(self, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
        if self.smooth:
            return torch.randn(shape, generator=self.generator, dtype=torch.float64).clamp(-3, 3).to(dtype)
        if dtype is torch.bool:
            return torch.randint(0, 2, shape, generator=self.generator).bool()
        x = torch.randint(-9, 10, shape, generator=self.generator).to(dtype)
        if self.has_nan and dtype.is_floating_point:
            x[torch.rand(shape, generator=self.generator) < 0.02] = float("nan")
            x[torch.rand(shape, generator=self.generator) < 0.02] = float("inf")
        return x

    # -- steps -------------------------------------------------------------------------------------------------
    def any(self, of: Callable[[Tensor], bool] = lambda x: True) -> Tensor | None:
        """A tensor of the pool, mostly a recent one."""
        found = [x for x in self.pool if of(x)]
        if not found:
            return None
        return found[-1] if self.random.random() < 0.4 else self.random.choice(found)

    def step(self) -> Tensor | None:
        """One more tensor from those in the pool; nothing if that is not possible."""
        kinds = ["pointwise"] * 5 + ["view"] * 6 + ["join", "pad", "triangle", "gather", "reduce", "reduce", "reduce"]
        kinds += ["row", "product", "materialised", "cast"]
        return getattr(self, f"_{self.random.choice(kinds)}")()

    def end(self, x: Scalar) -> Scalar:
        if x.dtype is torch.bool:
            return x
        return clamp_to(x, constant(-LARGEST, x.dtype), constant(LARGEST, x.dtype)) if not self.smooth else x

    def _pointwise(self) -> Tensor | None:
        x = self.any()
        y = self.any(lambda o: _broadcasts(o, x))
        if x is None or y is None:
            return None
        if self.smooth:
            return pointwise(self.random.choice(_SMOOTH), x, y)
        dtype = torch.promote_types(x.dtype, y.dtype)
        if dtype is torch.bool:
            return pointwise(self.random.choice(_TRUTHS), x, y)
        formula = self.random.choice(_NUMBERS if dtype.is_floating_point else [*_NUMBERS, *_INTEGERS])
        if self.random.random() < 0.15:
            return pointwise(self.random.choice(_COMPARISONS), x, y, dtype=torch.bool)
        return pointwise(lambda a, b: self.end(formula(a, b)), x, y)

    def _cast(self) -> Tensor | None:
        x = self.any()
        if x is None:
            return None
        to = self.random.choice(FLOATS if self.smooth or (self.has_nan and x.dtype.is_floating_point) else DTYPES)
        return to_copy(x, to)

    def _materialised(self) -> Tensor | None:
        x = self.any()
        return None if x is None else define(x.shape, x.dtype, x.at)

    def _view(self) -> Tensor | None:
        x = self.any(lambda x: x.rank > 0)
        if x is None:
            return None
        pick, d = self.random.choice, self.random.randrange(x.rank)
        n = x.shape[d]
        kind = pick(
            ["permute", "slice", "flip", "expand", "merge", "split", "flat", "roll", "select", "repeat", "diagonal"]
        )
        if kind == "permute":
            return views.permute(x, self.random.sample(range(x.rank), x.rank))
        if kind == "slice":
            if not n.is_constant:
                start, end = pick([0, 0, 1, 2]), n - pick([0, 0, 1])
                return views.slice_(x, d, start, end, pick([1, 1, 2, 3])) if (end - start).bounds[0] >= 1 else None
            start = self.random.randint(0, n.constant)
            return views.slice_(x, d, start, self.random.randint(start, n.constant), pick([1, 1, 2, 3]))
        if kind == "flip":
            return views.flip(x, [d])
        if kind == "expand":
            wide = [pick([2, 3, 17]) if s == 1 and x.rank < 4 else s for s in x.shape]
            return views.expand(x, [pick([2, 5]), *wide])
        if kind == "merge" and x.rank > 1:
            d = min(d, x.rank - 2)
            sizes = x.shape
            return views.reshaped(x, [*sizes[:d], sizes[d] * sizes[d + 1], *sizes[d + 2 :]])
        if kind == "split" and n.typical > 1:
            inner = pick(self._divisors(n, n.typical))
            return views.reshaped(x, [*x.shape[:d], n // inner, inner, *x.shape[d + 1 :]])
        if kind == "flat" and 0 not in _sizes(x):
            total = product(x.shape)
            inner = pick(self._divisors(total, 70))
            return views.reshaped(x, pick([[total], [total // inner, inner], [inner, total // inner]]))
        if kind == "roll":
            return views.roll(x, [self.random.randint(-3, 20)], pick([[d], []]))
        if kind == "select" and n.bounds[0] >= 1:
            low = int(n.bounds[0])
            return views.select_(x, d, self.random.randrange(-low, low))
        if kind == "repeat":
            return views.repeat(x, [pick([1, 1, 2]) for _ in range(x.rank)])
        if kind == "diagonal" and x.rank > 1:
            y = views.diagonal(x, self.random.randint(-2, 2), *self.random.sample(range(x.rank), 2))
            return y if not self.symbols or all(s.bounds[0] >= 1 for s in y.shape) else None
        return None

    def _divisors(self, n: Index, most: int) -> list[Index]:
        """What divides a size whatever symbolic sizes are."""
        known = [Index.of(k) for k in range(1, min(n.typical, most) + 1)]
        return [k for k in [*known, *map(Index.of, self.symbols)] if n % k == 0]

    def _join(self) -> Tensor | None:
        x = self.any(lambda x: x.rank > 0)
        if x is None:
            return None
        others = [y for y in self.pool if y.shape == x.shape and (self.smooth or not self.has_nan)]
        y = self.random.choice([*others, x])
        d = self.random.randrange(x.rank)
        if self.random.random() < 0.3:
            return views.stack([x, y], d) if x.dtype is y.dtype else None
        return views.cat([y, views.slice_(x, d, 0, self.random.randint(0, int(x.shape[d].bounds[0]))), x], d)

    def _pad(self) -> Tensor | None:
        x = self.any(lambda x: x.rank > 0)
        if x is None:
            return None
        pads = [self.random.choice([0, 1, 2, -1]) for _ in range(2 * self.random.randint(1, min(2, x.rank)))]
        for k in range(0, len(pads), 2):
            if x.shape[x.rank - 1 - k // 2].bounds[0] < (4 if self.symbols else 2):
                pads[k : k + 2] = [max(0, p) for p in pads[k : k + 2]]
        return views.constant_pad_nd(x, pads, self.random.choice([0, 1]))

    def _triangle(self) -> Tensor | None:
        x = self.any(lambda x: x.rank > 1)
        if x is None:
            return None
        return self.random.choice([views.tril, views.triu])(x, self.random.randint(-2, 2))

    def _gather(self) -> Tensor | None:
        """Rows at computed places."""
        x = self.any(lambda x: x.rank > 0 and 0 not in _sizes(x))
        index = self.any(lambda i: i.dtype in (torch.int64, torch.int32) and i.rank < 3)
        if x is None or index is None:
            return None
        n = x.shape[0]

        def place(i: tuple[Index, ...]) -> Index:
            found = op("remainder", cast(index.at(i), torch.int64), from_index(n))
            return as_index(found, 0, n.constant - 1 if n.is_constant else None)

        shape = (*index.shape, *x.shape[1:])
        return Tensor(shape, x.dtype, lambda i: x.at((place(i[: index.rank]), *i[index.rank :])))

    def _reduce(self) -> Tensor | None:
        x = self.any(lambda x: x.rank > 0)
        if x is None:
            return None
        dims = self.random.sample(range(x.rank), self.random.randint(1, x.rank))
        keep = self.random.random() < 0.5
        empty = 0 in _sizes(x)
        if self.smooth:
            return self._smooth_reduction(x, dims, keep) if not empty else None
        number = x.dtype is not torch.bool
        kinds = ["any", "all"] + ["sum", "product"] * number + ["maximum", "minimum", "argmax"] * (number and not empty)
        kind = self.random.choice(kinds)
        if kind in ("any", "all"):
            return reduce.over(kind, x, dims, keep, lambda e: cast(e, torch.bool), x.dtype, dtype=torch.bool)
        if kind == "argmax":
            function = self.random.choice([reduce.argmax, reduce.argmin])
            return function(x, self.random.choice([None, dims[0]]), keep)
        if kind == "product":
            inner = computed_in(x.dtype)
            return reduce.over("product", x, dims, keep, lambda e: clamp_to(e, -1, 1), inner, self.end, x.dtype)
        if kind == "sum":
            return reduce.over("sum", x, dims, keep, compute=computed_in(x.dtype), finish=self.end, dtype=x.dtype)
        return reduce.over(kind, x, dims, keep, compute=x.dtype)

    def _smooth_reduction(self, x: Tensor, dims: list[int], keep: bool) -> Tensor:
        kind = self.random.choice(["mean", "amax", "var", "logsumexp"])
        if kind == "mean":
            return reduce.mean(x, dims, keep)
        if kind == "amax":
            return reduce.amax(x, dims, keep)
        if kind == "var":
            return reduce.var(x, dims, 0, keep)
        return pointwise(lambda e: e * 0.1, reduce.logsumexp(x, dims, keep))

    def _row(self) -> Tensor | None:
        """Something like a softmax or a normalisation."""
        x = self.any(lambda x: x.rank > 0 and x.dtype.is_floating_point and 0 not in _sizes(x))
        if x is None:
            return None
        if not self.smooth:
            d = self.random.randrange(x.rank)
            top = reduce.amax(x, [d], True)
            near = pointwise(lambda a, b: self.end(a - b), x, top)
            total = reduce.over("sum", near, [d], True, compute=computed_in(x.dtype), finish=self.end, dtype=x.dtype)
            return pointwise(lambda a, b: self.end(a + b), near, total)
        if self.random.random() < 0.5:
            function, dim = self.random.choice([reduce.softmax, reduce.log_softmax]), self.random.randrange(x.rank)
            if x.dtype is torch.float64:  # its other softmaxes are left to ATen
                return reduce.safe_softmax(x, dim)
            y = function(x, dim, False)
            return y if function is reduce.softmax else pointwise(lambda e: e * 0.1, y)
        count = self.random.randint(1, x.rank)
        return norm.native_layer_norm(x, list(x.shape[x.rank - count :]), None, None, 0.5)[0]

    def _product(self) -> Tensor | None:
        """A library call on two matrices."""
        x = self.any(lambda x: x.rank == 2 and x.dtype in (torch.float32, torch.float64) and 0 not in _sizes(x))
        if x is None or self.random.random() < 0.6:
            return None
        a, b = define(x.shape, x.dtype, x.at), views.t(x)
        refs = [self._ref(a), self._ref(define(b.shape, b.dtype, b.at)) if self.random.random() < 0.5 else None]
        m, k = a.shape
        mine = refs[0]
        if refs[1] is None:
            refs[1] = Ref(mine.name, (k, m), (Index.of(1), k), Index.of(0))
        called = Called(self.builder.name(), x.dtype, (m, m), dense_strides((m, m)))
        self.builder.program.steps.append(Call("ATen", torch.ops.aten.mm.default, tuple(refs), {}, (called,)))
        result = named(called.name, called.sizes, x.dtype)
        scale = 1.0 / k.typical
        return pointwise(lambda e: e * scale if self.smooth else self.end(e), result)

    def _ref(self, x: Tensor) -> Ref:
        name = x.at(tuple(Index.of(0) for _ in x.shape)).source  # type: ignore[attr-defined]
        self.read_by_calls.add(name)
        return Ref(name, x.shape, dense_strides(x.shape), Index.of(0))

    # -- ends --------------------------------------------------------------------------------------------------
    def finish(self) -> LoopProgram:
        program = self.builder.program
        made = self.pool[len(self.inputs) :] or self.pool
        chosen = [*self.random.choices(made, k=self.random.randint(1, 3)), made[-1]]
        shapes = []
        for x in chosen:
            y = define(x.shape, x.dtype, x.at)
            order = list(range(x.rank))
            if self.random.random() < 0.3:
                self.random.shuffle(order)
            self._leave(y, order)
            shapes.append(tuple(_sizes(y)))
            if self.random.random() < 0.2:  # read what leaves
                z = pointwise(lambda e: -e if e.dtype is not torch.bool else ~e, y)
                self._leave(z, list(range(x.rank)))
                shapes.append(tuple(_sizes(z)))
        for name, x in program.inputs.items():
            if self.random.random() < 0.3:
                self._store(name, x)
        made = LoopProgram(self.seed, without_dead_definitions(program), self.inputs, self.smooth, shapes)
        if self.symbols:
            made.symbols, *others = ({s.name: n for s, n in zip(self.symbols, values)} for values in VALUES)
            for symbols in others:
                inputs = [self.values_of(x, symbols) for x in self.given]
                outputs = [tuple(_at(s, symbols) for s in program.shapes[name]) for name, _ in program.outputs]
                made.others.append(LoopProgram(self.seed, made.program, inputs, self.smooth, outputs, symbols))
        return made

    def _leave(self, x: Tensor, order: list[int]) -> None:
        """The last definition, which is ``x``, leaves."""
        program = self.builder.program
        name = program.steps[-1].name  # type: ignore[union-attr]
        program.outputs.append((name, tuple(order)))
        program.shapes[name] = x.shape

    def _store(self, name: str, x: Input) -> None:
        like = [t for t in self.pool if t.shape == x.sizes and t.dtype is x.dtype]
        if like:
            new = self.random.choice(like)
            define(new.shape, new.dtype, new.at)
            self.builder.program.stores.append((name, self.builder.program.steps[-1].name))  # type: ignore[union-attr]


_NUMBERS: list[Callable[[Scalar, Scalar], Scalar]] = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: op("maximum", a, b),
    lambda a, b: op("minimum", a, -b),
    lambda a, b: select(a < b, a, b * 2),
    lambda a, b: op("absolute", a) - b,
    lambda a, b: a * a - b,
    lambda a, b: cast(a > b, a.dtype) + b,
]
_INTEGERS: list[Callable[[Scalar, Scalar], Scalar]] = [
    lambda a, b: op("floor_div", a, constant(3, a.dtype)) + b,
    lambda a, b: op("remainder", a, select(b.equals(0), constant(5, b.dtype), b)),
    lambda a, b: op("trunc_div", a, constant(-4, a.dtype)) ^ b,
    lambda a, b: a & b,
    lambda a, b: op("shift_right", a, constant(1, a.dtype)) | b,
]
_TRUTHS: list[Callable[[Scalar, Scalar], Scalar]] = [
    lambda a, b: a & b,
    lambda a, b: a | ~b,
    lambda a, b: a ^ b,
    lambda a, b: a.equals(b),
]
_COMPARISONS: list[Callable[[Scalar, Scalar], Scalar]] = [
    lambda a, b: a < b,
    lambda a, b: a >= b,
    lambda a, b: a.equals(b),
    lambda a, b: op("ne", a, b),
]
_SMOOTH: list[Callable[[Scalar, Scalar], Scalar]] = [
    lambda a, b: op("tanh", a + b),
    lambda a, b: op("sigmoid", a - b),
    lambda a, b: op("exp", op("minimum", a, constant(1, a.dtype))) * 0.5 - 0.1 * b,
    lambda a, b: (a + b) * 0.5,
    lambda a, b: op("maximum", a, b),
    lambda a, b: a / (op("absolute", b) + 1),
    lambda a, b: op("sqrt", op("absolute", a) + 1) - b * 0.25,
]


@dataclass
class _Given:
    """An input: ``order`` has its dimensions as memory has them; with a gap, every second element counts."""

    sizes: tuple[Index, ...]
    dtype: torch.dtype
    order: list[int]
    gap: bool

    def strides(self) -> tuple[Index, ...]:
        """Its strides in elements."""
        strides, step = [Index.of(1)] * len(self.sizes), Index.of(2 if self.gap else 1)
        for d in reversed(self.order):
            strides[d] = step
            step = step * self.sizes[d]
        return tuple(strides)


def _at(size: Index, symbols: dict[str, int]) -> int:
    """A size where symbols have values."""
    return size.substitute({Sym(name): Index.of(n) for name, n in symbols.items()}).constant


def _most(sizes: Sequence[Index]) -> int:
    return math.prod(s.typical for s in sizes)


def _sizes(x: Tensor) -> list[int]:
    """Its sizes; symbolic ones are as large as they become."""
    return [s.typical for s in x.shape]


def _broadcasts(x: Tensor, y: Tensor | None) -> bool:
    if y is None:
        return False
    pairs = zip(reversed(x.shape), reversed(y.shape))
    sizes = [max(a.typical, b.typical) for a, b in zip(reversed(x.shape), reversed(y.shape))]
    return all(a == b or a == 1 or b == 1 for a, b in pairs) and math.prod(sizes) <= MOST


def random_program(seed: int, symbolic: bool = False) -> LoopProgram:
    """The program of a seed: some inputs, up to a dozen ops on them, outputs in any order of memory, stores."""
    with building() as builder:
        maker = _Maker(seed, builder, symbolic)
        for _ in range(maker.random.randint(1, 4)):
            maker.pool.append(maker.input())
        for _ in range(maker.random.randint(2, 16)):
            x = maker.step()
            if x is not None and math.prod(_sizes(x)) <= MOST and x.rank <= 5:
                maker.pool.append(x)
        return maker.finish()


def check_passes(made: LoopProgram) -> list[list[torch.Tensor]]:
    """Every pass leaves a valid program with the same results; returns these, for all values of symbolic sizes."""
    loop_program.check(made.program)
    every = [made, *made.others]
    wanted = [m.expected() for m in every]
    for name, program in passes(made.program, made.machine):
        loop_program.check(program)
        for m, want in zip(every, wanted, strict=True):
            m.check(m.expected(program), want, f"{name} at {m.symbols}")
    return wanted


# -- many programs in one library --------------------------------------------------------------------------------------
class _Part(Library):
    """The functions of one of the programs in a library that is loaded."""

    def __init__(self, library: Library, prefix: str) -> None:
        self.library, self.prefix = library, prefix

    def function(self, name: str, parallel: bool) -> Any:
        return self.library.function(self.prefix + name, parallel)


def built(written: Sequence[WrittenProgram], folder: Path) -> list[Callable[..., Any]]:
    """Programs as functions, from one compile."""
    parts = ["from kernel import *"]
    for k, program in enumerate(written):
        text = program.source.replace("from kernel import *", "", 1)
        parts.append(re.sub(r"\b(kernel|segment)(\d+)\(", rf"p{k}_\1\2(", text))
    path = folder / f"programs{len(list(folder.iterdir()))}.so"  # what is loaded is not written again
    path.write_bytes(build_shared_library("\n".join(parts), contract=False))
    library = Library(path)
    return [program.spec.bind(_Part(library, f"p{k}_")) for k, program in enumerate(written)]


def check_generated(programs: Sequence[LoopProgram], wanted: Sequence[list[list[torch.Tensor]]], folder: Path) -> None:
    """The generated kernels give the interpreter's results, in the promised order of memory."""
    written = [p.written() for p in programs]
    for made, w, run, wants in zip(programs, written, built(written, folder), wanted, strict=True):
        for m, want in zip([made, *made.others], wants, strict=True):
            inputs = m.fresh()
            outputs = list(run(*inputs, *(m.symbols[name] for name in w.symbols)))
            for x, (_, order) in zip(outputs, m.program.outputs, strict=True):
                assert x.permute(order).is_contiguous(), f"seed {m.seed}: {x.shape} {x.stride()} for order {order}"
            m.check([*outputs, *inputs], want, f"generated at {m.symbols}")
