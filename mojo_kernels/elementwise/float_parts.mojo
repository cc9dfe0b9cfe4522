"""The parts of a float: mantissa and exponent."""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.gpu.host import DeviceContext
from std.utils.coord import Coord

from .arithmetic import same_width_int


def frexp[dtype: DType](x: Scalar[dtype]) -> Tuple[Scalar[dtype], Int32]:
    """The mantissa with a size in [0.5, 1) and the exponent of 2, of a float32 or float64 number.

    Bits only, because a CPU that MAX has set to take subnormal numbers for zero would lose them.
    """
    comptime I = same_width_int[dtype]()
    comptime digits = 23 if dtype == DType.float32 else 52
    comptime bias = 126 if dtype == DType.float32 else 1022
    comptime hidden = Scalar[I](1) << Scalar[I](digits)
    var bits = x.to_bits().cast[I]()
    var exponent = (bits >> Scalar[I](digits)) & Scalar[I](2 * bias + 3)
    var fraction = bits & (hidden - 1)
    if exponent == Scalar[I](2 * bias + 3) or (exponent == 0 and fraction == 0):
        return (x, Int32(0))
    if exponent == 0:
        exponent = 1
        while fraction < hidden:
            fraction <<= 1
            exponent -= 1
    var sign = bits & Scalar[I].MIN
    var mantissa = sign | (Scalar[I](bias) << Scalar[I](digits)) | (fraction & (hidden - 1))
    return (
        Scalar[dtype](from_bits=mantissa.cast[DType.uint32 if dtype == DType.float32 else DType.uint64]()),
        (exponent - Scalar[I](bias)).cast[DType.int32](),
    )


@extensibility.register("tmb_frexp_mantissa")
struct FrexpMantissa:
    """The mantissas."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor,
        x: InputTensor[dtype=result.dtype, rank=result.rank, ...],
        ctx: DeviceContext,
    ) raises:
        def element[width: Int](index: Coord[...]) {var x} -> SIMD[result.dtype, width]:
            var values = x.load[width](index)
            comptime for i in range(width):
                values[i] = frexp(values[i])[0]
            return values

        foreach[target=target](element, result, ctx)


@extensibility.register("tmb_frexp_exponent")
struct FrexpExponent:
    """The exponents."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[dtype=DType.int32, ...],
        x: InputTensor[rank=result.rank, ...],
        ctx: DeviceContext,
    ) raises:
        def element[width: Int](index: Coord[...]) {var x} -> SIMD[DType.int32, width]:
            var values = x.load[width](index)
            var exponents = SIMD[DType.int32, width]()
            comptime for i in range(width):
                exponents[i] = frexp(values[i])[1]
            return exponents

        foreach[target=target](element, result, ctx)
