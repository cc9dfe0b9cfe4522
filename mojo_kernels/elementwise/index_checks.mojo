"""Indices that are checked while a kernel reads them: one out of range is reported to the host and moved into range.

A *report* is four words of 64 bits in the device's memory: its own address, the number of the call path that it is for,
the address of a lock in the device's memory, and the address of a record in the host's. A record has a state, that
number, the number of the place in the graph (its *site*), the index and the size, in this order. The first index out of
range takes the lock and fills the record; the host, which reads the record, empties it and gives the lock back.
"""

import extensibility
from std.atomic import Atomic, Ordering
from std.sys import is_amd_gpu, is_nvidia_gpu

comptime SCOPE = "device" if is_nvidia_gpu() else ("agent" if is_amd_gpu() else "")
"""Who may take the lock: threads of one device."""

comptime FILLED = Int64(1)
"""The state of a record that the host may read."""

comptime Words = Pointer[Int64, MutAnyOrigin]


@always_inline
def report(of: Int64, site: Int64, index: Int64, size: Int64):
    """Tell the host of an index that is out of range, by the report at an address."""
    var words = Words(unsafe_from_address=Int(of))
    var lock = Words(unsafe_from_address=Int(words[unsafe_offset=2]))
    var free = Int64(0)
    if lock[] != free:  # as it is for most, where most are out of range
        return
    if not Atomic[Int64, scope=SCOPE].compare_exchange[
        success_ordering=Ordering.RELAXED, failure_ordering=Ordering.RELAXED
    ](lock, free, 1):
        return
    var record = Words(unsafe_from_address=Int(words[unsafe_offset=3]))
    record[unsafe_offset=1] = words[unsafe_offset=1]
    record[unsafe_offset=2] = site
    record[unsafe_offset=3] = index
    record[unsafe_offset=4] = size
    Atomic[Int64].store[ordering=Ordering.RELEASE](record, FILLED)


@always_inline
def checked[
    width: SIMDLength, //, wraps: Bool
](index: SIMD[DType.int64, width], size: SIMD[DType.int64, width], site: Int64, of: Int64) -> SIMD[DType.int64, width]:
    """Indices in [0, size), where each that is none already is reported, and is clamped.

    Parameters:
        width: How many there are.
        wraps: Whether negative indices count from the end.
    """
    var place = index
    comptime if wraps:
        place = index.lt(0).select(index + size, index)
    var is_outside = place.lt(0) | place.ge(size)
    if is_outside.reduce_or():
        comptime for i in range(Int(width)):
            if is_outside[i]:
                report(of, site, index[i], size[i])
        place = max(min(place, size - 1), 0)
    return place


@extensibility.register("tmb_index")
struct Index:
    """`index` where it is in [0, size). MAX computes it inside the kernel that reads it."""

    @staticmethod
    def elementwise[
        dtype: DType, width: SIMDLength
    ](
        index: SIMD[dtype, width], size: SIMD[dtype, width], site: SIMD[dtype, width], of: SIMD[dtype, width]
    ) -> SIMD[dtype, width]:
        comptime assert dtype == DType.int64, "indices are int64"
        return rebind[SIMD[dtype, width]](
            checked[wraps=False](
                rebind[SIMD[DType.int64, width]](index),
                rebind[SIMD[DType.int64, width]](size),
                rebind[Int64](site[0]),
                rebind[Int64](of[0]),
            )
        )


@extensibility.register("tmb_index_from_either_end")
struct IndexFromEitherEnd:
    """`tmb_index` of indices in [-size, size), of which negative ones count from the end."""

    @staticmethod
    def elementwise[
        dtype: DType, width: SIMDLength
    ](
        index: SIMD[dtype, width], size: SIMD[dtype, width], site: SIMD[dtype, width], of: SIMD[dtype, width]
    ) -> SIMD[dtype, width]:
        comptime assert dtype == DType.int64, "indices are int64"
        return rebind[SIMD[dtype, width]](
            checked[wraps=True](
                rebind[SIMD[DType.int64, width]](index),
                rebind[SIMD[DType.int64, width]](size),
                rebind[Int64](site[0]),
                rebind[Int64](of[0]),
            )
        )
