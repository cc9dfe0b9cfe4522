"""Orthogonal polynomials by their recurrences, one element at a time."""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.gpu.host import DeviceContext
from std.utils.coord import Coord
from std.utils.numerics import isnan, nan


def degree[dtype: DType](n: Scalar[dtype]) -> Int64:
    """`n` without its fraction; -1, which has the polynomial 0, for NaN and what no int64 holds."""
    if not (abs(n) < 9.2e18):
        return -1
    return n.cast[DType.int64]()


def chebyshev[
    dtype: DType, kind: StaticString, closed_above: Int
](x: Scalar[dtype], n: Int64, closed: Scalar[dtype]) -> Scalar[dtype]:
    """The Chebyshev polynomial of the kind `t`, `u`, `v` or `w`; `closed` inside (-1, 1) for large degrees."""
    if n < 0:
        return 0
    # At an end of the interval the size is 1, n + 1 or 2n + 1, and odd degrees change the sign at -1.
    if abs(x) == 1:
        var size = Int64(1)
        comptime if kind == "u":
            size = n + 1
        elif kind == "v":
            size = n + n + 1 if x < 0 else Int64(1)
        elif kind == "w":
            size = n + n + 1 if x > 0 else Int64(1)
        return (-size if x < 0 and n & 1 == 1 else size).cast[dtype]()
    if n > Int64(closed_above) and abs(x) < 1:
        return closed
    if n == 0:
        return 1
    var double = x + x
    var before = Scalar[dtype](1)
    var last = x
    comptime if kind == "u":
        last = double
    elif kind == "v":
        last = double - 1
    elif kind == "w":
        last = double + 1
    var k = Int64(1)
    while k < n and not isnan(last):
        var next = double.fma(last, -before)
        before = last
        last = next
        k += 1
    return last


@extensibility.register("tmb_chebyshev_polynomial")
struct ChebyshevPolynomial[kind: StaticString, closed_above: Int]:
    """Chebyshev polynomials; `closed` holds the values to take for degrees above `closed_above`."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor,
        x: InputTensor[dtype=result.dtype, rank=result.rank, ...],
        n: InputTensor[dtype=result.dtype, rank=result.rank, ...],
        closed: InputTensor[dtype=result.dtype, rank=result.rank, ...],
        ctx: DeviceContext,
    ) raises:
        def element[width: Int](index: Coord[...]) {var x, var n, var closed} -> SIMD[result.dtype, width]:
            var points = x.load[width](index)
            var degrees = n.load[width](index)
            var values = closed.load[width](index)
            comptime for i in range(width):
                values[i] = chebyshev[result.dtype, Self.kind, Self.closed_above](
                    points[i], degree(degrees[i]), values[i]
                )
            return values

        foreach[target=target, simd_width=1](element, result, ctx)


def by_recurrence[dtype: DType, kind: StaticString](x: Scalar[dtype], n: Int64) -> Scalar[dtype]:
    """The Hermite (`h`, `he`), Laguerre (`l`) or Legendre (`p`) polynomial, rounded as in torch."""
    comptime hermite = kind == "h" or kind == "he"
    comptime highest = Int64(128) if dtype == DType.float32 else Int64(512)
    if n < 0:
        return 0
    comptime if kind == "l":
        if x == 0:
            return 1
    elif kind == "p":
        if abs(x) == 1:
            return -1 if x < 0 and n & 1 == 1 else 1
    if n == 0:
        return 1
    var before = Scalar[dtype](1)
    var last = x
    comptime if kind == "h":
        last = x + x
    elif kind == "l":
        last = 1 - x
    comptime if hermite:
        if n > highest:
            return nan[dtype]()
    var degree = Int64(1)
    while degree < n and not isnan(last):
        var k = degree.cast[dtype]()
        var next: Scalar[dtype]
        comptime if kind == "h":
            next = (x + x).fma(last, -((k + k) * before))
        elif kind == "he":
            next = x.fma(last, -(k * before))
        elif kind == "l":
            next = ((k + k) + (1 - x)).fma(last, -(k * before)) / (k + 1)
        else:
            next = ((k + k + 1) * x).fma(last, -(k * before)) / (k + 1)
        before = last
        last = next
        degree += 1
    return last


@extensibility.register("tmb_orthogonal_polynomial")
struct OrthogonalPolynomial[kind: StaticString]:
    """Hermite, Laguerre and Legendre polynomials."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor,
        x: InputTensor[dtype=result.dtype, rank=result.rank, ...],
        n: InputTensor[dtype=result.dtype, rank=result.rank, ...],
        ctx: DeviceContext,
    ) raises:
        def element[width: Int](index: Coord[...]) {var x, var n} -> SIMD[result.dtype, width]:
            var points = x.load[width](index)
            var degrees = n.load[width](index)
            var values = SIMD[result.dtype, width]()
            comptime for i in range(width):
                values[i] = by_recurrence[result.dtype, Self.kind](points[i], degree(degrees[i]))
            return values

        foreach[target=target, simd_width=1](element, result, ctx)
