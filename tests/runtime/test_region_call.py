"""Results of a region have memory of their own: which are looked at in every call, and which are copied."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable

import pytest
import torch
from max.driver import Buffer

from torch_max_backend.codegen.region_spec import region_spec
from torch_max_backend.compile.compiler import put_off
from torch_max_backend.partition.partitioner import Plan
from torch_max_backend.runtime.region_call import Model, RegionCall, RegionSpec, overlapping
from torch_max_backend.runtime.tensor_interop import to_buffer, to_tensor


class Lending(Model):
    """A model whose results are what a function makes of its inputs, in whatever memory."""

    def __init__(self, function: Callable[..., list[torch.Tensor]]) -> None:
        self.function = function

    def _execute_device_tensors(self, buffers: list[Buffer]) -> list[Buffer]:
        return [to_buffer(t) for t in self.function(*map(to_tensor, buffers))]


def share_memory(results: list[torch.Tensor], inputs: list[torch.Tensor]) -> bool:
    """Whether any result shares a byte with an input, or with another result."""

    def span(tensor: torch.Tensor) -> set[int]:
        return set(range(tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()))

    taken = set().union(*map(span, inputs)) if inputs else set()
    for result in results:
        if span(result) & taken:
            return True
        taken |= span(result)
    return False


@pytest.mark.any_runner("arithmetic on addresses")
def test_what_overlaps_is_found() -> None:
    memory, draw = torch.zeros(60, dtype=torch.uint8), random.Random(0)

    def piece() -> torch.Tensor:
        start = draw.randrange(55)
        return memory[start : start + draw.choice([0, 1, 2, 5])]

    counts = set()
    for _ in range(300):
        inputs, results = [piece() for _ in range(draw.randrange(4))], [piece() for _ in range(draw.randrange(1, 6))]
        chosen = [k for k in range(len(results)) if draw.random() < 0.7]
        others = [*inputs, *(r for k, r in enumerate(results) if k not in chosen)]
        found = overlapping(results, inputs, chosen)
        assert set(found) <= set(chosen)
        counts.add(len(found))
        assert not share_memory([results[k] for k in chosen if k not in found], others)
        for k in found:  # nothing is copied for no reason
            assert any(
                share_memory([results[k]], [other]) for other in [*others, *(results[i] for i in chosen if i != k)]
            )
    assert len(counts) > 3


@pytest.mark.any_runner("arithmetic on addresses")
def test_only_what_is_chosen_is_copied() -> None:
    x = torch.zeros(8)
    results = [x[:4], x[4:], torch.zeros(3)]
    assert overlapping(results, [x], [1, 2]) == [1]
    assert overlapping(results, [], [0]) == []
    assert overlapping([x[:4], x[2:]], [], [0]) == [0]


@pytest.mark.any_runner("the model is a stand-in")
def test_a_result_in_an_inputs_memory_is_copied_in_every_call() -> None:
    spec = RegionSpec((None, None), frozenset({0}), frozenset(), (), 0, ())
    call = RegionCall(spec, Lending(lambda w, x: [x.view(-1), w[:2], x + 1]))
    w = torch.arange(4.0)
    for _ in range(3):
        x = torch.randn(2, 3)
        wanted = [x.flatten().clone(), w[:2].clone(), x + 1]
        results = call((w,), (x,))
        torch.testing.assert_close(results, wanted)
        for result in results:
            result.add_(1)
        torch.testing.assert_close([x.view(-1), w[:2]], wanted[:2])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: (x.t().contiguous(), x * 2), (0,)),
        (lambda x: (x.bfloat16(), x.bfloat16().float()), ()),
        (lambda x: (x.reshape(-1, 2).clone(), x.view(torch.int32).clone()), (0, 1)),
    ],
)
def test_results_that_only_move_an_inputs_data_are_looked_at(
    function: Callable[..., object], expected: tuple[int, ...], plans: list[Plan]
) -> None:
    with put_off(), torch.no_grad():
        torch.compile(function, backend="max_backend", options={"fallback": "error"})(torch.randn(6, 4))
    ((region,),) = (plan.regions for plan in plans)
    assert region_spec(region, frozenset()).may_alias == expected


@pytest.mark.any_runner("the model is a stand-in")
def test_updates_on_a_cpu_get_one_table() -> None:
    """Addresses and sizes, of what is written back where it is not contiguous, and of what moves in every call."""
    spec = RegionSpec((None, (1, 0), None), frozenset({0, 1}), frozenset({1}), (), 0, (), True, 0, flat=True)
    seen: list[list[list[int]]] = []

    def negate(table: torch.Tensor) -> list[torch.Tensor]:
        seen.append(table.tolist())
        address, size = table[1].tolist()
        numbers = (ctypes.c_float * size).from_address(address)
        numbers[:] = [-n for n in numbers]
        return []

    call = RegionCall(spec, Lending(negate))
    x, y = torch.ones(2, 3), torch.arange(6.0).view(2, 3).t()
    for z in (torch.ones(4), torch.ones(5)):
        call([x, y], [z])
        assert seen[-1] == [[x.data_ptr(), 6], [y.data_ptr(), 6], [z.data_ptr(), z.numel()]]
    assert torch.equal(y, torch.arange(6.0).view(2, 3).t())
    spread = torch.arange(12.0).view(3, 4)[:, ::2]  # whose memory has gaps, and so is copied, and written back
    call([x, spread], [torch.ones(4)])
    assert torch.equal(spread, -torch.arange(12.0).view(3, 4)[:, ::2])
