"""Which parts of a graph are updates, and that all of an optimizer's step are one region. Their values are op cases."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.aten_functions.optimizer.cases_updates import CASES, adam, momentum
from tests.support.cases import Case
from torch_max_backend.aten_functions.registry import aten_functions, map_to
from torch_max_backend.codegen.call_path_writer import copies_together
from torch_max_backend.compile.compiler import put_off
from torch_max_backend.partition.partitioner import Plan, _Cut

pytestmark = pytest.mark.sampled

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier run has kept would not be cut again."""
    monkeypatch.setenv("TORCH_MAX_BACKEND_CACHE_DIR", str(tmp_path))


def last_plan(function: Callable[..., object], *inputs: object, dynamic: bool = False) -> Plan:
    """How the graph of a call is cut."""
    plans: list[Plan] = []
    make, thread = _Cut.plan, threading.get_ident()

    def noted(cut: _Cut) -> Plan:
        plan = make(cut)
        if threading.get_ident() == thread:  # another one may still compile what an earlier test began
            plans.append(plan)
        return plan

    with pytest.MonkeyPatch.context() as patch, put_off(), torch.no_grad():
        patch.setattr(_Cut, "plan", noted)
        torch.compile(function, backend="max_backend", dynamic=dynamic, options={"fallback": "error"})(*inputs)
    return plans[-1]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases_are_updates(case: Case) -> None:
    plan = last_plan(case.function, *case.make())
    (region,) = plan.regions
    assert region.updates
    assert not plan.copies


@pytest.mark.parametrize(
    ("make", "programs", "operands"),
    [
        (lambda p: torch.optim.AdamW(p), 1, 5),
        (lambda p: torch.optim.AdamW(p, foreach=True, weight_decay=0), 1, 5),
        (lambda p: torch.optim.Adam(p, amsgrad=True, maximize=True, weight_decay=0.1), 1, 6),
        (lambda p: torch.optim.AdamW(p, torch.tensor(0.1)), 1, 6),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True), 1, 3),
        (lambda p: torch.optim.AdamW([{"params": p[:30]}, {"params": p[30:], "weight_decay": 0}]), 2, 5),
    ],
    ids=["adamw", "foreach", "amsgrad", "rate", "sgd", "groups"],
)
def test_a_step_is_one_region(
    make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer], programs: int, operands: int
) -> None:
    """However many parameters there are, of whatever shapes."""
    parameters = [torch.nn.Parameter(torch.randn(n % 7, 3, *[2] * (n % 3))) for n in range(50)]
    optimizer = make(parameters)
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer.step()  # makes the state
    plan = last_plan(lambda: optimizer.step())
    (region,) = plan.regions
    assert len(region.updates) == len(parameters)
    assert len({u.program for u in region.updates}) == programs
    assert {len(u.operands) for u in region.updates} == {operands}
    assert not plan.copies


def test_numbers_that_nothing_reads_are_updates_of_their_own() -> None:
    parameters = [torch.nn.Parameter(torch.randn(n)) for n in range(3)]
    optimizer = torch.optim.RMSprop(parameters)
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer.step()
    (region,) = last_plan(lambda: optimizer.step()).regions
    assert sorted(len(u.operands) for u in region.updates) == [1, 1, 1, 3, 3, 3]


def test_equal_programs_are_one_key_for_other_shapes() -> None:
    texts = set()
    for shape in ((3, 4), (17,), (2, 2, 2)):
        (region,) = last_plan(momentum, *(torch.randn(shape) for _ in range(3))).regions
        texts.add(region.text)
    assert len(texts) == 1


def _returned(x: torch.Tensor, m: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    momentum(x, m, g)
    return g * 2 + m


def _returned_inside(x: torch.Tensor, m: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    step = m * 0.9 + g
    m.copy_(step)
    x.sub_(step)
    return step


def _of_a_sum(x: torch.Tensor, m: torch.Tensor, g: torch.Tensor) -> None:
    momentum(x, m, g / g.sum())


def _one_write(x: torch.Tensor, m: torch.Tensor, g: torch.Tensor) -> None:
    x.sub_(m * g)


def _spread(x: torch.Tensor, m: torch.Tensor, g: torch.Tensor) -> None:
    momentum(x, m, g[:1])


def _of_other_elements(x: torch.Tensor, m: torch.Tensor, g: torch.Tensor) -> None:
    momentum(x, m, g.flip(0))


def _negative_base(x: torch.Tensor, m: torch.Tensor, g: torch.Tensor) -> None:
    momentum(x, m, g * (-2.0) ** m[0, 0])


MATRIX = torch.randn(4, 4)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (_returned, (MATRIX, MATRIX, MATRIX)),
        (_returned_inside, (MATRIX, MATRIX, MATRIX)),
        (_of_a_sum, (MATRIX, MATRIX, MATRIX)),
        (_one_write, (MATRIX, MATRIX, MATRIX)),
        (_spread, (MATRIX, MATRIX, MATRIX)),
        (_of_other_elements, (MATRIX, MATRIX, MATRIX)),
        (_negative_base, (MATRIX, MATRIX, MATRIX)),
        (momentum, (MATRIX, MATRIX, MATRIX.t())),
        (momentum, (MATRIX, MATRIX, torch.randn(4, 8)[:, ::2])),
        (momentum, (MATRIX.double(), MATRIX.double(), MATRIX.double())),
        (momentum, (MATRIX, MATRIX, MATRIX.bfloat16())),
        (momentum, (MATRIX, MATRIX, torch.ones(4, 4, dtype=torch.int64))),
    ],
)
def test_what_stays_with_max(function: Callable[..., object], inputs: tuple[torch.Tensor, ...]) -> None:
    plan = last_plan(function, *(torch.empty_like(x).copy_(x) if x.is_contiguous() else x for x in inputs))
    assert not any(region.updates for region in plan.regions)


def test_symbolic_sizes_stay_with_max() -> None:
    plan = last_plan(momentum, *(torch.randn(4, 5) for _ in range(3)), dynamic=True)
    assert not any(region.updates for region in plan.regions)


def test_a_lowering_of_the_user_is_called() -> None:
    inputs = (torch.randn(3), torch.randn(3), torch.rand(3), torch.tensor(1.0), torch.randn(3))
    own = aten_functions.lowerings[aten.sqrt.default]
    try:
        map_to(aten.sqrt.default)(lambda self: self)
        assert not any(region.updates for region in last_plan(adam, *inputs).regions)
    finally:
        aten_functions.lowerings[aten.sqrt.default] = own
    torch._dynamo.reset()
    assert all(region.updates for region in last_plan(adam, *inputs).regions)


@pytest.mark.any_runner("writes that torch does")
def test_small_writes_are_done_together() -> None:
    """What is computed by dtype; but first, by itself and in turn, what lies in inputs, which are written as well."""

    def many(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, n: torch.Tensor, x: torch.Tensor) -> None:
        for target, source in ((a, x + 1), (n, n + 1), (c, x.view(3)), (b, x + 2), (x, x * 3)):
            aten.copy_.default(target, source)

    floats = [torch.randn(3) for _ in range(4)]
    inputs = [*floats[:3], torch.tensor([1, 2, 3]), floats[3]]
    graph = make_fx(many, tracing_mode="fake")(*inputs).graph
    copies = graph.find_nodes(op="call_function", target=aten.copy_.default)
    names = graph.find_nodes(op="placeholder")
    a, b, c, n, x = names
    groups = copies_together(copies, names)
    assert [targets for targets, _ in groups] == [[c], [a, b, x], [n]]


def test_many_small_writes_are_those_of_eager() -> None:
    statistics = [torch.zeros(3) for _ in range(20)]

    def step(x: torch.Tensor, *statistics: torch.Tensor) -> None:
        for k, s in enumerate(statistics):
            s.copy_(x if k == 19 else s * 0.5 + k)
        x.copy_(x.sum() + x)

    def run(function: Callable[..., None]) -> list[torch.Tensor]:
        values = [torch.tensor([1.0, 2.0, 3.0]), *(s.clone() for s in statistics)]
        function(*values)
        return values

    compiled = torch.compile(step, backend="max_backend", options={"fallback": "error"})
    assert all(map(torch.equal, run(compiled), run(step)))
