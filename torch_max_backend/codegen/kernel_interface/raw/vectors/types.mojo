"""Element types, vectors, constants, conversions as the compiler does them."""

struct DType(TrivialRegisterPassable):
    comptime __del__is_trivial = True
    comptime __move_ctor_is_trivial = True
    comptime __copy_ctor_is_trivial = True
    var v: __mlir_type.`!kgen.dtype`

    @always_inline("builtin")
    @implicit
    def __init__(out self, v: __mlir_type.`!kgen.dtype`):
        self.v = v

    @always_inline("builtin")
    def code(self) -> __mlir_type.`!kgen.scalar<ui8>`:
        return __mlir_op.`pop.cast_from_builtin`[_type=__mlir_type.`!kgen.scalar<ui8>`](
            __mlir_op.`pop.dtype.to_ui8`(self.v)
        )

    @always_inline("builtin")
    def __eq__(self, other: Self) -> Bool:
        return __mlir_op.`pop.cmp`[pred=__mlir_attr.`#kgen.cmp_pred<eq>`](self.code(), other.code())


comptime f16: DType = __mlir_attr.`#kgen.dtype.constant<f16> : !kgen.dtype`
comptime bf16: DType = __mlir_attr.`#kgen.dtype.constant<bf16> : !kgen.dtype`
comptime f32: DType = __mlir_attr.`#kgen.dtype.constant<f32> : !kgen.dtype`
comptime f64: DType = __mlir_attr.`#kgen.dtype.constant<f64> : !kgen.dtype`
comptime i8: DType = __mlir_attr.`#kgen.dtype.constant<si8> : !kgen.dtype`
comptime i16: DType = __mlir_attr.`#kgen.dtype.constant<si16> : !kgen.dtype`
comptime i32: DType = __mlir_attr.`#kgen.dtype.constant<si32> : !kgen.dtype`
comptime i64: DType = __mlir_attr.`#kgen.dtype.constant<si64> : !kgen.dtype`
comptime u8: DType = __mlir_attr.`#kgen.dtype.constant<ui8> : !kgen.dtype`
comptime u16: DType = __mlir_attr.`#kgen.dtype.constant<ui16> : !kgen.dtype`
comptime u32: DType = __mlir_attr.`#kgen.dtype.constant<ui32> : !kgen.dtype`
comptime u64: DType = __mlir_attr.`#kgen.dtype.constant<ui64> : !kgen.dtype`
comptime boolean: DType = __mlir_attr.`#kgen.dtype.constant<bool> : !kgen.dtype`
comptime index: DType = __mlir_attr.`#kgen.dtype.constant<index> : !kgen.dtype`

# floats of 8 bits are carried as their bits
comptime f8_e4m3fn = u8
comptime f8_e4m3fnuz = u8
comptime f8_e5m2 = u8
comptime f8_e5m2fnuz = u8
comptime f8_e8m0fnu = u8


struct Vec[d: DType, w: Int](TrivialRegisterPassable):
    """`w` elements of type `d` in registers."""

    comptime __del__is_trivial = True
    comptime __move_ctor_is_trivial = True
    comptime __copy_ctor_is_trivial = True
    comptime T = __mlir_type[`!kgen.simd<`, Self.w.v, `, `, Self.d.v, `>`]
    var v: Self.T

    @always_inline("builtin")
    @implicit
    def __init__(out self, v: Self.T):
        self.v = v


@always_inline("builtin")
def const[d: DType, w: Int](x: FloatLiteral[_]) -> Vec[d, w]:
    return Vec[d, w](__mlir_attr[`#pop<float_literal_convert<`, x.value, `>> : `, Vec[d, w].T])


@always_inline("builtin")
def const[d: DType, w: Int](x: IntLiteral[_]) -> Vec[d, w]:
    return Vec[d, w](__mlir_attr[`#pop.int_literal_convert<`, x.value, `> : `, Vec[d, w].T])


@always_inline("nodebug")
def splat[w: Int, d: DType](x: Vec[d, 1]) -> Vec[d, w]:
    return __mlir_op.`pop.simd.splat`[_type=Vec[d, w].T](x.v)


@always_inline("nodebug")
def cast_plain[e: DType, d: DType, w: Int](x: Vec[d, w]) -> Vec[e, w]:
    """The compiler's conversion: any value comes out where the number does not fit."""
    return __mlir_op.`pop.cast`[_type=Vec[e, w].T](x.v)


@always_inline("nodebug")
def bitcast[e: DType, d: DType, w: Int](x: Vec[d, w]) -> Vec[e, w]:
    return __mlir_op.`pop.bitcast`[_type=Vec[e, w].T](x.v)


@always_inline("nodebug")
def from_int[d: DType, w: Int](i: Int) -> Vec[d, w]:
    return splat[w](cast_plain[d](Vec[index, 1](__mlir_op.`pop.cast_from_builtin`[_type=Vec[index, 1].T](i.v))))


@always_inline("nodebug")
def to_int(x: Vec[i64, 1]) -> Int:
    return __mlir_op.`pop.cast_to_builtin`[_type=__mlir_type.index](cast_plain[index](x).v)


@always_inline("nodebug")
def condition(x: Vec[boolean, 1]) -> Bool:
    return Bool(x.v)


@always_inline("nodebug")
def intrinsic[name: StaticString, d: DType, w: Int](a: Vec[d, w]) -> Vec[d, w]:
    return __mlir_op.`pop.call_llvm_intrinsic`[
        intrin=name.v, hasSideEffects=__mlir_attr.`false`, _type=Vec[d, w].T
    ](a.v)


@always_inline("nodebug")
def intrinsic[name: StaticString, d: DType, w: Int](a: Vec[d, w], b: Vec[d, w]) -> Vec[d, w]:
    return __mlir_op.`pop.call_llvm_intrinsic`[
        intrin=name.v, hasSideEffects=__mlir_attr.`false`, _type=Vec[d, w].T
    ](a.v, b.v)


@always_inline("nodebug")
def ramp[d: DType, w: Int]() -> Vec[d, w]:
    """0, 1, 2, … of an integer type."""
    if w == 1:
        return const[d, w](0)
    else:
        return __mlir_op.`pop.call_llvm_intrinsic`[
            intrin=__mlir_attr.`"llvm.stepvector" : !kgen.string`, hasSideEffects=__mlir_attr.`false`, _type=Vec[d, w].T
        ]()


@always_inline("nodebug")
def lane_at[d: DType, w: Int](x: Vec[d, w], k: Int) -> Vec[d, 1]:
    return __mlir_op.`pop.simd.extractelement`(x.v, k.v)


@always_inline("nodebug")
def with_lane[d: DType, w: Int](x: Vec[d, w], k: Int, e: Vec[d, 1]) -> Vec[d, w]:
    return __mlir_op.`pop.simd.insertelement`(x.v, e.v, k.v)


@always_inline("builtin")
def is_float(d: DType) -> Bool:
    return d == f32 or d == f64 or d == f16 or d == bf16


@always_inline("builtin")
def is_signed(d: DType) -> Bool:
    return d == i8 or d == i16 or d == i32 or d == i64
