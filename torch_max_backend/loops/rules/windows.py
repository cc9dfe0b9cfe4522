"""Windows: how the outputs of a pool lie over its inputs, along one dimension.

A window knows where its taps are (``position``, ``taps``), and which windows an input lies in (``covering``): gradients
are gathered from those, so that no two threads add to one element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_max_backend.base.errors import Unsupported
from torch_max_backend.loops.expr import Scalar, compare_index, guarded
from torch_max_backend.loops.index import Index, clamped, greatest, least
from torch_max_backend.loops.tensor import Shape, Tensor

Condition = Scalar


@dataclass(frozen=True)
class Window:
    """``size`` taps, ``dilation`` apart, every ``stride`` inputs; the first begins ``padding`` before the inputs."""

    size: int
    stride: int
    padding: int
    dilation: int
    inputs: int | Index
    outputs: int | Index

    @property
    def taps(self) -> int:
        """The most taps that a window has."""
        return self.size

    def position(self, o: Index, tap: Index) -> Index:
        """The input under a tap, which may be in the padding."""
        return o * self.stride - self.padding + tap * self.dilation

    def inside(self, o: Index, tap: Index) -> list[Condition]:
        """When a tap is no padding."""
        return in_range(self.position(o, tap), self.inputs)

    def nearest(self, o: Index, tap: Index) -> Index:
        """The input under a tap, and for a tap in the padding another input of the same window."""
        last = Index.of(self.inputs - 1)
        if self.dilation == 1:
            return clamped(self.position(o, tap), Index.of(0), last)
        start = self.position(o, Index.of(0))
        first_tap = greatest((-start + (self.dilation - 1)) // self.dilation, Index.of(0))
        last_tap = (last - start) // self.dilation
        return self.position(o, greatest(least(tap, last_tap), first_tap))

    def padded_count(self, o: Index) -> Index:
        """How many inputs and zeros a window has: what hangs over the padding does not count."""
        start = o * self.stride - self.padding
        return least(start + self.size, Index.of(self.inputs + self.padding)) - start

    def count(self, o: Index) -> Index:
        """How many inputs a window has."""
        start = o * self.stride - self.padding
        return least(start + self.size, Index.of(self.inputs)) - greatest(start, Index.of(0))

    @property
    def coverings(self) -> int:
        """In how many windows an input may lie."""
        return -(-self.size // self.stride) if self.dilation == 1 else self.size

    def covering(self, i: Index, k: Index) -> tuple[Index, list[Condition]]:
        """The ``k``-th window that may have an input as a tap, and when it has it."""
        if self.dilation == 1:
            o = (i + self.padding) // self.stride - k
            has = [compare_index("lt", i + self.padding - o * self.stride, Index.of(self.size))]
        else:
            return self.under(i, k)
        return o, [*in_range(o, self.outputs), *has]

    def under(self, i: Index, tap: Index) -> tuple[Index, list[Condition]]:
        """The window that has an input under a given tap, and when there is one."""
        start = i + self.padding - tap * self.dilation
        o = start // self.stride
        return o, [*in_range(o, self.outputs), compare_index("eq", start % self.stride, Index.of(0))]


@dataclass(frozen=True)
class AdaptiveWindow:
    """``outputs`` windows of about equal length that cover ``inputs``, as adaptive pools have them."""

    inputs: int
    outputs: int

    def bounds(self, o: Index) -> tuple[Index, Index]:
        """The first input of a window, and one past its last."""
        return o * self.inputs // self.outputs, ((o + 1) * self.inputs + (self.outputs - 1)) // self.outputs

    @property
    def taps(self) -> int:
        """The most taps that a window has."""
        n, m = self.inputs, self.outputs
        return max((-(-(o + 1) * n // m) - o * n // m for o in range(m)), default=0)

    def position(self, o: Index, tap: Index) -> Index:
        """The input under a tap, which may be behind the window."""
        return self.bounds(o)[0] + tap

    def inside(self, o: Index, tap: Index) -> list[Condition]:
        """When a tap lies in the window."""
        start, end = self.bounds(o)
        return [compare_index("lt", tap, end - start)]

    def nearest(self, o: Index, tap: Index) -> Index:
        """The input under a tap, and for a tap behind the window its last input."""
        start, end = self.bounds(o)
        return least(start + tap, end - 1)

    def padded_count(self, o: Index) -> Index:
        """How many inputs a window has."""
        return self.count(o)

    def count(self, o: Index) -> Index:
        """How many inputs a window has."""
        start, end = self.bounds(o)
        return end - start

    def _covering(self, i: Index) -> tuple[Index, Index]:
        """The first and the last window that an input lies in."""
        return i * self.outputs // self.inputs, ((i + 1) * self.outputs - 1) // self.inputs

    @property
    def coverings(self) -> int:
        """In how many windows an input may lie."""
        n, m = self.inputs, self.outputs
        return max((((i + 1) * m - 1) // n - i * m // n + 1 for i in range(n)), default=0)

    def covering(self, i: Index, k: Index) -> tuple[Index, list[Condition]]:
        """The ``k``-th window that has an input as a tap, and whether there are so many."""
        first, last = self._covering(i)
        return first + k, [compare_index("le", k, last - first)]


AnyWindow = Window | AdaptiveWindow


def windows_of(
    x: Tensor,
    size: Sequence[int] | int,
    stride: Sequence[int] | int,
    padding: Sequence[int] | int,
    dilation: Sequence[int] | int = (1,),
    ceil_mode: bool = False,
    rank: int = 2,
) -> list[Window]:
    """The windows along the last ``rank`` dimensions of ``x``; one number stands for all dimensions."""
    found = []
    for d in range(rank):
        n = x.shape[x.rank - rank + d]
        k, p, step = _one(size, d), _one(padding, d), _one(dilation, d)
        s = _one(stride, d) if stride not in ([], ()) else k
        outputs = (n + 2 * p - step * (k - 1) - 1 + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode:
            inputs = known(n)
            if (known(outputs) - 1) * s >= inputs + p:
                outputs = outputs - 1
        found.append(Window(k, s, p, step, _number(n), _number(outputs)))
    return found


def _one(values: Sequence[int] | int, d: int) -> int:
    if isinstance(values, int):
        return values
    return values[d] if len(values) > 1 else values[0]


def _number(size: Index) -> int | Index:
    return size.constant if size.is_constant else size


def known(size: Index) -> int:
    """A size that is a number."""
    if not size.is_constant:
        raise Unsupported(f"windows over a dimension of known size, not {size}")
    return size.constant


def in_range(i: Index, size: int | Index) -> list[Condition]:
    """When an index lies in a dimension."""
    return [compare_index("ge", i, Index.of(0)), compare_index("lt", i, Index.of(size))]


def where_all(conditions: Sequence[Condition], value: Scalar, other: Scalar) -> Scalar:
    """``value`` where all conditions hold."""
    for condition in reversed(conditions):
        value = guarded(condition, value, other)
    return value


def counts(sizes: Sequence[int | Index]) -> Shape:
    """Sizes as indices."""
    return tuple(map(Index.of, sizes))
