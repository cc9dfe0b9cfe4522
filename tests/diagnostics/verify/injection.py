"""Loop rules that are wrong on purpose."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable

import pytest
import torch

from torch_max_backend.loops.expr import Load, Scalar, op
from torch_max_backend.loops.rules import registry
from torch_max_backend.loops.rules.pointwise import pointwise
from torch_max_backend.loops.tensor import Tensor

aten = torch.ops.aten


def wrong_tanh(self: Tensor) -> Tensor:
    """One per cent too large."""
    return pointwise(lambda x: op("tanh", x) * 1.01, self)


def wrong_in_company(self: Tensor) -> Tensor:
    """One per cent too large, unless its operand is an input."""

    def formula(x: Scalar) -> Scalar:
        is_input = isinstance(x, Load) and x.source.startswith("x")
        return op("tanh", x) if is_input else op("tanh", x) * 1.01

    return pointwise(formula, self)


def inject(monkeypatch: pytest.MonkeyPatch, rule: Callable[..., Tensor] = wrong_tanh) -> None:
    """Give ``aten.tanh`` a wrong rule."""
    monkeypatch.setitem(registry.rules(), aten.tanh.default, rule)


if __name__ == "__main__":  # python -m tests.diagnostics.verify.injection program.py: run it with the wrong rule
    registry.rules()[aten.tanh.default] = wrong_tanh
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
