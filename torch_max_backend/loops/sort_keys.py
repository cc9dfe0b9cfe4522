"""Elements as integers that are in the same order, for sorts: NaN is the greatest, and zeros of both signs are equal.

An element of up to 32 bits and its place are one integer, a *word*: the key in the upper half, the place below it, and
in the lowest bit whether the element is -0, which the key doesn't say. So words are compared once, none are equal, and
elements that are equal stay in their order. Of an element of 64 bits there is a key alone.
"""

from __future__ import annotations

import torch

from torch_max_backend.loops.expr import Scalar, bitcast, cast, constant, from_index, op, select
from torch_max_backend.loops.index import Index

BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
"""The integers as wide as floats."""
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
MOST_PLACES = 1 << 15
"""Below this, places fit in the lower half of a word of 32 bits."""


def has_word(dtype: torch.dtype) -> bool:
    """Whether an element and its place fit in one integer."""
    return dtype.itemsize < 8


def word(x: Scalar, place: Index, descending: bool) -> Scalar:
    """An element and its place as one integer: int32 for elements of 16 bits and less, else int64."""
    wide = torch.int32 if x.dtype.itemsize <= 2 else torch.int64
    half = 4 * wide.itemsize
    below = _shifted("shift_left", cast(from_index(place), wide), 1)
    if x.dtype.is_floating_point:
        below = below | cast(_is_negative_zero(x), wide)
    return _shifted("shift_left", cast(key(x, descending), wide), half) | below


def element(word: Scalar, dtype: torch.dtype, descending: bool) -> Scalar:
    """The element of a word. NaN is one of all."""
    found = cast(_shifted("shift_right", word, 4 * word.dtype.itemsize), torch.int32)
    if not dtype.is_floating_point:
        return of_key(found, dtype, descending)
    is_negative_zero = op("ne", word & 1, constant(0, word.dtype))
    negative_zero = constant(0 if descending else -1, torch.int32)  # as a key that says so
    return of_key(select(is_negative_zero, negative_zero, found), dtype, descending)


def of_key(key: Scalar, dtype: torch.dtype, descending: bool) -> Scalar:
    """The element of a key that says all of it."""
    found = ~key if descending else key
    if dtype.is_floating_point:
        return bitcast(cast(_turned(found, dtype), BITS[dtype]), dtype)
    return op("ne", found, constant(0, found.dtype)) if dtype is torch.bool else cast(found, dtype)


def place(word: Scalar) -> Scalar:
    """The place of a word's element."""
    low = cast(word, torch.int32) if word.dtype is torch.int64 else word & (2 * MOST_PLACES - 1)
    return cast(_shifted("shift_right", low, 1), torch.int64)


def key(x: Scalar, descending: bool, orders_zeros: bool = False) -> Scalar:
    """An integer, int32 or for elements of 64 bits int64, that is greater where the element comes later.

    Args:
        orders_zeros: Whether -0 comes before 0, so that the key says which one it is.
    """
    wide = torch.int64 if x.dtype.itemsize == 8 else torch.int32
    if not x.dtype.is_floating_point:
        found = cast(x, wide)
    else:
        bits = _bits(x)
        ordered = _turned(bits, x.dtype)
        if not orders_zeros:
            ordered = select(ordered.equals(-1), constant(0, wide), ordered)
        limits = torch.tensor([torch.inf, torch.nan], dtype=x.dtype).view(BITS[x.dtype]).tolist()
        infinity, nothing = (constant(limit, wide) for limit in limits)
        found = select((bits & _magnitude(x.dtype)) > infinity, nothing, ordered)
    return ~found if descending else found


def _bits(x: Scalar) -> Scalar:
    """The bits of a float, as an integer of 32 or 64."""
    bits = bitcast(x, BITS[x.dtype])
    return cast(bits, torch.int32) if x.dtype.itemsize == 2 else bits


def _turned(bits: Scalar, dtype: torch.dtype) -> Scalar:
    """Bits of floats as integers in the order of the floats, -0 as -1; and back, since twice is what it was."""
    return bits ^ (_shifted("shift_right", bits, 8 * dtype.itemsize - 1) & _magnitude(dtype))


def _magnitude(dtype: torch.dtype) -> int:
    """All bits of a float but its sign."""
    return (1 << (8 * dtype.itemsize - 1)) - 1


def _is_negative_zero(x: Scalar) -> Scalar:
    return _turned(_bits(x), x.dtype).equals(-1)


def _shifted(name: str, x: Scalar, by: int) -> Scalar:
    return op(name, x, constant(by, x.dtype))
