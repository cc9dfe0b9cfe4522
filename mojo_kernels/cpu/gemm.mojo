"""Products of matrices on a CPU, out of tiles that stay in registers.

A product has a side `P` whose rows are read where they are, a number at a time, and a side `Q` that is copied first, into
panels a few vectors wide. Whoever copies decides what `Q` is: a matrix, a transposed matrix, or the windows of an image.
16-bit floats are summed in float32, and bfloat16 is multiplied in pairs where the processor can.
"""

from max.algorithm import sync_parallelize
from std.math import ceildiv
from std.memory.alloc import unsafe_alloc
from std.memory import bitcast, stack_allocation
from std.sys.info import CompilationTarget, simd_width_of, size_of
from std.sys.intrinsics import llvm_intrinsic

comptime DEEP = 512
"""How much of the inner dimension a tile takes at a time."""
comptime PANELS = 1 << 18
"""Bytes of the panels that a task keeps in its cache."""
comptime TASK = 1 << 19
"""Multiplications that are worth a task of their own."""
comptime FEW_TASK = 1 << 17
"""The same, where every number is used only a few times."""
comptime TASKS = 32
"""The number of tasks at which work is spread evenly enough."""
comptime GRAIN = 64
"""Columns of few rows that are computed together."""
comptime TALL = 192
"""Rows that are worth the panels that a task makes for them."""
comptime BLOCK = 16
"""Rows of a panel that are written together when a matrix is transposed."""
comptime VECTORS = 2
"""Vectors in a row of a tile."""


@always_inline
def sum_type[T: DType]() -> DType:
    """The type in which products of `T` are summed."""
    return DType.float32 if T.is_half_float() else T


@always_inline
def has_pairs[T: DType]() -> Bool:
    """Whether the processor adds products of pairs of these numbers in one instruction."""
    return (
        T == DType.bfloat16
        and simd_width_of[DType.float32]() == 16
        and CompilationTarget._has_feature["avx512bf16"]()
    )


@always_inline
def panel_type[T: DType]() -> DType:
    """The type of the numbers in a panel."""
    return T if has_pairs[T]() else sum_type[T]()


@always_inline
def panel_width[T: DType]() -> Int:
    """Columns of a panel."""
    return VECTORS * simd_width_of[sum_type[T]()]()


@always_inline
def tile_height() -> Int:
    """Rows of the largest tile that fits the registers."""
    return 12 if CompilationTarget.has_avx512f() or CompilationTarget.has_neon() else 6


@always_inline
def panel_place[P: DType, width: Int](k: Int, column: Int) -> Int:
    """Where an element is inside its panel."""
    comptime if has_pairs[P]():
        return (k // 2) * 2 * width + 2 * column + k % 2
    else:
        return k * width + column


@always_inline
def padded_depth[T: DType](depth: Int) -> Int:
    """The inner dimension of a panel, which is even where pairs are multiplied."""
    return (depth + 1) // 2 * 2 if has_pairs[T]() else depth


trait Source(ImplicitlyCopyable, Deinitable):
    """The matrices of which panels are made, one for every product."""

    def pack[
        P: DType, to: Origin[mut=True], //, width: Int
    ](self, item: Int, panel: Pointer[Scalar[P], to], k: Int, depth: Int, column: Int, columns: Int):
        """Copy rows [k, k + depth) of matrix `item`, columns [column, column + columns), and zeros beyond."""
        ...


trait Finish(ImplicitlyCopyable, Deinitable):
    """What becomes of the elements of a product before they are written."""

    def apply[
        W: DType, //, lanes: Int
    ](self, totals: SIMD[W, lanes], item: Int, row: Int, column: Int) -> SIMD[W, lanes]:
        """The elements of product `item` at (row, column) and behind it in the row."""
        ...


@fieldwise_init
struct AsTheyAre(Finish):
    """Sums are the result."""

    @always_inline
    def apply[
        W: DType, //, lanes: Int
    ](self, totals: SIMD[W, lanes], item: Int, row: Int, column: Int) -> SIMD[W, lanes]:
        return totals


# -- tiles -------------------------------------------------------------------------------------------------------------
@no_inline
def multiply_tile[
    T: DType, W: DType, P: DType, of_sums: Origin[mut=True], of_p: Origin, of_q: Origin, //, rows: Int
](
    sums: Pointer[Scalar[W], of_sums],
    p: Pointer[Scalar[T], of_p],
    p_step: Int,
    q: Pointer[Scalar[P], of_q],
    depth: Int,
):
    """Rows of `p` times a panel, into `sums` with rows of a panel's width."""
    comptime lanes = simd_width_of[W]()
    comptime width = panel_width[T]()
    var totals = stack_allocation[rows * VECTORS, SIMD[W, lanes]]()
    comptime for i in range(rows * VECTORS):
        totals[unsafe_offset=i] = SIMD[W, lanes](0)
    comptime if has_pairs[T]():
        for k in range(0, depth // 2 * 2, 2):
            comptime for i in range(rows):
                var pair = bitcast[DType.uint32, 1](p.unsafe_load[width=2](i * p_step + k))
                add_pairs[i](totals, SIMD[DType.uint32, lanes](pair), q.unsafe_offset(k * width))
        if depth % 2 == 1:
            comptime for i in range(rows):
                var last = bitcast[DType.uint32, 1](SIMD[T, 2](p[unsafe_offset=i * p_step + depth - 1], 0))
                add_pairs[i](totals, SIMD[DType.uint32, lanes](last), q.unsafe_offset((depth - 1) * width))
    else:
        for k in range(depth):
            var right = q.unsafe_offset(k * width)
            comptime for i in range(rows):
                var x = SIMD[W, lanes](p[unsafe_offset=i * p_step + k].cast[W]())
                comptime for j in range(VECTORS):
                    var y = right.unsafe_load[width=lanes](j * lanes).cast[W]()
                    comptime at = i * VECTORS + j
                    totals[unsafe_offset=at] = plus_product(totals[unsafe_offset=at], x, y)
    comptime for i in range(rows):
        comptime for j in range(VECTORS):
            sums.unsafe_store(i * width + j * lanes, totals[unsafe_offset=i * VECTORS + j])


@always_inline
def plus_product[W: DType, lanes: Int, //](total: SIMD[W, lanes], x: SIMD[W, lanes], y: SIMD[W, lanes]) -> SIMD[W, lanes]:
    comptime if W.is_floating_point():
        return x.fma(y, total)
    else:
        return total + x * y


@always_inline
def plus_pairs[
    W: DType, T: DType, lanes: Int, //
](total: SIMD[W, lanes], x: SIMD[T, 2 * lanes], y: SIMD[T, 2 * lanes]) -> SIMD[W, lanes]:
    """The sum with the products of pairs of neighbours, where `has_pairs`."""
    comptime name = "llvm.x86.avx512bf16.dpbf16ps.512"
    return llvm_intrinsic[name, SIMD[W, lanes], has_side_effect=False](total, x, y)


@always_inline
def add_pairs[
    W: DType, lanes: Int, T: DType, of_totals: Origin[mut=True], of_q: Origin, //, row: Int
](
    totals: Pointer[SIMD[W, lanes], of_totals], pair: SIMD[DType.uint32, lanes], q: Pointer[Scalar[T], of_q]
):
    var x = bitcast[T, 2 * lanes](pair)
    comptime for j in range(VECTORS):
        var y = q.unsafe_load[width=2 * lanes](j * 2 * lanes)
        comptime at = row * VECTORS + j
        totals[unsafe_offset=at] = plus_pairs(totals[unsafe_offset=at], x, y)


@no_inline
def store_tile[
    W: DType, F: Finish, of_result: Origin[mut=True], of_sums: Origin, //, transposed: Bool, width: Int
](
    result: Pointer[Scalar[W], of_result],
    step: Int,
    sums: Pointer[Scalar[W], of_sums],
    finish: F,
    item: Int,
    row: Int,
    column: Int,
    rows: Int,
    columns: Int,
    adds: Bool,
    is_last: Bool,
):
    """Write a tile at (row, column), or add it; transposed, its columns become rows of the result, and are not finished.
    """
    comptime if transposed:
        for j in range(columns):
            var line = result.unsafe_offset((column + j) * step + row)
            for i in range(rows):
                var total = sums[unsafe_offset=i * width + j]
                line[unsafe_offset=i] = line[unsafe_offset=i] + total if adds else total
    else:
        comptime lanes = simd_width_of[W]()
        for i in range(rows):
            var line = result.unsafe_offset((row + i) * step + column)
            var left = sums.unsafe_offset(i * width)
            var whole = columns // lanes * lanes
            for j in range(0, whole, lanes):
                var total = left.unsafe_load[width=lanes](j)
                if adds:
                    total += line.unsafe_load[width=lanes](j)
                if is_last:
                    total = finish.apply[lanes](total, item, row + i, column + j)
                line.unsafe_store(j, total)
            for j in range(whole, columns):
                var total = left[unsafe_offset=j]
                if adds:
                    total += line[unsafe_offset=j]
                if is_last:
                    total = finish.apply[1](total, item, row + i, column + j)
                line[unsafe_offset=j] = total


# -- a task ------------------------------------------------------------------------------------------------------------
@no_inline
def multiply_block[
    T: DType, W: DType, S: Source, F: Finish, of_result: Origin[mut=True], of_p: Origin, //, transposed: Bool
](
    result: Pointer[Scalar[W], of_result],
    step: Int,
    p: Pointer[Scalar[T], of_p],
    p_step: Int,
    depth: Int,
    q: S,
    finish: F,
    item: Int,
    first_row: Int,
    last_row: Int,
    first_column: Int,
    last_column: Int,
):
    """The rows and columns of a product that a task computes: `p` times `q`, finished, or its transpose.

    Rows of the result are `step` apart, and rows of `p` `p_step`.
    """
    comptime P = panel_type[T]()
    comptime width = panel_width[T]()
    comptime height = tile_height()
    var sums = stack_allocation[height * width, Scalar[W], alignment=64]()
    var pieces = max(ceildiv(depth, DEEP), 1)
    var deep = max(padded_depth[T](ceildiv(depth, pieces)), 1)
    var panel_size = deep * width
    var held = max(PANELS // (panel_size * size_of[Scalar[P]]()), 1)
    held = min(held, ceildiv(last_column - first_column, width))
    var panels = unsafe_alloc[Scalar[P]](held * panel_size, alignment=64)
    for start in range(first_column, last_column, held * width):
        var end = min(start + held * width, last_column)
        for k in range(0, max(depth, 1), deep):
            var inner = min(deep, depth - k)
            for column in range(start, end, width):
                var panel = panels.unsafe_offset((column - start) // width * panel_size)
                q.pack[width](item, panel, k, inner, column, min(width, end - column))
            var row = first_row
            comptime for tall in [height, 4, 1]:
                while row + tall <= last_row:
                    for column in range(start, end, width):
                        var panel = panels.unsafe_offset((column - start) // width * panel_size)
                        multiply_tile[tall](sums, p.unsafe_offset(row * p_step + k), p_step, panel, inner)
                        var wide = min(width, end - column)
                        var is_last = k + inner == depth
                        store_tile[transposed, width](
                            result, step, sums, finish, item, row, column, tall, wide, k > 0, is_last
                        )
                    row += tall
    panels.unsafe_free()


# -- few rows ----------------------------------------------------------------------------------------------------------
@no_inline
def set_dots[
    T: DType, W: DType, of_result: Origin[mut=True], of_x: Origin, of_b: Origin, //, at_once: Int
](
    result: Pointer[Scalar[W], of_result],
    x: Pointer[Scalar[T], of_x],
    b: Pointer[Scalar[T], of_b],
    depth: Int,
):
    """The dot products of `x` and a few rows of `b`."""
    comptime lanes = simd_width_of[W]()
    var totals = stack_allocation[at_once, SIMD[W, lanes]]()
    comptime for j in range(at_once):
        totals[unsafe_offset=j] = SIMD[W, lanes](0)
    var whole = depth // lanes * lanes
    for k in range(0, whole, lanes):
        var left = x.unsafe_load[width=lanes](k).cast[W]()
        comptime for j in range(at_once):
            var right = b.unsafe_load[width=lanes](j * depth + k).cast[W]()
            totals[unsafe_offset=j] = plus_product(totals[unsafe_offset=j], left, right)
    comptime for j in range(at_once):
        var total = totals[unsafe_offset=j].reduce_add()
        for k in range(whole, depth):
            total += x[unsafe_offset=k].cast[W]() * b[unsafe_offset=j * depth + k].cast[W]()
        result[unsafe_offset=j] = total


@no_inline
def few_dots[
    T: DType, W: DType, of_result: Origin[mut=True], of_a: Origin, of_b: Origin, //
](
    result: Pointer[Scalar[W], of_result],
    step: Int,
    a: Pointer[Scalar[T], of_a],
    b: Pointer[Scalar[T], of_b],
    rows: Int,
    depth: Int,
    first: Int,
    last: Int,
):
    """Rows of `a` times rows [first, last) of `b`: each row of `b` is read once."""
    var column = first
    comptime for at_once in [4, 1]:
        while column + at_once <= last:
            for row in range(rows):
                set_dots[at_once](
                    result.unsafe_offset(row * step + column),
                    a.unsafe_offset(row * depth),
                    b.unsafe_offset(column * depth),
                    depth,
                )
            column += at_once


@no_inline
def add_rows[
    T: DType, W: DType, of_result: Origin[mut=True], of_x: Origin, of_b: Origin, //, at_once: Int
](
    result: Pointer[Scalar[W], of_result],
    x: Pointer[Scalar[T], of_x],
    b: Pointer[Scalar[T], of_b],
    step: Int,
    columns: Int,
):
    """Add a few elements of `x` times rows of `b`, `step` apart, to a row of the result."""
    comptime lanes = simd_width_of[W]()
    var factors = stack_allocation[at_once, SIMD[W, lanes]]()
    comptime for i in range(at_once):
        factors[unsafe_offset=i] = SIMD[W, lanes](x[unsafe_offset=i].cast[W]())
    var whole = columns // lanes * lanes
    for j in range(0, whole, lanes):
        var total = result.unsafe_load[width=lanes](j)
        comptime for i in range(at_once):
            var y = b.unsafe_load[width=lanes](i * step + j).cast[W]()
            total = plus_product(total, factors[unsafe_offset=i], y)
        result.unsafe_store(j, total)
    for j in range(whole, columns):
        var total = result[unsafe_offset=j]
        comptime for i in range(at_once):
            total += x[unsafe_offset=i].cast[W]() * b[unsafe_offset=i * step + j].cast[W]()
        result[unsafe_offset=j] = total


@no_inline
def few_sums[
    T: DType, W: DType, of_result: Origin[mut=True], of_a: Origin, of_b: Origin, //
](
    result: Pointer[Scalar[W], of_result],
    a: Pointer[Scalar[T], of_a],
    b: Pointer[Scalar[T], of_b],
    rows: Int,
    columns: Int,
    depth: Int,
    first: Int,
    last: Int,
):
    """Rows of `a` times columns [first, last) of `b` `[depth, columns]`: each row of `b` is read once."""
    for row in range(rows):
        for j in range(first, last):
            result[unsafe_offset=row * columns + j] = 0
    var k = 0
    comptime for at_once in [8, 1]:
        while k + at_once <= depth:
            for row in range(rows):
                add_rows[at_once](
                    result.unsafe_offset(row * columns + first),
                    a.unsafe_offset(row * depth + k),
                    b.unsafe_offset(k * columns + first),
                    columns,
                    last - first,
                )
            k += at_once


@fieldwise_init
struct FewRows[
    T: DType, W: DType, of_result: Origin[mut=True], of_a: Origin, of_b: Origin, //, transposed: Bool
](Deinitable, ImplicitlyCopyable):
    """Products of a few rows: `a` `[rows, depth]` times `b` `[depth, columns]`, or `[columns, depth]` if transposed."""

    var result: Pointer[Scalar[Self.W], Self.of_result]
    var a: Pointer[Scalar[Self.T], Self.of_a]
    var b: Pointer[Scalar[Self.T], Self.of_b]
    var rows: Int
    var columns: Int
    var depth: Int

    def compute(self, item: Int, first: Int, last: Int):
        """Columns [first, last) of a product."""
        var to = self.result.unsafe_offset(item * self.rows * self.columns)
        var left = self.a.unsafe_offset(item * self.rows * self.depth)
        var right = self.b.unsafe_offset(item * self.columns * self.depth)
        comptime if Self.transposed:
            few_dots(to, self.columns, left, right, self.rows, self.depth, first, last)
        else:
            few_sums(to, left, right, self.rows, self.columns, self.depth, first, last)

    def compute_all(self, count: Int):
        """All columns of `count` products, in tasks."""
        var job = self
        var blocks = ceildiv(self.columns, GRAIN)
        var tasks = min(max(count * self.rows * self.columns * self.depth // FEW_TASK, 1), TASKS)
        var pieces = min(ceildiv(tasks, max(count, 1)), blocks)
        tasks = min(tasks, count) * pieces

        def work(task: Int) {var job, var count, var blocks, var pieces, var tasks}:
            var piece = task % pieces
            var groups = tasks // pieces
            var group = task // pieces
            for item in range(count * group // groups, count * (group + 1) // groups):
                var first = blocks * piece // pieces * GRAIN
                job.compute(item, first, min(blocks * (piece + 1) // pieces * GRAIN, job.columns))

        sync_parallelize(work, tasks)


# -- matrices as sources -----------------------------------------------------------------------------------------------
@fieldwise_init
struct Matrices[of: Origin, //, dtype: DType, transposed: Bool](Source):
    """Matrices of `size` elements: `[depth, columns]`, or `[columns, depth]` if transposed, with rows `step` apart."""

    var data: Pointer[Scalar[Self.dtype], Self.of]
    var size: Int
    var step: Int

    def pack[
        P: DType, to: Origin[mut=True], //, width: Int
    ](self, item: Int, panel: Pointer[Scalar[P], to], k: Int, depth: Int, column: Int, columns: Int):
        var data = self.data.unsafe_offset(item * self.size)
        if columns < width or depth < padded_depth[P](depth):
            for i in range(padded_depth[P](depth) * width):
                panel[unsafe_offset=i] = 0
        comptime if Self.transposed:
            # By blocks, so that the lines of the panel that a block writes stay in the nearest cache.
            for block in range(0, depth, BLOCK):
                for j in range(columns):
                    var row = data.unsafe_offset((column + j) * self.step + k)
                    for i in range(block, min(block + BLOCK, depth)):
                        panel[unsafe_offset=panel_place[P, width](i, j)] = row[unsafe_offset=i].cast[P]()
        else:
            var first = 0
            if columns == width:
                first = depth // 2 * 2
                for i in range(0, first, 2):
                    var row = data.unsafe_offset((k + i) * self.step + column)
                    var above = row.unsafe_load[width=width]().cast[P]()
                    var below = row.unsafe_load[width=width](self.step).cast[P]()
                    comptime if has_pairs[P]():
                        panel.unsafe_store(i * width, above.interleave(below))
                    else:
                        panel.unsafe_store(i * width, above)
                        panel.unsafe_store((i + 1) * width, below)
            for i in range(first, depth):
                var row = data.unsafe_offset((k + i) * self.step + column)
                for j in range(columns):
                    panel[unsafe_offset=panel_place[P, width](i, j)] = row[unsafe_offset=j].cast[P]()


def spread(count: Int, rows: Int, columns: Int, depth: Int, width: Int) -> Tuple[Int, Int, Int]:
    """How products become tasks: pieces of the rows and of the columns of each, and products in a task."""
    var work = rows * columns * max(depth, 1)
    var tasks = min(max(count * work // TASK, 1), TASKS)
    if tasks <= count:
        return (1, 1, ceildiv(count, tasks))
    var across = ceildiv(columns, width)
    var each = min(ceildiv(tasks, count), max(work // TASK, 1))
    var most_down = max(rows // TALL, 1)
    if columns <= rows:
        var pieces = min(each, most_down)
        return (pieces, min(ceildiv(each, pieces), across), 1)
    var pieces = min(each, across)
    return (min(ceildiv(each, pieces), most_down), pieces, 1)


def multiply_all[
    T: DType, W: DType, S: Source, F: Finish, of_result: Origin[mut=True], of_p: Origin, //, transposed: Bool
](
    result: Pointer[Scalar[W], of_result],
    step: Int,
    p: Pointer[Scalar[T], of_p],
    q: S,
    finish: F,
    count: Int,
    period: Int,
    rows: Int,
    columns: Int,
    depth: Int,
):
    """`count` products `p` `[rows, depth]` times `q` `[depth, columns]` one after the other, finished, or their transposes.

    The matrices `p` repeat with a `period`. Rows of the result are `step` apart.
    """
    if count * rows * columns == 0:
        return
    comptime height = tile_height()
    comptime width = panel_width[T]()
    var cut = spread(count, rows, columns, depth, width)
    var pieces_down = cut[0]
    var pieces_across = cut[1]
    var together = cut[2]
    var down = ceildiv(rows, height)
    var across = ceildiv(columns, width)

    def work(task: Int) {
        var result,
        var step,
        var p,
        var q,
        var finish,
        var count,
        var period,
        var rows,
        var columns,
        var depth,
        var pieces_down,
        var pieces_across,
        var together,
        var down,
        var across,
    }:
        var j = task % pieces_across
        var i = task // pieces_across % pieces_down
        var group = task // (pieces_across * pieces_down)
        for item in range(group * together, min((group + 1) * together, count)):
            multiply_block[transposed](
                result.unsafe_offset(item * rows * columns),
                step,
                p.unsafe_offset(item % period * rows * depth),
                depth,
                depth,
                q,
                finish,
                item,
                down * i // pieces_down * height,
                min(down * (i + 1) // pieces_down * height, rows),
                across * j // pieces_across * width,
                min(across * (j + 1) // pieces_across * width, columns),
            )

    sync_parallelize(work, ceildiv(count, together) * pieces_down * pieces_across)
