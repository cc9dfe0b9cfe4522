"""Which definitions share a kernel."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from torch_max_backend.loops.expr import Guarded, Load, loads, walk
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.loops.program import Call, Definition, Program, Reduction, Scan, Sort, reads
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.grid_limits import SHORT
from torch_max_backend.schedule.inline import renamed
from torch_max_backend.schedule.kernel import Kernel, Layout, Stage
from torch_max_backend.schedule.machine import CPU, Machine
from torch_max_backend.schedule.nest import LANES, distance
from torch_max_backend.schedule.split import MANY

MOST, NEAR = 8, 8
"""Members of a kernel that elementwise ones join for what they read, and kernels that are tried."""
MOST_REDUCED = 32
"""Members of a kernel that reductions join: their sums are in registers, and each kernel reads everything anew."""
ALWAYS = 1 << 10
"""Loads that the store of rows across memory outweighs on a CPU: it takes a line for every element."""
ROW_BY_ROW, SHORT_ROWS = 1 << 15, 1 << 12
"""Multiplications of a product on a CPU from which another kernel behind it is better than a row of it at a time; and
those of rows shorter than a vector."""
FEW, BRIEF = 1 << 14, 1 << 18
"""Elements, and operations on them, for which one block of a grid takes no longer than another launch."""


@dataclass
class _Group:
    """A kernel in the making: members in order, in terms of the shared variables ``outer``."""

    outer: list[Var]
    members: list[Definition] = field(default_factory=list)


def fuse(program: Program, layouts: Mapping[str, Layout], machine: Machine = CPU) -> list[Kernel | Call]:
    """Kernels and calls in running order.

    A definition joins the kernel of the latest thing that it reads, if it reads there only what has the same outer
    index: a reduction behind what it reduces, and what reads a reduction's result behind that, row by row. Else an
    elementwise one joins another kernel that reads the same elements, and a reduction one of reductions that do.
    """
    places: dict[str, int] = dict.fromkeys(program.inputs, -1)
    readers: dict[str, list[int]] = defaultdict(list)
    written = {source: target for target, source in program.stores}
    steps: list[_Group | Call] = []
    for step in program.steps:
        sources = reads(step)
        latest = max((places[name] for name in sources), default=-1)
        if isinstance(step, Call):
            steps.append(step)
            places.update({r.name: len(steps) - 1 for r in step.results if r})
            continue
        group = steps[latest] if latest >= 0 else None
        made_together = [m.name for m in group.members] if isinstance(group, _Group) else []
        near = {k for name in (*sources, *made_together) for k in readers[name] if k > latest}
        beside = sorted(near, reverse=True)[:NEAR]
        if isinstance(group, _Group) and (_join_sort(group, step, layouts) or _join(group, step, layouts, machine)):
            place = latest
        elif (found := next((k for k in beside if _join_beside(steps[k], step, layouts, written)), -1)) >= 0 or (
            found := next((k for k in beside if _reduce_beside(steps[k], step, places)), -1)
        ) >= 0:
            place = found
        else:
            along = step.how.variable if isinstance(step.how, Scan | Sort) else None
            steps.append(_Group([v for v in step.variables if v.size != 1 and v != along], [step]))
            place = len(steps) - 1
        places[step.name] = place
        for name in sources:
            readers[name].append(place)
    if machine.has_grid:
        steps = _with_rows_together(steps, layouts, machine, {*written})
    return [s if isinstance(s, Call) else _kernel(s) for s in steps]


# -- kernels of the same rows --------------------------------------------------------------------------------------
def _with_rows_together(
    steps: list[_Group | Call], layouts: Mapping[str, Layout], machine: Machine, written: Collection[str]
) -> list[_Group | Call]:
    """The steps, where two kernels of a grid that read the same rows are one if the second needs the first one's
    results of its row alone. As of a layer norm's gradient, some of whose sums read nothing that the statistics do.

    ``written`` are definitions that are written into inputs, and stay where they are.
    """
    home = {m.name: k for k, s in enumerate(steps) for m in ([] if isinstance(s, Call) else s.members)}
    home |= {r.name: k for k, s in enumerate(steps) if isinstance(s, Call) for r in s.results if r}
    found: list[_Group | Call | None] = list(steps)
    for k, s in enumerate(steps):
        if isinstance(s, Call) or any(m.name in written for m in s.members):
            continue
        sources = {home[n] for m in s.members for n in reads(m) if n in home} - {k}
        first = found[max(sources)] if sources else None
        both = _of_the_same_rows(first, s, layouts, machine) if isinstance(first, _Group) else None
        if both is not None:
            found[max(sources)], found[k] = both, None
            home |= {m.name: max(sources) for m in s.members}
    return [s for s in found if s is not None]


def _of_the_same_rows(first: _Group, second: _Group, layouts: Mapping[str, Layout], machine: Machine) -> _Group | None:
    """One kernel of two, if they reduce the same rows and read one of them both."""
    names: dict[Var, Var] = {}
    for m in second.members:
        for v, mine in (_matched(first, m) or {}).items():
            if names.setdefault(mine, v) != v:
                return None
    if not first.outer or {*names} != {*second.outer} or {*names.values()} != {*first.outer}:
        return None
    rows = [_rows_read(g) for g in (first, second)]
    if not rows[0] & rows[1] or any(not any(m.reduced for m in g.members) for g in (first, second)):
        return None
    both = _Group([*first.outer], [*first.members])
    for m in (renamed(m, names) for m in second.members):
        if not {m.name for m in both.members}.isdisjoint(reads(m)):
            if not _join(both, m, layouts, machine):
                return None
        elif (
            isinstance(m.how, Reduction) and _reduces_as(both, m) and not _turns(both, m, both.outer, layouts, machine)
        ):
            both.members.append(m)
        else:
            return None
    return both if both.outer == first.outer else None


def _rows_read(group: _Group) -> set[str]:
    """The tensors of which a kernel reads whole rows, another one for each outer index."""
    found = set()
    for m in group.members:
        inner = {v for v in (*m.variables, *m.reduced) if v not in group.outer and v.size != 1}
        for x in m.loads:
            moving = {v for i in x.index for v in i.variables}
            if moving & inner and moving >= {*group.outer}:
                found.add(x.source)
    return found


def _reduces_as(group: _Group, d: Definition) -> bool:
    """Whether a reduction has the loops of another one in a kernel, and no results beside one for each outer index."""
    own = [v.size for v in d.reduced]
    plain = all(v in group.outer or v.size == 1 for v in d.variables)
    return plain and any([v.size for v in m.reduced] == own for m in group.members if isinstance(m.how, Reduction))


# -- what joins a kernel -------------------------------------------------------------------------------------------
def _join(group: _Group, d: Definition, layouts: Mapping[str, Layout], machine: Machine) -> bool:
    """Add ``d`` to a group if the two have outer variables in common; says whether it did."""
    if not _is_loop(d) or not all(_is_loop(m) for m in group.members):
        return False
    if machine.has_grid and _is_for_one_block(group, d):
        group.outer = []
        group.members.append(d)
        return True
    matched = _matched(group, d)
    if matched is None:
        return False
    shared = [v for v in group.outer if v in matched]
    names = {matched[v]: v for v in shared}
    before, after = cost.count(group.outer), cost.count(shared)
    if after != before or cost.count(v for v in d.variables if v not in names) > 1 or d.reduced:
        work = sum(cost.iterations(m) for m in group.members)
        row = max(cost.iterations(m) for m in [*group.members, d]) // max(1, after)
        if not shared or work * 8 < cost.iterations(d) or cost.iterations(d) * 64 < work:
            return False
        apart = after == before or not _are_neighbours(shared, group, layouts)
        parts = after if apart else after // machine.neighbours
        alone = work // max(1, parts) if machine.has_grid else work
        if row > machine.row or (parts < machine.parts and alone > machine.alone):
            return False
        if machine.has_grid and not _shares_whole_loops(group, d, shared, names):
            return False
        if not machine.has_grid and _has_short_neighbours(group, d, shared, layouts):
            return False
        if not machine.has_grid and any(_is_product_of_rows(m, group.outer, shared) for m in group.members):
            return False
        if not machine.has_grid and _is_product_of_rows(d, d.variables, names):
            return False
    if _turns(group, renamed(d, names), shared, layouts, machine) or _sums_a_transpose(group, d, layouts, machine):
        return False
    group.outer = shared
    group.members.append(renamed(d, names))
    return True


def _turns(group: _Group, d: Definition, shared: list[Var], layouts: Mapping[str, Layout], machine: Machine) -> bool:
    """Whether memory runs along another loop for ``d`` than for a group: along rows, or a loop around them.

    A kernel of its own can turn tiles in registers or shared memory. As a batch norm of a contiguous image whose result
    has channels last, which would write each element of a row into another sector. Short rows are one thread's, which
    writes beside its neighbours where all of them have neighbours along a loop around them.
    """
    has_rows = any(cost.iterations(x) > cost.count(shared) for x in (*group.members, d))
    if d.how is not None or cost.iterations(d) < machine.turned:
        return False
    is_short = has_rows and cost.iterations(d) <= SHORT * cost.count(shared)
    theirs = Counter[Var | None]()
    for m in group.members:
        theirs.update(_directions(m, shared, layouts, has_rows))
    first, mine = _most(theirs), _most(_directions(d, shared, layouts, has_rows, 2 if machine.has_grid else ALWAYS))
    return bool(first and mine) and first != mine and not (is_short and None in (*first, *mine))


def _sums_a_transpose(group: _Group, d: Definition, layouts: Mapping[str, Layout], machine: Machine) -> bool:
    """Whether a group is a transpose on a CPU, which turns blocks in registers, and ``d`` a reduction, which does not.

    Rows of both would be read or written across memory.
    """
    (m, *others) = group.members
    if machine.has_grid or others or d.how is None or m.how is not None or cost.iterations(m) < machine.turned:
        return False
    read = Counter[Var | None]()
    for x in loads(m.body):
        address = layouts[x.source].address(x.index)
        if address.variables >= {v for v in m.variables if v.size != 1}:
            read.update(v for v in address.variables if distance(address, v) == 1)
    written = [v for v, step in zip(m.variables, layouts[m.name].strides, strict=True) if v.size != 1 and step == 1]
    first = _most(read)
    return bool(first and written) and first[0] not in written


def _directions(
    d: Definition, shared: list[Var], layouts: Mapping[str, Layout], has_rows: bool, written: int = 2
) -> Counter[Var | None]:
    """Elements in reach of ``d`` by the loop along which they are neighbours: one of ``shared``, or that of rows.

    What has one element for a row, or the same ones for all, does not count. What is written counts ``written`` times.
    """
    found = Counter[Var | None]()
    touched = [(x.source, x.index, 1) for x in d.loads]
    if not d.reduced:
        touched.append((d.name, _own_index(d), written))
    for name, index, weight in touched:
        address = layouts[name].address(index)
        moving = address.variables
        if has_rows and (moving <= {*shared} or not moving & {*shared}):
            continue
        neighbours = [v for v in moving if v.size != 1 and address.coefficient(v) == 1]
        if neighbours:
            found[neighbours[0] if neighbours[0] in shared else None] += weight * cost.count(moving)
    return found


def _most(counts: Counter[Var | None]) -> tuple[Var | None, ...]:
    """What counts most, if one thing does."""
    (one, most), (_, second) = [*counts.most_common(2), (None, 0), (None, 0)][:2]
    return (one,) if most > second else ()


def _is_for_one_block(group: _Group, d: Definition) -> bool:
    """Whether one block of a grid computes all of a kernel: a number from numbers, or a short row and its sums."""
    if not group.outer and cost.count(d.variables) == 1:
        return cost.iterations(d) <= FEW
    is_row = d.reduced != () and cost.count(d.variables) == 1 and cost.count(group.outer) == cost.count(d.reduced)
    work = [(n := cost.iterations(m), n * cost.of_expression(*m.expressions())) for m in (*group.members, d)]
    is_brief = max(n for n, _ in work) <= FEW and sum(operations for _, operations in work) <= BRIEF
    has_rows = any(m.reduced and cost.count(m.variables) > 1 for m in (*group.members, d))  # one after the other
    return is_brief and not has_rows and (is_row or not group.outer)


def _join_sort(group: _Group, d: Definition, layouts: Mapping[str, Layout]) -> bool:
    """Add an elementwise definition to a sort of which it reads what is in its own row; says whether it did.

    It may have fewer elements along what is sorted, and read others there: ``t1[i] = t0[i, 4]`` and
    ``t1[i, j:3] = t0[i, 9 - j]``.
    """
    first = group.members[0]
    if not isinstance(first.how, Sort) or d.how is not None:
        return False
    v, own = first.how.variable, {m.name: m for m in group.members}
    k = first.variables.index(v)
    read = [x for x in d.loads if x.source in own]
    names: dict[Var, Var] = {}
    for i, w in zip(read[0].index, own[read[0].source].variables, strict=True):
        mine = i.terms[0][0] if len(i.terms) == 1 and not i.constant else None
        if w in group.outer and isinstance(mine, Var) and mine.size == w.size:
            names[mine] = w
    if {*names.values()} != {*group.outer} or len(names) < len(group.outer):
        return False
    along = [w for w in d.variables if w.size != 1 and w not in names]
    if len(along) > 1 or not all(isinstance(w.size, int) and w.size <= cost.count([v]) for w in along):
        return False
    moved = renamed(d, {**names, **dict.fromkeys(along, v)})
    for x in moved.loads:
        member = own.get(x.source)
        if member is None or x.index == _own_index(member):
            if member not in (None, first) and [w.size for w in along] != [v.size]:
                return False  # a member has a value for each element, which ``d`` has not
            continue
        others = [i for n, i in enumerate(x.index) if n != k], [i for n, i in enumerate(_own_index(first)) if n != k]
        if member is not first or others[0] != others[1] or not all(isinstance(a, Var) for a, _ in x.index[k].terms):
            return False
    if any(_is_short(own[x.source], v, layouts) for x in read):
        return False
    group.members.append(moved)
    return True


def _is_short(d: Definition, v: Var, layouts: Mapping[str, Layout]) -> bool:
    """Whether a member of a sort's kernel has fewer elements along ``v``."""
    return v not in d.variables or layouts[d.name].sizes[d.variables.index(v)] != v.size


def _own_index(d: Definition) -> tuple[Index, ...]:
    return tuple(map(Index.of, d.variables))


def _shares_whole_loops(group: _Group, d: Definition, shared: list[Var], names: Mapping[Var, Var]) -> bool:
    """Whether no reduction of a kernel has an inner loop around it: threads share one loop or the other."""
    around = any(m.reduced and any(v not in shared and v.size != 1 for v in m.variables) for m in group.members)
    return not around and not (d.reduced and any(v not in names and v.size != 1 for v in d.variables))


def _join_beside(
    group: _Group | Call, d: Definition, layouts: Mapping[str, Layout], written: Mapping[str, str]
) -> bool:
    """Add ``d`` to elementwise loops over the same memory that read an element of it, too; says whether it did.

    ``written`` has the inputs that definitions are written into: what a member is written into ``d`` must not read.
    """
    if isinstance(group, Call) or len(group.members) >= MOST or not all(_is_plain(m) for m in [*group.members, d]):
        return False
    own = [v for v in d.variables if v.size != 1]
    first = group.members[0]
    if [v.size for v in own] != [v.size for v in group.outer] or layouts[d.name] != layouts[first.name]:
        return False
    targets = {written[m.name] for m in group.members if m.name in written}
    moved = renamed(d, dict(zip(own, group.outer, strict=True)))
    here = moved.loads
    if any(x.source in targets for x in here) or not {*here} & {*loads(*(m.body for m in group.members))}:
        return False
    group.members.append(moved)
    return True


def _reduce_beside(group: _Group | Call, d: Definition, places: Mapping[str, int]) -> bool:
    """Add a reduction to a kernel of reductions over the same loops, and what ends them, that reads a tensor of it,
    too, or one that the same kernel makes; says whether it did.

    None of them reads another one's result, since ``d`` reads what is older than the kernel.
    """
    if isinstance(group, Call) or len(group.members) >= MOST_REDUCED or not isinstance(d.how, Reduction):
        return False
    own = [v for v in d.variables if v.size != 1]
    if [v.size for v in own] != [v.size for v in group.outer]:
        return False
    as_theirs = {v: Index.of(w) for v, w in zip(own, group.outer, strict=True)}
    loops = [v.size if isinstance(v.size, int) else v.size.substitute(as_theirs) for v in d.reduced]
    theirs = [[v.size for v in m.reduced] for m in group.members if isinstance(m.how, Reduction)]
    if not theirs or any(sizes != loops for sizes in theirs) or not all(map(_is_loop, group.members)):
        return False
    if any(v not in group.outer and v.size != 1 for m in group.members for v in m.variables):
        return False
    read = [{places[n] if places[n] >= 0 else n for n in reads(x)} for x in (d, *group.members)]
    if not read[0] & set().union(*read[1:]):
        return False
    group.members.append(renamed(d, dict(zip(own, group.outer, strict=True))))
    return True


def _is_plain(d: Definition) -> bool:
    """Whether it is computed element by element, without conditions."""
    return d.how is None and not any(isinstance(x, Guarded) for x in walk(d.body))


def _has_short_neighbours(group: _Group, d: Definition, shared: list[Var], layouts: Mapping[str, Layout]) -> bool:
    """Whether a large reduction of a group would have vectors along a short loop alone, for the sake of ``d``, which
    takes its few results: as sums of an image's channels, of which ``d`` adds up those of a group."""
    large = [
        m
        for m in group.members
        if isinstance(m.how, Reduction) and cost.iterations(m) >= max(MANY, SHORT * cost.iterations(d))
    ]
    return any(
        v not in shared and 1 < cost.count([v]) < LANES and layouts[m.name].strides[k] == 1
        for m in large
        for k, v in enumerate(m.variables)
    )


def _is_product_of_rows(d: Definition, loops: Iterable[Var], shared: Collection[Var]) -> bool:
    """Whether a large product would be computed row by row, since one of its loops is no shared one any more.

    Several rows at once read its other factor once.
    """
    row = cost.count(v for v in loops if v in d.variables and v not in shared)
    if not isinstance(d.how, Reduction) or row == 1:
        return False
    is_large = cost.iterations(d) >= (ROW_BY_ROW if row >= LANES else SHORT_ROWS)
    return is_large and cost.reads_again((*d.variables, *d.reduced), d.body)


def _are_neighbours(shared: list[Var], group: _Group, layouts: Mapping[str, Layout]) -> bool:
    """Whether elements of a member with neighbouring outer indices are neighbours in memory."""
    return any(
        v in shared and v.size != 1 and layouts[m.name].strides[k] == 1
        for m in group.members
        for k, v in enumerate(m.variables)
    )


def _is_loop(d: Definition) -> bool:
    return d.how is None or isinstance(d.how, Reduction)


def _matched(group: _Group, d: Definition) -> dict[Var, Var] | None:
    """For outer variables of the group, the variable of ``d`` that all of its loads from the group have there."""
    members = {m.name: m for m in group.members}
    found: dict[Var, Var | None] = {}
    for x in d.loads:
        if x.source not in members:
            continue
        member = members[x.source]
        for v in group.outer:
            mine = _variable(x, member, v)
            if (v in found and found[v] != mine) or mine not in d.variables:
                mine = None
            found[v] = mine
    if not found:
        return None
    kept = {v: w for v, w in found.items() if w is not None}
    return kept if len(set(kept.values())) == len(kept) else None


def _variable(x: Load, member: Definition, v: Var) -> Var | None:
    """The one variable that a load has where its source has ``v``."""
    index = x.index[member.variables.index(v)]
    if len(index.terms) == 1 and not index.constant and index.terms[0][1] == 1:
        atom = index.terms[0][0]
        return atom if isinstance(atom, Var) and atom.size == v.size else None
    return None


def _kernel(group: _Group) -> Kernel:
    """Stages: members that have equal inner loops, and read from each other only the same element; a sort has one."""
    stages: list[Stage] = []
    if isinstance(how := group.members[0].how, Sort):
        return Kernel(tuple(group.outer), [Stage((how.variable,), group.members)])
    home: dict[str, int] = {}
    for d in group.members:
        inner = [v for v in (*d.variables, *d.reduced) if v not in group.outer and v.size != 1]
        first = max((home[n] + _later(stages[home[n]], n) for n in reads(d) if n in home), default=0)
        for k in range(first, len(stages)):
            names = _aligned(stages[k], d, inner, group.outer)
            if names is not None:
                stages[k].definitions.append(renamed(d, names))
                home[d.name] = k
                break
        else:
            stages.append(Stage(tuple(inner), [d]))
            home[d.name] = len(stages) - 1
    return Kernel(tuple(group.outer), stages)


def _later(stage: Stage, name: str) -> int:
    """1 if what reads ``name`` cannot be in the stage that computes it: a reduction is known at its end."""
    return int(any(d.name == name and d.how is not None for d in stage.definitions))


def _aligned(stage: Stage, d: Definition, inner: list[Var], outer: list[Var]) -> dict[Var, Var] | None:
    """New names for the inner variables of ``d``, so that it runs in the loops of ``stage``; ``None`` if it cannot."""
    if len(inner) != len(stage.inner):
        return None
    own = {m.name: m for m in stage.definitions}
    pairs = _pairing(stage, d, inner, own)
    if pairs is None or any(a.size != b.size for a, b in pairs.items()):
        return None
    reduced = {pairs[v] for v in d.reduced if v in pairs}
    if d.how is not None and any(
        m.how is not None and {*m.reduced} & {*stage.inner} != reduced for m in stage.definitions
    ):
        return None
    moved = renamed(d, pairs)
    for x in moved.loads:
        if x.source in own and x.index != tuple(map(Index.of, own[x.source].variables)):
            return None
    return pairs


def _pairing(stage: Stage, d: Definition, inner: list[Var], own: dict[str, Definition]) -> dict[Var, Var] | None:
    """Which inner variable of ``d`` runs as which of the stage: as its loads say, else in order."""
    pairs: dict[Var, Var] = {}
    for x in d.loads:
        if x.source not in own:
            continue
        for v, index in zip(own[x.source].variables, x.index, strict=True):
            if v not in stage.inner:
                continue
            mine = index.terms[0][0] if len(index.terms) == 1 and not index.constant else None
            if not isinstance(mine, Var) or mine not in inner:
                return None
            pairs[mine] = v
    if not pairs:
        pairs = dict(zip(inner, stage.inner, strict=True))
    if len(pairs) != len(inner) or len(set(pairs.values())) != len(pairs):
        return None
    return pairs
