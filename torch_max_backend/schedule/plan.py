"""All passes from a program to a schedule, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch_max_backend.loops.program import Call, Program, Scatter, reads
from torch_max_backend.loops.simplify import without_reductions_of_one, without_sums_of_one_element
from torch_max_backend.schedule.alike import AlikeKernels, Form
from torch_max_backend.schedule.equal_definitions import without_equal_definitions
from torch_max_backend.schedule.few_pages import in_few_pages
from torch_max_backend.schedule.fuse import fuse
from torch_max_backend.schedule.grid import grid_nest, grid_scatter
from torch_max_backend.schedule.grid_column_sums import with_column_sums
from torch_max_backend.schedule.inline import inline
from torch_max_backend.schedule.interleaved_stores import interleaved
from torch_max_backend.schedule.kernel import Kernel, Layout
from torch_max_backend.schedule.late_stores import with_late_stores
from torch_max_backend.schedule.layouts import layouts_of
from torch_max_backend.schedule.machine import CPU, Machine
from torch_max_backend.schedule.narrow_sums import narrow_sums
from torch_max_backend.schedule.nest import Nest
from torch_max_backend.schedule.overlap import wait_late
from torch_max_backend.schedule.own_rows import own_rows
from torch_max_backend.schedule.repeated_elements import without_repeated_elements
from torch_max_backend.schedule.repeated_rows import repeated_rows
from torch_max_backend.schedule.row_tails import tails_in_vectors
from torch_max_backend.schedule.rows_at_once import rows_at_once
from torch_max_backend.schedule.rows_inside import rows_inside
from torch_max_backend.schedule.scatter_nest import scatter_nests
from torch_max_backend.schedule.shared_elements import shared_elements
from torch_max_backend.schedule.shared_factors import shared_factors
from torch_max_backend.schedule.small_kernels import sharing_launches
from torch_max_backend.schedule.split import split_divided_variables, split_long_reductions
from torch_max_backend.schedule.split_places import split_long_searches
from torch_max_backend.schedule.split_scans import split_long_scans
from torch_max_backend.schedule.split_scatters import split_scatters
from torch_max_backend.schedule.spread_groups import spread_groups
from torch_max_backend.schedule.tables import tables
from torch_max_backend.schedule.turned_operands import turned_operands
from torch_max_backend.schedule.unroll_windows import unroll_windows
from torch_max_backend.schedule.vectors import nest
from torch_max_backend.schedule.wide_extremes import wide_extremes


@dataclass
class Schedule:
    """Loop nests and library calls in running order, the layout of every tensor, and what needs no memory."""

    program: Program
    steps: list[Nest | Call]
    layouts: dict[str, Layout]
    local: frozenset[str]
    form: Callable[[Nest], Form | None]
    """What a nest has in common with others that differ in names alone."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))


def passes(program: Program, machine: Machine = CPU) -> Iterator[tuple[str, Program]]:
    """The program after each pass, with the pass's name."""
    layouts = _Layouts(machine)
    changes = (
        without_reductions_of_one,
        without_repeated_elements,
        inline,
        without_equal_definitions,
        with_late_stores,
    )
    for change in changes:
        program = inline(program, machine, layouts(program)) if change is inline else change(program)
        yield change.__name__, program
    program = split_long_scans(program, layouts(program), machine)
    yield split_long_scans.__name__, program
    program = split_scatters(program, machine)
    yield split_scatters.__name__, program
    program = wide_extremes(program, machine)
    yield wide_extremes.__name__, program
    found = (without_sums_of_one_element, inline)  # what an index of one element reads is inlined after that
    for change in found:
        program = inline(program, machine, layouts(program)) if change is inline else change(program)
        yield change.__name__, program
    program = unroll_windows(program, machine)
    yield unroll_windows.__name__, program
    program = spread_groups(program, layouts(program), machine)
    yield spread_groups.__name__, program
    program = split_divided_variables(program)
    yield split_divided_variables.__name__, program
    for shared in (tables, repeated_rows, turned_operands, shared_factors, split_long_reductions, split_long_searches):
        program = shared(program, layouts(program), machine)
        yield shared.__name__, program
    program = without_equal_definitions(program)  # an extreme, and the search for its place, have the same parts
    yield without_equal_definitions.__name__, program
    yield narrow_sums.__name__, narrow_sums(program)


class _Layouts:
    """The layouts of programs: those of the last one again, if a pass has changed nothing in it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.last: tuple[Program, dict[str, Layout]] | None = None

    def __call__(self, program: Program) -> dict[str, Layout]:
        if self.last is None or not _are_alike(self.last[0], program):
            self.last = program, layouts_of(program, self.machine)
        return self.last[1]


def _are_alike(a: Program, b: Program) -> bool:
    """Whether two programs have the same steps, and what leaves lies alike."""
    same = len(a.steps) == len(b.steps) and all(x is y for x, y in zip(a.steps, b.steps, strict=True))
    return same and all(
        getattr(a, name) == getattr(b, name) for name in ("inputs", "outputs", "stores", "orders", "rows")
    )


def schedule(program: Program, machine: Machine = CPU) -> Schedule:
    """Kernels and calls in running order for a program, with the layout of every tensor.

    Raises:
        Unsupported: The machine has no kernel for something in it.
    """
    *_, (_, program) = passes(program, machine)
    layouts = layouts_of(program, machine)
    steps: list[Nest | Call] = []
    kernels = wait_late(fuse(program, layouts, machine))
    local = _local(program, kernels)

    def nest_of(kernel: Kernel) -> Nest:
        if machine.has_grid:
            return grid_nest(kernel, layouts, local, machine.cluster)
        return rows_inside(rows_at_once(in_few_pages(interleaved(nest(kernel, layouts, local)))))

    alike = AlikeKernels(nest_of, layouts, local)
    for step in kernels:
        if isinstance(step, Call):
            steps.append(step)
        elif isinstance(step.definitions[0].how, Scatter):
            steps += (grid_scatter if machine.has_grid else scatter_nests)(step.definitions[0], layouts)
        else:
            steps.append(alike.nest(step))
    if machine.has_grid:
        steps = sharing_launches(with_column_sums(steps, program.stores), program.stores)
    else:
        calls = {name for step in steps if isinstance(step, Call) for name in step.reads()}
        steps = own_rows(steps, calls | {name for name, _ in program.outputs} | {s for _, s in program.stores})
        steps = shared_elements([tails_in_vectors(step) if isinstance(step, Nest) else step for step in steps])
    return Schedule(program, steps, layouts, local, alike.form)


def _local(program: Program, steps: list[Kernel | Call]) -> frozenset[str]:
    """Definitions that only their own stage reads, or, if they are one number an outer index, their own kernel."""
    outside = {name for name, _ in program.outputs} | {s for _, s in program.stores}
    result: set[str] = set()
    for step in steps:
        if isinstance(step, Call):
            outside.update(step.reads())
            continue
        own = {d.name for d in step.definitions}
        for d in step.definitions:
            outside.update(n for n in reads(d) if n not in own)
    for step in steps:
        if isinstance(step, Call):
            continue
        for stage in step.stages:
            for d in stage.definitions:
                if d.name in outside:
                    continue
                others = {n for s in step.stages if s is not stage for m in s.definitions for n in reads(m)}
                free = [v for v in d.variables if v in stage.inner]
                if not free or d.name not in others:
                    result.add(d.name)
    return frozenset(result)
