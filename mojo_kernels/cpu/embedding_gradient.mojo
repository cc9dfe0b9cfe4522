"""Rows that are added up by index on a CPU: what the gradient of an embedding is."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.algorithm import sync_parallelize
from max.gpu.host import DeviceContext
from std.math import ceildiv
from std.sys.info import simd_width_of

comptime GRAIN = 64
"""Columns that are worth a task of their own."""
comptime TASKS = 8
"""The most tasks: each of them looks at every index."""
comptime ZEROS = 1 << 16
"""Elements that a task sets to zero at a time."""


@fieldwise_init
struct Rows[T: DType, of_result: Origin[mut=True], of_updates: Origin, of_at: Origin, //](ImplicitlyCopyable):
    """`count` rows of `updates`, each of which is added to row `at[i]` of `result` `[rows, columns]`.

    (A struct, because Mojo's compiler crashes on closures that hold pointers to numbers of a type parameter.)
    """

    var result: Pointer[Scalar[Self.T], Self.of_result]
    var updates: Pointer[Scalar[Self.T], Self.of_updates]
    var at: Pointer[Scalar[DType.int64], Self.of_at]
    var count: Int
    var rows: Int
    var columns: Int

    def add(self, first: Int, last: Int):
        """Add columns [first, last). An index outside of the rows is left out: a kernel must not write elsewhere."""
        comptime lanes = simd_width_of[Self.T]()
        var whole = first + (last - first) // lanes * lanes
        for i in range(self.count):
            var row = Int(self.at[unsafe_offset=i])
            if row >= 0 and row < self.rows:
                var line = self.result.unsafe_offset(row * self.columns)
                var update = self.updates.unsafe_offset(i * self.columns)
                for j in range(first, whole, lanes):
                    line.unsafe_store(j, line.unsafe_load[width=lanes](j) + update.unsafe_load[width=lanes](j))
                for j in range(whole, last):
                    line[unsafe_offset=j] = line[unsafe_offset=j] + update[unsafe_offset=j]

    def add_all(self):
        """Add all columns. Each task has some of its own and takes rows in order, so that sums do not depend on tasks.
        """
        var job = self
        var blocks = ceildiv(self.columns, GRAIN)
        var tasks = max(min(blocks, TASKS), 1)

        def work(task: Int) {var job, var blocks, var tasks}:
            var last = min(blocks * (task + 1) // tasks * GRAIN, job.columns)
            job.add(blocks * task // tasks * GRAIN, last)

        sync_parallelize(work, tasks)

    def set_zero(self, first: Int, last: Int):
        """Set elements [first, last) of the result to zero."""
        comptime lanes = simd_width_of[Self.T]()
        var whole = first + (last - first) // lanes * lanes
        for j in range(first, whole, lanes):
            self.result.unsafe_store(j, SIMD[Self.T, lanes](0))
        for j in range(whole, last):
            self.result[unsafe_offset=j] = Scalar[Self.T](0)

    def set_all_zero(self):
        """Set the result to zero."""
        var job = self
        var size = self.rows * self.columns

        def work(task: Int) {var job, var size}:
            job.set_zero(task * ZEROS, min((task + 1) * ZEROS, size))

        sync_parallelize(work, ceildiv(size, ZEROS))


@extensibility.register("tmb_row_gradients")
struct RowGradients:
    """`[rows, columns]` of zeros, to whose row `at[i]` row `i` of `updates` is added, for each `i`."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=2, ...],
        updates: InputTensor[dtype=result.dtype, rank=2, ...],
        at: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target == "cpu", "tmb_row_gradients runs on CPUs"
        var rows = result.dim_size(0)
        var columns = result.dim_size(1)
        var job = Rows(result.unsafe_ptr(), updates.unsafe_ptr(), at.unsafe_ptr(), at.dim_size(0), rows, columns)
        job.set_all_zero()
        job.add_all()
