"""All passes from a program to a schedule, in order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch_max_backend.loops.expr import Load, loads
from torch_max_backend.loops.program import Call, Definition, Program, Scatter, dense_strides, reads
from torch_max_backend.loops.simplify import without_reductions_of_one, without_sums_of_one_element
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.equal_definitions import without_equal_definitions
from torch_max_backend.schedule.fuse import fuse
from torch_max_backend.schedule.grid import grid_nest, grid_scatter
from torch_max_backend.schedule.inline import inline
from torch_max_backend.schedule.interleaved_stores import interleaved
from torch_max_backend.schedule.kernel import Kernel, Layout
from torch_max_backend.schedule.late_stores import with_late_stores
from torch_max_backend.schedule.machine import CPU, Machine
from torch_max_backend.schedule.narrow_sums import narrow_sums
from torch_max_backend.schedule.nest import Nest, distance, nest
from torch_max_backend.schedule.overlap import wait_late
from torch_max_backend.schedule.own_rows import own_rows
from torch_max_backend.schedule.row_tails import tails_in_vectors
from torch_max_backend.schedule.rows_at_once import rows_at_once
from torch_max_backend.schedule.scatter_nest import scatter_nests
from torch_max_backend.schedule.small_kernels import sharing_launches
from torch_max_backend.schedule.split import split_divided_variables, split_long_reductions
from torch_max_backend.schedule.split_scans import split_long_scans
from torch_max_backend.schedule.spread_groups import spread_groups
from torch_max_backend.schedule.tables import tables
from torch_max_backend.schedule.turned_operands import turned_operands
from torch_max_backend.schedule.unroll_windows import unroll_windows
from torch_max_backend.schedule.wide_extremes import wide_extremes

OFTEN = 4
"""Times that an element is read, from which it is worth to be written as its readers lie, and not as its sources."""


@dataclass
class Schedule:
    """Loop nests and library calls in running order, the layout of every tensor, and what needs no memory."""

    program: Program
    steps: list[Nest | Call]
    layouts: dict[str, Layout]
    local: frozenset[str]

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))


def passes(program: Program, machine: Machine = CPU) -> Iterator[tuple[str, Program]]:
    """The program after each pass, with the pass's name."""
    for change in (without_reductions_of_one, inline, without_equal_definitions, with_late_stores):
        program = inline(program, machine, layouts_of(program)) if change is inline else change(program)
        yield change.__name__, program
    program = split_long_scans(program, layouts_of(program), machine)
    yield split_long_scans.__name__, program
    program = wide_extremes(program, machine)
    yield wide_extremes.__name__, program
    found = (without_sums_of_one_element, inline)  # what an index of one element reads is inlined after that
    for change in found:
        program = inline(program, machine, layouts_of(program)) if change is inline else change(program)
        yield change.__name__, program
    program = unroll_windows(program, machine)
    yield unroll_windows.__name__, program
    program = spread_groups(program, layouts_of(program), machine)
    yield spread_groups.__name__, program
    program = split_divided_variables(program)
    yield split_divided_variables.__name__, program
    program = tables(program, layouts_of(program), machine)
    yield tables.__name__, program
    program = turned_operands(program, layouts_of(program), machine)
    yield turned_operands.__name__, program
    program = split_long_reductions(program, layouts_of(program), machine)
    yield split_long_reductions.__name__, program
    yield narrow_sums.__name__, narrow_sums(program)


def schedule(program: Program, machine: Machine = CPU) -> Schedule:
    """Kernels and calls in running order for a program, with the layout of every tensor.

    Raises:
        Unsupported: The machine has no kernel for something in it.
    """
    *_, (_, program) = passes(program, machine)
    layouts = layouts_of(program)
    steps: list[Nest | Call] = []
    kernels = wait_late(fuse(program, layouts, machine))
    local = _local(program, kernels)
    for step in kernels:
        if isinstance(step, Call):
            steps.append(step)
        elif isinstance(step.definitions[0].how, Scatter):
            steps += (grid_scatter if machine.has_grid else scatter_nests)(step.definitions[0], layouts)
        else:
            made = grid_nest(step, layouts, local) if machine.has_grid else nest(step, layouts, local)
            steps.append(made if machine.has_grid else rows_at_once(interleaved(made)))
    if machine.has_grid:
        steps = sharing_launches(steps, program.stores)
    else:
        calls = {name for step in steps if isinstance(step, Call) for name in step.reads()}
        steps = own_rows(steps, calls | {name for name, _ in program.outputs} | {s for _, s in program.stores})
        steps = [tails_in_vectors(step) if isinstance(step, Nest) else step for step in steps]
    return Schedule(program, steps, layouts, local)


def layouts_of(program: Program) -> dict[str, Layout]:
    """The layout of every tensor: inputs and call results as they are, outputs in their order, the rest like sources.

    What a library reads is contiguous unless it leaves, or as the library has been told.
    """
    orders = {**program.orders, **dict(program.outputs)}
    told = {name for step in program.steps if isinstance(step, Call) for name in reads(step)}
    targets = {source: program.inputs[target] for target, source in program.stores}
    found = {name: Layout(x.sizes, x.strides) for name, x in program.inputs.items()}
    readers = _readers(program)
    for step in program.steps:
        if isinstance(step, Call):
            found.update({r.name: Layout(r.sizes, r.strides) for r in step.results if r})
            continue
        order = orders.get(step.name)
        if order is None and step.name not in told:
            order = _order_of_readers(step, readers[step.name], orders) or _order_of_sources(step, found)
        found[step.name] = Layout(step.sizes, dense_strides(step.sizes, order, program.rows.get(step.name)))
        target = targets.get(step.name)
        if target is not None and target.sizes == step.sizes and step.name not in orders:
            found[step.name] = Layout(step.sizes, target.strides)
    return found


def _readers(program: Program) -> dict[str, list[tuple[Definition, list[Load]]]]:
    """The definitions that read each tensor, with their loads of it."""
    found: dict[str, list[tuple[Definition, list[Load]]]] = defaultdict(list)
    for d in program.definitions():
        for x in loads(*d.expressions()):
            mine = found[x.source]
            if not mine or mine[-1][0] is not d:
                mine.append((d, []))
            mine[-1][1].append(x)
    return found


def _order_of_readers(
    d: Definition, readers: Sequence[tuple[Definition, list[Load]]], orders: Mapping[str, tuple[int, ...] | None]
) -> tuple[int, ...] | None:
    """The order of dimensions in which what leaves reads a definition, if it reads each of its elements many times."""
    found: set[tuple[int, ...] | None] = set()
    for reader, read in readers:
        if cost.iterations(reader) < OFTEN * cost.iterations(d):
            return None
        found.update(_order_in(reader, x, orders) for x in read)
    return found.pop() if len(found) == 1 else None


def _order_in(reader: Definition, x: Load, orders: Mapping[str, tuple[int, ...] | None]) -> tuple[int, ...] | None:
    """The dimensions of what is loaded in the order of the reader's, if each is one of those."""
    order = orders.get(reader.name)
    if order is None or reader.how is not None:
        return None
    places = []
    for k, i in enumerate(x.index):
        mine = [n for n, v in enumerate(reader.variables) if i.coefficient(v) == 1]
        if len(i.terms) > 1 or len(mine) != len(i.terms):
            return None
        places.append((order.index(mine[0]) if mine else -1, k))
    return tuple(k for _, k in sorted(places))


def _order_of_sources(d: Definition, layouts: Mapping[str, Layout]) -> tuple[int, ...] | None:
    """The order of dimensions in which tensors lie that a definition reads whole: those with most bytes, if any have.

    If it reads none whole, the dimension along which all that it reads has neighbours in memory is the last one.
    """
    orders, fastest = Counter[tuple[int, ...]](), set()
    for x in loads(*d.expressions()):
        address = layouts[x.source].address(x.index)
        if address.variables:
            fastest.add(tuple(k for k, v in enumerate(d.variables) if v.size != 1 and distance(address, v) == 1))
        steps = [distance(address, v) for v in d.variables]
        long = [k for k, v in enumerate(d.variables) if v.size != 1]
        if all(steps[k] for k in long):
            short = (k for k in range(len(steps)) if k not in long)
            orders[*short, *sorted(long, key=lambda k: -steps[k])] += x.dtype.itemsize
    if isinstance(d.how, Scatter):
        return None
    if not orders and len(fastest) == 1 and len(last := fastest.pop()) == 1:  # as what windows read
        return (*(k for k in range(len(d.variables)) if k not in last), *last)
    first, second = [*orders.most_common(2), (None, 0), (None, 0)][:2]
    return first[0] if first[1] > second[1] else None


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
