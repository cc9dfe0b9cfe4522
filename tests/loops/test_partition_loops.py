"""Loops that are cut where conditions change compute what whole loops do, at every size."""

from __future__ import annotations

import random

import pytest
import torch

from torch_max_backend.loops.expr import Load, Scalar, compare_index, constant, guarded, rewrite
from torch_max_backend.loops.index import Index, Var, clamped
from torch_max_backend.loops.interpreter import Interpreter
from torch_max_backend.loops.program import Definition, Input, Program
from torch_max_backend.schedule.nest import Statement
from torch_max_backend.schedule.partition_loops import partition


def _body(draw: random.Random, i: Index, row: Index, size: int) -> Scalar:
    """A load behind a few random conditions and choices."""
    x = Index.of(size - 1)
    place = clamped(i + draw.randint(-9, 9), Index.of(0), x)
    if draw.random() < 0.5:
        place = -clamped(-place + draw.randint(-3, 3), -x, Index.of(0))
    body: Scalar = Load("x", (place,), torch.float32)
    for _ in range(draw.randint(0, 3)):
        name = draw.choice(["lt", "le", "gt", "ge", "eq", "ne"])
        k = 1 if name in ("eq", "ne") else draw.choice([-2, -1, 1, 2, 3])
        bound = row * draw.choice([0, 0, 1, 5]) + draw.randint(-5, size + 5)
        body = guarded(compare_index(name, i * k, bound), body, constant(draw.randint(1, 9), torch.float32))
    return body


@pytest.mark.parametrize("seed", range(60))
def test_parts_do_what_the_loop_does(seed: int) -> None:
    draw = random.Random(seed)
    size, rows = draw.choice([1, 7, 16, 17, 33, 100]), 4
    v, row = Var("i", size), Var("row", rows)
    body = _body(draw, Index.of(v), Index.of(row), size)
    statement = Statement("t", torch.float32, body, Index.of(row) * size + v)
    x = torch.arange(size, dtype=torch.float32) + 100
    for r in range(rows):
        at = {row: Index.of(r)}
        whole = [float(_at(body, {**at, v: Index.of(k)}, x)) for k in range(size)]
        found: dict[int, float] = {}
        for part in partition((statement,), v, {row}):
            (s,) = part.statements
            length = Index.of(part.variable.size).substitute(at)  # type: ignore[arg-type]
            assert length.is_constant
            for k in range(length.constant):
                place = {**at, part.variable: Index.of(k)}
                address = s.address.substitute(place)  # type: ignore[attr-defined]
                assert address.constant - r * size not in found
                found[address.constant - r * size] = float(_at(s.body, place, x))  # type: ignore[attr-defined]
        assert [found[k] for k in range(size)] == whole


def _at(body: Scalar, place: dict[Var, Index], x: torch.Tensor) -> torch.Tensor:
    """A body at one place, by the interpreter."""
    program = Program({"x": Input("x", torch.float32, (Index.of(x.numel()),), (Index.of(1),))})
    program.steps.append(Definition("t", torch.float32, (), rewrite(body, place)))  # type: ignore[arg-type]
    program.outputs.append(("t", ()))
    return Interpreter(program).run([x])[0]


@pytest.mark.parametrize(("dear", "sizes"), [(0, [4, 5]), (70, [9])], ids=["few operations", "many operations"])
def test_short_parts_of_few_operations_have_no_condition(dear: int, sizes: list[int]) -> None:
    """As where rows of 4 and of 5 elements become rows of 9."""
    v = Var("i", 9)
    first, second = (Load(name, (Index.of(v) - start,), torch.float32) for name, start in (("x", 0), ("y", 4)))
    body = guarded(compare_index("lt", Index.of(v), Index.of(4)), first, second)
    for _ in range(dear):
        body = body * 2 + 1
    parts = partition((Statement("t", torch.float32, body, Index.of(v)),), v, ())
    assert [(p.variable.size, p.guarded) for p in parts] == [(size, len(sizes) == 1) for size in sizes]


def test_most_of_a_padded_loop_has_no_condition() -> None:
    v = Var("i", 100)
    inside = Index.of(v) - 3
    body = guarded(
        compare_index("ge", inside, Index.of(0)), Load("x", (inside,), torch.float32), constant(0, torch.float32)
    )
    parts = partition((Statement("t", torch.float32, body, Index.of(v)),), v, ())
    assert [(p.variable.size, p.guarded) for p in parts] == [(3, False), (97, False)]
