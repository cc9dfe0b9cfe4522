"""Atomic additions of which nothing is told back, as GPUs from sm_90 on have them: of vectors, too."""
from raw.vectors.types import *
from raw.vectors.arithmetic import *
from raw.vectors.pointers import *


@always_inline("nodebug")
def atomic_add[d: DType](p: Ptr[d], i: Int, x: Vec[d, 1]):
    """Add to what is there; what was there before is not told."""
    _ = __mlir_op.`pop.atomic.rmw`[
        bin_op=__mlir_attr.`#pop.bin_op<add>`,
        ordering=__mlir_attr.`#pop.atomic_ordering<monotonic>`,
        syncscope=__mlir_attr.`"device" : !kgen.string`,
        _type=Vec[d, 1].T,
    ](__mlir_op.`pop.offset`(p.p, i.v), x.v)


@always_inline("nodebug")
def atomic_add(p: Ptr[f32], i: Int, x: Vec[f32, 1]):
    __mlir_op.`pop.inline_asm`[
        _type=None,
        assembly=__mlir_attr.`"red.relaxed.gpu.global.add.f32 [$0], $1;" : !kgen.string`,
        constraints=__mlir_attr.`"l,f,~{memory}" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        isStackAligned=__mlir_attr.`false`,
    ](__mlir_op.`pop.offset`(p.p, i.v), x.v)


@always_inline("nodebug")
def atomic_add(p: Ptr[f64], i: Int, x: Vec[f64, 1]):
    __mlir_op.`pop.inline_asm`[
        _type=None,
        assembly=__mlir_attr.`"red.relaxed.gpu.global.add.f64 [$0], $1;" : !kgen.string`,
        constraints=__mlir_attr.`"l,d,~{memory}" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        isStackAligned=__mlir_attr.`false`,
    ](__mlir_op.`pop.offset`(p.p, i.v), x.v)


@always_inline("nodebug")
def atomic_add(p: Ptr[f16], i: Int, x: Vec[f16, 1]):
    __mlir_op.`pop.inline_asm`[
        _type=None,
        assembly=__mlir_attr.`"red.relaxed.gpu.global.add.noftz.f16 [$0], $1;" : !kgen.string`,
        constraints=__mlir_attr.`"l,h,~{memory}" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        isStackAligned=__mlir_attr.`false`,
    ](__mlir_op.`pop.offset`(p.p, i.v), x.v)


@always_inline("nodebug")
def atomic_add(p: Ptr[bf16], i: Int, x: Vec[bf16, 1]):
    __mlir_op.`pop.inline_asm`[
        _type=None,
        assembly=__mlir_attr.`"red.relaxed.gpu.global.add.noftz.bf16 [$0], $1;" : !kgen.string`,
        constraints=__mlir_attr.`"l,h,~{memory}" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        isStackAligned=__mlir_attr.`false`,
    ](__mlir_op.`pop.offset`(p.p, i.v), x.v)


@always_inline("nodebug")
def atomic_add(p: Ptr[i32], i: Int, x: Vec[i32, 1]):
    __mlir_op.`pop.inline_asm`[
        _type=None,
        assembly=__mlir_attr.`"red.relaxed.gpu.global.add.u32 [$0], $1;" : !kgen.string`,
        constraints=__mlir_attr.`"l,r,~{memory}" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        isStackAligned=__mlir_attr.`false`,
    ](__mlir_op.`pop.offset`(p.p, i.v), x.v)


@always_inline("nodebug")
def atomic_add(p: Ptr[i64], i: Int, x: Vec[i64, 1]):
    __mlir_op.`pop.inline_asm`[
        _type=None,
        assembly=__mlir_attr.`"red.relaxed.gpu.global.add.u64 [$0], $1;" : !kgen.string`,
        constraints=__mlir_attr.`"l,l,~{memory}" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        isStackAligned=__mlir_attr.`false`,
    ](__mlir_op.`pop.offset`(p.p, i.v), x.v)


@always_inline("nodebug")
def words_of[d: DType, w: Int, //, n: Int](x: Vec[d, w]) -> Vec[u32, n]:
    """Pairs of 16 bits as words."""
    return __mlir_op.`pop.bitcast`[_type=Vec[u32, n].T](x.v)


@always_inline("nodebug")
def atomic_add_vector(p: Ptr[f32], i: Int, x: Vec[f32, 2]):
    """Neighbours, which begin at a multiple of the vector's size: each is added in one step, the vector is not."""
    __mlir_op.`pop.inline_asm`[
        _type=None,
        assembly=__mlir_attr.`"red.relaxed.gpu.global.add.v2.f32 [$0], {$1, $2};" : !kgen.string`,
        constraints=__mlir_attr.`"l,f,f,~{memory}" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        isStackAligned=__mlir_attr.`false`,
    ](__mlir_op.`pop.offset`(p.p, i.v), lane_at(x, 0).v, lane_at(x, 1).v)


@always_inline("nodebug")
def atomic_add_vector(p: Ptr[f32], i: Int, x: Vec[f32, 4]):
    __mlir_op.`pop.inline_asm`[
        _type=None,
        assembly=__mlir_attr.`"red.relaxed.gpu.global.add.v4.f32 [$0], {$1, $2, $3, $4};" : !kgen.string`,
        constraints=__mlir_attr.`"l,f,f,f,f,~{memory}" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        isStackAligned=__mlir_attr.`false`,
    ](__mlir_op.`pop.offset`(p.p, i.v), lane_at(x, 0).v, lane_at(x, 1).v, lane_at(x, 2).v, lane_at(x, 3).v)


@always_inline("nodebug")
def atomic_add_vector(p: Ptr[f16], i: Int, x: Vec[f16, 2]):
    var words = words_of[n=1](x)
    __mlir_op.`pop.inline_asm`[
        _type=None,
        assembly=__mlir_attr.`"red.relaxed.gpu.global.add.noftz.f16x2 [$0], $1;" : !kgen.string`,
        constraints=__mlir_attr.`"l,r,~{memory}" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        isStackAligned=__mlir_attr.`false`,
    ](__mlir_op.`pop.offset`(p.p, i.v), words.v)


@always_inline("nodebug")
def atomic_add_vector(p: Ptr[f16], i: Int, x: Vec[f16, 4]):
    var words = words_of[n=2](x)
    __mlir_op.`pop.inline_asm`[
        _type=None,
        assembly=__mlir_attr.`"red.relaxed.gpu.global.add.noftz.v2.f16x2 [$0], {$1, $2};" : !kgen.string`,
        constraints=__mlir_attr.`"l,r,r,~{memory}" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        isStackAligned=__mlir_attr.`false`,
    ](__mlir_op.`pop.offset`(p.p, i.v), lane_at(words, 0).v, lane_at(words, 1).v)


@always_inline("nodebug")
def atomic_add_vector(p: Ptr[f16], i: Int, x: Vec[f16, 8]):
    var words = words_of[n=4](x)
    __mlir_op.`pop.inline_asm`[
        _type=None,
        assembly=__mlir_attr.`"red.relaxed.gpu.global.add.noftz.v4.f16x2 [$0], {$1, $2, $3, $4};" : !kgen.string`,
        constraints=__mlir_attr.`"l,r,r,r,r,~{memory}" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        isStackAligned=__mlir_attr.`false`,
    ](
        __mlir_op.`pop.offset`(p.p, i.v),
        lane_at(words, 0).v,
        lane_at(words, 1).v,
        lane_at(words, 2).v,
        lane_at(words, 3).v,
    )


@always_inline("nodebug")
def atomic_add_vector(p: Ptr[bf16], i: Int, x: Vec[bf16, 2]):
    var words = words_of[n=1](x)
    __mlir_op.`pop.inline_asm`[
        _type=None,
        assembly=__mlir_attr.`"red.relaxed.gpu.global.add.noftz.bf16x2 [$0], $1;" : !kgen.string`,
        constraints=__mlir_attr.`"l,r,~{memory}" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        isStackAligned=__mlir_attr.`false`,
    ](__mlir_op.`pop.offset`(p.p, i.v), words.v)


@always_inline("nodebug")
def atomic_add_vector(p: Ptr[bf16], i: Int, x: Vec[bf16, 4]):
    var words = words_of[n=2](x)
    __mlir_op.`pop.inline_asm`[
        _type=None,
        assembly=__mlir_attr.`"red.relaxed.gpu.global.add.noftz.v2.bf16x2 [$0], {$1, $2};" : !kgen.string`,
        constraints=__mlir_attr.`"l,r,r,~{memory}" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        isStackAligned=__mlir_attr.`false`,
    ](__mlir_op.`pop.offset`(p.p, i.v), lane_at(words, 0).v, lane_at(words, 1).v)


@always_inline("nodebug")
def atomic_add_vector(p: Ptr[bf16], i: Int, x: Vec[bf16, 8]):
    var words = words_of[n=4](x)
    __mlir_op.`pop.inline_asm`[
        _type=None,
        assembly=__mlir_attr.`"red.relaxed.gpu.global.add.noftz.v4.bf16x2 [$0], {$1, $2, $3, $4};" : !kgen.string`,
        constraints=__mlir_attr.`"l,r,r,r,r,~{memory}" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        isStackAligned=__mlir_attr.`false`,
    ](
        __mlir_op.`pop.offset`(p.p, i.v),
        lane_at(words, 0).v,
        lane_at(words, 1).v,
        lane_at(words, 2).v,
        lane_at(words, 3).v,
    )
