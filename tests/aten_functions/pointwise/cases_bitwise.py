"""Cases of bitwise operations and shifts."""

from __future__ import annotations

import torch

from tests.support.cases import Case, bools, ints

aten = torch.ops.aten
I8, U8, I16, I32 = torch.int8, torch.uint8, torch.int16, torch.int32


def bits(a, b):
    """Bitwise operations of tensors and numbers."""
    return a & b, a | b, a ^ b, ~a, a & 6, a | 1, a ^ 3, 5 & b, 1 | b, 7 ^ b, torch.bitwise_not(b)


def shifts(a, b):
    """Shifts of tensors and numbers."""
    return (
        a << b,
        a >> b,
        a << 2,
        a >> 1,
        torch.bitwise_left_shift(a, b),
        torch.bitwise_right_shift(a, 3),
        5 << b,
        40 >> b,
    )


def overloads(a, b):
    """What Python's operators do not trace to."""
    return (
        *(f.Scalar_Tensor(6, b) for f in (aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor)),
        *(f.Tensor(a, b) for f in (aten.bitwise_left_shift, aten.bitwise_right_shift)),
        *(f.Tensor_Scalar(a, 2) for f in (aten.bitwise_left_shift, aten.bitwise_right_shift)),
    )


def truths(a, b):
    """Bitwise operations of booleans are logic."""
    return a & b, a | b, a ^ b, ~a, a & True, a | False, a ^ True


CASES = [
    Case("bits_i64", bits, (ints(3, 17, low=-99, high=99), ints(3, 17, low=-99, high=99))),
    Case("bits_i32", bits, (ints(3, 17, low=-99, high=99, dtype=I32), ints(17, low=-99, high=99, dtype=I32))),
    Case("bits_i16", bits, (ints(40, low=-99, high=99, dtype=I16), ints(40, low=-99, high=99, dtype=I16))),
    Case("bits_i8", bits, (ints(40, low=-99, high=99, dtype=I8), ints(40, low=-99, high=99, dtype=I8))),
    Case("bits_u8", bits, (ints(40, low=0, high=255, dtype=U8), ints(40, low=0, high=255, dtype=U8))),
    Case("bits_zero_dim", lambda a, b: (a & b, ~a, a | b[0]), (ints(), ints(4))),
    Case("bits_empty", bits, (torch.ones(0, 3).long(), torch.ones(3).long())),
    Case("bits_mixed", lambda a, b, c: (a & b, a | c, b ^ c), (ints(9), ints(9, dtype=I32), bools(9))),
    Case("truths", truths, (bools(3, 17), bools(17))),
    Case("shifts_i64", shifts, (ints(40, low=-99, high=99), ints(40, low=0, high=60))),
    Case("shifts_i32", shifts, (ints(40, low=-99, high=99, dtype=I32), ints(40, low=0, high=31, dtype=I32))),
    Case("shifts_u8", shifts, (ints(40, low=0, high=255, dtype=U8), ints(40, low=0, high=7, dtype=U8))),
    Case("shifts_outside", lambda a, b: (a << b, a >> b), (
        torch.tensor([5, -5, 5, -5, 1, -1]), torch.tensor([64, 64, 99, 99, 63, 63]))),
    *(
        Case(f"overloads_{str(d)[6:]}", overloads, (ints(9, low=-99, dtype=d), ints(9, low=0, high=7, dtype=d)))
        for d in (torch.int64, I32, I8)
    ),
    Case("overloads_sizes", overloads, (ints(3, 1), ints(0, 3, 4, low=0))),
    Case("overloads_zero_dim", overloads, (ints(), ints(low=0))),
    Case("dynamic", bits, (ints(3, 4), ints(4)), dynamic=True, second=(ints(6, 9), ints(9))),
]  # fmt: skip
