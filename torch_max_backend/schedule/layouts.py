"""Where tensors lie in memory: what leaves and what libraries read as told, the rest as its sources or its readers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from torch_max_backend.loops.expr import Load
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.loops.program import Call, Definition, Program, Scatter, dense_strides, reads
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.kernel import Layout
from torch_max_backend.schedule.machine import CPU, Machine
from torch_max_backend.schedule.nest import distance

OFTEN = 4
"""Times that an element is read, from which it is worth to be written as its readers lie, and not as its sources."""


REDUCTION = 3
"""Elementwise loops, which turn blocks of what lies otherwise in registers, that cost as much as a reduction that reads
lines of memory for single elements."""

_Order = tuple[int, ...]
"""Dimensions as they lie in memory, the one with the longest steps first."""
_Orders = Mapping[str, _Order | None]
_Readers = Mapping[str, list[tuple[Definition, list[Load]]]]


def layouts_of(program: Program, machine: Machine = CPU) -> dict[str, Layout]:
    """The layout of every tensor: inputs and call results as they are, outputs in their order, the rest like sources.

    What a library reads is contiguous unless it leaves, or as the library has been told. On a CPU, what lies otherwise
    than all that is read together with it is written as that lies.
    """
    readers = _readers(program)
    found = _layouts(program, readers, {})
    if machine.has_grid:
        return found
    turned = _turned(program, readers, found, machine)
    return _layouts(program, readers, turned) if turned else found


def _layouts(program: Program, readers: _Readers, turned: Mapping[str, _Order]) -> dict[str, Layout]:
    """The layouts, where those of ``turned`` have the order of what is read with them."""
    orders = {**program.orders, **dict(program.outputs)}
    told = {name for step in program.steps if isinstance(step, Call) for name in reads(step)}
    targets = {source: program.inputs[target] for target, source in program.stores}
    found = {name: Layout(x.sizes, x.strides) for name, x in program.inputs.items()}
    for step in program.steps:
        if isinstance(step, Call):
            found.update({r.name: Layout(r.sizes, r.strides) for r in step.results if r})
            continue
        order = orders.get(step.name, turned.get(step.name))
        if order is None and step.name not in told:
            order = _order_of_readers(step, readers[step.name], orders) or _order_of_sources(step, found)
        found[step.name] = Layout(step.sizes, dense_strides(step.sizes, order, program.rows.get(step.name)))
        target = targets.get(step.name)
        if target is not None and target.sizes == step.sizes and step.name not in orders:
            found[step.name] = Layout(step.sizes, target.strides)
    return found


def _turned(program: Program, readers: _Readers, layouts: Mapping[str, Layout], machine: Machine) -> dict[str, _Order]:
    """Orders of what is computed element by element and lies otherwise than most that is read together with it.

    Writing it turns it once, in blocks. Each of its readers would step over lines of memory, or turn it again. As a
    matrix that is transposed in memory and normalised: what it is multiplied by and summed, a gradient, is not.
    """
    orders = {**program.orders, **dict(program.outputs)}
    told = {name for step in program.steps if isinstance(step, Call) for name in reads(step)}
    told |= {source for _, source in program.stores}
    free = {d.name for d in program.definitions()} - {*orders}
    fixed = {name: layout for name, layout in layouts.items() if name not in free}
    found: dict[str, _Order] = {}
    for d in program.definitions():
        if d.how is not None or d.name in orders or d.name in told or cost.iterations(d) < machine.turned:
            continue
        wanted = Counter[_Order]()
        for reader, read in readers[d.name]:
            order = _most(_orders_beside(d, reader, read, fixed))
            if order:
                wanted[order] += 1 if reader.how is None else REDUCTION
        order = _most(wanted)
        against = sum(n for o, n in wanted.items() if _runs_along(d, layouts[d.name], o[-1]))
        if order and wanted[order] > against + 1 and not _runs_along(d, layouts[d.name], order[-1]):
            found[d.name] = order
    return found


def _orders_beside(
    d: Definition, reader: Definition, read: Sequence[Load], fixed: Mapping[str, Layout]
) -> Counter[_Order]:
    """Bytes of an element of what a reader reads whole beside ``d``, and of what it gives if that leaves, by the order
    of ``d``'s dimensions in memory.
    """
    found = Counter[_Order]()
    beside = [(fixed[x.source].address(x.index), x.dtype) for x in reader.loads if x.source in fixed]
    if reader.how is None and reader.name in fixed:
        beside.append((fixed[reader.name].address(tuple(map(Index.of, reader.variables))), reader.dtype))
    for x in read:
        own = [next((a for a, k in i.terms if k == 1), None) for i in x.index]
        long = [k for k, size in enumerate(d.sizes) if size != 1]
        if not all(isinstance(own[k], Var) for k in long):
            continue
        for address, dtype in beside:
            steps = {k: distance(address, v) for k in long if isinstance(v := own[k], Var)}
            if all(steps.values()):
                short = (k for k in range(len(own)) if k not in long)
                found[*short, *sorted(long, key=lambda k: -steps[k])] += dtype.itemsize
    return found


def _most(counts: Counter[_Order]) -> _Order | None:
    """What counts most, if one thing does."""
    first, second = [*counts.most_common(2), (None, 0), (None, 0)][:2]
    return first[0] if first[1] > second[1] else None


def _runs_along(d: Definition, layout: Layout, k: int) -> bool:
    """Whether a definition's elements along a dimension are neighbours in memory."""
    return d.sizes[k] == 1 or layout.strides[k] == 1


def _readers(program: Program) -> _Readers:
    """The definitions that read each tensor, with their loads of it."""
    found: dict[str, list[tuple[Definition, list[Load]]]] = defaultdict(list)
    for d in program.definitions():
        for x in d.loads:
            mine = found[x.source]
            if not mine or mine[-1][0] is not d:
                mine.append((d, []))
            mine[-1][1].append(x)
    return found


def _order_of_readers(
    d: Definition, readers: Sequence[tuple[Definition, list[Load]]], orders: _Orders
) -> _Order | None:
    """The order of dimensions in which what leaves reads a definition, if it reads each of its elements many times."""
    found: set[_Order | None] = set()
    for reader, read in readers:
        if cost.iterations(reader) < OFTEN * cost.iterations(d):
            return None
        found.update(_order_in(reader, x, orders) for x in read)
    return found.pop() if len(found) == 1 else None


def _order_in(reader: Definition, x: Load, orders: _Orders) -> _Order | None:
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


def _order_of_sources(d: Definition, layouts: Mapping[str, Layout]) -> _Order | None:
    """The order of dimensions in which tensors lie that a definition reads whole: those with most bytes, if any have.

    If it reads none whole, the dimension along which all that it reads has neighbours in memory is the last one. A
    definition keeps what it was told for the same layouts: most stay as they are from one pass to the next.
    """
    known: dict[tuple[Layout, ...], _Order | None] = vars(d).setdefault("_orders_of_sources", {})
    key = tuple(layouts[x.source] for x in d.loads)
    if key not in known:
        known[key] = _order_among_sources(d, layouts)
    return known[key]


def _order_among_sources(d: Definition, layouts: Mapping[str, Layout]) -> _Order | None:
    orders, fastest = Counter[_Order](), set()
    for x in d.loads:
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
    return _most(orders)
