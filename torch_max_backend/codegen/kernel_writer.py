"""Mojo source of loop nests, against the kernel interface.

A source has a function for every different kernel, and one for each segment, a run of kernels that no library call
interrupts. Threads share the outer loop of each kernel; a barrier stands before a kernel that touches memory which
another one wrote. A segment's argument is one table of words: the addresses of the tensors, by slot, and behind them
the numbers that symbolic sizes give (lengths of loops, steps in memory). They are arguments of the kernels, so that
kernels are equal whatever their sizes are called.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from torch_max_backend.loops.expr import (
    SHORT,
    Checked,
    Const,
    FromIndex,
    Guarded,
    Load,
    Op,
    Scalar,
    loads,
    variables,
    walk,
)
from torch_max_backend.loops.index import Atom, Computed, Div, Index, Least, Mod, Product, Var, product
from torch_max_backend.loops.program import Scan, Scatter
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.nest import Nest, StageNest, Statement, lanes_of

UNROLLED = 4
"""Accumulators of a reduction along memory: an addition takes several cycles, and these do not wait for each other."""

CHAIN = 32
"""Additions one after the other in an accumulator of float32, before it is added to a total in float64: the rounding
errors of long sums grow with them."""

_FIRST = {"sum": "0", "product": "1", "any": "0", "all": "1"}
_COMBINE = {
    "sum": "add",
    "product": "mul",
    "any": "bit_or",
    "all": "bit_and",
    "maximum": "maximum",
    "minimum": "minimum",
}
_EXTREMES = ("maximum", "minimum", "argmax", "argmin")
_ACROSS = {
    "sum": "reduce_add",
    "product": "reduce_mul",
    "any": "reduce_or",
    "all": "reduce_and",
    "maximum": "reduce_max",
    "minimum": "reduce_min",
}


ERRORS = "errors"
"""The name, as of a tensor, of the two int64 in which kernels note an index that is out of range."""


@dataclass(frozen=True)
class Slot:
    """A tensor's place in the table, and the dtype of its elements."""

    number: int
    dtype: torch.dtype


Extent = tuple[Any, Index, Index]
"""Whose memory something is in, and its first and one-past-last byte there."""


class Source:
    """The Mojo source of a program: a kernel for each different nest, and a function for each segment."""

    def __init__(self) -> None:
        self._kernels: dict[str, str] = {}
        self._origins: dict[str, dict[str, None]] = {}
        self._segments: list[str] = []

    @property
    def kernels(self) -> int:
        """How many different kernels there are."""
        return len(self._kernels)

    def add_segment(
        self, nests: Sequence[Nest], slots: Mapping[str, Slot], memory: Mapping[str, Extent]
    ) -> tuple[int, list[Index]]:
        """Add a function that runs nests in order; returns its own number, and the numbers behind the addresses.

        Args:
            slots: Where the table has the tensors, by name.
            memory: Where each tensor lies: two that overlap need a barrier between them.
        """
        lines: list[str] = []
        since: list[tuple[str, bool]] = []
        numbers: dict[Index, int] = {}
        for nest in nests:
            kernel = _KernelWriter(nest, slots)
            text = kernel.text()
            name = self._kernels.setdefault(text, f"kernel{len(self._kernels)}")
            self._origins.setdefault(name, {}).update(dict.fromkeys(kernel.origins()))
            touches = touched(nest)
            if any(_meet(memory[a], memory[b]) and (x or y) for a, x in since for b, y in touches):
                lines.append("    barrier()")
                since = []
            since += touches
            tensors = [f"t.pointer[{SHORT[slots[n].dtype]}]({slots[n].number})" for n in kernel.tensors]
            given = [f"t.int({numbers.setdefault(x, len(slots) + len(numbers))})" for x in kernel.numbers]
            lines.append(f"    {name}({', '.join([*tensors, *given])})")
        number = len(self._segments)
        body = "\n".join(lines)
        self._segments.append(f'@export\ndef segment{number}(t: Table) abi("C"):\n{body}\n')
        return number, list(numbers)

    def text(self) -> str:
        """All of it; empty if there is no segment."""
        if not self._segments:
            return ""
        parts = ["from kernel import *"]
        for text, name in self._kernels.items():
            comments = "".join(f"# {where}\n" for where in list(self._origins[name])[:12])
            parts.append(comments + text.replace("def KERNEL(", f"def {name}(", 1))
        return "\n\n\n".join([*parts, *self._segments])


def _meet(a: Extent, b: Extent) -> bool:
    """Whether two pieces of memory may have a byte in common."""
    return a[0] == b[0] and (b[2] - a[1]).bounds[1] > 0 and (a[2] - b[1]).bounds[1] > 0


def touched(nest: Nest) -> list[tuple[str, bool]]:
    """The tensors in memory that a nest reads and writes, in order, and whether it writes them."""
    names: dict[str, bool] = {}
    for stage in nest.stages:
        for s in stage.statements:
            for x in walk(*s.expressions):
                if isinstance(x, Load) and x.index:
                    names.setdefault(x.source, False)
                elif isinstance(x, Checked):
                    names.setdefault(ERRORS, False)  # whoever is first may write, without a barrier
            if s.address is not None:
                names[s.name] = True
    return list(names.items())


@dataclass
class _Scope:
    """Names of what is computed in a block of the source, by expression; with each its number of lanes."""

    values: dict[Scalar, tuple[str, int]]


class _KernelWriter:
    def __init__(self, nest: Nest, slots: Mapping[str, Slot]) -> None:
        self.nest, self.slots = nest, slots
        self.tensors = [name for name, _ in touched(nest)]
        self.pointers = {name: f"p{k}" for k, name in enumerate(self.tensors)}
        self.names: dict[Var, str] = {}
        self.numbers: dict[Index, str] = {}
        """What is known before any loop runs, by symbolic sizes; arguments of the kernel."""
        self.lines: list[str] = []
        self.depth = 1
        self.count = 0
        self.scopes: list[_Scope] = []
        self.place: dict[Var, str] = {}
        """The text of each variable that has a value here."""
        self.vector: Var | None = None
        self.lanes = 1
        self.reducing: tuple[Var, ...] = ()
        """The reduced variables of the stage at work."""
        self.masked = ""
        """The number of lanes that count, as text; empty if all do."""
        self.where = ""
        """A vector of the lanes that read memory, as text; empty if all that count do."""
        self.registers: dict[str, tuple[str, int]] = {}
        self.scanned: dict[str, tuple[str, str, int]] = {}
        """The accumulators of scans."""

    # -- text --------------------------------------------------------------------------------------------------
    def origins(self) -> list[str]:
        """The ops and the user's lines that the kernel comes from."""
        found = (s.where for stage in self.nest.stages for s in stage.statements if s.where)
        return [where.splitlines()[0][:150] for where in dict.fromkeys(found)]

    def text(self) -> str:
        """The kernel as a function ``KERNEL`` of the tensors that it touches; equal for equal kernels."""
        with self._scope():
            self._outer()
        arguments = [f"{self.pointers[n]}: Ptr[{SHORT[self.slots[n].dtype]}]" for n in self.tensors]
        arguments += [f"{name}: Int" for name in self.numbers.values()]
        return "\n".join([f"def KERNEL({', '.join(arguments)}):", *self.lines])

    def _named(self, v: Var) -> str:
        return self.names.setdefault(v, f"i{len(self.names)}")

    def _line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def _new(self, prefix: str, value: str, lanes: int) -> tuple[str, int]:
        self.count += 1
        name = f"{prefix}{self.count}"
        self._line(f"var {name} = {value}")
        return name, lanes

    @contextmanager
    def _scope(self) -> Iterator[None]:
        self.scopes.append(_Scope({}))
        yield
        self.scopes.pop()

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        self._line(head)
        self.depth += 1
        mark = len(self.lines)
        with self._scope():
            yield
        if len(self.lines) == mark:
            self._line("pass")
        self.depth -= 1

    @contextmanager
    def _loop(self, v: Var, text: str, end: str, step: int) -> Iterator[None]:
        with self._block(f"while {text} {'<' if step == 1 else f'+ {step} <='} {end}:"):
            self.place[v] = text
            yield
            del self.place[v]
            self._line(f"{text} += {step}")

    # -- the outer loop, which threads share -------------------------------------------------------------------
    def _outer(self) -> None:
        outer, vector = self.nest.outer, self.nest.vector
        sizes = []
        for v in outer:
            size = self._index(Index.of(v.size))
            lanes = lanes_of(v)
            sizes.append(f"(({size} + {lanes - 1}) // {lanes})" if v == vector else _factor(size))
        if not outer:
            with self._block("if thread_index() == 0:"):
                self._stages()
            return
        self._line(f"var total: Int = {' * '.join(sizes)}")
        self._line("var part: Int = share_begin(total, 1)")
        self._line("var end: Int = share_end(total, 1)")
        with self._block("while part < end:"):
            rest = "part"
            for k in range(len(outer) - 1, -1, -1):
                v, name = outer[k], self._named(outer[k])
                value = rest if k == 0 else f"{rest} % {sizes[k]}"
                self._line(f"var {name}: Int = {value}{f' * {lanes_of(v)}' if v == vector else ''}")
                if k:
                    self._line(f"var rest{k}: Int = {rest} // {sizes[k]}")
                    rest = f"rest{k}"
                self.place[v] = name
            self._line("part += 1")
            if vector is None:
                self._stages()
            else:
                self._blocks(vector)
            for v in outer:
                del self.place[v]

    def _blocks(self, v: Var) -> None:
        """All stages for a whole vector of ``v``, or for what is left of it: in a masked vector, or one by one."""
        size, start, lanes = self._index(Index.of(v.size)), self.place[v], lanes_of(v)
        if _divides(v, lanes):
            with self._along(v):
                self._stages()
            return
        with self._block(f"if {start} + {lanes} <= {size}:"), self._along(v):
            self._stages()
        with self._block("else:"):
            if _can_be_masked(v, *self.nest.stages):
                count, _ = self._new("count", f"{size} - {start}", 1)
                with self._along(v, count):
                    self._stages()
                return
            with self._loop(v, start, size, 1):
                self._stages()
            self.place[v] = start

    @contextmanager
    def _along(self, v: Var, count: str = "") -> Iterator[None]:
        """Compute in vectors along ``v``; with a ``count``, only so many lanes are read and written."""
        self.vector, self.lanes, self.masked = v, lanes_of(v), count
        yield
        self.vector, self.lanes, self.masked = None, 1, ""

    def _stages(self) -> None:
        self.registers = {}
        for stage in self.nest.stages:
            self.reducing = stage.reduced
            self._hoist(stage)
            if any(isinstance(s.how, Scan) for s in stage.statements):
                self.scanned = self._accumulators(stage, self.lanes)
            if stage.free:
                self._free(stage, 0)
            else:
                self._reduction(stage)

    # -- the loops of a stage ----------------------------------------------------------------------------------
    def _free(self, stage: StageNest, k: int) -> None:
        if k == len(stage.free):
            self._reduction(stage)
            return
        v = stage.free[k]
        end, name = self._index(Index.of(v.size)), self._counter(v)
        if v == stage.vector:
            lanes = lanes_of(v)
            if _fits(v, lanes):
                with self._loop(v, name, end, lanes), self._along(v):
                    self._hoist(stage)
                    self._free(stage, k + 1)
            if _divides(v, lanes):
                return
            if _can_be_masked(v, stage):
                with self._rest(v, name, end):
                    self._hoist(stage)
                    self._free(stage, k + 1)
                return
        with self._loop(v, name, end, 1):
            self._hoist(stage)
            self._free(stage, k + 1)

    @contextmanager
    def _rest(self, v: Var, name: str, end: str) -> Iterator[None]:
        """What is left of a loop in vectors, as one masked vector."""
        with self._block(f"if {name} < {end}:"):
            count, _ = self._new("count", f"{end} - {name}", 1)
            self.place[v] = name
            with self._along(v, count):
                yield
            del self.place[v]

    def _counter(self, v: Var) -> str:
        self.count += 1
        name = f"{self._named(v)}_{self.count}"
        self._line(f"var {name}: Int = 0")
        return name

    def _reduction(self, stage: StageNest) -> None:
        """Accumulators, the reduced loops, and what comes of them."""
        if not stage.reduced:
            self._body(stage, self.scanned)
            return
        along = stage.vector if stage.vector in stage.reduced else None
        wide: list[_Accumulators] = []
        narrow: _Accumulators = {}
        if along is not None:
            copies = UNROLLED if _is_short(stage) and _fits(along, lanes_of(along) * UNROLLED) else 1
            wide = [self._accumulators(stage, lanes_of(along)) for _ in range(copies)]
        if along is None or not (_divides(along, lanes_of(along)) or _can_be_masked(along, stage)):
            narrow = self._accumulators(stage, self.lanes)
        totals = self._totals(stage, wide or [narrow])
        self._reduced(stage, 0, wide, narrow, totals)
        for s in stage.statements:
            if not s.combiner:
                continue
            result = None if along is None and s.name in totals else narrow.get(s.name)
            if s.name in totals:
                name, lanes = totals[s.name]
                total = f"reduce_add({name})" if along is not None else name
                short = SHORT[s.body.dtype]
                text, _ = self._new("a", f"cast[{short}]({total})", 1 if along is not None else lanes)
                if result is not None:
                    text, _ = self._new("a", f"add({text}, {result[0]})", 1)
                result = (text, "", 1 if along is not None else lanes)
            else:
                for accumulators in reversed(wide):
                    result = self._merged(s, accumulators[s.name], result)
            assert result is not None
            self._finish(s, *self._taken(s, result))

    def _totals(self, stage: StageNest, accumulators: list[_Accumulators]) -> dict[str, tuple[str, int]]:
        """Sums in float64 of what accumulators in float32 hold from time to time, where these would add up too much."""
        found: dict[str, tuple[str, int]] = {}
        lanes = next(iter(accumulators[0].values()))[2] if accumulators[0] else 1
        each = lanes * len(accumulators) if stage.vector in stage.reduced else 1
        if cost.most(stage.reduced) <= CHAIN * each:
            return found
        for s in stage.statements:
            if s.combiner == "sum" and s.body.dtype is torch.float32:
                found[s.name] = self._new("total", f"const[f64, {lanes}](0)", lanes)
        return found

    def _flush(self, accumulators: list[_Accumulators], totals: dict[str, tuple[str, int]]) -> None:
        """Add the accumulators to their totals, and begin again."""
        for name, (total, lanes) in totals.items():
            parts = [a[name][0] for a in accumulators]
            sums = parts[0]
            for part in parts[1:]:
                sums = f"add({sums}, {part})"
            self._line(f"{total} = add({total}, cast[f64]({sums}))")
            for part in parts:
                self._line(f"{part} = const[f32, {lanes}](0)")

    def _reduced(
        self,
        stage: StageNest,
        k: int,
        wide: list[_Accumulators],
        narrow: _Accumulators,
        totals: dict[str, tuple[str, int]],
    ) -> None:
        if k == len(stage.reduced):
            self._body(stage, narrow)
            return
        v = stage.reduced[k]
        end, name = self._index(Index.of(v.size)), self._counter(v)
        if not totals or k + 1 < len(stage.reduced):
            self._reduced_loop(stage, k, wide, narrow, totals, name, end)
            return
        step = CHAIN * (lanes_of(v) * len(wide) if v == stage.vector else 1)
        if isinstance(v.size, int) and v.size <= step:
            self._reduced_loop(stage, k, wide, narrow, totals, name, end)
            self._flush(wide or [narrow], totals)
            return
        with self._block(f"while {name} < {end}:"):
            stop, _ = self._new("stop", f"imin({end}, {name} + {step})", 1)
            self._reduced_loop(stage, k, wide, narrow, totals, name, stop)
            self._line(f"{name} = {stop}")
            self._flush(wide or [narrow], totals)

    def _reduced_loop(
        self,
        stage: StageNest,
        k: int,
        wide: list[_Accumulators],
        narrow: _Accumulators,
        totals: dict[str, tuple[str, int]],
        name: str,
        end: str,
    ) -> None:
        v = stage.reduced[k]
        if v == stage.vector:
            lanes = lanes_of(v)
            if len(wide) > 1:
                with self._block(f"while {name} + {lanes * len(wide)} <= {end}:"):
                    for accumulators in wide:
                        self.place[v] = name
                        with self._scope(), self._along(v):
                            self._body(stage, accumulators)
                        self._line(f"{name} += {lanes}")
                    del self.place[v]
            if _fits(v, lanes) and not (len(wide) > 1 and _divides(v, lanes * len(wide))):
                with self._loop(v, name, end, lanes), self._along(v):
                    self._body(stage, wide[0])
            if _divides(v, lanes):
                return
            if _can_be_masked(v, stage):
                with self._rest(v, name, end):
                    self._body(stage, wide[0])
                return
        with self._loop(v, name, end, 1):
            self._hoist(stage)
            self._reduced(stage, k + 1, wide, narrow, totals)

    # -- accumulators: a name for the value, one for the place if it has one, lanes ---------------------------
    def _accumulators(self, stage: StageNest, lanes: int) -> dict[str, tuple[str, str, int]]:
        found = {}
        for s in stage.statements:
            if not s.combiner:
                continue
            value, _ = self._new("a", _initial(s.combiner, s.body.dtype, lanes), lanes)
            place = ""
            if s.place is not None:
                place, _ = self._new("at", f"const[i64, {lanes}]({_NOWHERE})", lanes)
            found[s.name] = (value, place, lanes)
        return found

    def _accumulate(self, s: Statement, accumulator: tuple[str, str, int], value: str) -> None:
        name, place, lanes = accumulator
        if self.masked and lanes > 1 and self.vector in self.reducing:
            here = f"first_lanes[{lanes}]({self.masked})"
            value, _ = self._new("m", f"select({here}, {value}, {_initial(s.combiner, s.body.dtype, lanes)})", lanes)
        if isinstance(s.how, Scan) and lanes == 1 and s.combiner in _EXTREMES:
            with self._block(f"if condition({_better(s, value, name)}):"):  # seldom, and processors guess that
                self._line(f"{name} = {value}")
                if s.place is not None:
                    self._line(f"{place} = {self._widened(self._from_index(s.place), lanes)}")
            return
        if s.place is None:
            if s.combiner == "log_sum_exp":
                value = self._log_add_exp(name, value, lanes)
                self._line(f"{name} = {value}")
                return
            self._line(f"{name} = {_COMBINE[s.combiner]}({name}, {value})")
            return
        position = self._widened(self._from_index(s.place), lanes)
        better = _better(s, value, name)
        if self.masked and lanes > 1 and self.vector in self.reducing:
            position = f"select(first_lanes[{lanes}]({self.masked}), {position}, const[i64, {lanes}]({_NOWHERE}))"
        first = f"eq({place}, const[i64, {lanes}]({_NOWHERE}))"
        chosen, _ = self._new("c", f"bit_or({better}, {first})", lanes)
        self._line(f"{name} = select({chosen}, {value}, {name})")
        self._line(f"{place} = select({chosen}, {position}, {place})")

    def _log_add_exp(self, a: str, b: str, lanes: int) -> str:
        """``log(exp(a) + exp(b))``; two equal infinities give themselves."""
        high, _ = self._new("a", f"maximum({a}, {b})", lanes)
        low, _ = self._new("a", f"minimum({a}, {b})", lanes)
        differ = f"bit_or(ne({high}, {low}), is_finite({low}))"
        return f"select({differ}, add({high}, log1p(exp(sub({low}, {high})))), {high})"

    def _merged(
        self, s: Statement, wide: tuple[str, str, int], narrow: tuple[str, str, int] | None
    ) -> tuple[str, str, int]:
        """Two accumulators as one, of one lane."""
        value, place, lanes = wide
        if s.place is None:
            across = value if lanes == 1 else f"{_ACROSS[s.combiner]}({value})"
            if narrow is None:
                return self._new("a", across, 1)[0], "", 1
            name, _ = self._new("a", f"{_COMBINE[s.combiner]}({across}, {narrow[0]})", 1)
            return name, "", 1
        largest = "reduce_max" if s.combiner == "argmax" else "reduce_min"
        top, _ = self._new("a", f"{largest}({value})", 1)
        here = f"eq({value}, splat[{lanes}]({top}))"
        if s.body.dtype.is_floating_point:
            here = f"bit_or({here}, bit_and(is_nan({value}), is_nan(splat[{lanes}]({top}))))"
        used = f"bit_and({here}, ne({place}, const[i64, {lanes}]({_NOWHERE})))"
        least, _ = self._new("at", f"reduce_min(select({used}, {place}, const[i64, {lanes}]({_NOWHERE})))", 1)
        return (top, least, 1) if narrow is None else self._better_of(s, (top, least, 1), narrow)

    def _better_of(self, s: Statement, a: tuple[str, str, int], b: tuple[str, str, int]) -> tuple[str, str, int]:
        nowhere = f"const[i64, 1]({_NOWHERE})"
        earlier = f"lt({b[1]}, {a[1]})"
        equal = f"eq({a[0]}, {b[0]})"
        if s.body.dtype.is_floating_point:
            equal = f"bit_or({equal}, bit_and(is_nan({a[0]}), is_nan({b[0]})))"
        wins = f"bit_or({_better(s, b[0], a[0])}, bit_or(eq({a[1]}, {nowhere}), bit_and({equal}, {earlier})))"
        chosen, _ = self._new("c", f"bit_and(ne({b[1]}, {nowhere}), {wins})", 1)
        value, _ = self._new("a", f"select({chosen}, {b[0]}, {a[0]})", 1)
        place, _ = self._new("at", f"select({chosen}, {b[1]}, {a[1]})", 1)
        return value, place, 1

    def _taken(self, s: Statement, accumulator: tuple[str, str, int]) -> tuple[str, int]:
        value, place, lanes = accumulator
        if s.place is not None:
            return place, lanes
        if s.body.dtype is not s.dtype:
            return f"cast[{SHORT[s.dtype]}]({value})", lanes
        return value, lanes

    # -- statements --------------------------------------------------------------------------------------------
    def _body(self, stage: StageNest, accumulators: dict[str, tuple[str, str, int]]) -> None:
        for s in stage.statements:
            value = self._scalar(s.body)
            if s.combiner:
                accumulator = accumulators[s.name]
                self._accumulate(s, accumulator, self._widened(value, accumulator[2]))
                if isinstance(s.how, Scan):
                    self._finish(s, *self._taken(s, accumulator))
            else:
                self._finish(s, *value)

    def _finish(self, s: Statement, value: str, lanes: int) -> None:
        """Keep a result in registers, and write it if it has an address."""
        if isinstance(s.how, Scatter) and s.how.combiner != "set":
            value, lanes = self._combined(s, s.how.combiner, value, lanes)
        if not value.isidentifier():
            value, lanes = self._new("v", value, lanes)
        self.registers[s.name] = (value, lanes)
        if s.address is None:
            return
        step = self._step(s.address)
        if step == 0 or self.lanes == 1:
            self._line(f"store({self.pointers[s.name]}, {self._index(s.address)}, {value})")
            return
        wide, apart = self._widened((value, lanes), self.lanes), self.pointers[s.name]
        if self.slots[s.name].dtype is torch.bfloat16 and step != 1:
            # of lanes one by one: Mojo's LLVM cannot select the store of one that it has put on the stack
            apart, wide = f"as_words({apart})", f"bitcast[u16]({wide})"
        if step is None:
            self._line(f"store_at({apart}, {self._index_vector(s.address)}, {wide})")
        elif step == 1 and self.masked:
            where = f"{self.pointers[s.name]}, {self._index(s.address)}"
            self._line(f"store_masked({where}, {self.masked}, {wide})")
        elif step == 1:
            self._line(f"store({self.pointers[s.name]}, {self._index(s.address)}, {wide})")
        else:
            masked = ("_masked", f"{self.masked}, ") if self.masked else ("", "")
            self._line(f"store_strided{masked[0]}({apart}, {self._index(s.address)}, {step}, {masked[1]}{wide})")

    def _combined(self, s: Statement, combiner: str, value: str, have: int) -> tuple[str, int]:
        """A value combined with what is in memory at its address."""
        assert s.address is not None
        old, lanes = self._read(s.name, s.address)
        new = self._widened((value, have), lanes)
        if s.dtype is torch.bool:
            return f"{'bit_or' if combiner in ('sum', 'maximum') else 'bit_and'}({old}, {new})", lanes
        if s.dtype in (torch.float16, torch.bfloat16):
            return f"cast[{SHORT[s.dtype]}]({_COMBINE[combiner]}(cast[f32]({old}), cast[f32]({new})))", lanes
        return f"{_COMBINE[combiner]}({old}, {new})", lanes

    def _hoist(self, stage: StageNest) -> None:
        """Compute here what the loops inside do not change. A load inside them might follow a store to its address."""
        if any(v not in self.place and _may_be_empty(v) for v in stage.inner):
            return  # what a loop reads may not be there if it runs no time
        own = {s.name for s in stage.statements}
        seen: set[Scalar] = set()
        for s in stage.statements:
            for x in s.expressions:
                self._hoisted(x, own, seen)

    def _hoisted(self, x: Scalar, own: set[str], seen: set[Scalar]) -> None:
        if x in seen or isinstance(x, Const) or self._known(x) is not None:
            return
        seen.add(x)
        if variables(x) <= self.place.keys() and not any(isinstance(y, Load) and y.source in own for y in walk(x)):
            self._scalar(x)
            return
        for y in x.operands if not isinstance(x, Guarded) else (x.condition,):
            self._hoisted(y, own, seen)

    # -- scalars -----------------------------------------------------------------------------------------------
    def _known(self, x: Scalar) -> tuple[str, int] | None:
        for scope in reversed(self.scopes):
            if x in scope.values:
                return scope.values[x]
        return None

    def _scalar(self, x: Scalar) -> tuple[str, int]:
        """The text of an expression's value, and its number of lanes."""
        if isinstance(x, Const):
            return _literal(x, 1), 1
        if isinstance(x, Load) and not x.index:
            return self.registers[x.source]
        known = self._known(x)
        if known is None:
            known = self._computed(x)
            self.scopes[-1].values[x] = known
        return known

    def _computed(self, x: Scalar) -> tuple[str, int]:
        if isinstance(x, Load):
            return self._load(x)
        if isinstance(x, FromIndex):
            text, lanes = self._from_index(x.index)
            return self._new("n", text, lanes)
        if isinstance(x, Guarded):
            return self._guarded(x)
        if isinstance(x, Checked):
            value, lanes = self._scalar(x.value)
            call, size = f"{'wrapped' if x.wraps else 'checked'}_index", self._index(Index.of(x.size))
            return self._new("at", f"{call}({self.pointers[ERRORS]}, {value}, {size}, {x.site + 1})", lanes)
        assert isinstance(x, Op)
        values = [self._scalar(a) for a in x.args]
        lanes = max(n for _, n in values)
        args = ", ".join(self._widened(v, lanes) for v in values)
        return self._new("v", f"{_spelled(x)}({args})", lanes)

    def _widened(self, value: tuple[str, int], lanes: int) -> str:
        text, have = value
        if have == lanes:
            return text
        if text.startswith("const["):
            return text.replace(", 1](", f", {lanes}](", 1)
        return f"splat[{lanes}]({text})"

    def _load(self, x: Load) -> tuple[str, int]:
        return self._read(x.source, x.index[0])

    def _read(self, source: str, address: Index) -> tuple[str, int]:
        pointer = self.pointers[source]
        step = self._step(address)
        if step == 0 or self.lanes == 1:
            return self._new("x", f"load[1]({pointer}, {self._index(address)})", 1)
        if self.where and step == 1:
            text = f"load_where[{self.lanes}]({pointer}, {self._index(address)}, {self.where})"
            return self._new("x", text, self.lanes)
        if self.where:
            text = f"load_at_where[{self.lanes}]({pointer}, {self._index_vector(address)}, {self.where})"
            return self._new("x", text, self.lanes)
        if step is None:
            return self._new("x", f"load_at[{self.lanes}]({pointer}, {self._index_vector(address)})", self.lanes)
        if step == 1 and self.masked:
            other = f"const[{SHORT[self.slots[source].dtype]}, {self.lanes}](0)"
            where = f"{pointer}, {self._index(address)}, {self.masked}"
            return self._new("x", f"load_masked[{self.lanes}]({where}, {other})", self.lanes)
        if step == 1:
            return self._new("x", f"load[{self.lanes}]({pointer}, {self._index(address)})", self.lanes)
        masked = ("_masked", f", {self.masked}") if self.masked else ("", "")
        text = f"load_strided{masked[0]}[{self.lanes}]({pointer}, {self._index(address)}, {step}{masked[1]})"
        return self._new("x", text, self.lanes)

    def _guarded(self, x: Guarded) -> tuple[str, int]:
        condition, lanes_of_condition = self._scalar(x.condition)
        wide = self.vector is not None and self.vector in variables(x)
        in_registers = [self.registers[y.source][1] for y in loads(x) if not y.index]
        lanes = max(self.lanes if wide else 1, lanes_of_condition, *in_registers, 1)
        if lanes_of_condition > 1:
            return self._by_lanes(x, condition, lanes)
        other = (_literal(Const(0, x.dtype), 1), 1) if self._alternates(x) else self._scalar(x.other)
        name, _ = self._new("g", self._widened(other, lanes), lanes)
        with self._block(f"if condition({condition}):"):
            self._line(f"{name} = {self._widened(self._scalar(x.value), lanes)}")
        if self._alternates(x):
            with self._block("else:"):
                self._line(f"{name} = {self._widened(self._scalar(x.other), lanes)}")
        return name, lanes

    def _alternates(self, x: Guarded) -> bool:
        """Whether the other value reads or checks what is not known yet, and must not be computed for nothing."""
        reads = (y for y in walk(x.other) if isinstance(y, Checked) or (isinstance(y, Load) and y.index))
        return any(self._known(y) is None for y in reads)

    def _by_lanes(self, x: Guarded, condition: str, lanes: int) -> tuple[str, int]:
        """A condition that differs from lane to lane: both sides for the lanes that take them, and then a choice."""
        counted = f"bit_and({condition}, first_lanes[{lanes}]({self.masked}))" if self.masked else condition
        outer, last = self.where, not self._alternates(x)
        here, _ = self._new("here", f"bit_and({counted}, {outer})" if outer else counted, lanes)
        other = self._scalar(x.other) if last else (_literal(Const(0, x.dtype), 1), 1)
        name, _ = self._new("g", self._widened(other, lanes), lanes)
        sides = [(here, x.value)]
        if not last:
            rest = f"bit_and({outer}, bit_not({condition}))" if outer else f"bit_not({condition})"
            rest = f"bit_and({rest}, first_lanes[{lanes}]({self.masked}))" if self.masked else rest
            sides.append((self._new("here", rest, lanes)[0], x.other))
        for lanes_here, side in sides:
            with self._block(f"if condition(reduce_or({lanes_here})):"):
                self.where = lanes_here
                self._line(f"{name} = select({lanes_here}, {self._widened(self._scalar(side), lanes)}, {name})")
                self.where = outer
        return name, lanes

    # -- indices -----------------------------------------------------------------------------------------------
    def _step(self, index: Index) -> int | str | None:
        """By how much an index grows from lane to lane, as a number or as text; ``None`` where that differs."""
        if self.vector is None or self.lanes == 1:
            return 0
        for atom, _ in index.terms:
            factors = atom.factors if isinstance(atom, Product) else (atom,)
            if any(not isinstance(f, Var) and self._differs(f) for f in factors):
                return None
        step = index.stride(self.vector)
        if step is None:
            return None
        return step.constant if step.is_constant else f"({self._index(step)})"

    def _differs(self, atom: Atom) -> bool:
        """Whether an atom has another value in each lane: by the loop's variable, or by a vector in registers."""
        computed = [a.value for a in Index.of(atom).atoms if isinstance(a, Computed)]
        return self.vector in _reach(atom) or any(
            self.registers[x.source][1] > 1 for x in loads(*computed) if not x.index
        )

    def _index(self, index: Index) -> str:
        """The text of an index, in the first lane."""
        parts = []
        for atom, k in index.terms:
            text = self._atom(atom)
            parts.append(text if k == 1 else f"{k} * {text}")
        if index.constant or not parts:
            parts.append(str(index.constant))
        return " + ".join(parts)

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Var):
            return self.place[atom]
        if Index.of(atom).is_fixed:
            return self._number(Index.of(atom))
        if isinstance(atom, Computed):
            text, _ = self._scalar(atom.value)
            return f"to_int({text})"
        if isinstance(atom, Product):
            fixed = [Index.of(f) for f in atom.factors if Index.of(f).is_fixed]
            texts = [self._number(product(fixed))] if fixed else []
            texts += [self._atom(f) for f in atom.factors if not Index.of(f).is_fixed]
            return "(" + " * ".join(texts) + ")"
        if isinstance(atom, Least):
            return f"imin({self._index(atom.left)}, {self._index(atom.right)})"
        assert isinstance(atom, Div | Mod)
        return self._division(atom)

    def _number(self, x: Index) -> str:
        """The kernel's argument for what symbolic sizes give."""
        return self.numbers.setdefault(x, f"s{len(self.numbers)}")

    def _division(self, atom: Div | Mod) -> str:
        """``Int``'s own division is one of unsigned numbers. A dividend that may be negative is made positive first."""
        dividend, divisor, low = atom.dividend, atom.divisor, atom.dividend.bounds[0]
        sign = "//" if isinstance(atom, Div) else "%"
        if low >= 0:
            return f"(({self._index(dividend)}) {sign} ({self._index(divisor)}))"
        if divisor.is_constant and math.isfinite(low):
            times = math.ceil(-low / divisor.constant)
            text = f"(({self._index(dividend + times * divisor.constant)}) {sign} {divisor.constant})"
            return f"({text} - {times})" if isinstance(atom, Div) else text
        name = "floor_div" if isinstance(atom, Div) else "remainder"
        return f"to_int({name}(from_int[i64, 1]({self._index(dividend)}), from_int[i64, 1]({self._index(divisor)})))"

    def _from_index(self, index: Index) -> tuple[str, int]:
        step = self._step(index)
        if step is None:
            return self._index_vector(index), self.lanes
        text = self._index(index)
        if step == 0:
            return f"from_int[i64, 1]({text})", 1
        ramp = f"iota[i64, {self.lanes}]()"
        if step != 1:
            wide = f"const[i64, {self.lanes}]" if isinstance(step, int) else f"from_int[i64, {self.lanes}]"
            ramp = f"mul({ramp}, {wide}({step}))"
        return f"add(from_int[i64, {self.lanes}]({text}), {ramp})", self.lanes

    def _index_vector(self, index: Index) -> str:
        """An index in every lane, as a vector of int64."""
        lanes = self.lanes
        total = f"const[i64, {lanes}]({index.constant})"
        for atom, k in index.terms:
            text = self._atom_vector(atom)
            text = text if k == 1 else f"mul({text}, const[i64, {lanes}]({k}))"
            total = f"add({total}, {text})"
        return self._new("n", total, lanes)[0]

    def _atom_vector(self, atom: Atom) -> str:
        lanes = self.lanes
        if not self._differs(atom):
            return f"from_int[i64, {lanes}]({self._atom(atom)})"
        if isinstance(atom, Var):
            return f"add(from_int[i64, {lanes}]({self.place[atom]}), iota[i64, {lanes}]())"
        if isinstance(atom, Computed):
            return self._widened(self._scalar(atom.value), lanes)
        if isinstance(atom, Div | Mod):
            name = "floor_div" if isinstance(atom, Div) else "remainder"
            return f"{name}({self._index_vector(atom.dividend)}, {self._index_vector(atom.divisor)})"
        if isinstance(atom, Least):
            return f"minimum({self._index_vector(atom.left)}, {self._index_vector(atom.right)})"
        assert isinstance(atom, Product)
        parts = [self._atom_vector(f) for f in atom.factors]
        text = parts[0]
        for part in parts[1:]:
            text = f"mul({text}, {part})"
        return text


_NOWHERE = 2**62
_Accumulators = dict[str, tuple[str, str, int]]
"""By statement: a name for the value, one for the place if it has one, lanes."""


def _spelled(x: Op) -> str:
    """What the kernel interface calls an operation."""
    if x.name in ("cast", "round", "bitcast"):
        return f"{'bitcast' if x.name == 'bitcast' else 'cast'}[{SHORT[x.dtype]}]"
    if x.name == "pow":  # Mojo's own name would win over an imported one
        return "power" if x.dtype.is_floating_point else "integer_power"
    return x.name


def _fits(v: Var, count: int) -> bool:
    """Whether a loop may have ``count`` iterations or more."""
    return not isinstance(v.size, int) or v.size >= count


def _divides(v: Var, count: int) -> bool:
    """Whether ``count`` certainly divides the number of iterations."""
    return Index.of(v.size) % count == 0


def _may_be_empty(v: Var) -> bool:
    """Whether a loop of symbolic length may run no time."""
    return isinstance(v.size, Index) and v.size.is_fixed and v.size.bounds[0] < 1


def _can_be_masked(v: Var, *stages: StageNest) -> bool:
    """Whether all memory along ``v`` is read and written in equal steps, or does not depend on it.

    An index that is computed may be out of range in the lanes that do not count.
    """
    for stage in stages:
        for s in stage.statements:
            if any(isinstance(x, Checked) for x in walk(*s.expressions)):
                return False
            places = [i for x in walk(*s.expressions) if isinstance(x, Load) for i in x.index]
            places += [s.address] if s.address is not None else []
            for index in places:
                if any(isinstance(a, Computed) for a in index.atoms):
                    return False
                if any(v in _reach(atom) for atom, _ in index.terms if not isinstance(atom, Var)):
                    return False
    return True


def _reach(atom: Atom) -> set[Var]:
    """Every variable in an atom, those inside computed integers included."""
    index = Index(0, ((atom, 1),))
    found = set(index.variables)
    for a in index.atoms:
        if isinstance(a, Computed):
            found |= variables(a.value)
    return found


def _factor(text: str) -> str:
    return text if text.isalnum() else f"({text})"


def _is_short(stage: StageNest) -> bool:
    return sum(sum(1 for _ in walk(s.body)) for s in stage.statements) <= 24


def _initial(combiner: str, dtype: torch.dtype, lanes: int) -> str:
    short = SHORT[dtype]
    if combiner in _FIRST:
        return f"const[{short}, {lanes}]({_FIRST[combiner]})"
    smallest = combiner in ("maximum", "argmax", "log_sum_exp")
    if dtype.is_floating_point:
        return f"neg(infinity[{short}, {lanes}]())" if smallest else f"infinity[{short}, {lanes}]()"
    info = torch.iinfo(dtype)
    return _literal(Const(info.min if smallest else info.max, dtype), lanes)


def _better(s: Statement, new: str, old: str) -> str:
    """Whether a new value is beyond the best one so far; NaN is beyond all numbers. In a scan an equal one is, too."""
    if isinstance(s.how, Scan):
        beyond = f"{'ge' if s.combiner in ('argmax', 'maximum') else 'le'}({new}, {old})"
        return f"bit_or({beyond}, is_nan({new}))" if s.body.dtype.is_floating_point else beyond
    beyond = f"{'gt' if s.combiner == 'argmax' else 'lt'}({new}, {old})"
    if s.body.dtype.is_floating_point:
        return f"bit_or({beyond}, bit_and(is_nan({new}), bit_not(is_nan({old}))))"
    return beyond


def _literal(x: Const, lanes: int) -> str:
    short = SHORT[x.dtype]
    if x.dtype is torch.bool:
        return f"const[{short}, {lanes}]({int(x.value)})"
    if isinstance(x.value, float) and not math.isfinite(x.value):
        if math.isnan(x.value):
            return f"not_a_number[{short}, {lanes}]()"
        return f"infinity[{short}, {lanes}]()" if x.value > 0 else f"neg(infinity[{short}, {lanes}]())"
    if isinstance(x.value, float):
        return f"const[{short}, {lanes}]({x.value!r})"
    return f"const[{short}, {lanes}]({x.value})"
