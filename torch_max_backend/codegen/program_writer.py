"""Programs from schedules: where every tensor lies, the kernels' source, and the Python function that runs them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_max_backend.codegen.kernel_writer import KernelWriter
from torch_max_backend.codegen.source import ERRORS, Extent, Slot, Source, touched
from torch_max_backend.loops.expr import Load, loads, walk
from torch_max_backend.loops.index import Atom, Div, Index, Least, Mod, Product, Sym, greatest, product
from torch_max_backend.loops.program import Call, Ref
from torch_max_backend.partition.region import Region
from torch_max_backend.runtime.program import ProgramSpec, SegmentSpec
from torch_max_backend.schedule.nest import Nest
from torch_max_backend.schedule.plan import Schedule

ALIGNMENT = 64
"""Bytes: a line of memory, and a vector."""
WORTH_A_TEAM = 60_000
"""Simple operations on one element that are worth waking threads for: some microseconds of one thread."""


@dataclass(frozen=True)
class WrittenProgram:
    """A program's function, and the Mojo source of its kernels (empty if it has none).

    Behind its tensors the function takes an integer for each of ``symbols``, which are what the program has for them.
    """

    spec: ProgramSpec
    source: str
    symbols: tuple[Any, ...] = ()


def write_program(region: Region, plan: Schedule, checked: Sequence[bool]) -> WrittenProgram:
    """The program of a region by its schedule.

    Args:
        checked: For each input, whether its strides may differ from the traced ones when the program is called.
    """
    return _Writer(region, plan, checked).write()


class _Writer:
    def __init__(self, region: Region, plan: Schedule, checked: Sequence[bool]) -> None:
        self.in_place = _stored_in_place(plan)
        steps = [s for s in plan.steps if isinstance(s, Call) or not _copies_onto_itself(s, self.in_place)]
        self.region, self.plan, self.checked = region, dataclasses.replace(plan, steps=steps), checked
        self.dtypes = {name: x.dtype for name, x in plan.program.inputs.items()}
        self.definitions = {d.name: d for d in plan.program.definitions()}
        self.dtypes |= {name: d.dtype for name, d in self.definitions.items()}
        for step in plan.program.steps:
            if isinstance(step, Call):
                self.dtypes |= {r.name: r.dtype for r in step.results if r}
        self.values: dict[str, Any] = {}
        self.lines: list[str] = []
        self.segments: list[SegmentSpec] = []
        self.source = Source(KernelWriter)
        self.outputs = {name: k for k, (name, _) in enumerate(plan.program.outputs)}
        self.as_tensors = self._needed_as_tensors()
        self.last = self._last_uses()
        self.reused = self._reused()
        self.offsets: dict[str, Index] = {}
        self.allocated: set[str] = set()
        self.free: list[tuple[Index, Index]] = []
        self.block = Index.of(0)
        self.head: list[str] = []
        self.numbers: dict[Index, str] = {}
        """Names of what symbolic sizes give, computed at the beginning."""
        self.used: set[Sym] = set()
        self.launches, self.moved = 0, 0
        self.calls: list[str] = []
        self.alive: set[str] = set()

    # -- memory ------------------------------------------------------------------------------------------------
    def _needed_as_tensors(self) -> set[str]:
        """What torch's allocator gives each by itself: what leaves, and what a library reads or torch copies."""
        needed = set(self.outputs) | {s for t, s in self.plan.program.stores if s not in self.in_place}
        for step in self.plan.steps:
            if isinstance(step, Call):
                needed.update(step.reads())
        return {n for n in needed if n in self.definitions}

    def _last_uses(self) -> dict[str, int]:
        last: dict[str, int] = {}
        for k, step in enumerate(self.plan.steps):
            for name in step.reads() if isinstance(step, Call) else _names(step):
                last[name] = k
        return last

    def _reused(self) -> dict[str, str]:
        """Tensors that are written over the last use of another one, element by element: tensor to the other one."""
        kept = {*self.outputs, *self.plan.program.inputs, *(s for _, s in self.plan.program.stores)}
        found: dict[str, str] = {}
        for k, step in enumerate(self.plan.steps):
            statements = [] if isinstance(step, Call) else [s for stage in step.stages for s in stage.statements]
            for s in statements:
                if s.name not in self.as_tensors or s.name in {*self.in_place, *found} or s.how is not None:
                    continue
                for x in loads(*s.expressions):
                    if s.address is None or x.index != (s.address,) or self.last.get(x.source) != k:
                        continue
                    if x.source in {*kept, *found.values()} or not self._fits(s.name, x.source):
                        continue
                    if _reads_are_over([step], x.source, s.name):
                        found[s.name] = x.source
                        break
        return found

    def _fits(self, name: str, other: str) -> bool:
        """Whether a tensor is what torch's allocator would give for another: dtype, sizes and strides."""
        if self.dtypes[name] is not self.dtypes[other] or not (
            other in self.as_tensors or other not in self.definitions
        ):
            return False
        return self._layout(name) == self._layout(other)

    def _layout(self, name: str) -> tuple[tuple[Index, ...], tuple[Index, ...]]:
        """The sizes and strides of what leaves as torch promises them, else as kernels have them."""
        layout = self.plan.layouts[name]
        if name not in self.outputs:
            return tuple(layout.sizes), tuple(layout.strides)
        shape = self.plan.program.shapes.get(name, layout.sizes)
        return tuple(shape), tuple(_dense(shape, self.region.outputs[self.outputs[name]].order))

    def _bytes(self, name: str) -> Index:
        """The room that a tensor takes: whole lines of memory."""
        d = self.definitions[name]
        size = product(d.sizes) * torch.empty((), dtype=d.dtype).element_size()
        size = Index.of(1) if size == 0 else size
        return (size + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT

    def _place(self, name: str) -> None:
        """Room in the block: the first gap that is large enough for certain, else behind everything."""
        size = self._bytes(name)
        for k, (start, end) in enumerate(self.free):
            left = end - start - size
            if left.bounds[0] >= 0:
                self.offsets[name] = start
                self.free[k : k + 1] = [(start + size, end)] if left != 0 else []
                return
        self.offsets[name] = self.block
        self.block = self.block + size

    def _release(self, name: str) -> None:
        start = self.offsets[name]
        gaps = sorted([*self.free, (start, start + self._bytes(name))], key=lambda gap: gap[0].typical)
        self.free = gaps[:1]
        for start, end in gaps[1:]:
            if start == self.free[-1][1]:
                self.free[-1] = (self.free[-1][0], end)
            else:
                self.free.append((start, end))

    # -- numbers -----------------------------------------------------------------------------------------------
    def _number(self, x: Index) -> str:
        """The text of what symbolic sizes give; formulas are computed once, at the beginning."""
        self.used |= {a for a in x.atoms if isinstance(a, Sym)}
        if x.is_constant or x in set(map(Index.of, self.used)):
            return str(x)
        if x not in self.numbers:
            self.numbers[x] = f"m{len(self.numbers)}"
            self.head.append(f"{self.numbers[x]} = {_formula(x)}")
        return self.numbers[x]

    def _tuple(self, sizes: Sequence[Index]) -> str:
        return f"({', '.join(map(self._number, sizes))}{',' if len(sizes) == 1 else ''})"

    # -- text --------------------------------------------------------------------------------------------------
    def write(self) -> WrittenProgram:
        names = list(self.plan.program.inputs)
        for name, check in zip(names, self.checked, strict=True):
            layout = self.plan.layouts[name]
            if check and len(layout.sizes):
                size, stride = self._tuple(layout.sizes), self._tuple(layout.strides)
                self.lines.append(f"if {name}.stride() != {stride}: {name} = as_planned({name}, {size}, {stride})")
        run: list[Nest] = []
        for k, step in enumerate(self.plan.steps):
            if isinstance(step, Nest):
                run.append(step)
                if isinstance(next(iter(self.plan.steps[k + 1 :]), None), Nest):
                    continue
                self._segment(run, k)
                run = []
            else:
                self._call(step)
            self._delete(k)
        for target, source in self.plan.program.stores:
            if source not in self.in_place:
                sizes, own = self.plan.program.inputs[target].sizes, self.plan.layouts[source].sizes
                view = "" if own == sizes else f".view({self._tuple(sizes)})"  # its variables may have been split
                self.lines.append(f"{target}.copy_({source}{view})")
        results = [name for name, _ in self.plan.program.outputs]
        self.lines.append(f"return ({', '.join(results)}{',' if results else ''})")
        if ERRORS in self.dtypes:
            self.values["sites"] = tuple(self.plan.program.sites)
            self.lines.insert(0, f"{ERRORS} = two_words()")
        if self.block != 0:
            self.lines.insert(0, f"block = block_of({self._number(self.block)})")
            self.lines.insert(1, "base = block.data_ptr()")
        body = "\n".join(f"    {line}" for line in [*self.head, *self.lines])
        symbols = {s: expr for s, expr in self.plan.program.symbols.items() if s in self.used}
        text = f"def run({', '.join([*names, *map(str, symbols)])}):\n{body}\n"
        source = self.source.text()
        spec = ProgramSpec(
            text, self.values, tuple(self.segments), self.source.kernels, self.launches, tuple(self.calls), self.moved
        )
        return WrittenProgram(spec, source, tuple(symbols.values()))

    def _allocate(self, name: str) -> None:
        d = self.definitions[name]
        dtype = str(d.dtype).removeprefix("torch.")
        sizes, strides = map(self._tuple, self._layout(name))
        self.lines.append(f"{name} = empty({sizes}, {strides}, {dtype})")
        self.alive.add(name)

    def _placed(self, nests: list[Nest], first: int) -> dict[str, Extent]:
        """Where all lies that nests touch, of which the first is step ``first``; with room for what they write."""
        memory: dict[str, Extent] = {}
        for i, nest in enumerate(nests):
            for name in _written(nest):
                if name in {*self.in_place, *self.reused} or name in self.offsets or name in self.allocated:
                    continue
                if name in self.as_tensors:
                    self._allocate(name)
                    self.allocated.add(name)
                else:
                    self._place(name)
            for name in _names(nest):
                memory[name] = self._memory(name)
            for name in list(self.offsets):
                if self.last.get(name, -1) <= first + i and name in memory and name not in self.as_tensors:
                    self._release(name)
                    del self.offsets[name]
        return memory

    def _segment(self, nests: list[Nest], k: int) -> None:
        memory = self._placed(nests, k + 1 - len(nests))
        used = list(dict.fromkeys(n for nest in nests for n in _names(nest)))
        if ERRORS in used:
            self.dtypes[ERRORS] = torch.int64
        slots = {n: Slot(i, self.dtypes[n]) for i, n in enumerate(used)}
        number, given = self.source.add_segment(nests, slots, memory)
        work = sum((nest.work for nest in nests), Index.of(0))
        parallel = work.bounds[0] > WORTH_A_TEAM
        sized = not parallel and work.bounds[1] > WORTH_A_TEAM
        self.segments.append(SegmentSpec(len(used) + len(given), parallel, sized))
        self.launches += len(nests)
        words = []
        for name in used:
            kind, start, _ = memory[name]
            if name == ERRORS:
                words.append(f"address_of({ERRORS})")
                continue
            words.append(f"base + {self._number(start)}" if kind == "block" else f"{kind}.data_ptr()")
            self.moved += self._moved(name)
        table = f"table{number}({', '.join([*words, *map(self._number, given)])})"
        if sized:
            enough = f"{self._number(work)} > {WORTH_A_TEAM}"
            self.lines.append(f"if {enough}: parallel(team{number}, {table}, threads(), 0)")
            self.lines.append(f"else: segment{number}({table})")
        elif parallel:
            self.lines.append(f"parallel(segment{number}, {table}, threads(), 0)")
        else:
            self.lines.append(f"segment{number}({table})")
        for name in used:
            if name in self.reused and name not in self.alive:
                self.lines.append(f"{name} = {self._root(name)}")
                self.alive.add(name)
        if ERRORS in used:
            sizes = "".join(f", {s}={s}" for s in self._in_messages())
            self.lines.append(f"if {ERRORS}[0]: raise outside(sites[{ERRORS}[0] - 1], {ERRORS}[1]{sizes})")

    def _in_messages(self) -> list[Sym]:
        """The symbols that messages about indices may show."""
        words = {w for site in self.plan.program.sites for w in re.findall(r"\w+", site.message)}
        found = [s for s in self.plan.program.symbols if s.name in words]
        self.used.update(found)
        return found

    def _moved(self, name: str) -> int:
        layout = self.plan.layouts[name]
        elements = 1
        for size, stride in zip(layout.sizes, layout.strides, strict=True):
            elements *= 1 if stride == 0 else size.typical
        return elements * torch.empty((), dtype=self.dtypes[name]).element_size()

    def _memory(self, name: str) -> Extent:
        """Where a tensor lies: a Python name for a tensor by itself, or bytes of the "block"."""
        if name in self.offsets:
            return "block", self.offsets[name], self.offsets[name] + self._bytes(name)
        return self._root(name), Index.of(0), Index.of(1)

    def _root(self, name: str) -> str:
        """The Python name of the tensor in whose memory a tensor is, in the segment that writes it."""
        while name in self.reused and name not in self.alive:
            name = self.reused[name]
        return self.in_place.get(name, name)

    def _call(self, call: Call) -> None:
        function = f"op{len(self.values)}"
        self.values[function] = call.target
        args = [self._argument(a) for a in call.args] + [f"{k}={self._argument(v)}" for k, v in call.kwargs.items()]
        results = [r.name if r else "_" for r in call.results]
        returns = call.target._schema.returns
        many = len(returns) > 1 or isinstance(returns[0].type, torch.ListType)
        self.lines.append(f"{', '.join(results)}{' ' if not many else ', '}= {function}({', '.join(args)})")
        for r in call.results:
            if r is not None and r.sizes and r.name in self.last | self.outputs:
                size, stride = self._tuple(r.sizes), self._tuple(r.strides)
                self.lines.append(
                    f"if {r.name}.stride() != {stride}: {r.name} = as_planned({r.name}, {size}, {stride})"
                )
        self.calls.append(f"{call.library} {call.target}")
        self.alive |= {r.name for r in call.results if r}

    def _argument(self, x: Any) -> str:
        if isinstance(x, Ref):
            layout = self.plan.layouts[x.name]
            if layout.sizes == x.sizes and layout.strides == x.strides and x.offset == 0:
                return x.name
            offset = f", {x.name}.storage_offset() + {self._number(x.offset)}" if x.offset != 0 else ""
            return f"{x.name}.as_strided({self._tuple(x.sizes)}, {self._tuple(x.strides)}{offset})"
        if isinstance(x, Index):
            return self._number(x)
        if isinstance(x, list | tuple):
            inner = "".join(f"{self._argument(v)}, " for v in x)
            return f"[{inner}]" if isinstance(x, list) else f"({inner})"
        if x is None or isinstance(x, bool | int | str):
            return repr(x)
        name = f"k{len(self.values)}"
        self.values[name] = x
        return name

    def _delete(self, k: int) -> None:
        """Forget tensors that nothing reads any more."""
        leaving = {*self.outputs, *(s for _, s in self.plan.program.stores)}
        dead = sorted(n for n in self.alive - leaving if self.last.get(n, -1) <= k)
        self.lines += [f"del {n}" for n in dead]
        self.alive -= {*dead}


def _stored_in_place(plan: Schedule) -> dict[str, str]:
    """Definitions that a kernel writes into an input, as the program's stores want it: definition to input.

    It does if every read of the input comes before, or reads the very element that is written.
    """
    found: dict[str, str] = {}
    outputs = {name for name, _ in plan.program.outputs}
    for target, source in plan.program.stores:
        layout, given = plan.layouts.get(source), plan.layouts[target]
        if source in outputs or source in plan.program.inputs or source in found or layout is None:
            continue
        if (layout.sizes, layout.strides) == (given.sizes, given.strides) and _reads_are_over(
            plan.steps, target, source
        ):
            found[source] = target
    return found


def _reads_are_over(steps: Iterable[Nest | Call], target: str, source: str) -> bool:
    """Whether what reads ``target`` comes before ``source`` is written, or reads the very element that is."""
    written = False
    for step in steps:
        if isinstance(step, Call):
            if source in step.reads() or (written and target in step.reads()):
                return False
            if source in [r.name for r in step.results if r]:
                return False
            continue
        here = next(
            (
                (i, j)
                for i, stage in enumerate(step.stages)
                for j, s in enumerate(stage.statements)
                if s.name == source and s.address is not None
            ),
            None,
        )
        for i, stage in enumerate(step.stages):
            for j, s in enumerate(stage.statements):
                for x in walk(*s.expressions):
                    if not isinstance(x, Load) or x.source != target or not x.index:
                        continue
                    if written or (here is not None and (i, j) > here):
                        return False
                    address = step.stages[here[0]].statements[here[1]].address if here else None
                    if here is not None and x.index[0] != address:
                        return False
        written = written or here is not None
    return written


def _copies_onto_itself(nest: Nest, in_place: dict[str, str]) -> bool:
    """Whether a nest writes into an input what is there: the elements that a scatter into it leaves as they are."""
    for stage in nest.stages:
        for s in stage.statements:
            x = s.body
            if s.how is not None or s.combiner or not isinstance(x, Load) or s.address is None:
                return False
            if in_place.get(s.name) != x.source or x.index != (s.address,):
                return False
    return True


def _names(nest: Nest) -> list[str]:
    """The tensors that a nest reads and writes in memory, in order."""
    return [name for name, _ in touched(nest)]


def _written(nest: Nest) -> list[str]:
    return [s.name for stage in nest.stages for s in stage.statements if s.address is not None]


def _dense(sizes: Sequence[Index], order: tuple[int, ...]) -> list[Index]:
    strides, step = [Index.of(1)] * len(sizes), Index.of(1)
    for d in reversed(order):
        strides[d] = step
        step = step * greatest(sizes[d], Index.of(1))
    return strides


def _formula(x: Index) -> str:
    """Python text of what symbolic sizes give."""
    parts = [_term(atom, k) for atom, k in x.terms]
    return " + ".join([*parts, str(x.constant)] if x.constant or not parts else parts)


def _term(atom: Atom, k: int = 1) -> str:
    if isinstance(atom, Product):
        text = " * ".join(map(_term, atom.factors))
    elif isinstance(atom, Least):
        text = f"min({_formula(atom.left)}, {_formula(atom.right)})"
    elif isinstance(atom, Div | Mod):
        divisor = _formula(atom.divisor)
        if atom.divisor.bounds[0] < 1:  # what is divided by a size of 0 is not used
            divisor = f"max(1, {divisor})"
        text = f"(({_formula(atom.dividend)}) {'//' if isinstance(atom, Div) else '%'} ({divisor}))"
    else:
        assert isinstance(atom, Sym)
        text = atom.name
    return text if k == 1 else f"{k} * {text}"
