"""Kernels for a GPU: which thread of which block computes what.

A block has ``rows`` outer indices at a time, and for each of them ``threads`` threads, which share its inner loops.
Sizes, steps in memory and the number of elements decide:

- without inner loops, or with short ones, a thread has an outer index for itself, or a vector of them;
- where the inner loops run along memory, neighbouring threads take neighbouring elements of them: a part of a warp, a
  warp or a whole block an outer index;
- where memory runs along an outer loop, neighbouring threads take neighbouring outer indices (``columns``), and what is
  left of the block shares the inner loops.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from torch_max_backend.base.errors import Unsupported
from torch_max_backend.loops.expr import Guarded, Load, variables, walk
from torch_max_backend.loops.index import Computed, Index, Var, product
from torch_max_backend.loops.program import Definition, Scan, Scatter
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.kernel import Kernel, Layout, Stage
from torch_max_backend.schedule.nest import (
    Nest,
    StageNest,
    Statement,
    distance,
    linear_nest,
    merged,
    ordered,
    runs_on,
    substituted,
)
from torch_max_backend.schedule.scatter_nest import update_of

WARP, BLOCK, MOST = 32, 256, 1024
"""Threads: of a warp, of a block as a rule, of a block at most."""
PROCESSORS = 132
"""Multiprocessors, each of which runs several blocks."""
BUSY = PROCESSORS * 1024
"""Threads that keep a GPU busy."""
LARGE = 1 << 15
"""Elements of a transpose that are worth tiles."""
BYTES = 16
"""What a thread reads or writes at once, at most."""
EACH, ELEMENTS = 8, 32
"""Vectors of an inner loop that a thread of several warps should have, and elements."""
GUARDS = 2
"""Conditions that differ between the lanes of vectors, at most: each is computed lane by lane."""
HELD, NARROW, REGISTERS = 4, 16, 32
"""Vectors of a row that a thread holds, elements of narrow vectors, and elements at most: with fewer, a block has many
threads for a row, and few rows are under way together."""
SHORT = 16
"""Inner iterations that are left to one thread if memory runs along an outer loop."""
WINDOW = 64
"""Inner iterations that are left to one thread if neighbours' loops of several variables read the same lines."""
SHARED = 48 << 10
"""Bytes of shared memory that a block has."""
LONG = 256
"""Elements of a row that few vectors go beyond."""
TILE = 32
"""Indices of a transpose's two loops that a block has."""
STORES = 2
"""How often a byte that is written counts, where loops are compared by what runs along memory."""
SECTOR = 32
"""Bytes that memory is read by, at least."""
TIMES = 4
"""Outer indices of a thread, at most, if each of them alone reads or writes little."""
LOOKED_AT = 16
"""Iterations of a loop that are looked at to see how far apart neighbours are, where no one number says it."""
COLUMNS = 32
"""Neighbouring outer indices of a block whose threads share inner loops as well."""


@dataclass(frozen=True)
class GridNest(Nest):
    """A nest with its shares: see the module. The last of ``outer`` runs fastest.

    Vectors have ``lanes`` elements, along ``vector``, or in each stage along its own.
    """

    rows: int = BLOCK
    threads: int = 1
    columns: bool = False
    lanes: int = 1
    held: int = 0
    """Vectors of an outer index's elements that a thread has in registers, if all stages run over the same: an element
    is then read and computed once."""
    each: int = 1
    """Outer indices, or vectors of them, of a thread or of the threads that share them: reads of all are under way
    together."""
    flat: bool = False
    """Whether a thread's vector is of all outer loops as one, in the order of memory: where it goes beyond a row, its
    elements are computed one by one."""
    tile: tuple[Var, Var] | None = None
    """The outer variable along which stores are neighbours and the one along which loads are, of a transpose: a block
    has ``TILE`` indices of each, and what it loads passes through shared memory."""

    @property
    def block(self) -> int:
        """Threads of a block."""
        return BLOCK if self.tile is not None else self.rows * self.threads

    @property
    def share(self) -> int:
        """Outer indices, or vectors of them, of a block."""
        return self.rows * self.each

    @property
    def parts(self) -> Index:
        """Outer indices, or vectors of them: what blocks have their shares of."""
        if self.flat:
            return (product(Index.of(v.size) for v in self.outer) + (self.lanes - 1)) // self.lanes
        sizes = []
        for v in self.outer:
            each = self.lanes if v == self.vector else TILE if v in (self.tile or ()) else 1
            sizes.append((Index.of(v.size) + (each - 1)) // each)
        return product(sizes)

    @property
    def place(self) -> Index:
        """The number of an outer index among all."""
        return _place(self.outer)

    def shared(self, stage: StageNest) -> dict[Var, int]:
        """The loops of a stage that the threads of an outer index share, with the number of threads along each."""
        is_reduced = not stage.free or cost.count(stage.reduced) > cost.count(stage.free)
        loops = stage.reduced if is_reduced else stage.free
        left, found = self.threads, {}
        for v in reversed(loops):
            steps = -(-cost.count([v]) // (self.lanes if v == stage.vector else 1))
            found[v] = min(left, 1 << max(0, (steps - 1).bit_length()))
            left //= found[v]
        if found:
            found[loops[-1]] *= left  # those find nothing to do
        return found

    def __str__(self) -> str:
        how = f"{self.rows} at a time, {self.threads} threads each{', neighbours apart' if self.columns else ''}"
        how += f", {self.held} vectors in registers" if self.held else ""
        how += f", {self.each} times" if self.each > 1 else ""
        how += ", beyond rows" if self.flat else ""
        how = f"tiles of {self.tile[0]} and {self.tile[1]}" if self.tile is not None else how
        return f"{super().__str__()}\n  blocks: {how}, {self.lanes} lanes"


def grid_nest(kernel: Kernel, layouts: Mapping[str, Layout], local: frozenset[str]) -> GridNest:
    """The nest of a kernel for a GPU.

    Raises:
        Unsupported: It has what no GPU kernel does.
    """
    n = ordered(merged(linear_nest(kernel, layouts, local)))
    scanned = [s for stage in n.stages for s in stage.statements if isinstance(s.how, Scan)]
    return _scans(n, scanned) if scanned else _shared_out(n)


def grid_scatter(d: Definition, layouts: Mapping[str, Layout]) -> list[GridNest]:
    """The nests of a scatter: the tensor that is scattered into, and then the updates, by atomic operations.

    Raises:
        Unsupported: There is no atomic operation for it.
    """
    assert isinstance(d.how, Scatter)
    if d.how.combiner == "sum" and d.dtype.is_floating_point and torch.are_deterministic_algorithms_enabled():
        raise Unsupported("atomic additions are in no order, and deterministic algorithms are asked for")
    if d.how.combiner == "product" or (d.how.combiner != "set" and d.dtype is torch.bool):
        raise Unsupported(f"a GPU has no atomic {d.how.combiner} of {d.dtype}")
    plain = dataclasses.replace(d, how=None)
    first = grid_nest(Kernel(tuple(v for v in d.variables if v.size != 1), [Stage((), [plain])]), layouts, frozenset())
    loops = tuple(v for v in d.how.variables if v.size != 1)
    return [first, _shared_out(merged(Nest(loops, (StageNest((), (), (update_of(d, d.how, layouts),)),))))]


# -- which loop runs along memory --------------------------------------------------------------------------------------
def _accesses(stage: StageNest) -> Iterator[tuple[Index, int]]:
    """Every address that a stage reads or writes, with the bytes of an element."""
    for s in stage.statements:
        for x in walk(*s.expressions):
            if isinstance(x, Load) and x.index:
                yield x.index[0], x.dtype.itemsize
        if s.address is not None:
            yield s.address, s.dtype.itemsize


def _along(v: Var, stages: tuple[StageNest, ...], outer: tuple[Var, ...]) -> int:
    """Bytes of memory that are read and written in steps of one element along ``v``.

    A tensor that several stages read counts once. Stores, of which no cache makes whole lines, count ``STORES`` times.
    """
    loaded: dict[str, int] = {}
    stored = 0
    for s in stages:
        for x in walk(*(e for t in s.statements for e in t.expressions)):
            if isinstance(x, Load) and x.index and distance(x.index[0], v) == 1:
                moving = variables(x)  # those of an index that is read, too
                touched = cost.count(w for w in (*outer, *s.inner) if w in moving)
                loaded[x.source] = max(loaded.get(x.source, 0), x.dtype.itemsize * touched)
        for t in s.statements:
            if t.address is not None and distance(t.address, v) == 1:
                stored += t.dtype.itemsize * cost.count(w for w in (*outer, *s.inner) if w in t.address.variables)
    return sum(loaded.values()) + STORES * stored


def _best(loops: tuple[Var, ...], stages: tuple[StageNest, ...], outer: tuple[Var, ...]) -> tuple[int, Var | None]:
    """The loop that runs most along memory, and its bytes."""
    found = [(_along(v, stages, outer), k, v) for k, v in enumerate(loops) if v.size != 1]
    bytes_along, _, v = max(found, key=lambda x: (x[0], x[1]), default=(0, 0, None))
    return bytes_along, v


# -- shares ------------------------------------------------------------------------------------------------------------
def _shared_out(n: Nest) -> GridNest:
    outer_bytes, fast = _best(n.outer, n.stages, n.outer)
    inner_bytes = sum(_best(s.inner, (s,), n.outer)[0] for s in n.stages)
    outer, inner = max(1, cost.count(n.outer)), max(cost.count(s.inner) for s in n.stages)
    if fast is not None:
        n = dataclasses.replace(n, outer=(*(v for v in n.outer if v != fast), fast))
    in_order = any(isinstance(s.how, Scatter) for stage in n.stages for s in stage.statements)
    common = _common_loop(list(n.stages))
    times = sum(bool(s.inner) for s in n.stages)  # as often is a short row read, if a thread does not hold it
    goes_across = outer_bytes >= (inner_bytes // times if common is not None and common <= SHORT else inner_bytes)
    if common is not None and fast is not None and goes_across and not in_order:
        found = _held_columns(n, fast, common, outer)
        if found is not None:
            return found
    if inner == 1 or in_order or (outer_bytes >= inner_bytes and (inner <= SHORT or outer >= BUSY * 2)):
        return _thread_each(n, fast, outer)
    if outer_bytes >= inner_bytes:
        return _columns(n, fast, outer, inner)
    if fast is not None and inner <= WINDOW and outer >= BUSY * 2 and _has_windows(n, fast):
        return _thread_each(n, fast, outer)
    return _along_inner(n, outer, inner)


def _has_windows(n: Nest, fast: Var) -> bool:
    """Whether every thread reads a window of several dimensions, and neighbours along ``fast`` read the same lines."""
    loads = [x for s in n.stages for t in s.statements for x in walk(*t.expressions) if isinstance(x, Load) and x.index]
    moving = [x for x in loads if {*n.outer, *(v for s in n.stages for v in s.inner)} & x.index[0].variables]
    several = all(sum(v.size != 1 for v in s.inner) > 1 for s in n.stages if s.inner)
    steps = [(pace(x.index[0], fast), x.dtype.itemsize) for x in moving]
    return several and all(step is not None and 0 <= step * width <= SECTOR for step, width in steps)


def pace(index: Index, v: Var) -> float | None:
    """How far apart in memory neighbours along ``v`` are on average; nothing where that depends on what is read."""
    last = max(2, cost.count([v])) - 1
    places = _places(index, v, (0, last))
    return (places[1] - places[0]) / last if places else None


def _places(index: Index, v: Var, at: Sequence[int]) -> list[int]:
    """An index at some iterations of a loop, the first of others; nothing if it depends on what is read."""
    if any(isinstance(atom, Computed) for atom in index.atoms):
        return []
    return [index.substitute({w: Index.of(k if w == v else 0) for w in index.variables}).typical for k in at]


def _scans(n: Nest, scanned: list[Statement]) -> GridNest:
    """A thread has a row where rows are neighbours in memory; else a warp has it, or as much of one as it fills."""
    (stage,) = n.stages
    (v,) = stage.inner
    outer = max(1, cost.count(n.outer))
    _, fast = _best(n.outer, n.stages, n.outer)
    if fast is not None and not any(s.address is not None and distance(s.address, v) == 1 for s in scanned):
        return _thread_each(dataclasses.replace(n, outer=(*(w for w in n.outer if w != fast), fast)), fast, outer)
    if not isinstance(v.size, int) or v.size > WARP:
        return GridNest(n.outer, n.stages, rows=BLOCK // WARP, threads=WARP)
    threads = 1 << max(1, (v.size - 1).bit_length())
    each = _times(outer * threads, TIMES)
    return GridNest(n.outer, n.stages, rows=BLOCK // threads, threads=threads, each=each)


def _times(threads: int, most: int) -> int:
    """How many of its outer indices each thread has, of so many threads with one."""
    each = 1
    while each < most and threads >= 4 * BUSY * each:
        each *= 2
    return each


def _thread_each(n: Nest, fast: Var | None, outer: int) -> GridNest:
    """A thread has an outer index, or a vector of them along the fastest loop."""
    plain = len(n.stages) == 1 and not n.stages[0].inner and n.stages[0].statements[0].how is None
    if plain and fast is not None:
        across = _across(n, fast)
        if across is not None and outer >= LARGE and cost.count([across]) <= SHORT:
            return _with_loop_inside(n, across)
        if across is not None and outer >= LARGE:
            return GridNest(n.outer, n.stages, rows=1, tile=(fast, across))
        beyond = _beyond_rows(n, fast, outer)
        if beyond is not None:
            return beyond
        flat, last = _flattened(n, fast)
        if _lanes(last, flat.stages) > _lanes(fast, n.stages):
            n, fast = flat, last
    lanes = 1 if fast is None or not _is_vectorizable(fast, n.stages) else _lanes(fast, n.stages)
    while lanes > 1 and outer < BUSY * lanes:
        lanes //= 2
    rows = BLOCK if outer // lanes >= BUSY else 128
    each = 1
    if plain and (lanes == 1 or _is_whole(fast, lanes)):
        written = sum(s.dtype.itemsize for s in n.stages[0].statements if s.address is not None) * lanes
        each = _times(outer // lanes, min(TIMES, max(1, BYTES // max(1, written))))
    return GridNest(n.outer, n.stages, fast if lanes > 1 else None, rows=rows, lanes=lanes, each=each)


def _with_loop_inside(n: Nest, across: Var) -> GridNest:
    """A thread has an outer index and all of a short loop, whose elements it reads lie in few lines of memory."""
    (stage,) = n.stages
    outer = tuple(v for v in n.outer if v != across)
    rows = BLOCK if cost.count(outer) >= BUSY else 128
    return GridNest(outer, (dataclasses.replace(stage, free=(across,)),), rows=rows)


def _across(n: Nest, fast: Var) -> Var | None:
    """The variable along which much is read in steps of one, while ``fast`` steps over lines of memory."""
    (stage,) = n.stages
    if any(isinstance(x, Guarded) for s in stage.statements for x in walk(s.body)) or cost.count([fast]) < TILE // 2:
        return None
    found = [(_transposed(n, fast, v), k, v) for k, v in enumerate(n.outer) if v != fast and cost.count([v]) >= 8]
    most, _, v = max(found, key=lambda x: x[:2], default=(0, 0, None))
    written = sum(s.dtype.itemsize for s in stage.statements if s.address is not None) * cost.count(n.outer)
    if v is None or most * 4 < written:
        return None
    tiles = sum(x.dtype.itemsize for x in _turned(n, fast, v)) * TILE * (TILE + 1)
    return v if tiles <= SHARED else None


def _turned(n: Nest, fast: Var, v: Var) -> set[Load]:
    """What is read in steps of one along ``v``, and in longer ones along ``fast``."""
    reads = walk(*(s.body for s in n.stages[0].statements))
    return {x for x in reads if isinstance(x, Load) and passes_tile(x, fast, v)}


def _transposed(n: Nest, fast: Var, v: Var) -> int:
    """The bytes of that."""
    loaded = _turned(n, fast, v)
    return sum(x.dtype.itemsize * cost.count(w for w in n.outer if w in x.index[0].variables) for x in loaded)


def passes_tile(x: Load, fast: Var, across: Var) -> bool:
    """Whether a load is one that a tile turns: its address is a sum of steps along the two variables and others."""
    if not x.index:
        return False
    index = x.index[0]
    known = all(isinstance(atom, Var) for atom, _ in index.terms)
    return known and distance(index, across) == 1 and distance(index, fast) > 1


def _flattened(n: Nest, fast: Var) -> tuple[Nest, Var]:
    """The innermost loops as one, where what is written runs on from one to the other and vectors would not fit.

    Before: ``t[6*i + j]`` of ``x[6*i + j] + y[j]``, for j < 6. After: ``t[k]`` of ``x[k] + y[k % 6]``.
    """
    (stage,) = n.stages
    while len(n.outer) > 1 and _lanes(fast, n.stages) < BYTES // max(
        2, min(s.dtype.itemsize for s in stage.statements)
    ):
        before = n.outer[-2]
        sizes = [v.size for v in (before, fast)]
        stores = [s.address for s in stage.statements if s.address is not None]
        if not all(isinstance(size, int) for size in sizes) or not all(runs_on(i, before, fast) for i in stores):
            break
        one = Var(f"{fast.name}f", int(sizes[0]) * int(sizes[1]))
        values = {before: Index.of(one) // int(sizes[1]), fast: Index.of(one) % int(sizes[1])}
        stage = dataclasses.replace(stage, statements=substituted(stage.statements, values))
        n, fast = Nest((*n.outer[:-2], one), (stage,)), one
    return n, fast


def _beyond_rows(n: Nest, fast: Var, outer: int) -> GridNest | None:
    """Vectors that do not begin where rows do, where these are long and of an odd length and stores fill memory."""
    (stage,) = n.stages
    stores = [s.address for s in stage.statements if s.address is not None]
    if cost.count([fast]) < LONG or not all(isinstance(v.size, int) for v in n.outer) or outer >= 1 << 31:
        return None
    loops = tuple(sorted(n.outer, key=lambda v: -(distance(stores[0], v) or 0)))
    place = _place(loops)
    along = [(i, width) for i, width in _accesses(stage) if distance(i, fast) == 1]
    lanes = min(8, BYTES // min(width for _, width in along)) if along else 1
    while lanes > 1 and outer < BUSY * lanes:
        lanes //= 2
    guards = sum(
        isinstance(x, Guarded) and fast in variables(x.condition) for s in stage.statements for x in walk(s.body)
    )
    fitting = sum(is_in_step(i, place, lanes) for i, _ in along)
    if lanes <= _lanes(fast, n.stages) or loops[-1] != fast or guards > GUARDS or fitting * 2 < len(along):
        return None
    if not all(is_in_step(i, place, lanes) for i in stores):
        return None
    return GridNest(loops, n.stages, fast, rows=BLOCK, lanes=lanes, flat=True)


def _place(loops: Sequence[Var]) -> Index:
    """The number of an iteration of loops among all."""
    place = Index.of(0)
    for v in loops:
        place = place * v.size + Index.of(v)
    return place


def is_in_step(address: Index, place: Index, lanes: int) -> bool:
    """Whether an address is that of an iteration's number, but for a multiple of ``lanes``."""
    apart = address - place
    return apart.is_constant and apart.constant % lanes == 0


def _columns(n: Nest, fast: Var | None, outer: int, inner: int) -> GridNest:
    """Neighbouring threads have neighbouring outer indices; the block's other threads share the inner loops."""
    lanes = 1 if fast is None or not _is_vectorizable(fast, n.stages) else min(4, _lanes(fast, n.stages))
    if any(x.place is not None for s in n.stages for x in s.statements):
        lanes = 1
    while lanes > 1 and (outer < PROCESSORS * _neighbours(fast, lanes) * lanes or not _is_whole(fast, lanes)):
        lanes //= 2
    rows = _neighbours(fast, lanes)
    narrowest = min((width for s in n.stages for _, width in _accesses(s)), default=1)
    while rows * lanes * narrowest > SECTOR and outer < PROCESSORS * rows * lanes:
        rows //= 2
    threads = max(2, WARP // rows)
    while rows * threads * lanes < MOST and threads * 4 <= inner and outer // lanes * threads < BUSY * 2:
        threads *= 2
    return GridNest(
        n.outer, n.stages, fast if lanes > 1 else None, rows=rows, threads=threads, columns=True, lanes=lanes
    )


def _neighbours(fast: Var | None, lanes: int) -> int:
    """Neighbouring vectors of outer indices that a block has, if its threads share inner loops."""
    return min(COLUMNS, 1 << max(0, (-(-cost.count([fast] if fast else []) // lanes) - 1).bit_length()))


def _held_columns(n: Nest, fast: Var, size: int, outer: int) -> GridNest | None:
    """Neighbouring threads have neighbouring outer indices, and each its elements of the inner loops in registers."""
    lanes = min(4, _lanes(fast, n.stages)) if _is_vectorizable(fast, n.stages) else 1
    while lanes > 1 and (outer < PROCESSORS * _neighbours(fast, lanes) * lanes or not _is_whole(fast, lanes)):
        lanes //= 2
    threads, most = 1, min(2 * HELD, REGISTERS // lanes)
    while threads * most < size or (
        threads * 2 < size and outer // lanes * threads < BUSY and _neighbours(fast, lanes) * threads * 2 <= MOST
    ):
        threads *= 2
    held = -(-size // threads)
    rows = max(_neighbours(fast, lanes), BLOCK // 2 // threads) if threads > 1 else BLOCK // 2
    if rows * threads > MOST:
        return None
    stages = _over_one_loop(n.stages, size, 1)
    return GridNest(
        n.outer, stages, fast if lanes > 1 else None, rows=rows, threads=threads, columns=True, lanes=lanes, held=held
    )


def _held_across(n: Nest, size: int, outer: int) -> GridNest | None:
    """A block has a few neighbouring outer indices, where some of what moves with them lies along them in memory, and
    the rest along the inner loops: neighbouring threads read and write parts of lines both ways."""
    moving = [(i, width) for s in n.stages for i, width in _accesses(s) if {*s.inner} & i.variables]
    moving = [(i, width) for i, width in dict.fromkeys(moving) if {*n.outer} & i.variables]
    along = {v: sum(width for i, width in moving if distance(i, v) == 1) for v in n.outer}
    fast = max(along, key=lambda v: along[v], default=None)
    if fast is None or not 0 < sum(width for _, width in moving) <= 4 * along[fast]:
        return None
    if not _is_vectorizable(fast, n.stages):
        return None
    width = min(width for i, width in moving if distance(i, fast) == 1)
    stores = [s.address for stage in n.stages for s in stage.statements if s.address is not None]
    lanes = 1 if any(distance(i, fast) == 1 for i in stores) else min(8, BYTES // width)
    while lanes > 1 and not (
        _is_whole(fast, lanes) and all(is_aligned(i, fast, lanes) for i, _ in moving if distance(i, fast) == 1)
    ):
        lanes //= 2
    rows = min(8, SECTOR // width) // lanes or 1
    while rows > 1 and (-(-size * rows // MOST) * lanes > REGISTERS or outer < PROCESSORS * rows * lanes):
        rows //= 2
    threads = WARP
    while threads < size and rows * threads < MOST and -(-size // threads) * lanes > REGISTERS // 2:
        threads *= 2
    held = -(-size // threads)
    if lanes * rows == 1 or held * lanes > REGISTERS or size < WARP or outer < BUSY // threads:
        return None
    loops = (*(v for v in n.outer if v != fast), fast)
    stages = _over_one_loop(n.stages, size, 1)
    vector = fast if lanes > 1 else None
    return GridNest(loops, stages, vector, rows=rows, threads=threads, columns=True, lanes=lanes, held=held)


def _along_inner(n: Nest, outer: int, inner: int) -> GridNest:
    """Neighbouring threads have neighbouring elements of the inner loops, each stage along its best."""
    stages = [_with_best_last(s, n.outer) for s in n.stages]
    possible = [_inner_lanes(s) for s in stages]
    common = _common_loop(stages)
    if common is not None:
        found = _held_across(n, common, outer)
        if found is not None:
            return found
        found = _held(n.outer, stages, common, min(k for s, k in zip(stages, possible, strict=True) if s.inner), outer)
        if found is not None:
            return found
    lanes = min((k for k in possible if k > 1), default=1)
    while lanes > 1 and inner < lanes * 2:
        lanes //= 2
    chosen = [
        dataclasses.replace(s, vector=s.inner[-1]) if k >= lanes and _has_vectors(s) else s
        for s, k in zip(stages, possible, strict=True)
    ]
    threads = 1
    while threads < MOST and threads * lanes < inner:
        if threads >= WARP and threads * max(lanes * EACH, ELEMENTS) >= inner and threads * outer >= BUSY:
            break
        threads *= 2
    return GridNest(n.outer, tuple(chosen), rows=_rows(threads, outer), threads=threads, lanes=lanes)


def _rows(threads: int, outer: int) -> int:
    """Outer indices of a block whose threads share them in groups."""
    block = BLOCK if outer * threads >= BUSY else 128
    return max(1, block // threads) if threads <= WARP else 1


def _common_loop(stages: list[StageNest]) -> int | None:
    """The length of the one inner loop that all stages have, or none, if it is the same everywhere."""
    lengths = {v.size for s in stages for v in s.inner}
    alone = all(len(s.inner) <= 1 and all(x.place is None and x.how is None for x in s.statements) for s in stages)
    size = lengths.pop() if len(lengths) == 1 else None
    many = sum(bool(s.inner) for s in stages) > 1
    return size if alone and many and isinstance(size, int) else None


def _held(outer: tuple[Var, ...], stages: list[StageNest], size: int, lanes: int, count: int) -> GridNest | None:
    """A nest whose threads keep their elements of a row in registers; none if these are too many."""
    while lanes > 1 and size % lanes:
        lanes //= 2
    threads, least = 1, WARP if lanes > 2 else SECTOR // 4
    while threads < MOST and threads * lanes < size:
        if threads >= least and threads * max(lanes * HELD, NARROW) >= size and threads * count >= BUSY:
            break
        threads *= 2
    held = -(-size // (threads * lanes))
    if threads == 1 or held > max(2 * HELD, NARROW) or held * lanes > REGISTERS:
        return None
    renamed = _over_one_loop(stages, size, lanes)
    return GridNest(outer, renamed, rows=_rows(threads, count), threads=threads, lanes=lanes, held=held)


def _over_one_loop(stages: Sequence[StageNest], size: int, lanes: int) -> tuple[StageNest, ...]:
    """Stages that all run over the same variable, in vectors along it or not."""
    one = Var("e", size)
    return tuple(
        dataclasses.replace(
            s,
            free=(one,) if s.free else (),
            reduced=(one,) if s.reduced else (),
            statements=substituted(s.statements, {v: Index.of(one) for v in s.inner}),
            vector=one if s.inner and lanes > 1 else None,
        )
        for s in stages
    )


def _with_best_last(s: StageNest, outer: tuple[Var, ...]) -> StageNest:
    """A stage whose innermost loop is the one that runs most along memory, unless positions are counted."""
    _, v = _best(s.inner, (s,), outer)
    if v is None or any(x.place is not None for x in s.statements):
        return s
    return dataclasses.replace(s, free=_last(s.free, v), reduced=_last(s.reduced, v))


def _has_vectors(s: StageNest) -> bool:
    return bool(s.inner) and _is_vectorizable(s.inner[-1], (s,))


def _inner_lanes(s: StageNest) -> int:
    """Lanes of vectors along the innermost loop of a stage; 1 if there are none."""
    if not _has_vectors(s):
        return 1
    v = s.inner[-1]
    lanes = _lanes(v, (s,))
    while lanes > 1 and len(s.inner) > 1 and not _is_whole(v, lanes):
        lanes //= 2
    return lanes


def _last(loops: tuple[Var, ...], v: Var) -> tuple[Var, ...]:
    return loops if v not in loops else (*(w for w in loops if w != v), v)


def _is_whole(v: Var | None, lanes: int) -> bool:
    return v is not None and isinstance(v.size, int) and v.size % lanes == 0


# -- vectors -----------------------------------------------------------------------------------------------------------
def _is_vectorizable(v: Var, stages: tuple[StageNest, ...]) -> bool:
    """Whether no loop's length depends on ``v``, and nothing is scattered."""
    for s in stages:
        if any(isinstance(w.size, Index) and v in w.size.variables for w in s.inner):
            return False
        if any(isinstance(x.how, Scatter) for x in s.statements):
            return False
    return True


def _lanes(v: Var, stages: tuple[StageNest, ...]) -> int:
    """Elements of 16 bytes of the narrowest tensor along ``v``, if what is written begins at a multiple of its size."""
    stores = [(s.address, s.dtype.itemsize) for stage in stages for s in stage.statements if s.address is not None]
    stores = [(i, width) for i, width in stores if i.stride(v) != 0]
    along = [(i, width) for s in stages for i, width in _accesses(s) if distance(i, v) == 1]
    apart = sum(_is_apart(i, v) for s in stages for i, _ in _accesses(s))
    bodies = [x.body for s in stages for x in s.statements]
    guarded = sum(isinstance(x, Guarded) and v in variables(x.condition) for x in walk(*bodies))
    if not along or apart > len(along) or guarded > GUARDS or any(distance(i, v) != 1 for i, _ in stores):
        return 1
    lanes = min(8, BYTES // min(width for _, width in along))
    while lanes > 1 and (
        cost.count([v]) < lanes
        or not all(is_aligned(i, v, lanes) for i, _ in stores)
        or sum(is_aligned(i, v, lanes) for i, _ in along) * 2 < len(along)
    ):
        lanes //= 2
    return lanes


def _is_apart(index: Index, v: Var) -> bool:
    """Whether neighbours along ``v`` are no neighbours in memory, nor the same or neighbours in turns."""
    if distance(index, v) == 1 or index.stride(v) == 0:
        return False
    places = _places(index, v, range(min(cost.count([v]), LOOKED_AT)))
    return not places or any(b - a not in (0, 1) for a, b in itertools.pairwise(places))


def is_aligned(index: Index, v: Var, lanes: int) -> bool:
    """Whether vectors that begin at multiples of ``lanes`` along ``v`` begin at multiples of it in memory."""
    return index.substitute({v: Index.of(Var("q", 1 << 32)) * lanes}) % lanes == 0
