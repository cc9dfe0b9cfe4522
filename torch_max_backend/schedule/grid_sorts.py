"""Sorts on a GPU: how many threads share a row, and how many rows a block has."""

from __future__ import annotations

from torch_max_backend.loops.expr import loads
from torch_max_backend.loops.program import Sort
from torch_max_backend.schedule import cost
from torch_max_backend.schedule import grid_limits as gpu
from torch_max_backend.schedule.grid_memory import best_loop
from torch_max_backend.schedule.grid_nest import GridNest
from torch_max_backend.schedule.nest import Nest, OwnRow, Statement, distance, row_of

MOST_HELD, LEAST_HELD = 16, 4
"""Elements of a thread: comparing those costs no exchange, and as many are in registers."""
ROW = 128
"""Elements of a row from which a thread has more than ``MOST_HELD // 2``."""
THREADS = 512
"""Threads of a block, at most: each has many registers."""
PLACE = 4
"""Bytes of a place that is beside its key."""


def sorts(n: Nest) -> GridNest:
    """Rows of a power of two of elements, the last of which may be none. A part of a warp, a warp or a block has one.

    Where memory runs across rows, a block has neighbouring ones, so that its threads read neighbours in turns.
    """
    (stage,) = n.stages
    (v,) = stage.inner
    across, fast = best_loop(n.outer, n.stages, n.outer)
    along, _ = best_loop(stage.inner, n.stages, n.outer)
    is_across = fast is not None and across > along
    outer = max(1, cost.count(n.outer))
    size = 1 << max(1, (cost.count([v]) - 1).bit_length())
    held = min(size, MOST_HELD if size >= ROW else MOST_HELD // 2)
    while held > LEAST_HELD and outer * (size // held) < gpu.BUSY // 2 and size // held < THREADS:
        held //= 2
    threads = size // held
    (sort,) = (s for s in stage.statements if isinstance(s.how, Sort))
    loops, rows = n.outer, max(1, gpu.BLOCK // threads)
    if is_across and fast is not None:
        loops = (*(w for w in n.outer if w != fast), fast)
        rows = max(rows, gpu.SECTOR // min(width for i, width in stage.accesses if distance(i, fast) == 1))
    elif threads > gpu.WARP:
        rows = 1  # its threads wait for no others
    least, room = max(1, gpu.WARP // threads), row_bytes(sort, threads, held, is_across)
    while rows > least and (rows * room > gpu.SHARED or rows * threads > THREADS or outer < gpu.PROCESSORS * rows):
        rows //= 2
    name = row_of(sort.name)
    is_read = any(x.source == name for s in stage.statements for x in loads(*s.expressions))
    own = (OwnRow(name, sort.dtype, int(v.size)),) if is_read else ()
    return GridNest(loops, n.stages, rows=rows, threads=threads, columns=is_across, held=held, own=own)


def pitch(threads: int, held: int, is_across: bool) -> int:
    """Elements of shared memory from a row to the next one.

    There is a gap behind each thread's elements, and behind rows that are read in turns: what threads touch at once
    lies in different banks.
    """
    return threads * (held + 1) + int(is_across and threads % 2 == 0)


def row_bytes(s: Statement, threads: int, held: int, is_across: bool) -> int:
    """The shared memory of a row."""
    assert isinstance(s.how, Sort)
    return pitch(threads, held, is_across) * (s.body.dtype.itemsize + (PLACE if s.how.gives_places else 0))
