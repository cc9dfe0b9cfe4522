"""The filters of a transposed convolution on a CPU, rearranged into those of a plain one."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.algorithm import sync_parallelize
from max.gpu.host import DeviceContext

from .gemm import FEW_TASK, TASKS


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

    @no_inline
    def fill(self, feature: Int):
        """All phases of a filter; those of all groups are counted one after the other."""
        var phases = self.d.stride * self.h.stride * self.w.stride
        var size = self.d.count * self.h.count * self.w.count
        var group = feature // self.features
        var to = self.result.unsafe_offset(feature * phases * self.channels * size)
        for phase in range(phases):
            var phase_w = phase % self.w.stride
            var phase_h = phase // self.w.stride % self.h.stride
            var phase_d = phase // (self.w.stride * self.h.stride)
            for channel in range(self.channels):
                var filter = (group * self.channels + channel) * self.features + feature % self.features
                var source = self.filters.unsafe_offset(filter * self.d.taps * self.h.taps * self.w.taps)
                for tap_d in range(self.d.count):
                    var at_d = self.d.source(phase_d, tap_d)
                    for tap_h in range(self.h.count):
                        var at_h = self.h.source(phase_h, tap_h)
                        var row = (at_d * self.h.taps + at_h) * self.w.taps
                        var inside = at_d < self.d.taps and at_h < self.h.taps
                        for tap_w in range(self.w.count):
                            var at_w = self.w.source(phase_w, tap_w)
                            var value = Scalar[Self.T](0)
                            if inside and at_w < self.w.taps:
                                value = source[unsafe_offset=row + at_w]
                            to[unsafe_offset=0] = value
                            to = to.unsafe_offset(1)

    def fill_all(self, count: Int):
        """`count` filters, in tasks."""
        var job = self
        var work = self.channels * self.d.taps * self.h.taps * self.w.taps
        var tasks = min(max(count * work // (FEW_TASK // 4), 1), min(TASKS, count))

        def some(task: Int) {var job, var count, var tasks}:
            for feature in range(count * task // tasks, count * (task + 1) // tasks):
                job.fill(feature)

        sync_parallelize(some, tasks)


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
