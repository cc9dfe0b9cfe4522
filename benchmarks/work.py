"""What a case consists of once it is built on its device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torch_max_backend.evidence.contenders import Function
from torch_max_backend.measurement.clocks import Call

Piece = tuple[int, tuple[slice, ...], torch.Tensor]
"""Number of an output, a part of it, and the exact values of that part."""


@dataclass
class Work:
    """A function to compile, and how to call and judge what a contender made of it.

    Attributes:
        function: What contenders compile.
        caller: Makes of a contender's function one that does unit number ``i`` of the work: a call with one of several
            sets of inputs in turns, or the next token. It may hold state of its own, such as a cache.
        answers: The tensors that are compared, as what ``caller`` made gives them.
        exact: The same tensors in higher precision, in pieces that fit into memory.
        sets: Number of input sets that take turns.
        unit, units: What one call delivers ("image", 64), for throughput.
        bytes_moved: The fewest bytes a call must move: each input read once, each output written once. 0: not stated.
        flops: Floating-point operations of a call. 0: not stated.
        precision: Of the exact values, for the record.
    """

    function: Function
    caller: Callable[[Function], Call]
    answers: Callable[[Call], list[torch.Tensor]]
    exact: Callable[[], Iterator[Piece]]
    sets: int = 1
    unit: str = "call"
    units: int = 1
    bytes_moved: int = 0
    flops: float = 0.0
    precision: str = "float64"


def size_of(tensors: Any) -> int:
    """Bytes of all tensors in a tensor, list or tuple."""
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(size_of(t) for t in tensors)


def listed(outputs: Any) -> list[torch.Tensor]:
    """Outputs as a list of tensors of their own: graphs that are replayed overwrite theirs."""
    return [t.clone() for t in ((outputs,) if isinstance(outputs, torch.Tensor) else outputs)]


def build(case: Any, to_time: bool = True) -> Work:
    """The work of a case, on its device, with random inputs and weights.

    Args:
        to_time: Make as many sets of inputs as timing needs, and not just one.

    Raises:
        SuiteError: No such kind, op or model.
    """
    from benchmarks import decoding, models, ops, steps
    from benchmarks.suites import SuiteError

    kinds = {"op": ops.build, "model": models.build, "decoding": decoding.build, "training": steps.build}
    if case.kind not in kinds:
        raise SuiteError(f"suite {case.suite}: kind is {case.kind!r}, use one of {', '.join(kinds)}")
    torch.manual_seed(0)
    return kinds[case.kind](case, to_time)
