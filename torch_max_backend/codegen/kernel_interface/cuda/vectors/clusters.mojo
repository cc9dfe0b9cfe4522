"""From the values of a cluster's blocks to one, which all of them get: GPUs have clusters from sm_90 on.

All threads of all blocks of the cluster must call. A kernel begins with `cluster_begin`, and calls `cluster_wait` before
the first value is told.
"""
from raw.vectors.types import *
from raw.vectors.arithmetic import *
from .memory import bytes_of
from .threads import *
from .shared import *
from .blocks import larger, smaller


@always_inline("nodebug")
def cluster_barrier[text: StaticString]():
    __mlir_op.`pop.inline_asm`[
        _type=None,
        assembly=text.v,
        constraints=__mlir_attr.`"~{memory}" : !kgen.string`,
        hasSideEffects=__mlir_attr.`true`,
        isStackAligned=__mlir_attr.`false`,
    ]()


@always_inline("nodebug")
def cluster_begin():
    """Say that this block runs: others may write to its shared memory."""
    cluster_barrier["barrier.cluster.arrive.relaxed.aligned;"]()


@always_inline("nodebug")
def cluster_arrive():
    cluster_barrier["barrier.cluster.arrive.release.aligned;"]()


@always_inline("nodebug")
def cluster_wait():
    """Wait until all threads of the cluster have arrived as often as this one."""
    cluster_barrier["barrier.cluster.wait.acquire.aligned;"]()


@always_inline("nodebug")
def tell_block[d: DType](p: Shared[d], i: Int, block: Int, x: Vec[d, 1]):
    """Write a number of 2, 4 or 8 bytes to where a block of the cluster has what this one has at `p`."""
    var at = __mlir_op.`pop.offset`(p.p, i.v)
    var rank = from_int[u32, 1](block)
    if bytes_of(d) == 2:
        __mlir_op.`pop.inline_asm`[
            _type=None,
            assembly=__mlir_attr.`"{ .reg .b64 a; mapa.shared::cluster.u64 a, $0, $1; st.shared::cluster.b16 [a], $2; }" : !kgen.string`,
            constraints=__mlir_attr.`"l,r,h,~{memory}" : !kgen.string`,
            hasSideEffects=__mlir_attr.`true`,
            isStackAligned=__mlir_attr.`false`,
        ](at, rank.v, bitcast[u16](x).v)
    elif bytes_of(d) == 4:
        __mlir_op.`pop.inline_asm`[
            _type=None,
            assembly=__mlir_attr.`"{ .reg .b64 a; mapa.shared::cluster.u64 a, $0, $1; st.shared::cluster.b32 [a], $2; }" : !kgen.string`,
            constraints=__mlir_attr.`"l,r,r,~{memory}" : !kgen.string`,
            hasSideEffects=__mlir_attr.`true`,
            isStackAligned=__mlir_attr.`false`,
        ](at, rank.v, bitcast[u32](x).v)
    else:
        __mlir_op.`pop.inline_asm`[
            _type=None,
            assembly=__mlir_attr.`"{ .reg .b64 a; mapa.shared::cluster.u64 a, $0, $1; st.shared::cluster.b64 [a], $2; }" : !kgen.string`,
            constraints=__mlir_attr.`"l,r,l,~{memory}" : !kgen.string`,
            hasSideEffects=__mlir_attr.`true`,
            isStackAligned=__mlir_attr.`false`,
        ](at, rank.v, bitcast[u64](x).v)


@always_inline("nodebug")
def cluster_fold[
    blocks: Int, d: DType, f: def(Vec[d, 1], Vec[d, 1]) thin -> Vec[d, 1]
](x: Vec[d, 1]) -> Vec[d, 1]:
    """`f` over the values of `blocks` blocks, in their order; all threads of a block have its value."""
    var told = shared[d, blocks]()
    if thread_in_block() < blocks:
        tell_block(told, rem32(block_index(), blocks), thread_in_block(), x)
    cluster_arrive()
    cluster_wait()
    var r = shared_load[1](told, 0)
    var k = 1
    while k < blocks:
        r = f(r, shared_load[1](told, k))
        k += 1
    return r


@always_inline("nodebug")
def cluster_add[blocks: Int, d: DType](x: Vec[d, 1]) -> Vec[d, 1]:
    return cluster_fold[blocks, d, add[d, 1]](x)


@always_inline("nodebug")
def cluster_mul[blocks: Int, d: DType](x: Vec[d, 1]) -> Vec[d, 1]:
    return cluster_fold[blocks, d, mul[d, 1]](x)


@always_inline("nodebug")
def cluster_max[blocks: Int, d: DType](x: Vec[d, 1]) -> Vec[d, 1]:
    """Not a number where one of them is none."""
    return cluster_fold[blocks, d, larger[d]](x)


@always_inline("nodebug")
def cluster_min[blocks: Int, d: DType](x: Vec[d, 1]) -> Vec[d, 1]:
    """Not a number where one of them is none."""
    return cluster_fold[blocks, d, smaller[d]](x)
