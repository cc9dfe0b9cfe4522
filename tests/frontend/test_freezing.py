"""The option ``freeze``: weights are packed once, results are eager's, and a parameter that changes is seen."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.processes import Processes
from torch_max_backend import reports
from torch_max_backend.capture.packed_weights import CAN_PACK, HAS_MKL
from torch_max_backend.diagnostics.report import GraphReport
from torch_max_backend.partition.partitioner import Plan

pytestmark = [
    pytest.mark.sampled,
    pytest.mark.skipif(not CAN_PACK, reason="this build of torch has no oneDNN"),
    pytest.mark.skipif(not HAS_MKL, reason="this build of torch has no MKL"),
]

OPTIONS = {"freeze": True, "fallback": "error", "executor": "auto"}
TOLERANCE = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2}}


class Small(nn.Module):
    """A convolution with a norm, a residual, and two linears, the last one without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 1)
        self.inner, self.outer = nn.Linear(8, 8192), nn.Linear(8192, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.first(x)))
        y = torch.relu(self.second(y) + x)
        return self.outer(nn.functional.gelu(self.inner(y.mean((2, 3)))))


@pytest.fixture
def model() -> Small:
    torch.manual_seed(0)
    model = Small().eval()
    nn.init.normal_(model.norm.running_mean)
    return model


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.no_grad():
        yield


def frozen(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="max_backend", options={**OPTIONS, **options})


def report() -> GraphReport:
    return reports()[-1]


def runs() -> int:
    """How often the latest graph's frozen values were computed."""
    found = report().frozen
    assert found is not None
    return found.runs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results(model: Small, dtype: torch.dtype, plans: list[Plan]) -> None:
    model, x = model.to(dtype), torch.randn(3, 8, 6, 6, dtype=dtype)
    call = frozen(model)
    for _ in range(2):
        torch.testing.assert_close(call(x), model(x), **TOLERANCE[dtype])
    linear = "MKL mkl._mkl_linear.default" if dtype is torch.float32 else "oneDNN mkldnn._linear_pointwise.default"
    assert report().library_calls == {"oneDNN mkldnn._convolution_pointwise.default": 2, linear: 2}
    assert runs() == 1
    assert len(plans) == 1
    assert len(plans[0].regions) == 1
    assert "4 frozen tensor(s)" in report().summary()
    assert report().frozen.holds == sum(p.numel() for p in model.parameters() if p.dim() > 1) * dtype.itemsize


def test_sizes_that_change(model: Small) -> None:
    call = torch.compile(model, backend="max_backend", options=OPTIONS, dynamic=True)
    for rows in (3, 5, 8):
        x = torch.randn(rows, 8, 6, 6)
        torch.testing.assert_close(call(x), model(x), **TOLERANCE[torch.float32])
    assert runs() == 1
    assert report().library_calls["oneDNN mkldnn._linear_pointwise.default"] == 2  # MKL packs for a number of rows


def in_place(model: Small) -> None:
    model.inner.weight.mul_(2)


def loaded(model: Small) -> None:
    model.load_state_dict(Small().state_dict())


def replaced(model: Small) -> None:
    model.first.weight = nn.Parameter(torch.randn_like(model.first.weight))


def other_memory(model: Small) -> None:
    model.second.weight.data = torch.randn_like(model.second.weight)


@pytest.mark.parametrize("change", [in_place, loaded, replaced, other_memory])
def test_a_change_is_seen(model: Small, change: Callable[[Small], None]) -> None:
    call, x = frozen(model), torch.randn(3, 8, 6, 6)
    before = call(x)
    change(model)
    gc.collect()
    torch.testing.assert_close(call(x), model(x), **TOLERANCE[torch.float32])
    assert not torch.allclose(call(x), before)


def test_memory_that_is_used_again(model: Small) -> None:
    """A parameter gets other memory, and later memory at the address that it had first."""
    call, x = frozen(model), torch.randn(3, 8, 6, 6)
    first = model.second.weight.data
    call(x)
    model.second.weight.data = torch.randn_like(first)
    call(x)
    first.copy_(torch.randn_like(first))  # as another tensor at this address would have other values
    model.second.weight.data = first
    torch.testing.assert_close(call(x), model(x), **TOLERANCE[torch.float32])


def test_a_buffer_that_changes_in_every_call() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(4))
            self.weight = nn.Parameter(torch.randn(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x * self.weight.exp() + self.count.exp()

    model, x = Counting(), torch.randn(3, 4)
    twin, call = copy.deepcopy(model), frozen(model)
    for _ in range(3):
        torch.testing.assert_close(call(x), twin(x))
    assert runs() == 1  # of what the weight gives


def test_only_what_depends_on_a_change_is_computed_again() -> None:
    """A buffer that somebody else writes, beside weights that stay."""
    counted: list[int] = []
    scale = torch.ones(1)
    layer = nn.Linear(256, 512)
    layer.register_buffer("scale", scale)
    call, x = frozen(lambda x: layer(x) * layer.scale.exp()), torch.randn(3, 256)
    torch.testing.assert_close(call(x), layer(x) * scale.exp())
    held = report().frozen
    packed = held._kept[0].results
    for _ in range(2):
        scale.add_(0.5)
        torch.testing.assert_close(call(x), layer(x) * scale.exp(), rtol=1e-4, atol=1e-4)
        counted.append(sum(a is b for a, b in zip(packed, held._kept[0].results, strict=True)))
    assert counted == [1, 1]
    layer.weight.neg_()
    torch.testing.assert_close(call(x), layer(x) * scale.exp(), rtol=1e-4, atol=1e-4)


def test_two_models_of_one_code(model: Small) -> None:
    """The graph of one class is compiled once, and each model has its own weights."""
    models = [copy.deepcopy(model) for _ in range(2)]
    models[1].inner.weight.neg_()

    @torch.compile(backend="max_backend", options=OPTIONS)
    def call(given: Small, x: torch.Tensor) -> torch.Tensor:
        return given(x)

    x = torch.randn(3, 8, 6, 6)
    for _ in range(3):
        for own in models:
            torch.testing.assert_close(call(own, x), own(x), **TOLERANCE[torch.float32])
    held = report().frozen
    assert (held.runs, held.holds) == (2, 2 * held.steps.size)
    del models[0], own
    gc.collect()
    assert held.holds <= held.steps.size


def test_what_is_not_a_number_stays(model: Small) -> None:
    """oneDNN's own ReLU makes zeros of them."""
    x = torch.randn(3, 8, 6, 6)
    x[0, 0, 2, 2], x[1, 3, 0, 0] = torch.nan, torch.inf
    wanted = torch.relu(model.norm(model.first(x)))
    given = frozen(lambda x: torch.relu(model.norm(model.first(x))))(x)
    assert wanted.isnan().any()
    torch.testing.assert_close(given, wanted, equal_nan=True, **TOLERANCE[torch.float32])


def test_training_is_as_without(model: Small) -> None:
    x = torch.randn(3, 8, 6, 6)
    with torch.enable_grad():
        given = torch.autograd.grad(frozen(model)(x).square().sum(), list(model.parameters()))
        wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    torch.testing.assert_close(given, wanted, rtol=1e-3, atol=1e-3)
    assert all(r.frozen is None for r in reports()[-2:])


def test_casts_are_made_once(model: Small) -> None:
    x = torch.randn(3, 8)
    call = frozen(lambda x: model.inner(x))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(call(x), model.inner(x), **TOLERANCE[torch.bfloat16])
    assert runs() == 1
    assert {str(step.op) for step in report().frozen.steps.ops} >= {"aten._to_copy.default"}


def test_what_leaves_is_the_callers(model: Small) -> None:
    """What is computed from parameters alone and returned may be written to."""
    call = frozen(lambda x: (model.inner.weight.exp(), x @ model.inner.weight.exp().t()))
    x = torch.randn(3, 8)
    call(x)[0].zero_()
    torch.testing.assert_close(call(x)[1], x @ model.inner.weight.exp().t(), **TOLERANCE[torch.float32])


def test_what_would_grow_is_not_kept() -> None:
    scales, narrow = nn.Parameter(torch.randn(64, 1)), torch.randint(-9, 9, (64, 2048), dtype=torch.int8)
    layer = nn.Module()
    layer.register_buffer("narrow", narrow)
    layer.register_parameter("scales", scales)
    call = frozen(lambda x: x @ (layer.narrow.float() * layer.scales).t())
    x = torch.randn(5, 2048)
    torch.testing.assert_close(call(x), x @ (narrow.float() * scales).t(), rtol=1e-3, atol=1e-3)
    assert report().frozen is None


def test_parameters_without_versions() -> None:
    """Tensors made under inference mode count no writes, so nothing that is computed from them is kept."""
    with torch.inference_mode():
        model = Small().eval()
        call, x = frozen(model), torch.randn(3, 8, 6, 6)
        call(x)
        model.inner.weight.mul_(2)
        torch.testing.assert_close(call(x), model(x), **TOLERANCE[torch.float32])


def test_threads(model: Small) -> None:
    call, x = frozen(model), torch.randn(3, 8, 6, 6)
    call(x)
    model.inner.weight.mul_(2)
    wanted, given = model(x), []

    def run() -> None:
        with torch.no_grad():
            given.append(call(x))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in given:
        torch.testing.assert_close(result, wanted, **TOLERANCE[torch.float32])
    assert len(given) == 4
    assert runs() == 2


@pytest.mark.parametrize("options", [{"freeze": False}, {"verify": True}])
def test_where_it_does_not_act(model: Small, options: dict[str, Any]) -> None:
    x = torch.randn(3, 8)
    torch.testing.assert_close(frozen(model.inner, **options)(x), model.inner(x))
    assert report().frozen is None


def test_with_other_options(model: Small) -> None:
    """A budget, which reads what the call allocates, and ranges for the profiler."""
    x = torch.randn(3, 8, 6, 6)
    for options in ({"memory_budget": "90%"}, {"profile": True}):
        torch._dynamo.reset()
        torch.testing.assert_close(frozen(model, **options)(x), model(x), **TOLERANCE[torch.float32])


@pytest.mark.own_processes
@pytest.mark.xdist_group("processes")
def test_a_second_process(processes: Processes, tmp_path: Any) -> None:
    program = """
import json, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8192), nn.GELU(), nn.Linear(8192, 8)).eval()
options = {"freeze": True, "fallback": "error", "executor": "auto"}
call, x = torch.compile(model, backend="max_backend", options=options), torch.randn(3, 8)
with torch.no_grad():
    for _ in range(2):
        torch.testing.assert_close(call(x), model(x))
    model[0].weight.mul_(2)
    torch.testing.assert_close(call(x), model(x))
from torch_max_backend import reports
(found,) = reports()
print(json.dumps({"warm": found.warm, "runs": found.frozen.runs, "calls": found.library_calls}))
"""
    told = [processes.run(program, tmp_path, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "torch")).told for _ in range(2)]
    assert [t["warm"] for t in told] == [False, True]
    assert told[0]["runs"] == told[1]["runs"] == 2
    assert told[0]["calls"] == told[1]["calls"] == {"MKL mkl._mkl_linear.default": 2}
