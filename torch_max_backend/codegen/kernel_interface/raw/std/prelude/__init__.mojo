# What the Mojo compiler looks for by name in a standard library: traits, Bool, Int and the literals. Nothing else.
trait AnyType:
    pass


trait Movable:
    def __init__(out self, *, deinit move: Self):
        ...

    comptime __move_ctor_is_trivial: Bool


trait Copyable(Movable):
    def __init__(out self, *, copy: Self):
        ...

    comptime __copy_ctor_is_trivial: Bool


trait ImplicitlyCopyable(Copyable):
    pass


trait RegisterPassable(Movable):
    pass


trait Deinitable:
    def __deinit__(deinit self, /):
        ...

    comptime __del__is_trivial: Bool


trait TrivialRegisterPassable(Deinitable, ImplicitlyCopyable, Movable, RegisterPassable):
    pass


comptime Scalar_bool = __mlir_type.`!kgen.scalar<bool>`


struct Bool(TrivialRegisterPassable):
    """A condition: what `if` and `while` take."""

    comptime __del__is_trivial = True
    comptime __move_ctor_is_trivial = True
    comptime __copy_ctor_is_trivial = True
    var _mlir_value: Scalar_bool

    @always_inline("builtin")
    @implicit
    def __init__(out self, value: __mlir_type.i1):
        self._mlir_value = __mlir_op.`pop.cast_from_builtin`[_type=Scalar_bool](value)

    @always_inline("builtin")
    @implicit
    def __init__(out self, value: Scalar_bool):
        self._mlir_value = value

    @always_inline("builtin")
    def __bool__(self) -> Bool:
        return self

    @always_inline("builtin")
    def __mlir_bool__(self) -> Scalar_bool:
        return self._mlir_value

    @always_inline("builtin")
    def __mlir_i1__(self) -> __mlir_type.i1:
        return __mlir_op.`pop.cast_to_builtin`[_type=__mlir_type.i1](self._mlir_value)

    @always_inline("builtin")
    def __invert__(self) -> Bool:
        return __mlir_op.`pop.simd.xor`(self._mlir_value, __mlir_attr.`#kgen.simd<true> : !kgen.scalar<bool>`)

    @always_inline("builtin")
    def __and__(self, other: Bool) -> Bool:
        return __mlir_op.`pop.simd.and`(self._mlir_value, other._mlir_value)

    @always_inline("builtin")
    def __or__(self, other: Bool) -> Bool:
        return __mlir_op.`pop.simd.or`(self._mlir_value, other._mlir_value)


@__nonmaterializable(Int)
struct IntLiteral[value: __mlir_type.`!pop.int_literal`](TrivialRegisterPassable):
    """An integer of the source text, of any size."""

    comptime __del__is_trivial = True
    comptime __move_ctor_is_trivial = True
    comptime __copy_ctor_is_trivial = True

    @always_inline("builtin")
    def __init__(out self):
        pass

    @always_inline("builtin")
    def __mlir_index__(self) -> __mlir_type.index:
        return __mlir_attr[
            `#kgen.cast_to_builtin<#pop.int_literal_convert<`, self.value, `> : !kgen.scalar<index>> : index`
        ]

    @always_inline("builtin")
    def __neg__(
        self,
    ) -> IntLiteral[
        __mlir_attr[
            `#pop<int_literal_bin<sub `, __mlir_attr.`#pop.int_literal<0>`, `,`, self.value, `>> : !pop.int_literal`
        ]
    ]:
        return {}


struct FloatLiteral[value: __mlir_type.`!pop.float_literal`](TrivialRegisterPassable):
    """A number with a point in the source text: exact, as a fraction."""

    comptime __del__is_trivial = True
    comptime __move_ctor_is_trivial = True
    comptime __copy_ctor_is_trivial = True

    @always_inline("builtin")
    def __init__(out self):
        pass

    @always_inline("builtin")
    def __neg__(
        self,
    ) -> FloatLiteral[
        __mlir_attr[
            `#pop<float_literal_bin<mul `,
            self.value,
            `,`,
            __mlir_attr.`#pop.float_literal<-1|1>`,
            `>> : !pop.float_literal`,
        ]
    ]:
        return {}


struct StringLiteral[value: __mlir_type.`!kgen.string`](TrivialRegisterPassable):
    """A text: the name of a C function, never a value at run time."""

    comptime __del__is_trivial = True
    comptime __move_ctor_is_trivial = True
    comptime __copy_ctor_is_trivial = True

    @always_inline("builtin")
    def __init__(out self):
        pass


struct StaticString(TrivialRegisterPassable):
    comptime __del__is_trivial = True
    comptime __move_ctor_is_trivial = True
    comptime __copy_ctor_is_trivial = True
    var v: __mlir_type.`!kgen.string`

    @always_inline("builtin")
    @implicit
    def __init__(out self, value: StringLiteral[_]):
        self.v = value.value


struct Int(TrivialRegisterPassable):
    """The machine's integer. `//` and `%` want operands that are not negative."""

    comptime __del__is_trivial = True
    comptime __move_ctor_is_trivial = True
    comptime __copy_ctor_is_trivial = True
    var v: __mlir_type.index

    @always_inline("builtin")
    @implicit
    def __init__(out self, value: IntLiteral[_]):
        self.v = value.__mlir_index__()

    @always_inline("builtin")
    @implicit
    def __init__(out self, value: __mlir_type.index):
        self.v = value

    @always_inline("builtin")
    def __add__(self, other: Self) -> Self:
        return __mlir_op.`index.add`(self.v, other.v)

    @always_inline("builtin")
    def __sub__(self, other: Self) -> Self:
        return __mlir_op.`index.sub`(self.v, other.v)

    @always_inline("builtin")
    def __mul__(self, other: Self) -> Self:
        return __mlir_op.`index.mul`(self.v, other.v)

    @always_inline("builtin")
    def __floordiv__(self, other: Self) -> Self:
        return __mlir_op.`index.divu`(self.v, other.v)

    @always_inline("builtin")
    def __mod__(self, other: Self) -> Self:
        return __mlir_op.`index.remu`(self.v, other.v)

    @always_inline("builtin")
    def __neg__(self) -> Self:
        return __mlir_op.`index.sub`(__mlir_attr.`0 : index`, self.v)

    @always_inline("builtin")
    def __radd__(self, other: Self) -> Self:
        return other + self

    @always_inline("builtin")
    def __rsub__(self, other: Self) -> Self:
        return other - self

    @always_inline("builtin")
    def __rmul__(self, other: Self) -> Self:
        return other * self

    @always_inline("nodebug")
    def __iadd__(mut self, other: Self):
        self = self + other

    @always_inline("builtin")
    def __eq__(self, other: Self) -> Bool:
        return __mlir_op.`index.cmp`[pred=__mlir_attr.`#index.cmp_predicate<eq>`](self.v, other.v)

    @always_inline("builtin")
    def __ne__(self, other: Self) -> Bool:
        return __mlir_op.`index.cmp`[pred=__mlir_attr.`#index.cmp_predicate<ne>`](self.v, other.v)

    @always_inline("builtin")
    def __lt__(self, other: Self) -> Bool:
        return __mlir_op.`index.cmp`[pred=__mlir_attr.`#index.cmp_predicate<slt>`](self.v, other.v)

    @always_inline("builtin")
    def __le__(self, other: Self) -> Bool:
        return __mlir_op.`index.cmp`[pred=__mlir_attr.`#index.cmp_predicate<sle>`](self.v, other.v)

    @always_inline("builtin")
    def __gt__(self, other: Self) -> Bool:
        return __mlir_op.`index.cmp`[pred=__mlir_attr.`#index.cmp_predicate<sgt>`](self.v, other.v)

    @always_inline("builtin")
    def __ge__(self, other: Self) -> Bool:
        return __mlir_op.`index.cmp`[pred=__mlir_attr.`#index.cmp_predicate<sge>`](self.v, other.v)
