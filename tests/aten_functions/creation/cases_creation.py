"""Cases of creation.py."""

from __future__ import annotations

import torch

from tests.support.cases import Case, randn

aten = torch.ops.aten
bf16, f16, f64, i64, i32, u8 = torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8


def constants(x):
    return (
        torch.full((2, 3), 1.5),
        torch.full((2,), 3),
        torch.full((), True),
        torch.full((2, 0), 1.0),
        torch.full((2,), float("nan"), dtype=bf16),
        torch.full((3,), 200, dtype=u8),
        torch.full((2,), float("-inf"), dtype=f16),
        torch.zeros(2, 3),
        torch.ones(3, dtype=torch.bool),
        torch.zeros_like(x),
        torch.ones_like(x, dtype=i32),
        torch.full_like(x, 2, dtype=f64),
        torch.full_like(x, -0.0),
        x.new_full((2, 2), 7),
        x.new_zeros((3,)),
        x.new_ones((1, 2), dtype=i64),
        torch.tensor(3.5) + x,
        torch.scalar_tensor(2, dtype=i64, device=x.device),  # AOTAutograd of torch 2.11 passes a default device over
        torch.fill(x, 2.5),
        torch.fill(x, torch.tensor(2)),
    )


def zero_less_zero(x):
    return torch.zeros(2, dtype=f64) - 0.0


def empties(x):
    return (
        torch.empty(2, 3).fill_(1),
        torch.empty_like(x).zero_(),
        x.new_empty((2, 2)).fill_(3),
        torch.empty_strided((2, 3), (1, 2)).fill_(2),
        x.new_empty_strided((2, 3), (3, 1)).copy_(x[:2, :3]),
        aten.empty_permuted([2, 3], [1, 0]).fill_(2),
        torch.empty(0, 3),
    )


def ranges(x):
    return (
        torch.arange(5),
        torch.arange(0),
        torch.arange(2, 9),
        torch.arange(2, 9, 3),
        torch.arange(9, 2, -2),
        torch.arange(5.0),
        torch.arange(0.5, 5),
        torch.arange(0, 1, 0.1),
        torch.arange(-1, 1, 0.3, dtype=f64),
        torch.arange(1, 3, 0.25, dtype=bf16),
        torch.arange(0, 2, 0.1, dtype=f16),
        torch.arange(5, dtype=torch.float32) / 7,
        torch.arange(3, dtype=i32),
        torch.arange(2**40, 2**40 + 5),
        torch.arange(0, 1000, 7, dtype=i64) * x.long().sum(),
        torch.arange(20, device=x.device, dtype=u8),
    )


def spaces(x):
    return (
        torch.linspace(0, 1, 11),
        torch.linspace(-3, 7, 7, dtype=f64),
        torch.linspace(2, 2, 1),
        torch.linspace(0, 10, 5, dtype=i64),
        torch.linspace(1, 0, 4),
        torch.linspace(0, 1, 0),
        torch.logspace(0, 2, 5),
        torch.linspace(torch.tensor(0.0), 1, 5) + x[0, 0],
    )


def grids(x):
    return (
        torch.eye(3),
        torch.eye(2, 4, dtype=i64),
        torch.eye(3, 2, dtype=torch.bool),
        torch.tril_indices(3, 4),
        torch.tril_indices(4, 3, -1),
        torch.triu_indices(3, 3, 1, dtype=i32),
        torch.tril_indices(0, 3),
        torch.cartesian_prod(torch.arange(2), torch.arange(3)),
        torch.vander(x[0], 3),
    )


def dynamic_creation(x):
    n = x.shape[0]
    return (
        torch.arange(n),
        torch.arange(n, dtype=torch.float32) / 3,
        torch.arange(1, n + 1),
        torch.arange(0, 2 * n, 2),
        torch.zeros(n, 2 * n),
        torch.full((n,), n),
        torch.full((n, 3), 1.0 / n),
        torch.eye(n),
        x.new_ones((n, 1)),
        torch.zeros_like(x) + n,
        torch.ones(n // 2),
        torch.empty_like(x).fill_(2),
    )


CASES = [
    Case("constants", constants, (randn(3, 4),), exact=True),
    Case("zero_less_zero", zero_less_zero, (randn(3, 4),), exact=True, broken="0.0 - 0.0 gives -0.0 in float64"),
    Case("empties", empties, (randn(3, 4),), exact=True),
    Case("ranges", ranges, (randn(3, 4),)),
    Case("spaces", spaces, (randn(3, 4),)),
    Case("grids", grids, (randn(3, 4),)),
    Case("meshgrid", lambda x: torch.meshgrid(torch.arange(3), torch.arange(2) * 2, indexing="ij"), (randn(3, 4),)),
    Case("dynamic_creation", dynamic_creation, (randn(5, 4),), dynamic=True, second=(randn(6, 4),)),
]
