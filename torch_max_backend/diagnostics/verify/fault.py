"""Which stage of the loop compiler makes a part of a region wrong: a rule, a pass of the schedule, or a kernel's code.

The part's loops are run by the plain interpreter, as the rules make them and after each pass. What is right after the
last one is wrong in the code that is written of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from torch_max_backend.compile.programs import Program, programs_of
from torch_max_backend.diagnostics.verify.smallest import Compiled, References, Wrong
from torch_max_backend.loops.interpreter import Interpreter
from torch_max_backend.loops.program import Call
from torch_max_backend.loops.program import Program as LoopProgram
from torch_max_backend.options import Options
from torch_max_backend.partition.partitioner import partition
from torch_max_backend.partition.region import Region
from torch_max_backend.schedule.machine import CPU, GPU
from torch_max_backend.schedule.nest import Nest
from torch_max_backend.schedule.plan import passes


def fault_of(wrong: Wrong, compiled: Compiled) -> str:
    """What is at fault for a part of a region, in words; empty where sizes are symbolic or several regions are it."""
    if compiled.dynamic:
        return ""
    options = Options(executor=compiled.options.get("executor", "auto"), fallback="error")
    regions = partition(wrong.gm.graph).regions
    if len(regions) != 1:
        return ""
    (region,) = regions
    programs = programs_of(regions, options)
    if not programs:
        return f"it is a MAX graph, so the lowering of {wrong.node.target} or MAX's compiler is at fault"
    (program,) = programs.values()
    return _of_program(program, region, wrong)


def _of_program(program: Program, region: Region, wrong: Wrong) -> str:
    names = [p.node for p in region.outputs]
    if wrong.node not in names:  # it leaves by a store or as a view
        return ""
    place = names.index(wrong.node)
    references = References(wrong.gm, wrong.inputs)
    last = program.loops
    for stage, last in _stages(program):
        result = _result(last, region, wrong, place)
        if references.difference(wrong.node, result) is not None:
            return f"{stage}:\n{last}"
    name = last.outputs[place][0]
    return f"its loops are right, so {_writer(program, name)} is at fault; TORCH_LOGS=max_kernels prints it"


def _stages(program: Program) -> Iterator[tuple[str, LoopProgram]]:
    yield "the loops are wrong as the rules make them", program.loops
    for name, changed in passes(program.loops, GPU if program.arch else CPU):
        yield f"the loops are right before the pass {name} of the schedule, and wrong behind it", changed


def _result(loops: LoopProgram, region: Region, wrong: Wrong, place: int) -> torch.Tensor:
    given = dict(zip(wrong.gm.graph.find_nodes(op="placeholder"), wrong.inputs, strict=True))
    found = Interpreter(loops).run([given[port.node].clone() for port in region.inputs])
    return found[place].reshape(_shape(wrong.node))


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(map(int, node.meta["val"].shape))


def _writer(program: Program, name: str) -> str:
    """The kernel that writes a tensor of the program, or the library call that gives it."""
    number = 0
    for step in program.schedule.steps:
        if isinstance(step, Call):
            if any(r is not None and r.name == name for r in step.results):
                return f"the library call {step.library} {step.target}"
            continue
        if not isinstance(step, Nest) or any(s.name == name for stage in step.stages for s in stage.statements):
            return f"the code of kernel {number} of the part"
        number += 1
    return "the code of a kernel"
