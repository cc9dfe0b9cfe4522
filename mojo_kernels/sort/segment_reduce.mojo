"""Reductions of consecutive pieces of an axis and their gradients, and the exclusive or of an axis's bits."""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.gpu.host import DeviceContext
from std.memory import bitcast
from std.utils.coord import Coord
from std.utils.numerics import inf, nan


@extensibility.register("tmb_segment_reduce")
struct SegmentReduce[reduce: StaticString, has_initial: Bool]:
    """`[outer, n, inner]` reduced over the places from `starts` to `stops`, both `[outer, segments]`.

    As in torch, NaN wins over every maximum and minimum, and the mean of nothing is NaN without an initial value.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=3, ...],
        data: InputTensor[dtype=result.dtype, rank=3, ...],
        starts: InputTensor[dtype=DType.int64, rank=2, ...],
        stops: InputTensor[dtype=DType.int64, rank=2, ...],
        initial: InputTensor[dtype=result.dtype, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime wide = DType.float32 if result.dtype.is_half_float() else result.dtype
        var n = data.dim_size(1)

        def element[
            lanes: Int
        ](at: Coord[...]) {var data, var starts, var stops, var initial, var n} -> SIMD[result.dtype, lanes]:
            var outer = Int(at[0].value())
            var segment = Int(at[1].value())
            var inner = Int(at[2].value())
            var start = Int(starts[outer, segment])
            var stop = Int(stops[outer, segment])
            var total = Scalar[wide](0)
            comptime if Self.has_initial:
                total = initial[0].cast[wide]()
            elif Self.reduce == "max":
                total = -inf[wide]()
            elif Self.reduce == "min":
                total = inf[wide]()
            elif Self.reduce == "prod":
                total = 1
            for i in range(max(start, 0), min(stop, n)):
                var x = data[outer, i, inner].cast[wide]()
                comptime if Self.reduce == "max":
                    if x != x or total < x:
                        total = x
                elif Self.reduce == "min":
                    if x != x or x < total:
                        total = x
                elif Self.reduce == "prod":
                    total *= x
                else:
                    total += x
            comptime if Self.reduce == "mean":
                if stop > start:
                    total /= Scalar[wide](stop - start)
                else:
                    comptime if not Self.has_initial:
                        total = nan[wide]()
            return SIMD[result.dtype, lanes](total.cast[result.dtype]())

        foreach[target=target, simd_width=1](element, result, ctx)


@extensibility.register("tmb_segment_gradient")
struct SegmentGradient[reduce: StaticString]:
    """The gradient of `tmb_segment_reduce` for `data`, `[outer, n, inner]`; `grad` and `output` are per segment.

    As in torch, equal maxima or minima share a gradient above zero, and each of them has all of one below it; and a
    product's gradient at zero or NaN is the product of the other elements and of the initial value.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=3, ...],
        grad: InputTensor[dtype=result.dtype, rank=3, ...],
        output: InputTensor[dtype=result.dtype, rank=3, ...],
        data: InputTensor[dtype=result.dtype, rank=3, ...],
        starts: InputTensor[dtype=DType.int64, rank=2, ...],
        stops: InputTensor[dtype=DType.int64, rank=2, ...],
        initial: InputTensor[dtype=result.dtype, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime wide = DType.float32 if result.dtype.is_half_float() else result.dtype
        var n = data.dim_size(1)
        var segments = stops.dim_size(1)

        def element[
            lanes: Int
        ](at: Coord[...]) {
            var grad, var output, var data, var starts, var stops, var initial, var n, var segments
        } -> SIMD[result.dtype, lanes]:
            var outer = Int(at[0].value())
            var here = Int(at[1].value())
            var inner = Int(at[2].value())
            var segment = 0  # the first that stops behind this element, by halving
            var beyond = segments
            while segment < beyond:
                var middle = (segment + beyond) // 2
                if Int(stops[outer, middle]) > here:
                    beyond = middle
                else:
                    segment = middle + 1
            var share = Scalar[wide](0)
            if segment < segments and Int(starts[outer, segment]) <= here:
                var start = max(Int(starts[outer, segment]), 0)
                var stop = min(Int(stops[outer, segment]), n)
                share = grad[outer, segment, inner].cast[wide]()
                var x = data[outer, here, inner].cast[wide]()
                var y = output[outer, segment, inner].cast[wide]()
                comptime if Self.reduce == "max" or Self.reduce == "min":
                    if x != x or x == y:
                        var equal = 0
                        for i in range(start, stop):
                            var other = data[outer, i, inner].cast[wide]()
                            if other != other or other == y:
                                equal += 1
                        if share > 0:
                            share /= Scalar[wide](equal)
                    else:
                        share = 0
                elif Self.reduce == "mean":
                    share /= Scalar[wide](stop - start)
                elif Self.reduce == "prod":
                    if x != x or x == 0:
                        var others = initial[0].cast[wide]()
                        for i in range(start, stop):
                            if i != here:
                                others *= data[outer, i, inner].cast[wide]()
                        share *= others
                    else:
                        share = share * y / x
            return SIMD[result.dtype, lanes](share.cast[result.dtype]())

        foreach[target=target, simd_width=1](element, result, ctx)


@extensibility.register("tmb_bag_maxima")
struct BagMaxima:
    """For every bag and column the place of the largest element of `rows`, `[n, columns]`, or -1 for an empty bag.

    As in torch, the first of equal elements counts, and NaN only where it is the bag's first.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[dtype=DType.int64, rank=2, ...],
        rows: InputTensor[rank=2, ...],
        offsets: InputTensor[dtype=DType.int64, rank=1, ...],
        counts: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        var n = rows.dim_size(0)
        var ends = offsets.dim_size(0)

        def element[
            lanes: Int
        ](at: Coord[...]) {var rows, var offsets, var counts, var n, var ends} -> SIMD[DType.int64, lanes]:
            var bag = Int(at[0].value())
            var column = Int(at[1].value())
            var stop = n
            if bag + 1 < ends:
                stop = min(Int(offsets[bag + 1]), n)
            var place = -1
            for i in range(max(Int(offsets[bag]), 0), stop):
                if counts[i] != 0 and (place < 0 or rows[i, column] > rows[place, column]):
                    place = i
            return SIMD[DType.int64, lanes](place)

        foreach[target=target, simd_width=1](element, result, ctx)


def bits_of[dtype: DType](x: Scalar[dtype]) -> UInt64:
    """The bits of a number as float64 or int64. Subnormal numbers are converted by hand: MAX's threads drop them."""
    comptime if dtype == DType.float64:
        return bitcast[DType.uint64](x)
    elif dtype == DType.float32:
        var bits = bitcast[DType.uint32](x)
        var number = x.cast[DType.float64]()
        if bits & 0x7F800000 == 0:
            number = (bits & 0x7FFFFF).cast[DType.float64]() * Float64(1.401298464324817e-45)
            if bits >> 31 != 0:
                number = -number
        return bitcast[DType.uint64](number)
    elif dtype == DType.bfloat16:
        var bits = bitcast[DType.uint16](x).cast[DType.uint32]() << 16
        return bits_of[DType.float32](bitcast[DType.float32](bits))
    elif dtype.is_floating_point():
        return bits_of[DType.float32](x.cast[DType.float32]())
    return x.cast[DType.int64]().cast[DType.uint64]()


@extensibility.register("tmb_xor")
struct Xor:
    """The exclusive or of the bits of all elements along the middle of `[outer, n, inner]`, widened to 64 bits."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[dtype=DType.uint64, rank=2, ...],
        x: InputTensor[rank=3, ...],
        ctx: DeviceContext,
    ) raises:
        var n = x.dim_size(1)

        def element[lanes: Int](at: Coord[...]) {var x, var n} -> SIMD[DType.uint64, lanes]:
            var total = UInt64(0)
            for i in range(n):
                total ^= bits_of[x.dtype](x[Int(at[0].value()), i, Int(at[1].value())])
            return SIMD[DType.uint64, lanes](total)

        foreach[target=target, simd_width=1](element, result, ctx)
