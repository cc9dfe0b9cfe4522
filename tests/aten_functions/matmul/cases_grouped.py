"""Grouped matrix products: groups of rows, of columns and of the inner dimension, and products of batches."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence

import torch

from tests.support.cases import Case, Maker, ints, randn

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
grouped_mm = torch.ops.aten._grouped_mm


def ends(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


# Torch leaves rows (or columns) after the last group uninitialised, so that they are not compared.
def rows(a: torch.Tensor, w: torch.Tensor, offs: torch.Tensor, of: int = 40) -> tuple[torch.Tensor, ...]:
    transposed = w.transpose(1, 2).contiguous().transpose(1, 2)
    return grouped_mm(a, w, offs)[:of], grouped_mm(a, transposed, offs)[:of]


def linear(a: torch.Tensor, w: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return grouped_mm(a, w.transpose(1, 2), offs)


def columns(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return grouped_mm(a, b, offs)[:, :40], grouped_mm(a, b.t().contiguous().t(), offs)[:, :40]


def inner(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return grouped_mm(a, b, offs), grouped_mm(a.t().contiguous().t(), b, offs)


def batches(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return grouped_mm(a, b), grouped_mm(a, b.transpose(1, 2).contiguous().transpose(1, 2))


def operands(n: int, groups: int, depth: int, width: int, dtype: torch.dtype = F32) -> tuple[Maker, Maker]:
    """Rows, and a matrix for every group. Sizes must be multiples of 16 bytes."""
    return randn(n, depth, dtype=dtype), randn(groups, depth, width, dtype=dtype, scale=depth**-0.5)


CASES = [
    Case("rows", rows, (*operands(40, 4, 20, 36), ends(3, 3, 16, 40))),
    Case("rows_bf16", rows, (*operands(40, 4, 72, 88, BF16), ends(3, 3, 16, 40))),
    Case("rows_f16", rows, (*operands(40, 4, 72, 88, F16), ends(3, 3, 16, 40))),
    Case("rows_from_0", rows, (*operands(40, 4, 16, 16), ends(0, 4, 4, 40))),
    Case("rows_after_the_last", lambda *a: rows(*a, of=30), (*operands(40, 4, 16, 16), ends(7, 20, 30, 30))),
    Case("rows_of_no_group", lambda *a: rows(*a, of=0), (*operands(40, 3, 16, 16), ends(0, 0, 0))),
    Case("rows_in_blocks", lambda *a: rows(*a, of=200), (*operands(200, 3, 1100, 148), ends(101, 102, 200))),
    Case("rows_in_blocks_bf16", lambda *a: rows(*a, of=200), (*operands(200, 3, 1064, 152, BF16), ends(101, 102, 200))),
    Case("rows_none", rows, (randn(0, 16), randn(3, 16, 8), ends(0, 0, 0))),
    Case("linear_dynamic", linear, (randn(40, 20), randn(4, 36, 20), ends(3, 3, 16, 40)), dynamic=True,
         second=(randn(9, 28), randn(3, 8, 28), ends(2, 9, 9))),
    Case("columns", columns, (randn(4, 12, 20), randn(20, 40), ends(3, 3, 16, 40))),
    Case("columns_bf16", columns, (randn(4, 24, 72, dtype=BF16), randn(72, 40, dtype=BF16), ends(0, 3, 16, 40))),
    Case("columns_after_the_last", lambda a, b, o: grouped_mm(a, b, o)[:, :16],
         (randn(3, 12, 20), randn(20, 40), ends(3, 3, 16))),
    Case("inner", inner, (randn(12, 40), randn(40, 36), ends(0, 7, 7, 40))),
    Case("inner_bf16", inner, (randn(24, 40, dtype=BF16), randn(40, 72, dtype=BF16), ends(5, 5, 40))),
    Case("inner_not_all", inner, (randn(12, 40), randn(40, 36), ends(0, 7, 30))),
    Case("inner_in_blocks", inner, (randn(100, 2100), randn(2100, 148, scale=0.03), ends(1, 1080, 2100))),
    Case("inner_dynamic", grouped_mm, (randn(12, 40), randn(40, 36), ends(0, 7, 7, 40)), dynamic=True,
         second=(randn(16, 20), randn(20, 8), ends(4, 20))),
    Case("batches", batches, (randn(3, 5, 12), randn(3, 12, 8))),
    Case("batches_bf16", batches, (randn(3, 5, 72, dtype=BF16), randn(3, 72, 8, dtype=BF16))),
]  # fmt: skip


# -- the ops of transformers, which gives zeros where there is no group ------------------------------------------------
def expert_rows(make: Maker) -> Maker:
    """``make``, once the ops are there: transformers defines them, and takes seconds to import."""

    def made(generator: torch.Generator) -> torch.Tensor:
        importlib.import_module("transformers.integrations.moe")
        return make(generator)

    return made


def fallback(a: torch.Tensor, w: torch.Tensor, offs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    op = torch.ops.transformers.grouped_mm_fallback
    return op(a, w, offs=offs), op(a, w.transpose(1, 2).contiguous().transpose(1, 2), offs=offs)


def gradients(a: torch.Tensor, w: torch.Tensor, offs: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    op = torch.ops.transformers.grouped_mm_fallback_backward
    return *op(a, w, offs, g), *op(a, w.transpose(1, 2).contiguous().transpose(1, 2), offs, g)


def experts(name: str, offs: Sequence[int], function: Callable[..., object] = fallback, **more: torch.dtype) -> Case:
    a, w = randn(17, 21, **more), randn(len(offs), 21, 37, scale=0.2, **more)
    gradient = (randn(17, 37, **more),) if function is gradients else ()
    return Case(name, function, (expert_rows(a), w, ends(*offs), *gradient))


if importlib.util.find_spec("transformers"):
    CASES += [
        experts("fallback", (0, 5, 5, 14)),
        experts("fallback_bf16", (0, 5, 5, 17), dtype=BF16),
        experts("fallback_f16", (2, 5, 5, 17), dtype=F16),
        experts("fallback_f64", (2, 5, 5, 17), dtype=F64),
        experts("fallback_descending", (12, 5, 15, 3, 9)),
        experts("fallback_outside", (-3, 4, 1 << 30, 2, -(1 << 31), 40)),
        Case("fallback_integers", fallback,
             (expert_rows(ints(17, 21)), ints(4, 21, 37), ends(0, 5, 5, 14, dtype=torch.int64))),
        Case("fallback_bytes", fallback,
             (expert_rows(ints(17, 21, dtype=torch.int8)), ints(4, 21, 37, dtype=torch.int8), ends(0, 5, 5, 14))),
        Case("fallback_dynamic", fallback, (expert_rows(randn(17, 21)), randn(4, 21, 37), ends(0, 5, 5, 14)),
             dynamic=True, second=(randn(30, 9), randn(2, 9, 66), ends(28, 29))),
        Case("fallback_of_nothing", fallback, (expert_rows(randn(8, 0)), randn(3, 0, 8), ends(2, 5, 8))),
        experts("gradients", (0, 5, 5, 14), gradients),
        experts("gradients_bf16", (2, 5, 5, 17), gradients, dtype=BF16),
        experts("gradients_outside", (-3, 4, 1 << 30, 2, -(1 << 31), 40), gradients),
    ]  # fmt: skip
