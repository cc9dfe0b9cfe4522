"""What kernels share that give each row of a matrix to some threads of a GPU block."""

from max.gpu import thread_idx
from max.gpu.memory import AddressSpace
from max.gpu.primitives import warp
from max.gpu.sync import barrier
from std.bit import log2_floor
from std.math import exp
from std.memory import unsafe_stack_allocation

comptime GROUP = 32
"""Threads that exchange values by shuffles. A warp may be wider."""

comptime Partial = SIMD[DType.float32, 4]
"""What a thread knows of its row; a reduction uses the first few numbers."""


trait Reduction:
    """How the partial results of a row become one."""

    comptime used: Int

    @staticmethod
    def joined(a: Partial, b: Partial) -> Partial:
        ...


struct Sum(Reduction):
    """A sum."""

    comptime used = 1

    @staticmethod
    @always_inline
    def joined(a: Partial, b: Partial) -> Partial:
        return Partial(a[0] + b[0], 0, 0, 0)


struct Moments(Reduction):
    """Mean, sum of squared distances from it, and count; a count of 0 is nothing."""

    comptime used = 3

    @staticmethod
    @always_inline
    def joined(a: Partial, b: Partial) -> Partial:
        var count = a[2] + b[2]
        var share = b[2] / max(count, 1)
        var apart = b[0] - a[0]
        return Partial(a[0] + apart * share, a[1] + b[1] + apart * apart * a[2] * share, count, 0)


struct Exponentials(Reduction):
    """The largest number, and the sum of the exponentials of all less the largest, if that is above -inf.

    NaN is never the largest, but makes the sum NaN.
    """

    comptime used = 2

    @staticmethod
    @always_inline
    def joined(a: Partial, b: Partial) -> Partial:
        var largest = max(a[0], b[0])
        var base = above_negative_infinity(largest)
        return Partial(largest, a[1] * exp(a[0] - base) + b[1] * exp(b[0] - base), 0, 0)


@always_inline
def above_negative_infinity(x: Float32) -> Float32:
    """`x`, but 0 for -inf: what may be subtracted from a number that is not larger."""
    return x if x > Float32.MIN else 0


@always_inline
def across[R: Reduction, lanes: Int, threads: Int](mine: Partial) -> Partial:
    """The partial results of the `lanes` threads that share a row, joined; every thread gets the result.

    Threads of a block of `threads` are in order of their rows. All of a block must call it.
    """
    var value = exchanged[R, min(lanes, GROUP)](mine)
    comptime groups = lanes // GROUP
    comptime if groups > 1:
        var shared = unsafe_stack_allocation[
            threads // GROUP * R.used, Float32, address_space=AddressSpace.SHARED
        ]()
        var thread = Int(thread_idx.x)
        if thread % GROUP == 0:
            comptime for i in range(R.used):
                shared[unsafe_offset=i * (threads // GROUP) + thread // GROUP] = value[i]
        barrier()
        var place = thread // lanes * groups + thread % groups
        comptime for i in range(R.used):
            value[i] = shared[unsafe_offset=i * (threads // GROUP) + place]
        value = exchanged[R, groups](value)
    return value


@always_inline
def exchanged[R: Reduction, lanes: Int](mine: Partial) -> Partial:
    """The partial results of neighbouring threads, `lanes` at a time, joined."""
    var value = mine
    comptime for step in range(log2_floor(lanes)):
        var other = Partial(0)
        comptime for i in range(R.used):
            other[i] = warp.shuffle_xor(value[i], UInt32(1 << step))
        value = R.joined(value, other)
    return value
