"""What is known of a kernel's loops: how long they are, whether what is left of one may be a masked vector."""

from __future__ import annotations

from torch_max_backend.codegen.expression_writer import reach
from torch_max_backend.loops.expr import Checked, Load, Scalar, variables, walk
from torch_max_backend.loops.index import Computed, Index, Var
from torch_max_backend.schedule.nest import StageNest
from torch_max_backend.schedule.vectors import GATHERED


def fits(v: Var, count: int) -> bool:
    """Whether a loop may have ``count`` iterations or more."""
    return not isinstance(v.size, int) or v.size >= count


def divides(v: Var, count: int) -> bool:
    """Whether ``count`` certainly divides the number of iterations."""
    return Index.of(v.size) % count == 0


def may_be_empty(v: Var) -> bool:
    """Whether a loop of symbolic length may run no time."""
    return isinstance(v.size, Index) and v.size.is_fixed and v.size.bounds[0] < 1


def can_be_masked(v: Var, *stages: StageNest) -> bool:
    """Whether memory along ``v`` is read and written in equal steps, or does not depend on it.

    An index that is computed may be out of range in the lanes that do not count: those of reads are left out by
    processors, where elements are so wide that these gather them.
    """
    for stage in stages:
        for s in stage.statements:
            if any(isinstance(x, Checked) for x in walk(*s.expressions)):
                return False
            read = [x for x in walk(*s.expressions) if isinstance(x, Load)]
            places = [i for x in read if x.dtype.itemsize < GATHERED for i in x.index]
            places += [s.address] if s.address is not None else []
            for index in places:
                if any(isinstance(a, Computed) and _may_move(a.value, v) for a in index.atoms):
                    return False
                if any(v in reach(atom) for atom, _ in index.terms if not isinstance(atom, Var)):
                    return False
    return True


def _may_move(x: Scalar, v: Var) -> bool:
    """Whether an expression depends on a loop, as far as is known: a value in a register may."""
    return v in variables(x) or any(isinstance(y, Load) and not y.index for y in walk(x))


def is_short(stage: StageNest, rows: int = 1) -> bool:
    """Whether so little is computed for an element that additions to one accumulator would wait for each other."""
    return sum(sum(1 for _ in walk(s.body)) for s in stage.statements) <= 24 * rows
