"""The bits of a tensor as another dtype, and slices that are written in place."""

import extensibility
from extensibility import InputTensor, OutputTensor, _FusedInputTensor, _MutableInputTensor, foreach
from max.algorithm.functional import elementwise
from max.gpu.host import DeviceContext
from std.memory import bitcast
from std.sys import size_of
from std.utils.coord import Coord

from .index_checks import report


@extensibility.register("tmb_bitcast")
struct Bitcast:
    """The same bits as another dtype of the same width."""

    @staticmethod
    def execute[
        target: StaticString
    ](result: OutputTensor, a: InputTensor[rank=result.rank, ...], ctx: DeviceContext) raises:
        def element[width: Int](at: Coord[...]) {var a} -> SIMD[result.dtype, width]:
            return bitcast[result.dtype, width](a.load[width](at))

        foreach[target=target](element, result, ctx)


@always_inline
def place_of[
    axis: Int, checks: Bool
](
    memory: _MutableInputTensor,
    index: InputTensor[dtype=DType.int64, rank=1, ...],
    address: InputTensor[dtype=DType.int64, ...],
    site: Int64,
    at: Coord,
) -> Int:
    """Where in `memory` an element at `at` of its slices belongs."""
    var position = 0
    comptime for d in range(memory.rank):
        var place = Int(at[d].value())
        comptime if d == axis:
            var given = Int(index.unsafe_ptr()[unsafe_offset=place])
            place = max(0, min(given, memory.dim_size(d) - 1))
            comptime if checks:
                if place != given:
                    report(address.unsafe_ptr()[], site, Int64(given), Int64(memory.dim_size(d)))
        position = position * memory.dim_size(d) + place
    return position


@extensibility.register("tmb_index_copy")
struct IndexCopy[axis: Int, checks: Bool]:
    """Writes slices of `source` along `axis` into `memory`, at the places in `index`, which are clamped into range.

    The source is computed as it is written, if it is elementwise. What is clamped is reported if the kernel `checks`;
    only then are `address` and `site`, as `index_checks.mojo` has them, looked at.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        memory: _MutableInputTensor,
        source: _FusedInputTensor[dtype=memory.dtype, rank=memory.rank, ...],
        index: InputTensor[dtype=DType.int64, rank=1, ...],
        address: InputTensor[dtype=DType.int64, ...],
        site: Int64,
        ctx: DeviceContext,
    ) raises:
        comptime width = 1 if Self.axis == memory.rank - 1 else max(1, 16 // size_of[memory.dtype]())

        def move[lanes: Int, alignment: Int = 1](at: Coord) {var memory, var source, var index, var address, var site}:
            var value = source._lambda_load[width=lanes, element_alignment=alignment](at)
            var place = place_of[Self.axis, Self.checks](memory, index, address, site, at)
            memory.unsafe_ptr().unsafe_offset(place).unsafe_store[width=lanes](value)

        elementwise[simd_width=width, target=target](move, source.shape_coord(), ctx)


@extensibility.register("tmb_index_copy_two")
struct IndexCopyTwo[axis: Int, checks: Bool]:
    """`tmb_index_copy` of two pairs of one form."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        memory: _MutableInputTensor,
        other: _MutableInputTensor[dtype=memory.dtype, rank=memory.rank, ...],
        source: _FusedInputTensor[dtype=memory.dtype, rank=memory.rank, ...],
        other_source: _FusedInputTensor[dtype=memory.dtype, rank=memory.rank, ...],
        index: InputTensor[dtype=DType.int64, rank=1, ...],
        address: InputTensor[dtype=DType.int64, ...],
        site: Int64,
        ctx: DeviceContext,
    ) raises:
        comptime width = 1 if Self.axis == memory.rank - 1 else max(1, 16 // size_of[memory.dtype]())

        def move[
            lanes: Int, alignment: Int = 1
        ](at: Coord) {var memory, var other, var source, var other_source, var index, var address, var site}:
            var value = source._lambda_load[width=lanes, element_alignment=alignment](at)
            var other_value = other_source._lambda_load[width=lanes, element_alignment=alignment](at)
            var place = place_of[Self.axis, Self.checks](memory, index, address, site, at)
            memory.unsafe_ptr().unsafe_offset(place).unsafe_store[width=lanes](value)
            other.unsafe_ptr().unsafe_offset(place).unsafe_store[width=lanes](other_value)

        elementwise[simd_width=width, target=target](move, source.shape_coord(), ctx)
