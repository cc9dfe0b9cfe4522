"""Kernels for a GPU in which threads share the inner loops of an outer index: rows, columns and scans."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from torch_max_backend.loops.expr import Load, walk
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.loops.tensor import sized
from torch_max_backend.schedule import cost
from torch_max_backend.schedule import grid_limits as gpu
from torch_max_backend.schedule.grid_elements import thread_each, times
from torch_max_backend.schedule.grid_memory import (
    best_loop,
    is_aligned,
    is_vectorizable,
    is_whole,
    lanes_along,
    lanes_of_stores,
)
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.grid_rows_at_once import rows_at_once
from torch_max_backend.schedule.nest import Nest, StageNest, Statement, distance, substituted
from torch_max_backend.schedule.online_softmax import in_one_pass


def scans(n: Nest, scanned: list[Statement]) -> GridNest:
    """A thread has a row where rows are neighbours in memory; else a warp has it, or as much of one as it fills, or a
    block where there are few long rows."""
    (stage,) = n.stages
    (v,) = stage.inner
    outer = max(1, cost.count(n.outer))
    _, fast = best_loop(n.outer, n.stages, n.outer)
    if fast is not None and not any(s.address is not None and distance(s.address, v) == 1 for s in scanned):
        return thread_each(dataclasses.replace(n, outer=(*(w for w in n.outer if w != fast), fast)), fast, outer)
    if not isinstance(v.size, int) or v.size > gpu.WARP:
        threads = gpu.WARP
        while outer * threads < gpu.BUSY and threads * 2 <= min(cost.count([v]), gpu.BLOCK):
            threads *= 2
        return GridNest(n.outer, n.stages, rows=gpu.BLOCK // gpu.WARP if threads == gpu.WARP else 1, threads=threads)
    threads = 1 << max(1, (v.size - 1).bit_length())
    each = times(outer * threads, gpu.TIMES)
    return GridNest(n.outer, n.stages, rows=gpu.BLOCK // threads, threads=threads, each=each)


def columns(n: Nest, fast: Var | None, outer: int, inner: int) -> GridNest:
    """Neighbouring threads have neighbouring outer indices; the block's other threads share the inner loops."""
    lanes = 1 if fast is None or not is_vectorizable(fast, n.stages) else lanes_along(fast, n.stages, True)
    if any(x.place is not None for s in n.stages for x in s.statements):
        lanes = 1
    read = [width for s in n.stages for i, width in s.accesses if {*s.inner} & i.variables]
    width = min(read, default=1)
    near = _near(n, fast)
    while lanes > 1 and (
        (outer < gpu.PROCESSORS * _neighbours(near, lanes) * lanes and lanes * width > gpu.WORD)
        or not is_whole(fast, lanes)
    ):
        lanes //= 2
    rows = _neighbours(near, lanes)
    while rows * lanes * width > gpu.SECTOR and outer < gpu.PROCESSORS // 2 * rows * lanes:
        rows //= 2
    threads = max(2, gpu.WARP // rows)
    are_few = outer < gpu.PROCESSORS * 2 * rows * lanes  # blocks: each is as large as it can be
    told = sum(x.body.dtype.itemsize for s in n.stages for x in s.statements if x.combiner) * lanes
    while threads * 4 <= inner and outer // lanes * threads < gpu.BUSY * 2:
        block = rows * threads
        if block * (1 if are_few else min(4, lanes)) >= gpu.MOST or block * told > gpu.SHARED:
            break
        threads *= 2
    vector = fast if lanes > 1 else None
    size = lone_loop(n.stages)
    held = -(-size // threads) if size is not None else 0
    if size is not None and 1 < held <= 2 * gpu.HELD and held * lanes <= gpu.REGISTERS:
        stages = _over_one_loop(n.stages, size, 1)
        return GridNest(n.outer, stages, vector, rows=rows, threads=threads, columns=True, lanes=lanes, held=held)
    return GridNest(n.outer, n.stages, vector, rows=rows, threads=threads, columns=True, lanes=lanes)


def _near(n: Nest, fast: Var | None) -> list[Var]:
    """Outer loops of which an iteration begins where the one before ends in memory, or little behind that, the
    innermost one last: threads with neighbouring indices of them read the same lines."""
    found = [] if fast is None else [fast]
    read = {(i, width) for s in n.stages for i, width in s.accesses if {*s.inner} & i.variables}
    for v in reversed([w for w in n.outer if w != fast] if found else []):
        steps = [(i.stride(v), cost.count(found) * distance(i, found[-1]) * width, width) for i, width in read]
        if any(
            step is None or not step.is_fixed or abs(step.typical) * b > ends + gpu.SECTOR for step, ends, b in steps
        ):
            break
        found.insert(0, v)
    return found


def _neighbours(near: Sequence[Var], lanes: int) -> int:
    """Neighbouring vectors of outer indices that a block has, if its threads share inner loops."""
    return min(gpu.COLUMNS, 1 << max(0, (-(-cost.count(near) // lanes) - 1).bit_length()))


def held_columns(n: Nest, fast: Var, size: int, outer: int) -> GridNest | None:
    """Neighbouring threads have neighbouring outer indices, and each its elements of the inner loops in registers."""
    reduces = all(s.reduced for s in n.stages if s.inner)
    lanes = min(8 if reduces else 4, lanes_along(fast, n.stages, reduces)) if is_vectorizable(fast, n.stages) else 1
    while lanes > 1 and (outer < gpu.PROCESSORS * _neighbours([fast], lanes) * lanes or not is_whole(fast, lanes)):
        lanes //= 2
    stages = _over_one_loop(n.stages, size, 1)
    if lanes == 1 and size <= gpu.REGISTERS and outer >= gpu.BUSY and _is_written_along(stages):
        return GridNest(n.outer, stages, rows=gpu.BLOCK // 2, threads=1, columns=True, held=size)
    while True:
        threads, most = 1, min(2 * gpu.HELD, gpu.REGISTERS // lanes)
        while threads * most < size or (
            threads * 2 < size
            and outer // lanes * threads < gpu.PROCESSORS * gpu.BLOCK
            and _neighbours([fast], lanes) * threads * 2 <= gpu.MOST
        ):
            threads *= 2
        rows = max(_neighbours([fast], lanes), gpu.BLOCK // 2 // threads) if threads > 1 else gpu.BLOCK // 2
        if lanes <= 4 or rows * threads * lanes * gpu.WIDEST * 2 <= gpu.SHARED:
            break
        lanes //= 2  # what threads tell each other has no room
    if rows * threads > gpu.MOST:
        rows = _fewer_neighbours(n, fast, rows, threads, lanes)
    if rows * threads > gpu.MOST:
        return None
    held, vector = -(-size // threads), fast if lanes > 1 else None
    return GridNest(n.outer, stages, vector, rows=rows, threads=threads, columns=True, lanes=lanes, held=held)


def _is_written_along(stages: Sequence[StageNest]) -> bool:
    """Whether all results run along a row: a thread that has a whole row writes it in vectors, which others read across
    memory by whole sectors."""
    loops = [s.inner[0] for s in stages if s.inner]
    return lanes_of_stores(loops[0], tuple(stages)) > 1


def _fewer_neighbours(n: Nest, fast: Var, rows: int, threads: int, lanes: int) -> int:
    """As few neighbours as let several blocks run at once, if these read whole lines still."""
    width = min((width for s in n.stages for i, width in s.accesses if distance(i, fast) == 1), default=1)
    while rows * threads > 2 * gpu.BLOCK and rows * lanes * width >= 2 * gpu.LINE:
        rows //= 2
    return rows


def _held_across(n: Nest, size: int, outer: int) -> GridNest | None:
    """A block has a few neighbouring outer indices, where some of what moves with them lies along them in memory, and
    the rest along the inner loops: neighbouring threads read and write parts of lines both ways."""
    moving = [(i, width) for s in n.stages for i, width in s.accesses if {*s.inner} & i.variables]
    moving = [(i, width) for i, width in dict.fromkeys(moving) if {*n.outer} & i.variables]
    along = {v: sum(width for i, width in moving if distance(i, v) == 1) for v in n.outer}
    fast = max(along, key=lambda v: along[v], default=None)
    if fast is None or not 0 < sum(width for _, width in moving) <= 4 * along[fast]:
        return None
    if not is_vectorizable(fast, n.stages):
        return None
    width = min(width for i, width in moving if distance(i, fast) == 1)
    stores = [s.address for stage in n.stages for s in stage.statements if s.address is not None]
    lanes = 1 if any(distance(i, fast) == 1 for i in stores) else min(8, gpu.BYTES // width)
    while lanes > 1 and not (
        is_whole(fast, lanes) and all(is_aligned(i, fast, lanes) for i, _ in moving if distance(i, fast) == 1)
    ):
        lanes //= 2
    rows = min(8, gpu.SECTOR // width) // lanes or 1
    while rows > 1 and (-(-size * rows // gpu.MOST) * lanes > gpu.REGISTERS or outer < gpu.PROCESSORS * rows * lanes):
        rows //= 2
    threads = gpu.WARP
    while threads < size and rows * threads < gpu.MOST and -(-size // threads) * lanes > gpu.REGISTERS // 2:
        threads *= 2
    held = -(-size // threads)
    if lanes * rows == 1 or held * lanes > gpu.REGISTERS or size < gpu.WARP or outer < gpu.BUSY // threads:
        return None
    loops = (*(v for v in n.outer if v != fast), fast)
    stages = _over_one_loop(n.stages, size, 1)
    vector = fast if lanes > 1 else None
    return GridNest(loops, stages, vector, rows=rows, threads=threads, columns=True, lanes=lanes, held=held)


def along_inner(n: Nest, outer: int, inner: int, cluster: int = 1) -> GridNest:
    """Neighbouring threads have neighbouring elements of the inner loops, each stage along its best; those of up to
    ``cluster`` blocks where one holds no row."""
    stages = [_with_best_last(s, n.outer) for s in n.stages]
    common, once = common_loop(stages), in_one_pass(stages)
    if common is not None:
        found = _held_across(n, common, outer) or _held(n.outer, stages, common, outer)
        if found is not None and (once is None or found.columns or not _is_better_read_again(found, once)):
            return found
        if found is None or once is not None:
            found = _held_by_many(n.outer, stages, common, cluster, once is not None)
        if found is not None and (once is None or not _is_better_read_again(found, once)):
            return found
    stages = stages if once is None else once
    possible = [_inner_lanes(s) for s in stages]
    alone = lone_loop(stages)
    if alone is not None:
        found = _unrolled(n.outer, stages, alone, max(possible), outer)
        if found is not None:
            return found
    lanes = min((k for k in possible if k > 1), default=1)
    while lanes > 1 and inner < lanes * 2:
        lanes //= 2
    chosen = [
        dataclasses.replace(s, vector=s.inner[-1]) if k >= lanes and _has_vectors(s) else s
        for s, k in zip(map(_with_pieces_as_one, stages) if lanes == 1 else stages, possible, strict=True)
    ]
    are_places = any(x.place is not None for s in stages for x in s.statements)
    threads = _sharing(n, stages, outer, inner, lanes)
    if are_places or (lanes == 1 and inner <= gpu.WINDOW):  # what every thread computes first, or tells others, is dear
        while 1 < threads <= gpu.WARP and threads * gpu.EACH // 2 > inner and threads * outer >= gpu.BUSY * 2:
            threads //= 2
    rows = _rows(threads, outer) if inner < gpu.LONG_ROW else max(1, gpu.FEW_WARPS * gpu.WARP // threads)
    found = GridNest(n.outer, tuple(chosen), rows=rows, threads=threads, lanes=lanes)
    return found if alone is None or are_places else rows_at_once(_without_a_loop(found, stages, alone))


def _sharing(n: Nest, stages: Sequence[StageNest], outer: int, inner: int, lanes: int) -> int:
    """How many threads share the inner loops of an outer index, and have several elements each."""
    threads, each, most, alone = 1, gpu.EACH, gpu.MOST, lone_loop(stages) is not None
    if alone and inner >= gpu.LONG_ROW:
        while most > gpu.BLOCK and outer * most // 2 >= gpu.BUSY * 3 // 4:
            most //= 2  # several small blocks do not all wait for their last threads at once
        each = max(1, gpu.READS // max(1, len({i for s in stages for i, _ in s.accesses if _is_of_rows(i, n, s)})))
    if alone and any(x.combiner == "sum_exp" for s in stages for x in s.statements):
        each = gpu.READS * 2  # each thread's greatest value and sum take long to become one with others'
        while most > gpu.WARP * 2 and most * lanes * each > inner and outer * most // 2 >= gpu.BUSY * 2:
            most //= 2
    while threads < most and threads * lanes < inner:
        if threads >= gpu.WARP and threads * max(lanes * each, gpu.ELEMENTS) >= inner and threads * outer >= gpu.BUSY:
            break
        threads *= 2
    return threads


def _without_a_loop(n: GridNest, stages: Sequence[StageNest], size: int) -> GridNest:
    """Rows of which a thread has few wide vectors, and some threads one less: a loop would wait for the last ones."""
    held = -(-size // (n.lanes * n.threads))
    if (
        n.lanes <= 2
        or size % n.lanes
        or held * n.lanes > gpu.REGISTERS
        or held == 1
        or size % (n.lanes * n.threads) == 0
    ):
        return n
    return dataclasses.replace(n, stages=_over_one_loop(stages, size, n.lanes), held=held)


def _is_better_read_again(held: GridNest, once: Sequence[StageNest]) -> bool:
    """Whether a row that threads could hold takes longer then than one that is read in one pass for what is reduced:
    where that is all, if it is long; and where a block's threads have no more registers, but a cache has the row.
    Exponentials that would be computed anew are dearer than that, too."""
    (v,), *others = (s.inner for s in once if s.inner)
    width = max(width for s in once for i, width in s.accesses if {*s.inner} & i.variables)
    bytes_ = cost.count([v]) * width
    if not others:
        return held.anew or bytes_ >= gpu.LONG_BYTES
    if held.anew:
        return not held.in_shared
    return held.threads == gpu.MOST and held.held * held.lanes >= gpu.REGISTERS and bytes_ <= gpu.NEAR


def is_read_from_its_end(n: GridNest, stage: StageNest, stride: int) -> bool:
    """Whether threads run a stage's loop from its end, ``stride`` elements of a row at a time: the last stage reads a
    long row again, of which caches have what has been read last."""
    (v, *others), before = stage.inner or (None,), n.stages[: n.stages.index(stage)]
    if v is None or others or not isinstance(v.size, int) or v.size % stride or stage is not n.stages[-1]:
        return False
    read = {(x.source, x.dtype) for s in before for x in _moving(s) if {*n.outer} & x.index[0].variables}
    return any(v.size * x.dtype.itemsize > gpu.NEAR for x in _moving(stage) if (x.source, x.dtype) in read)


def _is_of_rows(index: Index, n: Nest, s: StageNest) -> bool:
    """Whether an address is of a row of its own for each outer index."""
    return bool({*s.inner} & index.variables) and bool({*n.outer} & index.variables)


def _with_pieces_as_one(s: StageNest) -> StageNest:
    """Reduced loops as one where the last is of a short piece of memory, of which threads have no equal shares.

    Before: ``sum over i:3170, j:9 of x[108*i + j]``. After: ``sum over k:28530 of x[108*(k // 9) + k % 9]``.
    """
    while len(s.reduced) > 1 and not s.free and all(x.how is None and x.place is None for x in s.statements):
        *rest, a, b = s.reduced
        counted = [v.size for v in s.inner if isinstance(v.size, Index)]
        if not isinstance(b.size, int) or b.size >= gpu.LONG or any({a, b} & size.variables for size in counted):
            break
        if b.size & (b.size - 1) == 0:  # threads have equal shares of it
            break
        one = sized(f"{b.name}f", Index.of(a.size) * b.size)
        values = {a: Index.of(one) // b.size, b: Index.of(one) % b.size}
        s = dataclasses.replace(s, reduced=(*rest, one), statements=substituted(s.statements, values))
    return s


def _rows(threads: int, outer: int) -> int:
    """Outer indices of a block whose threads share them in groups."""
    block = gpu.BLOCK if outer * threads >= gpu.BUSY else 128
    block = min(block, gpu.WARP << max(0, (outer * threads // gpu.WARP - 1).bit_length()))
    return max(1, block // threads) if threads <= gpu.WARP else 1


def common_loop(stages: list[StageNest]) -> int | None:
    """The length of the one inner loop that all stages have, or none, if it is the same everywhere."""
    lengths = {v.size for s in stages for v in s.inner}
    alone = all(len(s.inner) <= 1 and all(x.place is None and x.how is None for x in s.statements) for s in stages)
    size = lengths.pop() if len(lengths) == 1 else None
    many = sum(bool(s.inner) for s in stages) > 1
    return size if alone and many and isinstance(size, int) else None


def lone_loop(stages: Sequence[StageNest]) -> int | None:
    """The length of a kernel's one inner loop, where it is reduced and of a length that is known."""
    loops = [s for s in stages if s.inner]
    if len(loops) != 1 or loops[0].free or len(loops[0].reduced) != 1 or any(s.how for s in loops[0].statements):
        return None
    (v,) = loops[0].reduced
    return v.size if isinstance(v.size, int) else None


def _held(outer: tuple[Var, ...], stages: list[StageNest], size: int, count: int) -> GridNest | None:
    """A nest whose threads keep their elements of a row in registers; none if these are too many."""
    lanes = min(_inner_lanes(s) for s in stages if s.inner)
    if size <= gpu.SHORT and count >= gpu.BUSY:  # vectors as they are written: what is read may be so lane by lane
        lanes = max(lanes, min((lanes_of_stores(s.inner[0], (s,)) or 8 for s in stages if s.inner), default=1))
    while lanes > 1 and size % lanes:
        lanes //= 2
    threads, least = 1, gpu.WARP if lanes > 2 else _least_threads(stages, size)
    while threads < gpu.MOST and threads * lanes < size:
        vectors = -(-size // (threads * lanes))
        if threads >= least and threads * max(lanes * gpu.HELD, gpu.NARROW) >= size and threads * count >= gpu.BUSY:
            break
        if threads == gpu.WARP and vectors <= (gpu.ALONE if lanes > 2 else gpu.SEVERAL) * (2 if _fills(count) else 1):
            break
        threads *= 2
    held = -(-size // (threads * lanes))
    if (threads == 1 and held > 1) or held > max(2 * gpu.HELD, gpu.NARROW) or held * lanes > gpu.REGISTERS:
        return None
    renamed = _over_one_loop(stages, size, lanes)
    return GridNest(outer, renamed, rows=_rows(threads, count), threads=threads, lanes=lanes, held=held)


def _held_by_many(
    outer: tuple[Var, ...], stages: list[StageNest], size: int, most: int, has_exponentials: bool
) -> GridNest | None:
    """A nest in which all threads that a block may have, or those of a cluster's blocks, keep a long row in registers,
    or in shared memory; none if these are too many.

    A multiprocessor must have much of the rows under way. So threads have twice as many elements of a row that is read
    in 16 bits, and keep nothing but what they have read of it.
    """
    lanes = min(_inner_lanes(s) for s in stages if s.inner)
    told = {x.body.dtype.itemsize for s in stages for x in s.statements if x.combiner}
    if lanes <= 2 or size % lanes or not told or not told <= gpu.TOLD:
        return None
    read = _bytes_of_rows(outer, stages)
    anew = read == 2 and read * lanes == gpu.BYTES
    if read < gpu.WORD and not anew:
        return None
    width = _bytes_of_rows(outer, stages[1:])
    if width * lanes == gpu.BYTES and (has_exponentials or read > width):
        found = _held_in_shared(outer, stages, size, width, most, has_exponentials)
        if found is not None:
            return found
    threads = 1 << (-(-size // (gpu.REGISTERS * (1 + anew))) - 1).bit_length()
    blocks = max(1, min(most, threads // (gpu.MOST if read <= gpu.WORD else gpu.MOST // 2)))
    if threads // blocks > gpu.MOST:
        return None
    held, renamed = -(-size // (threads * lanes)), _over_one_loop(stages, size, lanes)
    return GridNest(outer, renamed, rows=1, threads=threads, lanes=lanes, held=held, blocks=blocks, anew=anew)


def _held_in_shared(
    outer: tuple[Var, ...], stages: list[StageNest], size: int, width: int, most: int, has_exponentials: bool
) -> GridNest | None:
    """A nest in which the shared memory of a block, or of a cluster's blocks, keeps a row between its stages: threads
    need few registers then, and two blocks of them run on a multiprocessor. None where registers are as fast.

    Of rows of exponentials, those that are as long as several blocks' memory are read again in less time if a cache has
    those that are under way, and else threads have more of a row: fewer of them tell each other what they found.

    Args:
        width: Bytes of an element that later stages read.
        most: Blocks of a cluster, at most: a GPU without clusters has no such shared memory for one block either.
    """
    lanes, block, each = gpu.BYTES // width, gpu.MOST, gpu.KEPT
    if has_exponentials and size * width > block * each:
        if width > 2 or size * width <= 2 * gpu.NEAR:
            return None
        block, each = block // 2, each * 2
    threads = 1 << (-(-size * width // each) - 1).bit_length()
    blocks = threads // block
    if most == 1 or not (1 if has_exponentials else 2) <= blocks <= most:
        return None
    held, renamed = -(-size // (threads * lanes)), _over_one_loop(stages, size, lanes)
    nest = GridNest(outer, renamed, rows=1, threads=threads, lanes=lanes, held=held, blocks=blocks)
    return dataclasses.replace(nest, anew=True, in_shared=True, resident=2)


def _moving(s: StageNest) -> Iterator[Load]:
    """What a stage reads along its inner loops."""
    for x in (x for t in s.statements for x in walk(*t.expressions) if isinstance(x, Load) and x.index):
        if {*s.inner} & x.index[0].variables:
            yield x


def _bytes_of_rows(outer: Sequence[Var], stages: Sequence[StageNest]) -> int:
    """What is read for an element of a row, of tensors that each outer index has a row of."""
    found: dict[tuple[str, Index], int] = {}
    for s in stages:
        for x in _moving(s):
            if {*outer} & x.index[0].variables:
                names = {v: Index.of(Var("e", v.size)) for v in s.inner}
                found[x.source, x.index[0].substitute(names)] = x.dtype.itemsize
    return sum(found.values())


def _least_threads(stages: list[StageNest], size: int) -> int:
    """Threads that read a row together at least, so that neighbours read whole sectors: two where rows are as short as
    one, and tell each other little then."""
    row = size * max(width for s in stages for i, width in s.accesses if {*s.inner} & i.variables)
    return 2 if row <= gpu.SECTOR else 4 if row <= 2 * gpu.SECTOR else gpu.SECTOR // 4


def _fills(rows: int) -> bool:
    """Whether so many warps are several in every multiprocessor."""
    return rows >= gpu.PROCESSORS * 8


def _unrolled(outer: tuple[Var, ...], stages: list[StageNest], size: int, lanes: int, count: int) -> GridNest | None:
    """A nest whose threads read all of their elements of a row at once, where few threads have several each: rows that
    no wide vectors fit, and those of which a place is wanted."""
    while lanes > 1 and size % lanes:
        lanes //= 2
    places = any(x.place is not None for s in stages for x in s.statements)
    (v,) = (w for s in stages for w in s.inner)
    width = max((width for s in stages for i, width in s.accesses if v in i.variables), default=1)
    vectors = -(-size // lanes)
    threads = 1
    if count < gpu.BUSY or size * width > gpu.SECTOR * (1 if lanes == 1 else 2):
        if lanes > 2 and not places:
            return _with_parts_of_warps(outer, stages, size, lanes, count)
        while threads < min(gpu.WARP, vectors) and (
            threads * 2 * max(1, gpu.LEAST // lanes) <= vectors or threads * count < gpu.BUSY
        ):
            threads *= 2
    held = -(-vectors // threads)
    if held * lanes > gpu.MANY:
        return None
    renamed = _over_one_loop(stages, size, lanes)
    return GridNest(outer, renamed, rows=_rows(threads, count), threads=threads, lanes=lanes, held=held)


def _with_parts_of_warps(
    outer: tuple[Var, ...], stages: list[StageNest], size: int, lanes: int, count: int
) -> GridNest | None:
    """A nest in which a warp has several of many short rows, of tensors that lie alike: threads have a few vectors of
    one, which are under way together, and tell each other little. None where that keeps no GPU busy.
    """
    moving = {(i, width) for s in stages for i, width in s.accesses if {*s.inner} & i.variables}
    vectors = size // lanes
    threads = max(gpu.LINE // gpu.BYTES, 1 << max(0, (-(-vectors // gpu.HELD) - 1).bit_length()))
    is_whole = len(moving) == 1 and all(width * lanes == gpu.BYTES for _, width in moving) and vectors % threads == 0
    if not is_whole or threads >= gpu.WARP or threads * count < gpu.BUSY * 2:
        return None
    renamed = _over_one_loop(stages, size, lanes)
    held = vectors // threads
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
    _, v = best_loop(s.inner, (s,), outer)
    if v is None or any(x.place is not None for x in s.statements):
        return s
    return dataclasses.replace(s, free=_last(s.free, v), reduced=_last(s.reduced, v))


def _has_vectors(s: StageNest) -> bool:
    return bool(s.inner) and is_vectorizable(s.inner[-1], (s,))


def _inner_lanes(s: StageNest) -> int:
    """Lanes of vectors along the innermost loop of a stage; 1 if there are none."""
    if not _has_vectors(s):
        return 1
    v = s.inner[-1]
    lanes = lanes_along(v, (s,))
    while lanes > 1 and len(s.inner) > 1 and not is_whole(v, lanes):
        lanes //= 2
    return lanes


def _last(loops: tuple[Var, ...], v: Var) -> tuple[Var, ...]:
    return loops if v not in loops else (*(w for w in loops if w != v), v)
