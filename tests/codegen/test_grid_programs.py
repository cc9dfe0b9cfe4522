"""Loop programs for a GPU, without one: what is written, and that threads share all of the work."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

from tests.support.loop_programs import LoopProgram
from torch_max_backend.base.errors import Unsupported
from torch_max_backend.codegen.program_writer import WrittenProgram, write_program
from torch_max_backend.loops.expr import op
from torch_max_backend.loops.index import Index, Sym
from torch_max_backend.loops.program import Input
from torch_max_backend.loops.rules import indexing
from torch_max_backend.loops.tensor import building, define, named, pointwise
from torch_max_backend.runtime.index_reports import error_at
from torch_max_backend.schedule.machine import GPU
from torch_max_backend.schedule.plan import schedule

pytestmark = pytest.mark.any_runner("programs without a graph")


# -- indices that are checked ------------------------------------------------------------------------------------------
def of_rows(size: Index, message: str = "") -> LoopProgram:
    """Rows of a matrix by an index, and elements by another one."""
    with building() as b:
        b.program.symbols = {Sym("n0", 2, 9): "n0"} if not size.is_constant else {}
        sizes = {"x0": (size, Index.of(8)), "x1": (Index.of(40),), "x2": (Index.of(40),)}
        for name, shape in sizes.items():
            strides = (shape[-1], Index.of(1))[-len(shape) :]
            dtype = torch.float32 if name == "x0" else torch.int64
            b.program.inputs[name] = Input(name, dtype, shape, strides)
        x, i, j = (named(name, shape, b.program.inputs[name].dtype) for name, shape in sizes.items())
        for y in (indexing.index_select(x, 0, i), indexing.take(x, pointwise(lambda e: op("neg", e), j))):
            define(y.shape, y.dtype, y.at)
            b.program.outputs.append((b.program.steps[-1].name, tuple(range(y.rank))))  # type: ignore[union-attr]
            b.program.shapes[b.program.outputs[-1][0]] = y.shape
        if message:
            b.program.sites[0] = dataclasses.replace(b.program.sites[0], message=message)
        rows = size.typical
        inputs = [torch.zeros(rows, 8), *(torch.zeros(40, dtype=torch.int64) for _ in range(2))]
        shapes = [(40, 8), (40,)]
        return LoopProgram(0, b.program, inputs, False, shapes, {"n0": rows}, machine=GPU)


def codes(written: WrittenProgram) -> dict[str, str]:
    """The codes of checks in the kernels, by the size that they check."""
    found = re.findall(r"(checked|wrapped)_index\(p\d+, \w+, ([^,]+), (\d+)\)", written.source)
    return {code: size for _, size, code in found}


def test_a_kernel_reports_the_site_of_a_check() -> None:
    made = of_rows(Index.of(9)).written()
    assert codes(made) == {"1": "9", "2": "72"}
    assert made.spec.source.count("errors.data_ptr()") == made.spec.source.count("segment") == 1
    first, second = made.spec.sites
    assert str(error_at(first, 11, 9)).startswith("index out of range in self\n")
    assert str(error_at(second, -73, 72)).startswith("out of range: tried to access index -73 on a tensor of 72 elem")


def test_a_message_has_the_size_that_is_reported() -> None:
    first, second = of_rows(Index.of(Sym("n0", 2, 9))).written().spec.sites
    assert str(error_at(first, 11, 7)).startswith("index out of range in self\n")
    assert str(error_at(second, -57, 56)).startswith("out of range: tried to access index -57 on a tensor of 56 elem")


def test_a_message_with_another_size_is_not_for_a_gpu() -> None:
    made = of_rows(Index.of(Sym("n0", 2, 9)), "index {index} of {n0}, and {2*n0 + 1}")
    with pytest.raises(Unsupported, match=r"an index and a size, but not 2\*n0 \+ 1"):
        made.written()


def test_without_checks_the_same_kernels_report_nothing() -> None:
    made, checked = of_rows(Index.of(9)), of_rows(Index.of(9)).written()
    inputs = [False] * len(made.inputs)
    written = write_program(made.region(), schedule(made.program, GPU), inputs, 0, check_indices=False)
    assert written.source == checked.source
    assert written.spec.sites == () and "errors" not in written.spec.source
