"""Integers of few bits are added up in 32 where no sum can be greater: twice as many fit a vector.

Before: ``t0[i:64] = sum over r:1000 of cast<i64>(gt(x[i, r], 0))``.
After: ``t0[i:64] = sum over r:1000 of cast<i32>(gt(x[i, r], 0))``, whose result becomes an int64.
"""

from __future__ import annotations

import dataclasses

import torch

from torch_max_backend.loops.expr import Op, cast
from torch_max_backend.loops.program import Definition, Program, Reduction
from torch_max_backend.schedule import cost

GREATEST = {torch.bool: 1, torch.uint8: 2**8, torch.int8: 2**7, torch.int16: 2**15}
"""What a value of each dtype is at most, without its sign."""


def narrow_sums(program: Program) -> Program:
    """Sums in int64 of narrower integers, with what they add up in int32 if that holds them."""
    steps = [_narrow(s) if isinstance(s, Definition) else s for s in program.steps]
    return dataclasses.replace(program, steps=steps)


def _narrow(d: Definition) -> Definition:
    how, body = d.how, d.body
    if not isinstance(how, Reduction) or how.combiner != "sum" or not isinstance(body, Op) or body.name != "cast":
        return d
    (x,) = body.args
    if body.dtype is not torch.int64 or GREATEST.get(x.dtype, 2**31) * cost.most(d.reduced) >= 2**31:
        return d
    return dataclasses.replace(d, body=cast(x, torch.int32))
