"""Element types, vectors, constants, conversions as the compiler does them."""
from std.memory import bitcast as bitcast_of
import std.math as math

comptime f16 = DType.float16
comptime bf16 = DType.bfloat16
comptime f32 = DType.float32
comptime f64 = DType.float64
comptime i8 = DType.int8
comptime i16 = DType.int16
comptime i32 = DType.int32
comptime i64 = DType.int64
comptime u8 = DType.uint8
comptime u16 = DType.uint16
comptime u32 = DType.uint32
comptime u64 = DType.uint64
comptime boolean = DType.bool

# floats of 8 bits are carried as their bits
comptime f8_e4m3fn = u8
comptime f8_e4m3fnuz = u8
comptime f8_e5m2 = u8
comptime f8_e5m2fnuz = u8
comptime f8_e8m0fnu = u8


struct Vec[d: DType, w: Int](TrivialRegisterPassable):
    """`w` elements of type `d` in registers; SIMD, with a width that the compiler can infer."""

    comptime T = SIMD[Self.d, Self.w]
    var v: Self.T

    @always_inline("nodebug")
    @implicit
    def __init__(out self, v: Self.T):
        self.v = v


@always_inline("nodebug")
def const[d: DType, w: Int](x: FloatLiteral[_]) -> Vec[d, w]:
    comptime if d.is_floating_point():
        return Vec[d, w](Vec[d, w].T(x))
    else:
        return Vec[d, w](Vec[d, w].T())


@always_inline("nodebug")
def const[d: DType, w: Int](x: IntLiteral[_]) -> Vec[d, w]:
    comptime if d == boolean:
        return Vec[d, w](SIMD[i64, w](x).ne(0).cast[d]())
    else:
        return Vec[d, w](Vec[d, w].T(x))


@always_inline("nodebug")
def splat[w: Int, d: DType](x: Vec[d, 1]) -> Vec[d, w]:
    return Vec[d, w](Vec[d, w].T(x.v[0]))


@always_inline("nodebug")
def cast_plain[e: DType, d: DType, w: Int](x: Vec[d, w]) -> Vec[e, w]:
    """The compiler's conversion: any value comes out where the number does not fit."""
    return Vec[e, w](x.v.cast[e]())


@always_inline("nodebug")
def bitcast[e: DType, d: DType, w: Int](x: Vec[d, w]) -> Vec[e, w]:
    return Vec[e, w](bitcast_of[e, w](x.v))


@always_inline("nodebug")
def from_int[d: DType, w: Int](i: Int) -> Vec[d, w]:
    return Vec[d, w](Vec[d, w].T(Scalar[d](i)))


@always_inline("nodebug")
def to_int(x: Vec[i64, 1]) -> Int:
    return Int(x.v[0])


@always_inline("nodebug")
def condition(x: Vec[boolean, 1]) -> Bool:
    return Bool(x.v[0])


@always_inline("nodebug")
def ramp[d: DType, w: Int]() -> Vec[d, w]:
    """0, 1, 2, … of an integer type."""
    comptime if d.is_integral():
        return Vec[d, w](math.iota[d, w]())
    else:
        return Vec[d, w](Vec[d, w].T())


@always_inline("nodebug")
def lane_at[d: DType, w: Int](x: Vec[d, w], k: Int) -> Vec[d, 1]:
    return Vec[d, 1](x.v[k])


@always_inline("nodebug")
def with_lane[d: DType, w: Int](x: Vec[d, w], k: Int, e: Vec[d, 1]) -> Vec[d, w]:
    var r = x
    r.v[k] = e.v[0]
    return r


@always_inline("nodebug")
def is_float(d: DType) -> Bool:
    return d.is_floating_point()


@always_inline("nodebug")
def is_signed(d: DType) -> Bool:
    return d == i8 or d == i16 or d == i32 or d == i64
