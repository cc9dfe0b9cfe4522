"""Programs from schedules: the kernels' source, and the Python function that runs them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_max_backend.base.errors import Unsupported
from torch_max_backend.base.index_sites import Site
from torch_max_backend.codegen import library_workspaces
from torch_max_backend.codegen.collective_signatures import collectives_of
from torch_max_backend.codegen.grid_source import GridSource
from torch_max_backend.codegen.inexact_operations import rough_tensors
from torch_max_backend.codegen.kernel_writer import KernelWriter
from torch_max_backend.codegen.memory_traffic import bytes_of
from torch_max_backend.codegen.program_memory import GridProgramMemory, ProgramMemory, names_of
from torch_max_backend.codegen.size_formulas import SizeFormulas
from torch_max_backend.codegen.source import ERRORS, Extent, Slot, Source
from torch_max_backend.codegen.written_over import copies_onto_itself, stored_in_place
from torch_max_backend.loops.expr import Checked, walk
from torch_max_backend.loops.index import Index, Sym, product
from torch_max_backend.loops.libraries import DENSE_PRODUCTS
from torch_max_backend.loops.program import Call, Ref, dense_strides
from torch_max_backend.loops.symbols import expression_of
from torch_max_backend.partition.region import Region
from torch_max_backend.runtime.grid_program import ALIGNMENT as GRID_ALIGNMENT
from torch_max_backend.runtime.grid_program import GridSegmentSpec
from torch_max_backend.runtime.large_pages import LARGE
from torch_max_backend.runtime.program import HELD, SEGMENT, ProgramSpec, SegmentSpec
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.nest import Nest
from torch_max_backend.schedule.plan import Schedule

WORTH_A_TEAM = 100_000
"""Simple operations on one element that are worth waking threads for: some microseconds of one thread."""

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
    clusters: Mapping[str, int] = field(default_factory=dict)
    """The blocks of a cluster by kernel, where a kernel has clusters."""
    resident: Mapping[str, int] = field(default_factory=dict)
    """How many blocks shall run on a multiprocessor at the same time, by kernel, where that is said."""
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
    """Programs on a CPU."""

    _memory: type[ProgramMemory] = ProgramMemory

    def __init__(self, region: Region, plan: Schedule, checked: Sequence[bool], profiled: bool) -> None:
        self.profiled = profiled
        in_place = stored_in_place(plan)
        steps = [s for s in plan.steps if isinstance(s, Call) or not copies_onto_itself(s, in_place)]
        self.region, self.plan, self.checked = region, dataclasses.replace(plan, steps=steps), checked
        self.dtypes = {name: x.dtype for name, x in plan.program.inputs.items()}
        self.dtypes |= {d.name: d.dtype for d in plan.program.definitions()}
        for step in plan.program.steps:
            if isinstance(step, Call):
                self.dtypes |= {r.name: r.dtype for r in step.results if r}
        self.values: dict[str, Any] = {}
        self.lines: list[str] = []
        self.segments: list[SegmentSpec | GridSegmentSpec] = []
        self.source = Source(KernelWriter, plan.form)
        self.memory = self._memory(region, self.plan, self.dtypes, in_place)
        nests = [s for s in steps if not isinstance(s, Call)]
        self.rough = rough_tensors(nests, {*self.memory.as_tensors, *in_place})
        self.formulas = SizeFormulas()
        self.launches, self.moved = 0, 0
        self.calls: list[str] = []

    def write(self) -> WrittenProgram:
        names = [name for name in self.plan.program.inputs if name not in self.memory.consumed]
        for name, check in zip(self.plan.program.inputs, self.checked, strict=True):
            layout = self.plan.layouts[name]
            if check and len(layout.sizes):
                size, stride = self.formulas.tuple_of(layout.sizes), self.formulas.tuple_of(layout.strides)
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
            self.lines += [f"del {name}" for name in self.memory.free(k)]
        for target, source in self.plan.program.stores:
            if source not in self.memory.in_place:
                sizes, own = self.plan.program.inputs[target].sizes, self.plan.layouts[source].sizes
                # its variables may have been split
                view = "" if own == sizes else f".view({self.formulas.tuple_of(sizes)})"
                self.lines.append(f"{target}.copy_({source}{view})")
        results = [self._result(name) for name, _ in self.plan.program.outputs]
        self.lines.append(f"return ({', '.join(results)}{',' if results else ''})")
        if self.memory.block.size != 0:
            room = self.memory.block.size
            self.lines.insert(0, f"block = {self._made(f'block_of({self.formulas.text(room)})', room)}")
            self.lines.insert(1, "base = block.data_ptr()")
        parameters = [*names, *([HELD] if self.memory.consumed else [])]
        first = self._begin(parameters)
        body = "\n".join(f"    {line}" for line in [*first, *self.formulas.lines, *self.lines])
        symbols = {s: expr for s, expr in self.plan.program.symbols.items() if s in self.formulas.used}
        text = f"def run({', '.join([*parameters, *map(str, symbols)])}):\n{body}\n"
        return self._written(text, tuple(symbols.values()))

    def _result(self, name: str) -> str:
        """What leaves: a tensor, or a library's result in other dimensions."""
        if name not in self.plan.program.views:
            return name
        size, stride = map(self.formulas.tuple_of, self.plan.program.views[name])
        return f"read_as({name}, {size}, {stride}, 0)"

    def _unpacked(self) -> list[str]:
        """What takes consumed inputs from their list."""
        return [f"{', '.join(self.memory.consumed)}, = {HELD}"] if self.memory.consumed else []

    def _begin(self, parameters: list[str]) -> list[str]:
        """What stands before everything else."""
        if ERRORS in self.dtypes:
            self.values["sites"] = tuple(self.plan.program.sites)
            self.lines.insert(0, f"{ERRORS} = two_words()")
        return [*self._unpacked(), *([f"{HELD}.clear()"] if self.memory.consumed else [])]

    def _written(self, text: str, symbols: tuple[Any, ...]) -> WrittenProgram:
        counts = self.source.kernels, self.launches, tuple(self.calls), self.moved
        return WrittenProgram(
            ProgramSpec(text, self.values, tuple(self.segments), *counts, collectives=collectives_of(self.plan.steps)),
            self.source.text(),
            symbols,
            strides=self._free_strides(),
            totals=self.memory.totals,
            meanings=self.plan.program.symbols,
        )

    def _free_strides(self) -> dict[int, tuple[int, ...]]:
        """The strides of outputs that may lie in any way, by position."""
        return {
            k: self.plan.program.free[name] for name, k in self.memory.outputs.items() if name in self.plan.program.free
        }

    def _allocation(self, name: str) -> str:
        return self._empty(*self.memory.layout(name), self.dtypes[name])

    def _empty(self, sizes: Sequence[Index], strides: Sequence[Index], dtype: torch.dtype) -> str:
        """The text that makes a tensor."""
        layout = f"{self.formulas.tuple_of(sizes)}, {self.formulas.tuple_of(strides)}"
        text = f"empty({layout}, {str(dtype).removeprefix('torch.')})"
        return self._made(text, product(sizes) * dtype.itemsize)

    def _made(self, text: str, size: Index) -> str:
        """The text that makes a tensor of some bytes."""
        return f"in_large_pages({text})" if size.typical >= LARGE else text

    def _segment(self, nests: list[Nest], k: int) -> None:
        new, extents = self.memory.place(nests, k + 1 - len(nests))
        self.lines += [f"{name} = {self._allocation(name)}" for name in new]
        used = list(dict.fromkeys(n for nest in nests for n in names_of(nest)))
        if ERRORS in used:
            self.dtypes[ERRORS] = torch.int64
        slots = {n: Slot(i, self.dtypes[n], n in self.rough) for i, n in enumerate(used)}
        self.launches += len(nests)
        self._launch(nests, slots, extents)
        self.lines += [f"{name} = {root}" for name, root in self.memory.written_over(used)]
        if ERRORS in used:
            self._check()

    def _launch(self, nests: list[Nest], slots: dict[str, Slot], extents: dict[str, Extent]) -> None:
        """Run nests on the calling thread or on a team."""
        number, given = self.source.add_segment(nests, slots, extents)
        work = sum((nest.work for nest in nests), Index.of(0))
        parallel = work.bounds[0] > WORTH_A_TEAM
        sized = not parallel and work.bounds[1] > WORTH_A_TEAM
        self.segments.append(SegmentSpec(len(slots) + len(given), parallel, sized))
        table = f"table{number}({', '.join([*self._addresses(slots, extents), *map(self.formulas.text, given)])})"
        if sized:
            enough = f"{self.formulas.text(work)} > {WORTH_A_TEAM}"
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

    def _addresses(self, slots: dict[str, Slot], extents: dict[str, Extent]) -> list[str]:
        """The addresses of tensors, in the order of their slots."""
        words = []
        for name in slots:
            kind, start, _ = extents[name]
            if name == ERRORS:
                words.append(self._errors())
                continue
            words.append(f"base + {self.formulas.text(start)}" if kind == "block" else f"{kind}.data_ptr()")
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
            size = "" if moved is None else f", {self.formulas.text(moved)}"
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
        self.formulas.used.update(found)
        return found

    def _call(self, call: Call) -> None:
        function = f"op{len(self.values)}"
        self.values[function] = call.target
        writes = call.target._schema.is_mutable
        args = [self._argument(a, writes) for a in call.args]
        args += [f"{k}={self._argument(v, writes)}" for k, v in call.kwargs.items()]
        args += self._results_given(call)
        results = [r.name if r else "_" for r in call.results]
        returns = call.target._schema.returns
        many = len(returns) > 1 or isinstance(returns[0].type, torch.ListType)
        text = f"{', '.join(results)}{' ' if not many else ', '}= {function}({', '.join(args)})"
        names = [r.name for r in call.results if r]
        self._ranged([text], lambda: f"{call.library} {call.target}", names)
        for r in call.results:
            if r is not None and r.sizes and r.name in self.memory.last | self.memory.outputs:
                size, stride = self.formulas.tuple_of(r.sizes), self.formulas.tuple_of(r.strides)
                self.lines.append(
                    f"if {r.name}.stride() != {stride}: {r.name} = as_planned({r.name}, {size}, {stride})"
                )
        self.calls.append(f"{call.library} {call.target}")
        self.memory.returned(call, self._workspaces(call))

    def _results_given(self, call: Call) -> list[str]:
        """The argument by which a product writes into large pages; none where it allocates its result itself."""
        (result, *_) = call.results
        if call.target not in DENSE_PRODUCTS or result is None or result.strides != dense_strides(result.sizes):
            return []
        is_large = (product(result.sizes) * result.dtype.itemsize).typical >= LARGE
        return [f"out={self._empty(result.sizes, result.strides, result.dtype)}"] if is_large else []

    def _workspaces(self, call: Call) -> list[Index]:
        """What a library has allocated until its call returns."""
        return library_workspaces.totals(call)

    def _argument(self, x: Any, is_written: bool = False) -> str:
        """The text of a library's argument. What is only read needs no view that torch knows as one."""
        if isinstance(x, Ref):
            layout = self.plan.layouts[x.name]
            name = self.memory.in_place.get(x.name, x.name)
            if layout.sizes == x.sizes and layout.strides == x.strides and x.offset == 0:
                return name
            size, stride = self.formulas.tuple_of(x.sizes), self.formulas.tuple_of(x.strides)
            if not is_written:
                return f"read_as({name}, {size}, {stride}, {self.formulas.text(x.offset)})"
            offset = f", {name}.storage_offset() + {self.formulas.text(x.offset)}" if x.offset != 0 else ""
            return f"{name}.as_strided({size}, {stride}{offset})"
        if isinstance(x, Index):
            return self.formulas.text(x)
        if isinstance(x, list | tuple):
            inner = "".join(f"{self._argument(v, is_written)}, " for v in x)
            return f"[{inner}]" if isinstance(x, list) else f"({inner})"
        if x is None or isinstance(x, bool | int | str):
            return repr(x)
        name = f"k{len(self.values)}"
        self.values[name] = x
        return name


class _GridWriter(_Writer):
    """Programs on a GPU: kernels are launched on torch's current stream."""

    _memory = GridProgramMemory

    def __init__(
        self, region: Region, plan: Schedule, checked: Sequence[bool], profiled: bool, gpu: int, check_indices: bool
    ) -> None:
        super().__init__(region, plan, checked, profiled)
        self.gpu, self.grid, self.check_indices = gpu, GridSource(plan.form), check_indices

    def _allocation(self, name: str) -> str:
        given, new = self.memory.donated.get(name), super()._allocation(name)
        if given is None:
            return new
        layout = ", ".join(map(self.formulas.tuple_of, self.memory.layout(name)))
        return f"{given}.as_strided({layout}) if references({given}) == of_one_variable() else {new}"

    def _begin(self, parameters: list[str]) -> list[str]:
        symbols = [s for s in self.plan.program.symbols if s in self.formulas.used]
        args = f"({''.join(f'{x}, ' for x in [*parameters, *map(str, symbols)])})"
        first = [f"if current() != {self.gpu}: return on_device({self.gpu}, run, {args})", *self._unpacked()]
        pointers = " | ".join(f"{x}.data_ptr()" for x in self.plan.program.inputs)
        if pointers:
            stored = [parameters.index(target) for target, _ in self.plan.program.stores]
            first.append(f"if ({pointers}) & {GRID_ALIGNMENT - 1}: return realigned(run, {args}, {tuple(stored)})")
        if self.memory.consumed:
            first.append(f"{HELD}.clear()")
        return first

    def _launch(self, nests: list[Nest], slots: dict[str, Slot], extents: dict[str, Extent]) -> None:
        assert all(isinstance(n, GridNest) for n in nests)
        launches, given = self.grid.add_segment(nests, slots)  # type: ignore[arg-type]
        number = len(self.segments)
        self.segments.append(GridSegmentSpec(len(slots) + len(given), launches))
        words = [*self._addresses(slots, extents), *map(self.formulas.text, given)]
        self.lines.append(f"words = table{number}({', '.join(words)})")
        call = [f"segment{number}(address_of(words), stream({self.gpu}))"]
        names = [s.name for nest in nests for stage in nest.stages for s in stage.statements]
        self._ranged(call, lambda: f"{launches[0].kernel} {_ops(nests)}".strip(), names, self._traffic(nests))

    def _made(self, text: str, size: Index) -> str:
        return text

    def _results_given(self, call: Call) -> list[str]:
        return []

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
            self.grid.clusters,
            self.grid.resident,
            self._free_strides(),
            self.memory.totals,
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
