"""What kernels share that give each row of a matrix to some threads of a GPU block."""

from max.gpu import thread_idx
from max.gpu.memory import AddressSpace
from max.gpu.primitives import warp
from max.gpu.sync import barrier
from std.bit import log2_floor
from std.math import exp
from std.memory import unsafe_stack_allocation
from std.sys import align_of, size_of

comptime GROUP = 32
"""Threads that exchange values by shuffles. A warp may be wider."""

comptime Values[T: DType] = ImmPointer[Scalar[T], ImmutAnyOrigin]
comptime Results[T: DType] = MutPointer[Scalar[T], MutAnyOrigin]

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


struct Largest(Reduction):
    """The largest number; NaN only where there is nothing else."""

    comptime used = 1

    @staticmethod
    @always_inline
    def joined(a: Partial, b: Partial) -> Partial:
        return Partial(max(a[0], b[0]), 0, 0, 0)


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


struct Row[width: Int, vectors: Int, lanes: Int, columns: Int, blocks: Int = 1]:
    """A row of `columns` elements that `lanes` threads share, each with `vectors` times `width` elements.

    Where there are several `blocks`, they are a cluster, and each of them has as many threads for the row.
    """

    comptime piece = Self.lanes * Self.width
    """Elements that lie together and belong to one block."""
    comptime step = Self.blocks * Self.piece

    @staticmethod
    @always_inline
    def first(rank: Int = 0) -> Int:
        """Where this thread's first vector starts, in the `rank`th block."""
        return rank * Self.piece + Int(thread_idx.x) % Self.lanes * Self.width

    @staticmethod
    @always_inline
    def share(rank: Int = 0) -> Int:
        """How many of the row's elements the `rank`th block has."""
        comptime if Self.blocks == 1:
            return Self.columns
        var count = 0
        comptime for i in range(Self.vectors):
            count += max(0, min(Self.columns - i * Self.step - rank * Self.piece, Self.piece))
        return count

    @staticmethod
    @always_inline
    def has[i: Int](first: Int) -> Bool:
        """Whether this thread has an `i`th vector."""
        comptime if (i + 1) * Self.step <= Self.columns:
            return True
        return first + i * Self.step < Self.columns

    @staticmethod
    @always_inline
    def place[i: Int](first: Int) -> Int:
        """Where the `i`th vector starts; the last of the row where there is none, so that it may be read."""
        comptime if (i + 1) * Self.step <= Self.columns:
            return first + i * Self.step
        return min(first + i * Self.step, Self.columns - Self.width)


comptime SHORT = 32
"""Bytes of a row that a thread keeps in few registers."""
comptime SHARED_MEMORY = 44 * 1024
"""Bytes of shared memory that the rows of a block may take: a bit less than a kernel has without asking for more."""


struct Kept[T: DType, width: Int, vectors: Int, threads: Int, blocks: Int](TrivialRegisterPassable):
    """The vectors of a row that a thread keeps: in registers, or in shared memory where a row has several blocks.

    A multiprocessor reads some rows while it computes others, for which it needs many threads, and so few registers of
    each. Which row is kept where was found by measuring (docs/gpu-measurements.md).
    """

    comptime bytes = Self.vectors * Self.width * size_of[Self.T]()
    comptime is_shared = Self.blocks > 1 and Self.bytes * Self.threads <= SHARED_MEMORY
    comptime aligned = align_of[SIMD[Self.T, Self.width]]()
    comptime space = AddressSpace.SHARED if Self.is_shared else AddressSpace.GENERIC
    comptime step = Self.width * (Self.threads if Self.is_shared else 1)

    var memory: MutPointer[Scalar[Self.T], MutUntrackedOrigin, address_space=Self.space]

    @always_inline
    def __init__(out self):
        self.memory = unsafe_stack_allocation[
            Self.vectors * Self.step, Scalar[Self.T], alignment=Self.aligned, address_space=Self.space
        ]()
        comptime if Self.is_shared:
            self.memory = self.memory.unsafe_offset(Int(thread_idx.x) * Self.width)

    @always_inline
    def get[i: Int](self) -> SIMD[Self.T, Self.width]:
        """The `i`th vector."""
        return self.memory.unsafe_load[width=Self.width, alignment=Self.aligned](i * Self.step)

    @always_inline
    def put[i: Int](self, value: SIMD[Self.T, Self.width]):
        """Keep the `i`th vector."""
        self.memory.unsafe_store[alignment=Self.aligned](i * Self.step, value)

    @staticmethod
    def resident(is_pair: Bool = False) -> Int:
        """The blocks that a multiprocessor should hold at least, as the compiler is told to share registers out.

        Args:
            is_pair: Whether rows of two matrices are read, which takes more registers.
        """
        if Self.is_shared:
            return max((1536 if is_pair else 2048) // Self.threads, 1)
        return max((1536 if Self.bytes <= SHORT else 1024) // Self.threads, 1)


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


comptime AT_ONCE = 4
"""Vectors that `exponentials` reads before it needs the first of them."""


@always_inline
def exponentials[T: DType, width: Int, lanes: Int](row: Values[T], first: Int, columns: Int) -> Partial:
    """What `Exponentials` joins, for a thread that reads a vector of `width` in every `lanes` from `first` on.

    The sum is kept relative to the largest number so far, and scaled whenever that grows.
    """
    comptime aligned = align_of[SIMD[T, width]]()
    comptime step = lanes * width
    var mine = Partial(Float32.MIN, 0, 0, 0)
    for group in range(first, columns, AT_ONCE * step):
        var held = unsafe_stack_allocation[AT_ONCE, SIMD[T, width]]()
        comptime for i in range(AT_ONCE):
            held[unsafe_offset=i] = row.unsafe_load[width=width, alignment=aligned](
                min(group + i * step, columns - width)
            )
        # What stands in for a vector beyond the end is one of the row: it changes no maximum.
        var most = held[unsafe_offset=0].cast[DType.float32]()
        comptime for i in range(1, AT_ONCE):
            most = max(most, held[unsafe_offset=i].cast[DType.float32]())
        var largest = max(mine[0], most.reduce_max())
        var base = above_negative_infinity(largest)
        var sums = SIMD[DType.float32, width](0)
        comptime for i in range(AT_ONCE):
            if group + i * step < columns:
                sums += exp(held[unsafe_offset=i].cast[DType.float32]() - base)
        mine = Partial(largest, mine[1] * exp(mine[0] - base) + sums.reduce_add(), 0, 0)
    return mine
