"""Programs from schedules: where every tensor lies, the kernels' source, and the Python function that runs them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_max_backend.base.errors import Unsupported
from torch_max_backend.base.index_sites import Site
from torch_max_backend.capture.fake_tensors import storage_key
from torch_max_backend.codegen import library_workspaces
from torch_max_backend.codegen.collective_signatures import collectives_of
from torch_max_backend.codegen.grid_source import GridSource
from torch_max_backend.codegen.inexact_operations import rough_tensors
from torch_max_backend.codegen.kernel_writer import KernelWriter
from torch_max_backend.codegen.memory_ledger import Ledger
from torch_max_backend.codegen.memory_traffic import bytes_of
from torch_max_backend.codegen.source import ERRORS, Extent, Slot, Source, touched
from torch_max_backend.loops.expr import Checked, Load, loads, walk
from torch_max_backend.loops.index import Atom, Div, Index, Least, Mod, Product, Sym, greatest, product
from torch_max_backend.loops.program import Call, Ref
from torch_max_backend.loops.symbols import expression_of
from torch_max_backend.partition.region import Region
from torch_max_backend.runtime.grid_program import ALIGNMENT as GRID_ALIGNMENT
from torch_max_backend.runtime.grid_program import GridSegmentSpec
from torch_max_backend.runtime.program import HELD, SEGMENT, ProgramSpec, SegmentSpec
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.nest import Nest
from torch_max_backend.schedule.plan import Schedule

ALIGNMENT = 64
"""Bytes: a line of memory, and a vector."""
WORTH_A_TEAM = 60_000
"""Simple operations on one element that are worth waking threads for: some microseconds of one thread."""


ALONE = 1 << 20
"""Bytes from which on a GPU gives an intermediate memory of its own, which ends with it, and no part of the block."""

MOST_OPS = 6
"""Names of ops in the name of a profiler range."""


@dataclass(frozen=True)
class WrittenProgram:
    """A program's function, and the Mojo source of its kernels (empty if it has none).

    Behind its tensors the function takes an integer for each of ``symbols``, which are what the program has for them.
    Inputs that it consumes it takes as one list, which it empties, behind the others.
    """

    spec: ProgramSpec
    source: str
    symbols: tuple[Any, ...] = ()
    threads: Mapping[str, int] | None = None
    """For a GPU, the threads of a block by kernel."""
    strides: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Of outputs that may lie in memory in any way, by position."""
    totals: tuple[Index, ...] = ()
    """Bytes: the greatest is the most that the program has allocated at once."""
    meanings: Mapping[Sym, Any] = field(default_factory=dict)
    """Torch's expressions for the symbols in them."""

    @property
    def peaks(self) -> tuple[Any, ...]:
        """The totals in torch's expressions."""
        return tuple(expression_of(total, dict(self.meanings)) for total in self.totals)


def write_program(
    region: Region,
    plan: Schedule,
    checked: Sequence[bool],
    gpu: int | None = None,
    check_indices: bool = True,
    profiled: bool = False,
) -> WrittenProgram:
    """The program of a region by its schedule.

    Args:
        checked: For each input, whether its strides may differ from the traced ones when the program is called.
        gpu: The index of the GPU that it runs on, by a schedule for one; none for a CPU.
        check_indices: Whether a GPU reports an index that is out of range. A CPU always does.
        profiled: Whether every kernel is a segment of its own, and a profiler range is around each and around each
            library call.

    Raises:
        Unsupported: A GPU could not say what is wrong with an index.
    """
    if gpu is None:
        return _Writer(region, plan, checked, profiled).write()
    return _GridWriter(region, plan, checked, profiled, gpu, check_indices).write()


class _Writer:
    def __init__(self, region: Region, plan: Schedule, checked: Sequence[bool], profiled: bool) -> None:
        self.profiled = profiled
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
        self.segments: list[SegmentSpec | GridSegmentSpec] = []
        self.source = Source(KernelWriter)
        self.outputs = {name: k for k, (name, _) in enumerate(plan.program.outputs)}
        ports = dict(zip(plan.program.inputs, region.inputs, strict=False))  # a region without a graph has none
        self.consumed = {name: port for name, port in ports.items() if port.consumed}
        self.as_tensors = self._needed_as_tensors()
        nests = [s for s in steps if not isinstance(s, Call)]
        self.rough = rough_tensors(nests, {*self.as_tensors, *self.in_place})
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
        self.ledger = Ledger(Index.of(0))

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
        if name in self.plan.program.free:
            return tuple(shape), tuple(map(Index.of, self.plan.program.free[name]))
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
        names = [name for name in self.plan.program.inputs if name not in self.consumed]
        self._take_consumed()
        for name, check in zip(self.plan.program.inputs, self.checked, strict=True):
            layout = self.plan.layouts[name]
            if check and len(layout.sizes):
                size, stride = self._tuple(layout.sizes), self._tuple(layout.strides)
                self.lines.append(f"if {name}.stride() != {stride}: {name} = as_planned({name}, {size}, {stride})")
        run: list[Nest] = []
        for k, step in enumerate(self.plan.steps):
            if isinstance(step, Nest):
                run.append(step)
                if not self.profiled and isinstance(next(iter(self.plan.steps[k + 1 :]), None), Nest):
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
        if self.block != 0:
            self.lines.insert(0, f"block = block_of({self._number(self.block)})")
            self.lines.insert(1, "base = block.data_ptr()")
        parameters = [*names, *([HELD] if self.consumed else [])]
        self._begin(parameters)
        body = "\n".join(f"    {line}" for line in [*self.head, *self.lines])
        symbols = {s: expr for s, expr in self.plan.program.symbols.items() if s in self.used}
        text = f"def run({', '.join([*parameters, *map(str, symbols)])}):\n{body}\n"
        return self._written(text, tuple(symbols.values()))

    def _take_consumed(self) -> None:
        """Count what nobody else holds, which is freed after its last use."""
        for name, port in self.consumed.items():
            layout = self.plan.layouts[name]
            size = _room(layout.sizes, layout.strides) * self.dtypes[name].itemsize
            self.ledger.given(name, size, storage_key(port.value) or name)
        self.alive |= self.consumed.keys()

    def _unpacked(self) -> list[str]:
        """What takes consumed inputs from their list."""
        return [f"{', '.join(self.consumed)}, = {HELD}"] if self.consumed else []

    def _begin(self, parameters: list[str]) -> None:
        """What stands before everything else."""
        if ERRORS in self.dtypes:
            self.values["sites"] = tuple(self.plan.program.sites)
            self.lines.insert(0, f"{ERRORS} = two_words()")
        self.head[:0] = [*self._unpacked(), *([f"{HELD}.clear()"] if self.consumed else [])]

    def _written(self, text: str, symbols: tuple[Any, ...]) -> WrittenProgram:
        counts = self.source.kernels, self.launches, tuple(self.calls), self.moved
        return WrittenProgram(
            ProgramSpec(text, self.values, tuple(self.segments), *counts, collectives=collectives_of(self.plan.steps)),
            self.source.text(),
            symbols,
            strides=self._free_strides(),
            totals=self._totals(),
            meanings=self.plan.program.symbols,
        )

    def _free_strides(self) -> dict[int, tuple[int, ...]]:
        """The strides of outputs that may lie in any way, by position."""
        return {k: self.plan.program.free[name] for name, k in self.outputs.items() if name in self.plan.program.free}

    def _allocate(self, name: str) -> None:
        d = self.definitions[name]
        dtype = str(d.dtype).removeprefix("torch.")
        sizes, strides = map(self._tuple, self._layout(name))
        self.lines.append(f"{name} = empty({sizes}, {strides}, {dtype})")
        self.alive.add(name)
        self.ledger.take(name, _room(*self._layout(name)) * d.dtype.itemsize)

    def _totals(self) -> tuple[Index, ...]:
        """Totals of which the greatest is the most that is allocated at once; the block is there all the time."""
        return tuple(self.block + peak for peak in self.ledger.peaks or [Index.of(0)])

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
        slots = {n: Slot(i, self.dtypes[n], n in self.rough) for i, n in enumerate(used)}
        self.launches += len(nests)
        self._launch(nests, slots, memory)
        for name in used:
            if name in self.reused and name not in self.alive:
                self.lines.append(f"{name} = {self._root(name)}")
                self.ledger.share(name, self._root(name))
                self.alive.add(name)
        if ERRORS in used:
            self._check()

    def _launch(self, nests: list[Nest], slots: dict[str, Slot], memory: dict[str, Extent]) -> None:
        """Run nests on the calling thread or on a team."""
        number, given = self.source.add_segment(nests, slots, memory)
        work = sum((nest.work for nest in nests), Index.of(0))
        parallel = work.bounds[0] > WORTH_A_TEAM
        sized = not parallel and work.bounds[1] > WORTH_A_TEAM
        self.segments.append(SegmentSpec(len(slots) + len(given), parallel, sized))
        table = f"table{number}({', '.join([*self._addresses(slots, memory), *map(self._number, given)])})"
        if sized:
            enough = f"{self._number(work)} > {WORTH_A_TEAM}"
            call = [f"if {enough}: parallel(team{number}, {table}, threads(), 0)", f"else: segment{number}({table})"]
        else:
            call = [f"parallel(segment{number}, {table}, threads(), 0)" if parallel else f"segment{number}({table})"]
        names = [s.name for nest in nests for stage in nest.stages for s in stage.statements]
        self._ranged(call, lambda: f"{self._kernel(number)} {_ops(nests)}".strip(), names, self._traffic(nests))

    def _traffic(self, nests: Sequence[Nest]) -> Index:
        """The bytes that nests read and write, which the report counts."""
        moved = sum((bytes_of(nest, self.plan.layouts, self.dtypes) for nest in nests), Index.of(0))
        self.moved += moved.typical
        return moved

    def _addresses(self, slots: dict[str, Slot], memory: dict[str, Extent]) -> list[str]:
        """The addresses of tensors, in the order of their slots."""
        words = []
        for name in slots:
            kind, start, _ = memory[name]
            if name == ERRORS:
                words.append(self._errors())
                continue
            words.append(f"base + {self._number(start)}" if kind == "block" else f"{kind}.data_ptr()")
        return words

    def _errors(self) -> str:
        return f"address_of({ERRORS})"

    def _check(self) -> None:
        """Raise for an index that kernels have noted."""
        sizes = "".join(f", {s}={s}" for s in self._in_messages())
        self.lines.append(f"if {ERRORS}[0]: raise outside(sites[{ERRORS}[0] - 1], {ERRORS}[1]{sizes})")

    def _ranged(
        self, call: list[str], name: Callable[[], str], results: Sequence[str], moved: Index | None = None
    ) -> None:
        """Emit a call, in a profiler range of that name if ranges are wanted, inside of one for each user's module."""
        if self.profiled:
            size = "" if moved is None else f", {self._number(moved)}"
            known = self.plan.program.modules
            modules = dict.fromkeys(known[n] for n in results if known.get(n))
            path = f"module_range({next(reversed(modules))!r}), " if modules else ""
            self.lines.append(f"with {path}profiler_range({name()!r}{size}):")
            call = [f"    {line}" for line in call]
        self.lines += call

    def _kernel(self, segment: int) -> str:
        """The name of the kernel that a segment of one kernel calls."""
        _, _, body = self.source.text().rpartition(f"def {SEGMENT}{segment}(")
        return re.findall(r"\bkernel\d+\b", body)[0]

    def _in_messages(self) -> list[Sym]:
        """The symbols that messages about indices may show."""
        words = {w for site in self.plan.program.sites for w in re.findall(r"\w+", site.message)}
        found = [s for s in self.plan.program.symbols if s.name in words]
        self.used.update(found)
        return found

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
        text = f"{', '.join(results)}{' ' if not many else ', '}= {function}({', '.join(args)})"
        names = [r.name for r in call.results if r]
        self._ranged([text], lambda: f"{call.library} {call.target}", names)
        for r in call.results:
            if r is not None and r.sizes and r.name in self.last | self.outputs:
                size, stride = self._tuple(r.sizes), self._tuple(r.strides)
                self.lines.append(
                    f"if {r.name}.stride() != {stride}: {r.name} = as_planned({r.name}, {size}, {stride})"
                )
        self.calls.append(f"{call.library} {call.target}")
        self._account(call)
        self.alive |= {r.name for r in call.results if r}

    def _account(self, call: Call) -> None:
        """What a library call returns, and what it needs until then."""
        for total in self._workspaces(call):
            self.ledger.reach(self.ledger.now + total)
        for r in filter(None, call.results):
            self.ledger.take(r.name, product(r.sizes) * r.dtype.itemsize)

    def _workspaces(self, call: Call) -> list[Index]:
        return library_workspaces.totals(call)

    def _argument(self, x: Any) -> str:
        if isinstance(x, Ref):
            layout = self.plan.layouts[x.name]
            name = self.in_place.get(x.name, x.name)
            if layout.sizes == x.sizes and layout.strides == x.strides and x.offset == 0:
                return name
            offset = f", {name}.storage_offset() + {self._number(x.offset)}" if x.offset != 0 else ""
            return f"{name}.as_strided({self._tuple(x.sizes)}, {self._tuple(x.strides)}{offset})"
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
        for name in dead:
            self.ledger.drop(name)
        self.alive -= {*dead}


class _GridWriter(_Writer):
    """Programs on a GPU: kernels are launched on torch's current stream."""

    def __init__(
        self, region: Region, plan: Schedule, checked: Sequence[bool], profiled: bool, gpu: int, check_indices: bool
    ) -> None:
        super().__init__(region, plan, checked, profiled)
        self.gpu, self.grid, self.check_indices = gpu, GridSource(), check_indices
        self.donated = self._donated()

    def _needed_as_tensors(self) -> set[str]:
        sizes = {n: product(d.sizes) * d.dtype.itemsize for n, d in self.definitions.items()}
        return super()._needed_as_tensors() | {n for n, size in sizes.items() if size.bounds[0] >= ALONE}

    def _donated(self) -> dict[str, str]:
        """Intermediates that are written over the last use of a consumed input, element by element, with the input.

        That is decided at each call, by who else has the input's memory (`runtime/sole_owner.py`).
        """
        leaving = {*self.outputs, *(s for _, s in self.plan.program.stores)}
        taken, found = {*self.in_place, *self.reused, *leaving}, dict[str, str]()
        for k, step in enumerate(self.plan.steps):
            statements = [] if isinstance(step, Call) else [s for stage in step.stages for s in stage.statements]
            for s in statements:
                if s.name not in self.as_tensors - taken or s.how is not None or s.address is None:
                    continue
                for x in loads(*s.expressions):
                    ends = x.source in self.consumed.keys() - leaving and self.last[x.source] == k
                    if not ends or x.index != (s.address,) or x.source in found.values() or s.name in found:
                        continue
                    if self._has_room(x.source, s.name) and _reads_are_over([step], x.source, s.name):
                        found[s.name] = x.source
        return found

    def _has_room(self, given: str, name: str) -> bool:
        """Whether a large input has as many elements in memory as a tensor of the same dtype."""
        layout = self.plan.layouts[given]
        room = _room(layout.sizes, layout.strides)
        is_large = (room * self.dtypes[given].itemsize).bounds[0] >= ALONE
        return is_large and self.dtypes[given] is self.dtypes[name] and room == _room(*self._layout(name))

    def _allocate(self, name: str) -> None:
        given = self.donated.get(name)
        if given is None:
            super()._allocate(name)
            return
        layout = ", ".join(map(self._tuple, self._layout(name)))
        dtype = str(self.dtypes[name]).removeprefix("torch.")
        over, new = f"{given}.as_strided({layout})", f"empty({layout}, {dtype})"
        self.lines.append(f"{name} = {over} if references({given}) == of_one_variable() else {new}")
        self.alive.add(name)
        self.ledger.share(name, given)

    def _begin(self, parameters: list[str]) -> None:
        symbols = [s for s in self.plan.program.symbols if s in self.used]
        args = f"({''.join(f'{x}, ' for x in [*parameters, *map(str, symbols)])})"
        first = [f"if current() != {self.gpu}: return on_device({self.gpu}, run, {args})", *self._unpacked()]
        pointers = " | ".join(f"{x}.data_ptr()" for x in self.plan.program.inputs)
        if pointers:
            stored = [parameters.index(target) for target, _ in self.plan.program.stores]
            first.append(f"if ({pointers}) & {GRID_ALIGNMENT - 1}: return realigned(run, {args}, {tuple(stored)})")
        if self.consumed:
            first.append(f"{HELD}.clear()")
        self.head[:0] = first

    def _launch(self, nests: list[Nest], slots: dict[str, Slot], memory: dict[str, Extent]) -> None:
        assert all(isinstance(n, GridNest) for n in nests)
        launches, given = self.grid.add_segment(nests, slots)  # type: ignore[arg-type]
        number = len(self.segments)
        self.segments.append(GridSegmentSpec(len(slots) + len(given), launches))
        words = [*self._addresses(slots, memory), *map(self._number, given)]
        self.lines.append(f"words = table{number}({', '.join(words)})")
        call = [f"segment{number}(address_of(words), stream({self.gpu}))"]
        names = [s.name for nest in nests for stage in nest.stages for s in stage.statements]
        self._ranged(call, lambda: f"{launches[0].kernel} {_ops(nests)}".strip(), names, self._traffic(nests))

    def _workspaces(self, call: Call) -> list[Index]:
        """Those of libraries on a GPU are not known."""
        return []

    def _errors(self) -> str:
        return f"{ERRORS}.data_ptr()" if self.check_indices else "0"

    def _check(self) -> None:
        """Nothing: the call path looks at what kernels report."""

    def _written(self, text: str, symbols: tuple[Any, ...]) -> WrittenProgram:
        counts = self.grid.kernels, self.launches, tuple(self.calls), self.moved
        sites = self._sites() if self.check_indices and ERRORS in self.dtypes else ()
        collectives = collectives_of(self.plan.steps)
        spec = ProgramSpec(text, self.values, tuple(self.segments), *counts, (self.gpu,), sites, collectives)
        return WrittenProgram(
            spec,
            self.grid.text(),
            symbols,
            self.grid.threads,
            self._free_strides(),
            self._totals(),
            self.plan.program.symbols,
        )

    def _sites(self) -> tuple[Site, ...]:
        """The program's sites for the words that a GPU reports: an index and the number of elements.

        Raises:
            Unsupported: A message has another symbolic size.
        """
        statements = (s for n in self.plan.steps if isinstance(n, Nest) for stage in n.stages for s in stage.statements)
        checks = {x for s in statements for x in walk(*s.expressions) if isinstance(x, Checked)}
        sites = list(self.plan.program.sites)
        for x in checks:
            message = sites[x.site].message.replace(f"{{{x.size}}}", "{size}")
            if others := set(re.findall(r"\{([^{}]*)\}", message)) - {"index", "size"}:
                raise Unsupported(f"a GPU reports an index and a size, but not {', '.join(sorted(others))}")
            sites[x.site] = dataclasses.replace(sites[x.site], message=message)
        return tuple(sites)


def _ops(nests: Sequence[Nest]) -> str:
    """The names of the ops that kernels compute, without namespace and overload: ``mul,softmax``."""
    names: dict[str, None] = {}
    for s in (s for nest in nests for stage in nest.stages for s in stage.statements):
        for line in reversed(s.where.splitlines()):  # what became part of it comes before it
            names[line.split(" at ")[0].split(".")[1].strip("_")] = None
    return ",".join([*names][:MOST_OPS]) + (",…" if len(names) > MOST_OPS else "")


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
            if written and target in step.reads():
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
    return [name for name, writes in touched(nest) if writes]


def _room(sizes: Sequence[Index], strides: Sequence[Index]) -> Index:
    """How many elements torch's allocator gives a tensor: more than it has where rows have gaps between them."""
    dense = product(sizes)
    if any(n == 0 for n in sizes) or not dense.is_constant or not all(s.is_constant for s in strides):
        return dense
    return Index.of(1) + sum(((n - 1) * s for n, s in zip(sizes, strides, strict=True)), Index.of(0))


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
