"""Loops are split: where an index is divided, and where a reduction is too long for one thread or one accumulator."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from torch_max_backend.loops.expr import (
    Const,
    FromIndex,
    Guarded,
    Load,
    Op,
    Scalar,
    cast,
    constant,
    loads,
    rewrite,
    variables,
    walk,
)
from torch_max_backend.loops.index import Atom, Div, Index, Mod, Replaced, Var, least, product
from torch_max_backend.loops.program import Call, Definition, Program, Reduction, Scatter
from torch_max_backend.loops.tensor import sized
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.grid_column_sums import parts_of_rows
from torch_max_backend.schedule.kernel import Layout
from torch_max_backend.schedule.machine import CPU, Machine
from torch_max_backend.schedule.nest import LANES, distance, runs_on
from torch_max_backend.schedule.split_softmaxes import exponentials_in_parts, fresh

PART = 8192
"""Elements that are worth a part of their own."""
CHAIN = 2048
"""Additions one after the other in one accumulator, above which a sum is cut: its rounding errors grow with them."""
ACCUMULATORS = 64
"""Accumulators that a sum along memory has at the same time."""
EVEN, EQUAL = 64, 1.05
"""What a part's elements are a multiple of on a grid, where parts are not equal: as many threads share them. How much
later the last one may end if they are: loops of a length that is known are faster."""
SECTOR, LARGE = 32, 1 << 20
"""Bytes that a GPU's memory is read by, and of what a reduction reads that is worth another kernel."""
WORTH_A_PART = 128
"""Bytes that a part of a short piece of memory reads, at least: it is written and read again in float64."""
MANY = 1 << 13
"""Elements on a CPU that are worth a kernel with full vectors: fewer are in the kernel of what needs their sums."""
HELD = 64
"""Elements of a part that a block's threads hold, if they have neighbouring results, so that it is read once."""
GRID_CHAINS = 8
"""Threads, at least, that share a long reduction on a grid."""


# -- divisions of an index ---------------------------------------------------------------------------------------------
def split_divided_variables(program: Program) -> Program:
    """Split a variable where an index has its quotient and remainder, so that indices become sums.

    Before: ``t0[i:12] = x[i // 4, i % 4]``. After: ``t0[a:3, b:4] = x[a, b]``, in the same memory.
    """
    split: dict[str, list[tuple[int, Index]]] = {}
    steps = []
    orders = {**program.orders, **dict(program.outputs)}
    for step in program.steps:
        if isinstance(step, Definition):
            step = reindexed(step, split)
            while (found := _divided(step)) is not None:
                step, position = _split_variable(step, *found)
                if position is not None:
                    split.setdefault(step.name, []).append((position, found[1]))
                    if step.name in orders:
                        orders[step.name] = split_order(orders[step.name], position)
        steps.append(step)
    return with_orders(program, steps, orders)


def with_orders(program: Program, steps: list[Definition | Call], orders: Mapping[str, tuple[int, ...]]) -> Program:
    """A program of other steps, of which outputs and what libraries read lie in other orders."""
    outputs = [(name, orders[name]) for name, _ in program.outputs]
    told = {name: order for name, order in orders.items() if name not in dict(outputs) or name in program.orders}
    return dataclasses.replace(program, steps=steps, outputs=outputs, orders=told)


def split_order(order: tuple[int, ...], position: int) -> tuple[int, ...]:
    result: list[int] = []
    for d in order:
        result += [position, position + 1] if d == position else [d + (d > position)]
    return tuple(result)


def reindexed(d: Definition, split: Mapping[str, list[tuple[int, Index]]]) -> Definition:
    """Loads of definitions that were split, with the quotient and the remainder for the index that was one."""
    if not any(x.source in split for x in d.loads):
        return d

    def load(x: Load) -> Scalar:
        index = list(x.index)
        for position, inner in split.get(x.source, ()):
            index[position : position + 1] = [index[position] // inner, index[position] % inner]
        return Load(x.source, tuple(index), x.dtype)

    return rewritten(d, {}, load)


def rewritten(d: Definition, values: Replaced, load: Callable[[Load], Scalar] = lambda x: x) -> Definition:
    done: dict[Scalar, Scalar] = {}
    body = rewrite(d.body, values, load, done)
    how = d.how
    if isinstance(how, Scatter):

        def again(x: Scalar) -> Scalar:
            return rewrite(x, values, load, done)

        how = dataclasses.replace(
            how, source=again(how.source), target=tuple(t.substitute(values, again) for t in how.target)
        )
    return dataclasses.replace(d, body=body, how=how)


def _divided(d: Definition) -> tuple[Var, Index] | None:
    """A variable of the definition that is divided by itself, and the largest such divisor that divides its size."""
    if d.whole or (d.how is not None and not isinstance(d.how, Reduction)):
        return None
    own = {*d.variables, *d.reduced}
    found: dict[Var, Index] = {}
    for x in walk(*d.expressions()):
        indices = x.index if isinstance(x, Load) else (x.index,) if isinstance(x, FromIndex) else ()
        for index in indices:
            for atom in index.atoms:
                if not isinstance(atom, Div | Mod) or not atom.divisor.is_fixed or len(atom.dividend.terms) != 1:
                    continue
                v, k = atom.dividend.terms[0]
                if k != 1 or v not in own or not isinstance(v, Var):
                    continue
                size, divisor = Index.of(v.size), atom.divisor
                if size.is_fixed and divisor not in (0, 1, size) and size % divisor == 0:
                    found[v] = max(found.get(v, divisor), divisor, key=lambda x: x.typical)
    return next(iter(found.items()), None)


def _split_variable(d: Definition, v: Var, inner: Index) -> tuple[Definition, int | None]:
    """``v`` as two variables; with it the position of ``v`` among the definition's own."""
    high, low = sized(f"{v.name}a", Index.of(v.size) // inner), sized(f"{v.name}b", inner)
    d = rewritten(d, {v: Index.of(high) * inner + low})

    def parts(variables: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple(w for x in variables for w in ((high, low) if x == v else (x,)))

    if v in d.variables:
        return dataclasses.replace(d, variables=parts(d.variables)), d.variables.index(v)
    assert isinstance(d.how, Reduction)
    return dataclasses.replace(d, how=Reduction(d.how.combiner, parts(d.how.variables))), None


# -- long reductions ---------------------------------------------------------------------------------------------------
def split_long_reductions(program: Program, layouts: Mapping[str, Layout], machine: Machine = CPU) -> Program:
    """Cut reductions in parts that threads share, or that keep sums accurate, and combine the parts.

    Before: ``t0[] = sum over r:100000 of x[r]``. After: ``t0_parts[p:13] = sum over q:8192 of x[8192*p + q]``, the
    last part shorter, and ``t0[] = sum over p:13 of t0_parts[p]``. Parts of sums of float32 are float64.
    """
    steps: list[Definition | Call] = []
    sums: dict[str, _SumInParts] = {}
    maxima: dict[str, list[Definition]] = {}
    known = {d.name: d for d in program.definitions()} if machine.has_grid else {}
    in_rows = _read_in_rows(program, layouts) if machine.has_grid else frozenset[str]()
    searched = set() if machine.has_grid else {outline(s) for s in program.definitions() if is_search(s)}
    for step in program.steps:
        if not isinstance(step, Definition) or is_search(step) or not isinstance(step.how, Reduction):
            steps.append(step)
            continue
        how = _along_memory(step, step.how, layouts)
        step = dataclasses.replace(step, how=how)
        is_searched = how.combiner in ("maximum", "minimum") and outline(step) in searched
        found = (
            _squares_in_parts(step, sums)
            or (exponentials_in_parts(step, maxima, known) if machine.has_grid else [])
            or _in_parts(step, how, layouts, machine, is_searched, in_rows)
        )
        if len(found) == 2 and how.combiner == "sum":
            sums[step.name] = _SumInParts(step, found[0])
        if len(found) == 2 and how.combiner == "maximum":
            maxima[step.name] = [step, found[0]]
        steps += found
    return dataclasses.replace(program, steps=steps)


def _along_memory(d: Definition, how: Reduction, layouts: Mapping[str, Layout]) -> Reduction:
    """The definition's reduction with the longest steps in memory outside, so that parts are whole pieces of memory."""
    if not all(isinstance(v.size, int) for v in how.variables):
        return how
    places = [layouts[x.source].address(x.index) for x in d.loads]
    order = sorted(how.variables, key=lambda v: -max((distance(i, v) for i in places), default=0))
    return dataclasses.replace(how, variables=tuple(order))


@dataclass(frozen=True)
class _SumInParts:
    """A sum, and the definition of its parts."""

    whole: Definition
    parts: Definition


def _squares_in_parts(d: Definition, sums: Mapping[str, _SumInParts]) -> list[Definition]:
    """A sum of squared distances ``(x - m)**2`` from a number, where the sum of ``x`` has parts; empty if it is none.

    The distances are from each part's own mean first, so that a part is read once for both sums: with ``s`` the sum of
    a part's ``n`` elements, ``t_parts[p] = sum over q of (x - s[p] / n)**2``, and
    ``t = sum over p of t_parts[p] + n * (s[p] / n - m)**2``, which holds for any ``m``.
    """
    x, m = _distance_squared(d.body)
    if x is None or m is None or not isinstance(d.how, Reduction):
        return []
    if d.how.combiner != "sum" or set(d.reduced) & variables(m):
        return []
    for known in sums.values():
        own, others = (*known.whole.variables, *known.whole.reduced), (*d.variables, *d.reduced)
        if [v.size for v in own] != [v.size for v in others] or len(d.reduced) != len(known.whole.reduced):
            continue
        if rewrite(known.whole.body, dict(zip(own, map(Index.of, others), strict=True)), lambda y: y, {}) == x:
            return _with_own_means(d, m, known)
    return []


def _distance_squared(x: Scalar) -> tuple[Scalar | None, Scalar | None]:
    """The operands of the difference that ``x`` is the square of."""
    if isinstance(x, Op) and x.name == "mul" and x.args[0] == x.args[1]:
        root = x.args[0]
        if isinstance(root, Op) and root.name == "sub":
            return root.args[0], root.args[1]
    return None, None


def _with_own_means(d: Definition, m: Scalar, known: _SumInParts) -> list[Definition]:
    parts, rank = known.parts, len(d.variables)
    assert isinstance(parts.how, Reduction)
    renamed: dict[Atom, Index] = dict(zip(known.whole.variables, map(Index.of, d.variables), strict=True))
    names, rest = (fresh(vs, renamed) for vs in (parts.variables[rank:], parts.how.variables))
    count = constant(product(Index.of(v.size) for v in rest), parts.dtype)
    x = rewrite(parts.body, renamed, lambda y: y, {})

    def mean(index: tuple[Index, ...], n: Scalar) -> Scalar:
        total = Load(parts.name, index, parts.dtype)
        return total * (1 / n.value) if isinstance(n, Const) else total / n

    at = (*map(Index.of, d.variables), *map(Index.of, names))
    off = x - cast(mean(at, count), x.dtype)
    first = dataclasses.replace(
        parts,
        name=f"{d.name}_parts",
        variables=(*d.variables, *names),
        body=off * off,
        how=Reduction("sum", tuple(rest)),
        where=d.where,
    )
    again = {v: Var(f"{v.name}c", v.size) for v in names}
    values = {v: Index.of(w) for v, w in again.items()}
    index = tuple(i.substitute(values) for i in at)
    n = rewrite(count, values, lambda y: y, {})
    apart = mean(index, n) - cast(m, parts.dtype)
    second = dataclasses.replace(
        d,
        body=Load(first.name, index, parts.dtype) + n * (apart * apart),
        how=Reduction("sum", tuple(again.values())),
    )
    return [first, second]


def is_search(d: Definition) -> bool:
    """Whether it looks for the place of an extreme."""
    return isinstance(d.how, Reduction) and d.how.combiner in ("argmax", "argmin")


def outline(d: Definition) -> tuple[object, ...]:
    """What an extreme and the search for its place have in common, if it is of the same elements."""
    return d.sizes, tuple(v.size for v in d.reduced), tuple(x.source for x in loads(d.body))


def _in_parts(
    d: Definition,
    how: Reduction,
    layouts: Mapping[str, Layout],
    machine: Machine,
    is_searched: bool,
    in_rows: frozenset[str],
) -> list[Definition]:
    if machine.has_grid:
        merged = merged_loops(d, how, layouts)
        found = _cut(*merged, layouts, machine, in_rows=in_rows)
        last = next((v for v in reversed(found[0].reduced) if v.size != 1), None)
        if merged[0] is d or (len(found) > 1 and last is not None and is_along_memory(found[0], last, layouts)):
            return found if len(found) > 1 else [d]
    return _cut(d, how, layouts, machine, is_searched, in_rows)


def _read_in_rows(program: Program, layouts: Mapping[str, Layout]) -> frozenset[str]:
    """What is summed along memory: sums across the same rows may be of the same kernel."""
    found = set[str]()
    for d in program.definitions():
        if isinstance(d.how, Reduction) and d.reduced and is_along_memory(d, d.reduced[-1], layouts):
            found |= {x.source for x in loads(d.body) if d.reduced[-1] in variables(x)}
    return frozenset(found)


def _parts_of_rows(d: Definition, how: Reduction, in_rows: frozenset[str]) -> int:
    """The parts of a sum across rows that are summed, too; 0 if it is another one, or of a size that is not known."""
    (rows, *others) = [v for v in how.variables if v.size != 1]
    if (
        how.combiner != "sum"
        or others
        or not isinstance(rows.size, int)
        or not in_rows & {x.source for x in loads(d.body)}
    ):
        return 0
    itemsize = max(x.dtype.itemsize for x in loads(d.body) if x.source in in_rows)
    return parts_of_rows(cost.count(d.variables), rows.size, itemsize)


def _cut(
    d: Definition,
    how: Reduction,
    layouts: Mapping[str, Layout],
    machine: Machine,
    is_searched: bool = False,
    in_rows: frozenset[str] = frozenset(),
) -> list[Definition]:
    whole = d
    results, elements = cost.count(d.variables), cost.count(how.variables)
    wide = [v for v in how.variables if v.size != 1]
    if not wide or not all(Index.of(v.size).is_fixed for v in wide):
        return [whole]
    along_memory = is_along_memory(d, wide[-1], layouts)
    chain = elements // ACCUMULATORS if along_memory else elements
    known = all(isinstance(v.size, int) for v in wide)  # sums over symbolic sizes are added up in float64 anyway
    adds = known and how.combiner == "sum" and d.body.dtype in (torch.float32, torch.float64)
    if machine.has_grid:
        chain //= GRID_CHAINS
    piece = _piece(d, wide, layouts, machine) if along_memory else None
    if piece is not None:
        along_memory, results = False, results * cost.count([piece])
        elements //= cost.count([piece])
    is_shared = is_worth_sharing(d, results, elements, along_memory, machine)
    is_cut = is_shared or (adds and chain > CHAIN)
    if not is_cut and piece is None:
        return [whole]
    parts, of_rows = 1, _parts_of_rows(d, how, in_rows) if is_cut and not along_memory else 0
    if is_cut:
        parts = parts_for_threads(results, elements, along_memory, machine, is_searched)
        parts = of_rows or max(parts, -(-chain // CHAIN) if adds else 0)
    if piece is not None and machine.has_grid:
        parts = max(parts, -(-elements // HELD))
    outer = [] if piece is None else [(piece, Index.of(piece))]
    rest = [v for v in how.variables if v != piece]
    while parts > 1 and rest:
        v = rest.pop(0)
        if v.size == 1:
            continue
        if cost.count([v]) <= parts:
            outer.append((v, Index.of(v)))
            parts //= cost.count([v])
            continue
        size = Index.of(v.size)
        multiple = ACCUMULATORS if along_memory and not rest else 1
        chunk = (size + (of_rows - 1)) // of_rows if of_rows else chunk_of(size, parts, multiple, machine, results == 1)
        p = sized(f"{v.name}p", (size + chunk - 1) // chunk)
        q = sized(f"{v.name}q", least(chunk, size - chunk * p))
        d = rewritten(d, {v: Index.of(p) * chunk + q})
        outer.append((p, Index.of(p)))
        rest.insert(0, q)
        break
    if all(p.size == 1 for p, _ in outer) or all(v.size == 1 for v in rest):
        return [whole]
    names = tuple(p for p, _ in outer)
    partial, dtype = f"{d.name}_parts", d.body.dtype
    if how.combiner == "sum" and dtype is torch.float32:
        dtype = torch.float64  # parts that cancel each other leave no rounding errors of their size
        if machine.has_grid and results == 1:  # nor do elements, in a result that is small by chance
            d = dataclasses.replace(d, body=cast(d.body, dtype))
    first = dataclasses.replace(
        d, name=partial, dtype=dtype, variables=(*d.variables, *names), how=Reduction(how.combiner, tuple(rest))
    )
    again = {p: Var(f"{p.name}c", p.size) for p in names}
    index = tuple(Index.of(again.get(v, v)) for v in first.variables)
    second = dataclasses.replace(
        d, body=Load(partial, index, dtype), how=Reduction(how.combiner, tuple(again[p] for p in names))
    )
    return [first, second]


def is_worth_sharing(d: Definition, results: int, elements: int, along_memory: bool, machine: Machine) -> bool:
    """Whether a reduction has too few results for the threads, and enough elements for parts."""
    is_far = along_memory and elements * width_read(d) >= machine.far > 0
    few = results < machine.results[0 if along_memory else 1] * (machine.waves if is_far else 1)
    few = few and elements * (width_read(d) if along_memory else machine.line) >= machine.block
    return few and results * elements >= 4 * min(PART, machine.part) and elements >= 64


def parts_for_threads(
    results: int, elements: int, along_memory: bool, machine: Machine, is_searched: bool = False
) -> int:
    """In how many parts threads share a reduction.

    Across memory a part that is searched for the place of its extreme (:mod:`split_places`) is short, since lanes are
    in parts of their own there: it has about as many elements as there are parts.
    """
    most = machine.most_parts if not machine.has_grid else max(2, machine.most_parts // _blocks(results, along_memory))
    parts = max(2, min(most, results * elements // min(PART, machine.part)))
    return max(parts, math.isqrt(elements)) if is_searched and not along_memory else parts


def _piece(d: Definition, wide: Sequence[Var], layouts: Mapping[str, Layout], machine: Machine) -> Var | None:
    """The last loop, if it is a piece of memory so short that blocks with neighbouring results read the same sectors.

    So are a group's channels where channels are last. Each place of the piece is a part then, and blocks have all
    neighbours. A small window of an image is read by a thread, since its parts would be as much to write and to read.
    """
    *others, last = wide
    width = width_read(d)
    most, least_work = (SECTOR // width, LARGE // width) if machine.has_grid else (LANES, MANY)
    if not others or not isinstance(last.size, int) or last.size >= most or cost.iterations(d) < least_work:
        return None
    if machine.has_grid and cost.count(others) * width < WORTH_A_PART:
        return None
    read = [layouts[x.source].address(x.index) for x in loads(d.body) if last in variables(x)]
    return last if read and any(all(runs_on(i, v, last) for i in read) for v in d.variables if v.size != 1) else None


def merged_loops(d: Definition, how: Reduction, layouts: Mapping[str, Layout]) -> tuple[Definition, Reduction]:
    """Reduced loops as one where memory runs on from one to the next: its parts need not begin where a row does.

    Before: ``sum over i:404, j:83054 of x[i, j]``. After: ``sum over k:33553816 of x[k // 83054, k % 83054]``.
    """
    loops = [v for v in how.variables if v.size != 1]
    for a, b in itertools.pairwise(loops):
        if not isinstance(a.size, int) or not isinstance(b.size, int) or not all(
            runs_on(i, a, b) for i in _addresses(d, layouts)
        ):  # fmt: skip
            continue
        one = Var(f"{b.name}f", a.size * b.size)
        merged = rewritten(d, {a: Index.of(one) // b.size, b: Index.of(one) % b.size})
        rest = tuple(one if v == b else v for v in how.variables if v != a)
        how = Reduction(how.combiner, rest)
        return merged_loops(dataclasses.replace(merged, how=how), how, layouts)
    return d, how


def _addresses(d: Definition, layouts: Mapping[str, Layout]) -> Iterator[Index]:
    """Where a definition reads memory, and which indices it computes with."""
    for x in walk(*d.expressions()):
        if isinstance(x, FromIndex):
            yield x.index
        elif isinstance(x, Load):
            yield layouts[x.source].address(x.index)


def width_read(d: Definition) -> int:
    """Bytes of what the body reads for an element."""
    return sum(x.dtype.itemsize for x in loads(d.body)) or 1


def _blocks(results: int, along_memory: bool) -> int:
    """Blocks of a grid that a reduction has without being cut: one a result, or one for neighbouring results."""
    return max(1, results if along_memory else results // 64)


def chunk_of(size: Index, parts: int, multiple: int, machine: Machine, is_whole: bool = False) -> Index:
    """The length of so many parts, a multiple of something; for a symbolic size always of the same number of parts.

    Args:
        is_whole: Whether each part is of the one result, and a block's.
    """
    if size.is_constant:
        if machine.has_grid and multiple > 1:  # a block's threads have as many vectors each, and whole ones
            multiple = next((m for m in (4096, 1024, 256) if m * 4 * parts <= size.constant), multiple)
        chunk = -(-size.constant // parts // multiple) * multiple
        if not machine.has_grid:
            return Index.of(chunk)
        equal = (c for c in range(chunk, chunk // 2, -multiple) if size.constant % c == 0)
        if is_whole and parts >= machine.results[0]:
            even = -(-chunk // EVEN) * EVEN if chunk >= EVEN * EVEN // 2 else chunk
            ends = {c: _end_of_blocks(size.constant, c, parts) for c in (even, *equal)}
            best = min((c for c in ends if c != even), key=lambda c: ends[c], default=even)
            return Index.of(best if ends[best] <= ends[even] * EQUAL else even)
        even = max(multiple, chunk // EVEN * EVEN)  # threads have as many each, but for the last part, which is no rest
        is_close = -(-size.constant // even) <= parts + parts // EVEN
        return Index.of(next(equal, even if is_close else chunk))
    return (size // (machine.results[0] * multiple) + 1) * multiple


def _end_of_blocks(size: int, chunk: int, most: int) -> int:
    """When the last of the parts ends, in elements that a block has read: a multiprocessor runs as many blocks at the
    same time as ``most`` parts are for it, or, of the largest blocks, a quarter of these."""
    count = -(-size // chunk)
    return max(-(-count // together) * together * chunk for together in (most, most // 4))


def is_along_memory(d: Definition, v: Var, layouts: Mapping[str, Layout]) -> bool:
    """Whether most of what the body reads are neighbours in memory when ``v`` grows by one.

    What each row has of its own, beside a matrix, counts as the few elements that it is.
    """
    if any(isinstance(x, Guarded) and v in variables(x.condition) for x in walk(d.body)):
        return False  # a condition for a load keeps vectors, and with them several sums at a time, away
    along, moving = 0, 0
    for x in loads(d.body):
        step = layouts[x.source].address(x.index).stride(v) if x.source in layouts else None
        if step is None or step == 0:
            continue
        touched = cost.count({*d.variables, *d.reduced} & variables(x))
        moving += touched
        along += touched * (step in (1, -1))
    return moving > 0 and along * 2 >= moving
