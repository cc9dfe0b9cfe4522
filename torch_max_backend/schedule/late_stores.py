"""What is written into an input that is still read waits until it is not, so that it can be written there at once."""

from __future__ import annotations

import dataclasses

from torch_max_backend.loops.program import Definition, Program, Step, reads


def with_late_stores(program: Program) -> Program:
    """Move what is only stored behind the last step that reads the input it is stored into.

    Before: ``t0[] = add(n[], 1)``, ``t1[i] = x[i, n[]]``, store ``t0`` into ``n``, where a copy of ``n`` would be
    needed. After: ``t1``, and then ``t0``, which a kernel writes into ``n``.
    """
    leaving, wanted = {name for name, _ in program.outputs}, {source: target for target, source in program.stores}
    last: dict[str, int] = {}
    for k, step in enumerate(program.steps):
        last.update(dict.fromkeys(reads(step), k))
    moved: dict[int, list[Definition]] = {}
    steps: list[Step] = []
    for k, step in enumerate(program.steps):
        target = wanted.get(step.name) if isinstance(step, Definition) else None
        if isinstance(step, Definition) and target is not None and step.name not in {*leaving, *last}:
            end = last.get(target, -1)
            if end > k:
                moved.setdefault(end, []).append(step)
                continue
        steps += [step, *moved.get(k, [])]
    return dataclasses.replace(program, steps=steps)
