"""The filters of a transposed convolution on a CPU, rearranged into those of a plain one."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.algorithm import sync_parallelize
from max.gpu.host import DeviceContext

from .gemm import FEW_TASK, TASKS

comptime AT_ONCE = 8
"""Filters of one tap that are rearranged together: their weights lie side by side."""


@fieldwise_init
struct Taps(Deinitable, ImplicitlyCopyable):
    """Filters that see every `stride`-th place of an axis, one for each phase."""

    var taps: Int
    """Taps of a filter of the transposed convolution."""
    var stride: Int
    """And phases."""
    var count: Int
    """Taps of a phase."""

    def source(self, phase: Int, tap: Int) -> Int:
        """The tap that a phase's tap is, or a number that no tap has."""
        return phase + self.stride * (self.count - 1 - tap)


@fieldwise_init
struct Phases[T: DType, of_result: Origin[mut=True], of_filters: Origin, //](Deinitable, ImplicitlyCopyable):
    """`[groups * features * phases, channels, *taps]` from filters `[groups * channels, features, *taps]`."""

    var result: Pointer[Scalar[Self.T], Self.of_result]
    var filters: Pointer[Scalar[Self.T], Self.of_filters]
    var d: Taps
    var h: Taps
    var w: Taps
    var channels: Int
    """Of a group, as seen by the plain convolution."""
    var features: Int
    """Of a group, without the phases."""

    def places(self) -> List[Int]:
        """Where the taps of each phase, one phase behind the other, are in a filter; -1 for one that is not."""
        var found = List[Int]()
        for phase in range(self.d.stride * self.h.stride * self.w.stride):
            for tap_d in range(self.d.count):
                var at_d = self.d.source(phase // (self.w.stride * self.h.stride), tap_d)
                for tap_h in range(self.h.count):
                    var at_h = self.h.source(phase // self.w.stride % self.h.stride, tap_h)
                    for tap_w in range(self.w.count):
                        var at_w = self.w.source(phase % self.w.stride, tap_w)
                        var inside = at_d < self.d.taps and at_h < self.h.taps and at_w < self.w.taps
                        found.append((at_d * self.h.taps + at_h) * self.w.taps + at_w if inside else -1)
        return found^

    @no_inline
    def fill(self, feature: Int, places: ImmPointer[Int, _], count: Int):
        """All phases of a filter, which have `count` taps together; those of all groups are counted one after the other."""
        var phases = self.d.stride * self.h.stride * self.w.stride
        var size = count // phases
        var taps = self.d.taps * self.h.taps * self.w.taps
        var first = feature // self.features * self.channels * self.features + feature % self.features
        var to = self.result.unsafe_offset(feature * count * self.channels)
        for phase in range(phases):
            for channel in range(self.channels):
                var source = self.filters.unsafe_offset((first + channel * self.features) * taps)
                for tap in range(size):
                    var at = places[unsafe_offset=phase * size + tap]
                    to[unsafe_offset=tap] = source[unsafe_offset=at] if at >= 0 else Scalar[Self.T](0)
                to = to.unsafe_offset(size)

    @no_inline
    def turn(self, first: Int, last: Int):
        """Filters [first, last) of one tap, which have one phase: some columns of a matrix for each group, as rows."""
        var feature = first
        while feature < last:
            var group = feature // self.features
            var left = min(last, (group + 1) * self.features) - feature
            var source = self.filters.unsafe_offset((group * self.channels - group) * self.features + feature)
            var to = self.result.unsafe_offset(feature * self.channels)
            if left >= AT_ONCE:
                for channel in range(self.channels):
                    var values = source.unsafe_load[width=AT_ONCE](channel * self.features)
                    comptime for i in range(AT_ONCE):
                        to[unsafe_offset=i * self.channels + channel] = values[i]
                feature += AT_ONCE
            else:
                for channel in range(self.channels):
                    to[unsafe_offset=channel] = source[unsafe_offset=channel * self.features]
                feature += 1

    def fill_all(self, count: Int):
        """`count` filters, in tasks."""
        var job = self
        var places = self.places()
        var taps = len(places)
        var table = places.unsafe_ptr().as_imm()
        var is_turned = taps == 1 and self.d.taps * self.h.taps * self.w.taps == 1
        var work = self.channels * taps
        var tasks = min(max(count * work // (FEW_TASK // 4), 1), min(TASKS, count))

        def some(task: Int) {var job, var count, var tasks, var table, var taps, var is_turned}:
            var first = count * task // tasks
            var last = count * (task + 1) // tasks
            if is_turned:
                job.turn(first, last)
            else:
                for feature in range(first, last):
                    job.fill(feature, table, taps)

        sync_parallelize(some, tasks)
        _ = places^


@extensibility.register("tmb_phase_filters")
struct PhaseFilters:
    """`[F * phases, C / groups, *taps of a phase]` from filters `[C, F / groups, KD, KH, KW]`.

    Tap `m` of phase `r` is the filters' tap `r + stride * (taps of a phase - 1 - m)`, zero where there is none; the last
    axis's phase changes fastest. `numbers` has the strides of D, H and W and the groups.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=5, ...],
        filters: InputTensor[dtype=result.dtype, rank=5, ...],
        numbers: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target == "cpu", "tmb_phase_filters runs on CPUs"
        var groups = Int(numbers[3])
        rearrange(
            result.unsafe_ptr(),
            filters.unsafe_ptr(),
            Taps(filters.dim_size(2), Int(numbers[0]), result.dim_size(2)),
            Taps(filters.dim_size(3), Int(numbers[1]), result.dim_size(3)),
            Taps(filters.dim_size(4), Int(numbers[2]), result.dim_size(4)),
            result.dim_size(1),
            filters.dim_size(1),
            groups,
        )


@no_inline
def rearrange[
    T: DType, of_result: Origin[mut=True], of_filters: Origin, //
](
    result: Pointer[Scalar[T], of_result],
    filters: Pointer[Scalar[T], of_filters],
    d: Taps,
    h: Taps,
    w: Taps,
    channels: Int,
    features: Int,
    groups: Int,
):
    """Not part of the kernel, which is compiled for every shape."""
    Phases(result, filters, d, h, w, channels, features).fill_all(groups * features)
