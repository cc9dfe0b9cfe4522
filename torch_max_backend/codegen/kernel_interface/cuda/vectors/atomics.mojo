"""Operations on memory that other threads may change meanwhile; what was there before is not told."""
from raw.vectors.types import *
from raw.vectors.arithmetic import *
from raw.vectors.pointers import *
from .memory import bytes_of, read_aligned
from .shuffles import unsigned_of
from .blocks import larger, smaller


@always_inline("nodebug")
def exchange_if[d: DType](p: Ptr[d], i: Int, seen: Vec[d, 1], x: Vec[d, 1]) -> Vec[d, 1]:
    """Store `x`, of an integer type, if `seen` is there; what was there."""
    return __mlir_op.`kgen.struct.extract`[index=__mlir_attr.`0:index`](
        __mlir_op.`pop.atomic.cmpxchg`[
            failure_ordering=__mlir_attr.`#pop.atomic_ordering<monotonic>`,
            success_ordering=__mlir_attr.`#pop.atomic_ordering<monotonic>`,
            syncscope=__mlir_attr.`"device" : !kgen.string`,
        ](__mlir_op.`pop.offset`(p.p, i.v), seen.v, x.v)
    )


@always_inline("nodebug")
def store_first(p: Ptr[i64], i: Int, x: Vec[i64, 1]) -> Bool:
    """Store `x` if zero is there; whether it was."""
    return condition(eq(exchange_if(p, i, const[i64, 1](0), x), const[i64, 1](0)))


@always_inline("nodebug")
def atomic_max[d: DType](p: Ptr[d], i: Int, x: Vec[d, 1]):
    """Of floats not a number where one of them is none."""
    atomic_choice[larger[d]](p, i, x)


@always_inline("nodebug")
def atomic_min[d: DType](p: Ptr[d], i: Int, x: Vec[d, 1]):
    """Of floats not a number where one of them is none."""
    atomic_choice[smaller[d]](p, i, x)


@always_inline("nodebug")
def atomic_mul[d: DType](p: Ptr[d], i: Int, x: Vec[d, 1]):
    atomic_choice[mul[d, 1]](p, i, x)


@always_inline("nodebug")
def atomic_choice[
    d: DType, //, f: def(Vec[d, 1], Vec[d, 1]) thin -> Vec[d, 1]
](p: Ptr[d], i: Int, x: Vec[d, 1]):
    """Replace what is there by `f` of it and `x`, unless they are the same bits."""
    var bits = Ptr[unsigned_of(d)](
        __mlir_op.`pop.pointer.bitcast`[_type=Ptr[unsigned_of(d)].T](__mlir_op.`pop.offset`(p.p, i.v))
    )
    var seen = read_aligned[Vec[unsigned_of(d), 1], bytes_of(d)](pointer_to[Vec[unsigned_of(d), 1]](bits, 0))
    var wanted = bitcast[unsigned_of(d)](f(bitcast[d](seen), x))
    while condition(ne(seen, wanted)):
        var found = exchange_if(bits, 0, seen, wanted)
        if condition(eq(found, seen)):
            wanted = found
        else:
            wanted = bitcast[unsigned_of(d)](f(bitcast[d](found), x))
        seen = found
