"""Transposes on a GPU: a block reads along one loop what it writes along another, and shared memory turns it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from torch_max_backend.loops.expr import Const, Guarded, Load, Op, Scalar, inside, variables, walk
from torch_max_backend.loops.index import Atom, Div, Index, Least, Mod, Var
from torch_max_backend.schedule import cost
from torch_max_backend.schedule import grid_limits as gpu
from torch_max_backend.schedule.grid_memory import is_aligned, is_apart, is_whole
from torch_max_backend.schedule.nest import Nest, StageNest, distance, runs_on, substituted


@dataclass(frozen=True)
class Tile:
    """What a block has of two outer loops.

    ``fast`` is the loop along which stores are neighbours, ``across`` the one along which loads are. Each has a side,
    the indices of it in a block, and lanes, the elements that a thread stores or loads at once.
    """

    fast: Var
    across: Var
    sides: tuple[int, int]
    lanes: tuple[int, int] = (1, 1)

    def side(self, v: Var) -> int:
        """How many indices of an outer loop a block has."""
        return {self.fast: self.sides[0], self.across: self.sides[1]}.get(v, 1)

    @property
    def is_large(self) -> bool:
        """Whether it keeps a block's threads busy."""
        return self.sides[0] * self.sides[1] >= gpu.TILE * gpu.TILE // 2

    def pitch(self, width: int) -> int:
        """How far apart in shared memory, in elements of so many bytes, neighbours along ``fast`` are.

        Neighbouring threads then write to different banks as well as read from them.
        """
        step, around = self.lanes[0] * width, gpu.WARP * gpu.BANK
        rows = -(-gpu.WARP // max(1, self.sides[0] // self.lanes[0]))  # indices of ``across`` that a warp stores
        apart = -(-max(gpu.BANK, rows * width) // step)
        return self.sides[1] + (apart - self.sides[1]) % (around // step)

    def __str__(self) -> str:
        sides = " x ".join(map(str, self.sides))
        return f"tiles of {self.fast} and {self.across}, {sides}, {self.lanes[1]} lanes read, {self.lanes[0]} written"


def tile_of(n: Nest, fast: Var, outer: int) -> Tile | None:
    """The tile of a nest without inner loops, if much is read along a loop that is not the one of its stores."""
    (stage,) = n.stages
    if outer < gpu.LARGE or cost.count([fast]) < gpu.NARROWEST:
        return None
    possible = [v for v in n.outer if v != fast and cost.count([v]) >= gpu.NARROWEST]
    found = [(_bytes(stage, n, fast, v), k, v) for k, v in enumerate(possible)]
    most, _, across = max(found, key=lambda x: x[:2], default=(0, 0, None))
    written = sum(s.dtype.itemsize for s in stage.statements if s.address is not None) * cost.count(n.outer)
    return None if across is None or most * 4 < written else _tile(stage, fast, across)


def _tile(stage: StageNest, fast: Var, across: Var) -> Tile | None:
    """The tile of two loops, if a block has room for what passes through it."""
    turned = list(turned_by(stage, fast, across))
    sides = _sides(fast, across, max(x.dtype.itemsize for x in turned))
    tile = Tile(fast, across, sides, (_lanes_stored(stage, fast, sides[0]), _lanes_loaded(turned, across, sides[1])))
    taken = sum(x.dtype.itemsize * tile.pitch(x.dtype.itemsize) * sides[0] for x in turned)
    return tile if taken <= gpu.SHARED else None


def with_long_sides(n: Nest, tile: Tile) -> tuple[Nest, Tile]:
    """A nest and its tile, with a short side and the loop around it as one where memory runs on between them.

    Before: ``y[32*i + 8*j + k] = x[i + 100*j + 400*k]`` in tiles of ``k`` and ``i``, each of which writes 16 bytes here
    and there. After: ``y[32*i + k] = x[i + 100*(k // 8) + 400*(k % 8)]``.
    """
    (stage,) = n.stages
    if any(isinstance(x, Guarded) for s in stage.statements for x in walk(s.body)):
        return n, tile
    passed = list(turned_by(stage, tile.fast, tile.across))
    turned = [x.index[0] for x in walk(*passed) if isinstance(x, Load) and _is_turned(x, tile.fast, tile.across)]
    stores = [s.address for s in stage.statements if s.address is not None]
    for v, running in ((tile.fast, stores), (tile.across, turned)):
        around = next((w for w in n.outer if w not in (tile.fast, tile.across) and _runs_on(running, w, v)), None)
        if around is None or cost.count([v]) >= gpu.TILE:
            continue
        longer = _joined(n, around, v)
        one = longer.outer[-1]
        sides = (one, tile.across) if v == tile.fast else (tile.fast, one)
        found = _tile(longer.stages[0], *sides)
        if found is not None:
            return with_long_sides(longer, found)
    return n, tile


def _runs_on(addresses: list[Index], around: Var, v: Var) -> bool:
    """Whether memory runs on from one loop to the one around it, and both are of lengths that are known."""
    known = isinstance(around.size, int) and isinstance(v.size, int)
    return known and around.size != 1 and all(runs_on(i, around, v) for i in addresses)


def _joined(n: Nest, around: Var, v: Var) -> Nest:
    """A nest with two loops as one, the last."""
    one = Var(f"{v.name}j", int(around.size) * int(v.size))
    values = {around: Index.of(one) // v.size, v: Index.of(one) % v.size}
    (stage,) = n.stages
    stage = dataclasses.replace(stage, statements=substituted(stage.statements, values))
    return dataclasses.replace(n, outer=(*(w for w in n.outer if w not in (around, v)), one), stages=(stage,))


def with_parts_apart(n: Nest, fast: Var) -> Nest:
    """What a condition chooses in parts of which each can pass through shared memory with the condition.

    Before: ``(max(x[j, i], y[i, j]) if j < 8 else 0)``. After: ``(max(x[j, i] if j < 8 else 0, y[i, j]) if j < 8 else
    0)``, since only ``x`` is read across.
    """
    (stage,) = n.stages
    done: dict[Scalar, Scalar] = {}

    def again(x: Scalar) -> Scalar:
        if x not in done:
            done[x] = one(x)
        return done[x]

    def one(x: Scalar) -> Scalar:
        if isinstance(x, Guarded):
            sides = _apart(x.value, fast, x.condition, True, {}), _apart(x.other, fast, x.condition, False, {})
            return Guarded(x.condition, *sides, x.dtype) if _reads(x, fast) == {True, False} else x
        return dataclasses.replace(x, args=tuple(map(again, x.args))) if isinstance(x, Op) else x

    statements = tuple(dataclasses.replace(s, body=again(s.body)) for s in stage.statements)
    return dataclasses.replace(n, stages=(dataclasses.replace(stage, statements=statements),))


def _apart(x: Scalar, fast: Var, condition: Scalar, holds: bool, done: dict[Scalar, Scalar]) -> Scalar:
    """An expression whose largest parts that read nothing along ``fast``, but across, are there if a condition holds,
    or if it does not."""
    reads = _reads(x, fast)
    if True not in reads or isinstance(x, Guarded):
        return x
    if reads == {True}:
        nothing = Const(0, x.dtype)
        return Guarded(condition, x, nothing, x.dtype) if holds else Guarded(condition, nothing, x, x.dtype)
    if not isinstance(x, Op):
        return x
    if x not in done:  # what is shared is taken apart once
        done[x] = dataclasses.replace(x, args=tuple(_apart(y, fast, condition, holds, done) for y in x.args))
    return done[x]


def _reads(x: Scalar, fast: Var) -> set[bool]:
    """Whether loads of an expression read across ``fast``: true for some, false for those along it."""
    steps = [distance(y.index[0], fast) for y in walk(x) if isinstance(y, Load) and y.index]
    return {step > 1 for step in steps if step}


def turned_by(stage: StageNest, fast: Var, across: Var) -> Iterator[Scalar]:
    """What passes through shared memory: loads in steps of one along ``across``, what is computed of several such and
    takes less room than they do, and what is read if a condition holds, where it has such loads and none along
    ``fast``; or else parts of that, with the same condition."""
    own = {s.name for s in stage.statements}
    seen: set[Scalar] = set()

    def is_turned(x: Guarded) -> bool:
        loads = [y for y in walk(x) if isinstance(y, Load)]
        along = [y for y in loads if y.index and distance(y.index[0], fast) == 1]
        reads = any(_is_turned(y, fast, across) for y in loads)
        return reads and not along and not any(y.source in own for y in loads)

    def is_result(x: Op) -> bool:
        loads = {y for y in walk(x) if isinstance(y, Load)}
        moving = [y for y in loads if {fast, across} & variables(y)]
        known = x.dtype is not torch.bool and all(y.index and y.source not in own for y in loads)
        is_smaller = x.dtype.itemsize < sum(y.dtype.itemsize for y in moving)
        return known and is_smaller and len(moving) > 1 and all(_is_turned(y, fast, across) for y in moving)

    def found(x: Scalar) -> Iterator[Scalar]:
        if x in seen:
            return
        seen.add(x)
        if isinstance(x, Op) and is_result(x):
            yield x
            return
        if isinstance(x, Load):
            if _is_turned(x, fast, across):
                yield x
        elif isinstance(x, Guarded):
            parts = [y for y in walk(x.value, x.other) if isinstance(y, Guarded) and y.condition == x.condition]
            yield from [x] if is_turned(x) else filter(is_turned, parts)
        else:
            for y in inside(x):
                yield from found(y)

    for s in stage.statements:
        yield from found(s.body)


def _is_turned(x: Load, fast: Var, across: Var) -> bool:
    """Whether a load's address is a sum of steps of one along ``across``, of others along ``fast``, and of what other
    loops add. Loops that a reshape has made one have quotients and remainders, what is reflected the least of two."""
    if not x.index:
        return False
    index = x.index[0]
    known = all(isinstance(atom, Var) or _is_of_loops(atom) for atom, _ in index.terms)
    apart = distance(index, fast) > 1 or (index.stride(fast) is None and is_apart(index, fast))
    return known and distance(index, across) == 1 and apart


def _is_of_loops(atom: Atom) -> bool:
    """Whether an atom is a quotient, a remainder or the least of loops' indices."""
    if not isinstance(atom, Div | Mod | Least):
        return False
    return all(isinstance(a, Var | Div | Mod | Least) for a in Index.of(atom).atoms)


def _bytes(stage: StageNest, n: Nest, fast: Var, across: Var) -> int:
    """The bytes of what passes through shared memory."""
    return sum(
        x.dtype.itemsize * cost.count(w for w in n.outer if w in variables(x)) for x in turned_by(stage, fast, across)
    )


def _sides(fast: Var, across: Var, width: int) -> tuple[int, int]:
    """Indices of both loops in a block: all of a short one, and then more of the other."""
    most, side = gpu.TILE_BYTES // max(2, width), gpu.TILE * (2 if width <= 2 else 1)
    if cost.count([fast]) < side:
        first = cost.count([fast])
        return first, _share(across, _long_side(most // first))
    if cost.count([across]) < most // side:
        second = cost.count([across])
        return _share(fast, _long_side(most // second)), second
    return _share(fast, side), _share(across, most // side)


def _long_side(most: int) -> int:
    return min(gpu.LONGEST_SIDE, max(gpu.WARP, most // gpu.WARP * gpu.WARP))


def _share(v: Var, most: int) -> int:
    """How many indices of a loop a block has, if no more than so many: blocks have as many of them each, or nearly."""
    if not isinstance(v.size, int):
        return most
    if v.size <= most:
        return v.size
    each = -(-v.size // -(-v.size // most))
    return min(most, -(-each // gpu.BANK) * gpu.BANK)


def _lanes_stored(stage: StageNest, fast: Var, side: int) -> int:
    stores = [(s.address, s.dtype.itemsize) for s in stage.statements if s.address is not None]
    lanes = gpu.BANK // min(width for _, width in stores) if all(distance(i, fast) == 1 for i, _ in stores) else 1
    while lanes > 1 and not (_fits(fast, side, lanes) and all(is_aligned(i, fast, lanes) for i, _ in stores)):
        lanes //= 2
    return max(1, lanes)


def _lanes_loaded(turned: list[Scalar], across: Var, side: int) -> int:
    loads = [y for x in turned for y in walk(x) if isinstance(y, Load) and y.index and across in variables(y)]
    lanes = gpu.BANK // min(y.dtype.itemsize for y in loads)
    while lanes > 1 and not (
        _fits(across, side, lanes)
        and all(distance(y.index[0], across) == 1 and is_aligned(y.index[0], across, lanes) for y in loads)
    ):
        lanes //= 2
    return max(1, lanes)


def _fits(v: Var, side: int, lanes: int) -> bool:
    return side % lanes == 0 and is_whole(v, lanes)
