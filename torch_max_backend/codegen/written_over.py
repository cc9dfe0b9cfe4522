"""Which tensors a kernel may write over another one: what is read there is over by then, or is the very element."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from torch_max_backend.loops.expr import Load, loads, walk
from torch_max_backend.loops.program import Call
from torch_max_backend.schedule.nest import Nest
from torch_max_backend.schedule.plan import Schedule


def stored_in_place(plan: Schedule) -> dict[str, str]:
    """Definitions that a kernel writes into an input, as the program's stores want it: definition to input.

    It does if every read of the input comes before, or reads the very element that is written.
    """
    found: dict[str, str] = {}
    outputs = {name for name, _ in plan.program.outputs}
    for target, source in plan.program.stores:
        layout, given = plan.layouts.get(source), plan.layouts[target]
        if source in outputs or source in plan.program.inputs or source in found or layout is None:
            continue
        if (layout.sizes, layout.strides) == (given.sizes, given.strides) and reads_are_over(
            plan.steps, target, source
        ):
            found[source] = target
    return found


def over_last_uses(
    steps: Sequence[Nest | Call], last: Mapping[str, int], wanted: Set[str]
) -> Iterator[tuple[Nest, str, str]]:
    """Those of the ``wanted`` that a nest writes where it reads what no later step does, element by element.

    Args:
        last: The last step that reads or writes each tensor.

    Yields:
        The nest, such a tensor, and the one that it could be written over if reads are over by then.
    """
    for k, step in enumerate(steps):
        if isinstance(step, Call):
            continue
        for s in (s for stage in step.stages for s in stage.statements):
            if s.name not in wanted or s.how is not None or s.address is None:
                continue
            for x in loads(*s.expressions):
                if x.index == (s.address,) and last.get(x.source) == k:
                    yield step, s.name, x.source


def reads_are_over(steps: Iterable[Nest | Call], target: str, source: str) -> bool:
    """Whether what reads ``target`` comes before ``source`` is written, or reads the very element that is."""
    written = False
    for step in steps:
        if isinstance(step, Call):
            if written and target in step.reads():
                return False
            if source in [r.name for r in step.results if r]:
                return False
            continue
        here = next(
            (
                (i, j)
                for i, stage in enumerate(step.stages)
                for j, s in enumerate(stage.statements)
                if s.name == source and s.address is not None
            ),
            None,
        )
        for i, stage in enumerate(step.stages):
            for j, s in enumerate(stage.statements):
                for x in walk(*s.expressions):
                    if not isinstance(x, Load) or x.source != target or not x.index:
                        continue
                    if written or (here is not None and (i, j) > here):
                        return False
                    address = step.stages[here[0]].statements[here[1]].address if here else None
                    if here is not None and x.index[0] != address:
                        return False
        written = written or here is not None
    return written


def copies_onto_itself(nest: Nest, in_place: dict[str, str]) -> bool:
    """Whether a nest writes into an input what is there: the elements that a scatter into it leaves as they are."""
    for stage in nest.stages:
        for s in stage.statements:
            x = s.body
            if s.how is not None or s.combiner or not isinstance(x, Load) or s.address is None:
                return False
            if in_place.get(s.name) != x.source or x.index != (s.address,):
                return False
    return True
