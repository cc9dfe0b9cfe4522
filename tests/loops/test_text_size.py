"""How long loops are as a text is known without writing them, for what is shared is written every time."""

from __future__ import annotations

import torch

from torch_max_backend.loops.expr import Load, Scalar, op, text_size
from torch_max_backend.loops.index import Index


def doubled(times: int) -> Scalar:
    x: Scalar = Load("x", (Index.of(0),), torch.float32)
    for _ in range(times):
        x = op("add", x, x)
    return x


def test_the_text_has_so_many_expressions() -> None:
    for times in range(6):
        x = doubled(times)
        assert text_size(x) == str(x).count("x[") + str(x).count("add(")


def test_a_text_that_nobody_could_write() -> None:
    assert text_size(doubled(40)) == 2**41 - 1
