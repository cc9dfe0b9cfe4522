"""Blocks of a GPU that work on one row together: a cluster, whose blocks write into each other's shared memory."""

from max.gpu import thread_idx
from max.gpu.host import DeviceContext, Dim
from max.gpu.memory import AddressSpace
from max.gpu.primitives.cluster import block_rank_in_cluster, cluster_arrive_relaxed, cluster_sync, cluster_wait
from std.collections import OptionalReg
from std.memory import unsafe_stack_allocation
from std.sys._assembly import inlined_assembly
from std.utils.static_tuple import StaticTuple

from .row_threads import Partial, Reduction

comptime HAS_CLUSTERS = DeviceContext.default_device_info.api == "cuda" and DeviceContext.default_device_info.compute >= 9.0
"""Whether the GPU that is compiled for has clusters: NVIDIA's do from Hopper on."""


@always_inline
def cluster[blocks: Int]() -> OptionalReg[Dim]:
    """The launch attribute of a kernel whose rows have `blocks` each; none for one block."""
    comptime if blocks > 1:
        return Dim(blocks)
    return None


@always_inline
def rank[blocks: Int]() -> Int:
    """Which block of its cluster of `blocks` this one is."""
    comptime if blocks > 1:
        return Int(block_rank_in_cluster())
    return 0


@always_inline
def announce[blocks: Int]():
    """Says that this block has begun, and so can be written into; every thread calls it once, before `gathered`."""
    comptime if blocks > 1:
        cluster_arrive_relaxed()


@always_inline
def gathered[used: Int, blocks: Int](mine: Partial) -> StaticTuple[Partial, blocks]:
    """The first `used` numbers that the blocks of a cluster know of a row; every thread gets those of all blocks.

    Each thread of a block has the same `mine`. A kernel calls it once at most, with all threads, after `announce`: the
    memory that the blocks write into is not written twice, so that no block need wait before it ends.
    """
    var slots = unsafe_stack_allocation[blocks * used, Float32, address_space=AddressSpace.SHARED]()
    var thread = Int(thread_idx.x)
    cluster_wait()
    if thread < blocks:
        comptime for i in range(used):
            var place = Int32(Int(slots.unsafe_offset(rank[blocks]() * used + i)))
            var there = inlined_assembly[
                "mapa.shared::cluster.u32 $0, $1, $2;", Int32, constraints="=r,r,r", has_side_effect=False
            ](place, Int32(thread))
            inlined_assembly[
                "st.shared::cluster.f32 [$0], $1;", NoneType, constraints="r,f,~{memory}", has_side_effect=True
            ](there, mine[i])
    cluster_sync()
    var all = StaticTuple[Partial, blocks](fill=Partial(0))
    comptime for block in range(blocks):
        var value = Partial(0)
        comptime for i in range(used):
            value[i] = slots[unsafe_offset = block * used + i]
        all[block] = value
    return all


@always_inline
def joined[R: Reduction, blocks: Int](mine: Partial) -> Partial:
    """What the blocks of a cluster know of a row, joined; see `gathered`."""
    var all = gathered[R.used, blocks](mine)
    var value = all[0]
    comptime for block in range(1, blocks):
        value = R.joined(value, all[block])
    return value
