"""Matrix products by NVIDIA's cuBLASLt, the library that torch multiplies with.

The library that torch has loaded is used: opening it by its name gives the same one. What it is told about a product is
plain memory, so a product is planned once a process for each combination of sizes, types, layouts and alignment, and a
plan is copied for every call.

cuBLASLt stores matrices by columns. A row-major `[M, N]` is a column-major `[N, M]`, so it is asked for the transposed
product, with the operands exchanged.
"""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.gpu.host import DeviceContext
from max.gpu.host._nvidia_cuda import CUDA
from std.ffi import OwnedDLHandle, _get_global_or_null, external_call
from std.memory import Pointer, stack_allocation
from std.memory.alloc import unsafe_alloc
from std.sys.info import size_of
from std.utils.coord import Coord

comptime WORKSPACE = 32 * 1024 * 1024
"""Bytes that an algorithm may use beside the operands; what torch allows it on this generation."""
comptime ALIGNED = 256
"""The alignment that every algorithm is content with."""

# Numbers from cublasLt.h and library_types.h.
comptime COMPUTE_32F, COMPUTE_32F_FAST_TF32, COMPUTE_64F = Int32(68), Int32(77), Int32(70)
comptime DESC_TRANSA, DESC_TRANSB, DESC_EPILOGUE, DESC_BIAS_POINTER = Int32(3), Int32(4), Int32(7), Int32(8)
comptime DESC_BIAS_BATCH_STRIDE = Int32(10)
comptime LAYOUT_BATCH_COUNT, LAYOUT_BATCH_STRIDE = Int32(5), Int32(6)
comptime PREFER_WORKSPACE, PREFER_REDUCTION, PREFER_ALIGNMENT = Int32(1), Int32(3), Int32(5)
comptime NOT_SUPPORTED = Int32(15)
comptime REDUCE_IN_COMPUTE_TYPE = UInt32(2)
comptime EPILOGUE_NOTHING, EPILOGUE_BIAS, EPILOGUE_GELU = Int32(1), Int32(4), Int32(32)

comptime DESC_WORDS, LAYOUT_WORDS, ALGORITHM_WORDS, RESULT_WORDS, PREFERENCE_WORDS = 32, 14, 8, 12, 12

comptime Words = Pointer[UInt64, MutUntrackedOrigin]


def library_type[T: DType]() -> Int32:
    """CUDA's number of a type."""
    comptime if T == DType.float64:
        return 1
    elif T == DType.float16:
        return 2
    elif T == DType.bfloat16:
        return 14
    else:
        comptime assert T == DType.float32, "cuBLASLt is used for floating point numbers"
        return 0


def check(status: Int32, what: StaticString) raises:
    """Raise what went wrong, in words.

    What is handed to a C function is handed as a pointer, never as an address: the compiler lets go of a value after the
    last use that it sees.
    """
    if status != 0:
        raise Error("cuBLASLt cannot ", what, ": status ", status)


struct Library(Movable):
    """The open library and a handle of it for one device."""

    var library: OwnedDLHandle
    var handle: UInt64

    def __init__(out self) raises:
        try:
            self.library = OwnedDLHandle("libcublasLt.so.13")
        except:
            self.library = OwnedDLHandle("libcublasLt.so.12")
        var handle = stack_allocation[1, UInt64]()
        var status = self.library.call["cublasLtCreate", Int32](handle)
        self.handle = handle[unsafe_offset=0]
        check(status, "start")


def library_for(device: Int64) raises -> Pointer[Library, MutUntrackedOrigin]:
    """The library's handle for a device, made on first use and kept as long as the process."""
    var name = String("tmb_blas_", device)
    var found = _get_global_or_null(name)
    if not found:
        var made = unsafe_alloc[Library](1)
        made.unsafe_write(Library())
        external_call["KGEN_CompilerRT_InsertGlobal", NoneType](StringSlice(name), made.unsafe_bitcast[NoneType]())
        return made.unsafe_origin_cast[MutUntrackedOrigin]()
    return found.value().unsafe_bitcast[Library]().unsafe_origin_cast[MutUntrackedOrigin]()


# -- plans -------------------------------------------------------------------------------------------------------------
struct Plan:
    """What cuBLASLt needs for one kind of product: its descriptors and the algorithm it chose, in one piece of memory."""

    comptime first = DESC_WORDS
    comptime second = Self.first + LAYOUT_WORDS
    comptime result = Self.second + LAYOUT_WORDS
    comptime algorithm = Self.result + LAYOUT_WORDS
    comptime workspace = Self.algorithm + ALGORITHM_WORDS
    comptime words = Self.workspace + 1


@fieldwise_init
struct Matrix(TrivialRegisterPassable, Writable):
    """A matrix of a batch as cuBLASLt sees it: stored by columns, `step` elements apart; matrices are `stride` apart."""

    var rows: Int
    var columns: Int
    var step: Int
    var stride: Int

    def write_to(self, mut writer: Some[Writer]):
        writer.write(self.rows, ",", self.columns, ",", self.step, ",", self.stride)


def alignment(address: Int) -> Int:
    """The largest power of two that divides an address, up to what matters."""
    var most = address & -address
    return ALIGNED if most == 0 or most > ALIGNED else most


@fieldwise_init
struct Product(Copyable, Movable):
    """A product of two batches of matrices, in cuBLASLt's order of operands."""

    var compute: Int32
    var scale: Int32
    var operand: Int32
    var outcome: Int32
    var first: Matrix
    var second: Matrix
    var result: Matrix
    var first_is_transposed: Bool
    var second_is_transposed: Bool
    var count: Int
    var epilogue: Int32
    var bias_stride: Int
    var aligned: Alignments

    def name(self, device: Int64) -> String:
        """A name that is the same for products which the same plan serves."""
        var head = String("tmb_plan_", device, ":", self.compute, ",", self.operand, ",", self.outcome, ":")
        var sizes = String(self.first, ":", self.second, ":", self.result, ":", self.count, ":")
        var kind = String(self.first_is_transposed, self.second_is_transposed, self.epilogue, ",", self.bias_stride)
        return String(head, sizes, kind, ":", self.aligned)

    def plan(self, library: Library) raises -> Words:
        """Describe the product to cuBLASLt and ask it for an algorithm."""
        var plan = unsafe_alloc[UInt64](Plan.words).unsafe_origin_cast[MutUntrackedOrigin]()
        for i in range(Plan.words):
            plan[unsafe_offset=i] = 0
        self.describe(library, plan, self.compute)
        describe_matrix(library, plan.unsafe_offset(Plan.first), self.operand, self.first, self.count)
        describe_matrix(library, plan.unsafe_offset(Plan.second), self.operand, self.second, self.count)
        describe_matrix(library, plan.unsafe_offset(Plan.result), self.outcome, self.result, self.count)
        if self.choose(library, plan):
            return plan
        if self.compute == COMPUTE_32F_FAST_TF32:  # it may, and need not, be rounded
            self.describe(library, plan, COMPUTE_32F)
            if self.choose(library, plan):
                return plan
        raise Error("cuBLASLt has no algorithm for the product ", self.first, " x ", self.second)

    def describe(self, library: Library, plan: Words, compute: Int32) raises:
        """The descriptor of the operation, all but the address of the bias."""
        var size = DESC_WORDS * 8
        check(
            library.library.call["cublasLtMatmulDescInit_internal", Int32](
                plan, size, compute, self.scale
            ),
            "describe a product",
        )
        if self.first_is_transposed:
            set_attribute["cublasLtMatmulDescSetAttribute"](library, plan, DESC_TRANSA, Int32(1))
        if self.second_is_transposed:
            set_attribute["cublasLtMatmulDescSetAttribute"](library, plan, DESC_TRANSB, Int32(1))
        set_attribute["cublasLtMatmulDescSetAttribute"](library, plan, DESC_EPILOGUE, self.epilogue)
        if self.bias_stride != 0:
            set_attribute["cublasLtMatmulDescSetAttribute"](
                library, plan, DESC_BIAS_BATCH_STRIDE, Int64(self.bias_stride)
            )

    def choose(self, library: Library, plan: Words) raises -> Bool:
        """Ask for the algorithm that should be fastest, and note it and the workspace it needs in the plan.

        Parts of a sum that several blocks compute are added before they are rounded. Gives whether there is one.
        """
        var preference = stack_allocation[PREFERENCE_WORDS, UInt64]()
        check(
            library.library.call["cublasLtMatmulPreferenceInit_internal", Int32](preference, PREFERENCE_WORDS * 8),
            "state preferences",
        )
        comptime setter = StaticString("cublasLtMatmulPreferenceSetAttribute")
        var words = preference.unsafe_origin_cast[MutUntrackedOrigin]()
        set_attribute[setter](library, words, PREFER_WORKSPACE, UInt64(WORKSPACE))
        set_attribute[setter](library, words, PREFER_REDUCTION, REDUCE_IN_COMPUTE_TYPE)
        set_attribute[setter](library, words, PREFER_ALIGNMENT, UInt32(self.aligned.first))
        set_attribute[setter](library, words, PREFER_ALIGNMENT + 1, UInt32(self.aligned.second))
        set_attribute[setter](library, words, PREFER_ALIGNMENT + 2, UInt32(self.aligned.result))
        set_attribute[setter](library, words, PREFER_ALIGNMENT + 3, UInt32(self.aligned.result))
        var results = stack_allocation[RESULT_WORDS, UInt64]()
        var found = stack_allocation[1, Int32]()
        found[unsafe_offset=0] = 0
        var status = library.library.call["cublasLtMatmulAlgoGetHeuristic", Int32](
            library.handle,
            plan,
            plan.unsafe_offset(Plan.first),
            plan.unsafe_offset(Plan.second),
            plan.unsafe_offset(Plan.result),
            plan.unsafe_offset(Plan.result),
            words,
            Int32(1),
            results,
            found,
        )
        if status == NOT_SUPPORTED or (status == 0 and found[unsafe_offset=0] == 0):
            return False
        check(status, "choose an algorithm")
        for i in range(ALGORITHM_WORDS + 1):  # the size of the workspace follows the algorithm
            plan[unsafe_offset=Plan.algorithm + i] = results[unsafe_offset=i]
        return True


@fieldwise_init
struct Alignments(TrivialRegisterPassable, Writable):
    """In how many bytes the addresses of operands and result are aligned."""

    var first: Int
    var second: Int
    var result: Int

    def write_to(self, mut writer: Some[Writer]):
        writer.write(self.first, ",", self.second, ",", self.result)


def set_attribute[setter: StaticString, T: DType](library: Library, words: Words, name: Int32, value: Scalar[T]) raises:
    """Set one attribute of a descriptor."""
    var held = stack_allocation[1, Scalar[T]]()
    held[unsafe_offset=0] = value
    check(library.library.call[setter, Int32](words, name, held, size_of[Scalar[T]]()), "set an attribute")


def describe_matrix(library: Library, words: Words, type: Int32, matrix: Matrix, count: Int) raises:
    """The layout of a batch of matrices."""
    check(
        library.library.call["cublasLtMatrixLayoutInit_internal", Int32](
            words, LAYOUT_WORDS * 8, type, matrix.rows, matrix.columns, matrix.step
        ),
        "describe a matrix",
    )
    if count > 1:
        comptime setter = StaticString("cublasLtMatrixLayoutSetAttribute")
        set_attribute[setter](library, words, LAYOUT_BATCH_COUNT, Int32(count))
        set_attribute[setter](library, words, LAYOUT_BATCH_STRIDE, Int64(matrix.stride))


def plan_for(product: Product, library: Library, device: Int64) raises -> Words:
    """The plan of a product, made on first use and kept as long as the process."""
    var name = product.name(device)
    var found = _get_global_or_null(name)
    if found:
        return found.value().unsafe_bitcast[UInt64]().unsafe_origin_cast[MutUntrackedOrigin]()
    var made = product.plan(library)
    external_call["KGEN_CompilerRT_InsertGlobal", NoneType](StringSlice(name), made.unsafe_bitcast[NoneType]())
    return made


def multiply[
    W: DType
](product: Product, first: Int, second: Int, result: Int, bias: Int, ctx: DeviceContext) raises:
    """Put the product on the device's stream. The operands are addresses on the device; no bias is 0."""
    with ctx.push_context() as current:
        var device = current.id()
        var library = library_for(device)
        var plan = plan_for(product, library[], device)
        var description = stack_allocation[DESC_WORDS, UInt64]()
        for i in range(DESC_WORDS):
            description[unsafe_offset=i] = plan[unsafe_offset=i]
        var words = description.unsafe_origin_cast[MutUntrackedOrigin]()
        if bias != 0:
            set_attribute["cublasLtMatmulDescSetAttribute"](library[], words, DESC_BIAS_POINTER, UInt64(bias))
        var one, nothing = stack_allocation[1, Scalar[W]](), stack_allocation[1, Scalar[W]]()
        one[unsafe_offset=0], nothing[unsafe_offset=0] = 1, 0
        var needed = Int(plan[unsafe_offset=Plan.workspace])
        var workspace = current.enqueue_create_buffer[DType.uint8](max(needed, 16))
        check(
            library[].library.call["cublasLtMatmul", Int32](
                library[].handle,
                words,
                one,
                first,
                plan.unsafe_offset(Plan.first),
                second,
                plan.unsafe_offset(Plan.second),
                nothing,
                result,
                plan.unsafe_offset(Plan.result),
                result,
                plan.unsafe_offset(Plan.result),
                plan.unsafe_offset(Plan.algorithm),
                Int(workspace.unsafe_ptr()),
                needed,
                CUDA(current.stream()),
            ),
            "multiply",
        )
        _ = workspace^


comptime STEP = 8
"""Rows of 16-bit results that begin at multiples of so many elements are written by the fast kernels."""


@extensibility.register("tmb_library_product")
struct LibraryProduct[
    transposed_a: Bool, transposed_b: Bool, has_bias: Bool, tf32: Bool, activation: StaticString, pads: Bool
]:
    """`activation(a @ b + bias)` of batches of matrices on an NVIDIA GPU, rounded once.

    `a` is `[A, M, K]`, or `[A, K, M]` if transposed, `b` `[B, K, N]` or `[B, N, K]`, the result `[C, M, N]`; `A` and `B`
    are `C`, or 1 if all products share the operand. `b` may also be `[1, K, C * N]` or `[1, C * N, K]`, whose columns
    (rows) are `C` matrices. `bias` is `[C, N]` or `[1, N]`, and is not read without `has_bias`. Sums are in float32,
    of float64 in float64. `tf32` lets float32 operands be rounded to TF32. `activation` is none, or gelu (its
    approximation by tanh); the library's relu makes zero of some NaN.

    With `pads`, for one product, the result's rows are longer than `N`, and nothing is written behind the `N` columns.
    The columns beyond a multiple of STEP are a product of their own then: `b` need not be aligned for all of them.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=3, ...],
        a: InputTensor[rank=3, ...],
        b: InputTensor[dtype=a.dtype, rank=3, ...],
        bias: InputTensor[rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target == "gpu", "tmb_library_product runs on GPUs"
        comptime W = DType.float64 if a.dtype == DType.float64 else DType.float32
        var count, rows, step = result.dim_size(0), result.dim_size(1), result.dim_size(2)
        var b_height, b_width = b.dim_size(1), b.dim_size(2)
        var columns = step
        comptime if Self.pads:
            columns = b_height if Self.transposed_b else b_width
        if count * rows * columns == 0:
            return
        var a_height, a_width = a.dim_size(1), a.dim_size(2)
        var depth = a_height if Self.transposed_a else a_width
        var b_stride = b_height * b_width if b.dim_size(0) == count and count > 1 else 0
        if b.dim_size(0) == 1 and b_height * b_width != depth * columns:  # matrices side by side, or below each other
            b_stride = columns * b_width if Self.transposed_b else columns
        var a_stride = a_height * a_width if a.dim_size(0) > 1 else 0
        var epilogue = EPILOGUE_NOTHING
        comptime if Self.activation == "gelu":
            epilogue = EPILOGUE_GELU
        comptime if Self.has_bias:
            epilogue = EPILOGUE_BIAS if epilogue == EPILOGUE_NOTHING else epilogue | EPILOGUE_BIAS

        @__parameter
        def multiply_columns(first: Int, number: Int) raises:
            var offset = first * (b_width if Self.transposed_b else 1)
            var of_b = Int(b.unsafe_ptr().unsafe_offset(offset))
            var of_result = Int(result.unsafe_ptr().unsafe_offset(first))
            var of_a = Int(a.unsafe_ptr())
            var of_bias = Int(bias.unsafe_ptr().unsafe_offset(first)) if Self.has_bias else 0
            var product = Product(
                COMPUTE_64F if W == DType.float64 else (COMPUTE_32F_FAST_TF32 if Self.tf32 else COMPUTE_32F),
                library_type[W](),
                library_type[a.dtype](),
                library_type[result.dtype](),
                Matrix(depth if Self.transposed_b else number, number if Self.transposed_b else depth, b_width, b_stride),
                Matrix(a_width, a_height, a_width, a_stride),
                Matrix(number, rows, step, rows * step),
                Self.transposed_b,
                Self.transposed_a,
                count,
                epilogue,
                columns if Self.has_bias and bias.dim_size(0) > 1 else 0,
                Alignments(alignment(of_b), alignment(of_a), alignment(of_result)),
            )
            multiply[W](product, of_b, of_a, of_result, of_bias, ctx)

        comptime if Self.pads:
            var whole = columns // STEP * STEP
            if whole:
                multiply_columns(0, whole)
            if columns > whole:
                multiply_columns(whole, columns - whole)
        else:
            multiply_columns(0, columns)


@extensibility.register("tmb_without_padding")
struct WithoutPadding[columns: Int]:
    """The leading columns of a matrix `[M, N]`, as `[M * columns]`: whole lines of memory are written.

    It reads memory, so MAX cannot fold the cut into whatever made the matrix.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=1, ...],
        matrix: InputTensor[dtype=result.dtype, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        def elements[lanes: Int](at: Coord[...]) {var matrix} -> SIMD[result.dtype, lanes]:
            var place = Int(at[0].value())
            var row = place // Self.columns
            var column = place - row * Self.columns
            var values = SIMD[result.dtype, lanes](0)
            comptime for i in range(lanes):
                values[i] = matrix[row, column]
                column += 1
                if column == Self.columns:
                    row, column = row + 1, 0
            return values

        foreach[target=target, simd_width=STEP](elements, result, ctx)


@extensibility.register("tmb_with_padding")
struct WithPadding:
    """A matrix `[1, M, N]` with zeros behind its rows: whole vectors are written, `STEP` elements each.

    The result's rows are as many vectors as are needed.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor[rank=3, ...],
        matrix: InputTensor[dtype=result.dtype, rank=3, ...],
        ctx: DeviceContext,
    ) raises:
        var columns = matrix.dim_size(2)

        def elements[lanes: Int](at: Coord[...]) {var matrix, var columns} -> SIMD[result.dtype, lanes]:
            var row = Int(at[1].value())
            var column = Int(at[2].value())
            var values = SIMD[result.dtype, lanes](0)
            comptime for i in range(lanes):
                if column + i < columns:
                    values[i] = matrix[0, row, column + i]
            return values

        foreach[target=target, simd_width=STEP](elements, result, ctx)
