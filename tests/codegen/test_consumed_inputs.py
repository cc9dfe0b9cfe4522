"""Programs that free some of their inputs, and what they need of memory then."""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence

import pytest
import torch
from torch import fx

from tests.support.grid_emulator import emulated
from tests.support.grid_programs import SMALL_GPU
from tests.support.loop_programs import LoopProgram, random_program
from torch_max_backend.codegen import program_writer
from torch_max_backend.codegen.program_writer import WrittenProgram, write_program
from torch_max_backend.loops.program import Call
from torch_max_backend.partition.region import Port
from torch_max_backend.schedule.machine import GPU
from torch_max_backend.schedule.plan import schedule

pytestmark = pytest.mark.any_runner("loop programs, which come after the partition")


def written(made: LoopProgram, consumed: Sequence[int]) -> WrittenProgram:
    """A random program that consumes its inputs at these positions."""
    region, graph = made.region(), fx.Graph()
    for k, x in enumerate(made.inputs):
        node = graph.placeholder(f"x{k}")
        node.meta["val"] = x
        region.inputs.append(Port(node, tuple(range(x.dim())), consumed=k in consumed))
    return write_program(region, schedule(made.program, made.machine), [False] * len(made.inputs), 0)


def not_stored(made: LoopProgram) -> list[int]:
    targets = {target for target, _ in made.program.stores}
    return [k for k, name in enumerate(made.program.inputs) if name not in targets]


@pytest.mark.parametrize("alone", [1, 1 << 20], ids=["alone", "in a block"])
@pytest.mark.parametrize("seed", range(12))
def test_results_are_those_of_the_interpreter(monkeypatch: pytest.MonkeyPatch, seed: int, alone: int) -> None:
    monkeypatch.setattr(program_writer, "ALONE", alone)
    made = random_program(seed)
    made.machine = SMALL_GPU
    consumed = not_stored(made)
    program = written(made, consumed)
    assert ("block_of" in program.spec.source) <= (alone > 1)
    inputs = made.fresh()
    held = [inputs[k] for k in consumed]
    kept = [x for k, x in enumerate(inputs) if k not in consumed]
    outputs = emulated(program)(*kept, *([held] if consumed else []))
    assert not held
    made.check([*outputs, *inputs], made.expected(), "with consumed inputs")


def first_with_calls() -> LoopProgram:
    """A program that ends with a kernel behind a library call which reads what a kernel has made of an input."""
    for seed in range(200):
        made = random_program(seed)
        made.machine = GPU
        steps = made.program.steps
        if any(isinstance(s, Call) for s in steps) and len(made.inputs) > 1 and not made.program.stores:
            return made
    raise AssertionError("no program has a library call")


def test_an_input_is_deleted_after_its_last_reader() -> None:
    made = first_with_calls()
    lines = written(made, range(len(made.inputs))).spec.source.splitlines()
    begin = lines.index("    held.clear()")
    for name in made.program.inputs:
        deleted = [k for k, line in enumerate(lines) if line.strip() == f"del {name}"]
        readers = [k for k, line in enumerate(lines) if re.search(rf"\b{name}\b", line) and k not in deleted]
        assert len(deleted) == 1 and max(readers) < deleted[0]
        between = lines[max(readers) + 2 : deleted[0]]
        is_read = max(readers) > begin
        assert not is_read or not any(line.strip().startswith(("words", "segment")) for line in between)
    assert lines[0] == "def run(held):"


def test_what_is_freed_makes_room() -> None:
    made = first_with_calls()
    kept, consumed = (written(made, which).totals for which in ((), range(len(made.inputs))))
    assert max(int(t.constant) for t in consumed) <= max(int(t.constant) for t in kept)


def test_inputs_that_begin_anywhere_are_copied() -> None:
    made = first_with_calls()
    program = written(made, [0])
    moved = [torch.empty(x.numel() + 1, dtype=x.dtype)[1:].as_strided(x.shape, x.stride()) for x in made.inputs]
    for x, y in zip(moved, made.inputs, strict=True):
        x.copy_(y)
    outputs = emulated(program)(*moved[1:], moved[:1])
    made.check([*outputs, *made.inputs], made.expected(), "with inputs that begin anywhere")


def test_nobody_but_the_caller_holds_what_is_consumed() -> None:
    made = first_with_calls()
    run = emulated(written(made, range(len(made.inputs))))
    held = made.fresh()
    alive = [weakref.ref(x) for x in held]
    run(held)
    assert not any(x() is not None for x in alive)
