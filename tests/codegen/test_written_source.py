"""What a softmax becomes, as it is printed: loops, schedule, kernels. And programs that were once computed wrongly.

``python -m tests.codegen.test_written_source`` writes ``softmax.txt`` anew.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.loop_programs import LoopProgram, check_generated, check_passes
from torch_max_backend.loops.expr import as_index, constant, op
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.program import Input
from torch_max_backend.loops.rules import reduce, views
from torch_max_backend.loops.tensor import Tensor, building, define, named, pointwise
from torch_max_backend.schedule import split
from torch_max_backend.schedule.plan import schedule

GOLDEN = Path(__file__).with_name("softmax.txt")


def program(function: Callable[..., tuple[Tensor, ...]], *inputs: torch.Tensor, smooth: bool = False) -> LoopProgram:
    """The loop program of a function of tensors, with contiguous outputs."""
    with building() as b:
        operands = []
        for k, x in enumerate(inputs):
            sizes, strides = (tuple(map(Index.of, of)) for of in (x.shape, x.stride()))
            b.program.inputs[f"x{k}"] = Input(f"x{k}", x.dtype, sizes, strides)
            operands.append(named(f"x{k}", sizes, x.dtype))
        shapes = []
        for y in function(*operands):
            define(y.shape, y.dtype, y.at)
            b.program.outputs.append((b.program.steps[-1].name, tuple(range(y.rank))))  # type: ignore[union-attr]
            shapes.append(tuple(int(s.constant) for s in y.shape))
        return LoopProgram(0, b.program, list(inputs), smooth, shapes)


def softmax_as_text() -> str:
    made = program(lambda x: (reduce.softmax(x, -1, False),), torch.zeros(8, 32), smooth=True)
    written = made.written()
    parts = [made.program, schedule(made.program), written.source, written.spec.source]
    return "\n\n".join(str(part).strip() for part in parts) + "\n"


def test_softmax_is_written_like_this() -> None:
    assert softmax_as_text() == GOLDEN.read_text()


# -- found by random programs ------------------------------------------------------------------------------------------
def numbers(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def negative_quotients(x: Tensor) -> tuple[Tensor, ...]:
    """Loops are cut at a quotient of what may be negative."""
    return (views.constant_pad_nd(views.roll(x, [11], []), [1, 0]),)


def inner_loops_of_one_stage(x: Tensor) -> tuple[Tensor, ...]:
    """Two loops are one in a stage, and cannot be in the stage before it."""
    total = reduce.logsumexp(views.flip(x, [1]), [1], True)
    return pointwise(lambda a, b: op("sigmoid", a - b), x, total), views.constant_pad_nd(total, [1, 1, 1, 1])


def guards_of_vectors(x: Tensor) -> tuple[Tensor, ...]:
    """A guarded value is in registers, as a vector."""
    y = pointwise(lambda e: op("absolute", e), reduce.over("sum", x, [0]))
    z = views.cat([views.unsqueeze(y, 0), views.unsqueeze(pointwise(lambda e: -e, y), 0)], 0)
    return z, y


def first_of_equals(x: Tensor) -> tuple[Tensor, ...]:
    """The first of equal elements, where memory has another order."""
    return reduce.argmax(x, None), reduce.argmin(x, None)


def places_in_registers(x: Tensor) -> tuple[Tensor, ...]:
    """An index that is computed by vectors in the same kernel."""
    y = define(x.shape, x.dtype, lambda i: op("remainder", x.at(i) * x.at(i), constant(2, x.dtype)))
    z = define((*x.shape, Index.of(2)), x.dtype, lambda i: x.at((i[1] * 2 + as_index(y.at(i[:1]), 0, 1),)))
    return y, z


def sums_of_one(x: Tensor) -> tuple[Tensor, ...]:
    """Reductions over dimensions of size 1, and of size 0."""
    one = views.unsqueeze(x, 1)
    nothing = views.slice_(x, 0, 0, 0)
    return (
        reduce.over("sum", one, [1]),
        reduce.argmax(one, 1),
        reduce.over("sum", nothing, [0]),
        views.reshaped(nothing, [x.shape[1], 0]),
        views.repeat(nothing, [2, 1]),
    )


def sums_in_parts(x: Tensor) -> tuple[Tensor, ...]:
    """All that is summed is in the parts, but for a dimension of size 1."""
    return reduce.over("sum", x, [0, 2]), reduce.over("sum", x, [0, 1, 2])


CASES = {
    "negative_quotients": (negative_quotients, numbers(1, 1, 33, 64).permute(3, 2, 0, 1)),
    "inner_loops_of_one_stage": (inner_loops_of_one_stage, numbers(2, 2, 17, 17).permute(0, 3, 2, 1)),
    "guards_of_vectors": (guards_of_vectors, numbers(16, 128, dtype=torch.int32)),
    "first_of_equals": (first_of_equals, numbers(33, 99).t()),
    "places_in_registers": (places_in_registers, numbers(16, dtype=torch.int64)),
    "sums_of_one": (sums_of_one, numbers(5, 17)),
    "sums_in_parts": (sums_in_parts, numbers(33, 64, 1)),
}


SMOOTH = ("inner_loops_of_one_stage",)


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_programs_that_were_wrong(cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if cut:
        for name, value in {"PART": 64, "CHAIN": 16, "ENOUGH": 4, "LANES": 4}.items():
            monkeypatch.setattr(split, name, value)
    made = [program(function, x, smooth=name in SMOOTH) for name, (function, x) in CASES.items()]
    check_generated(made, [check_passes(p) for p in made], tmp_path)


if __name__ == "__main__":
    GOLDEN.write_text(softmax_as_text())
