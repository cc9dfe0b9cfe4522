"""Attention by NVIDIA's cuDNN: the operations of attention as one graph, for which the library has fused kernels.

The library knows such graphs by their form. So there are operations here whose results nobody reads, and tensors are in
the order `[batch, heads, length, size]` wherever they lie in memory.
"""

from max.gpu.host import DeviceBuffer, DeviceContext
from max.gpu.host._nvidia_cuda import CUDA
from std.utils.lock import BlockingScopedLock

from .cudnn import (
    CUDNN,
    ENGINE_CONFIG,
    HEURISTIC,
    LIBRARY,
    MOST_CONFIGS,
    OF_DATA_TYPE,
    OF_DESCRIPTOR,
    OF_HANDLE,
    OF_HEURISTIC_MODE,
    OF_INT64,
    OF_POINTER,
    OPERATION_GRAPH,
    PLAN,
    TENSOR,
    VARIANT_PACK,
    Cudnn,
    Plan,
    Scratch,
    type_code,
)

# Kinds of descriptors and types of attributes that only attention has.
comptime POINTWISE = 0
comptime POINTWISE_OPERATION = 13
comptime MATMUL = 18
comptime MATMUL_OPERATION = 19
comptime REDUCTION = 21
comptime REDUCTION_OPERATION = 22
comptime OF_BOOL = 2
comptime OF_POINTWISE_MODE = 14
comptime OF_REDUCTION_MODE = 18

# Types of numbers (cudnnDataType_t).
comptime FLOAT = 0
comptime INT32 = 4
comptime BOOL = 11

# What pointwise operations and reductions compute (cudnnPointwiseMode_t, cudnnReduceTensorOp_t).
comptime ADD = 0
comptime MULTIPLY = 1
comptime DIVIDE = 6
comptime SUBTRACT = 9
comptime EXPONENTIAL = 13
comptime LOGARITHM = 15
comptime AT_LEAST = 303
comptime INDEX = 501
comptime SELECT = 601
comptime SUM = 0
comptime LARGEST = 3

# The numbers of tensors that have memory. Those of the others count on from the last.
comptime QUERY = 1
comptime KEY = 2
comptime VALUE = 3
comptime RESULT = 4
comptime SCALE = 5
comptime BIAS = 6
comptime NEVER = 7
comptime LOGARITHMS = 8
comptime VIRTUAL = 100

comptime ALIGNMENT = 16
"""Bytes: what the fused kernels need of every address and of every stride."""
comptime NO_TENSOR = 0
comptime NO_AXIS = -1

comptime ATTENTION_KEY = 1000
"""What a plan's key begins with, so that no other plan has the same."""


@fieldwise_init
struct Laid(Copyable, Movable):
    """A tensor on the device: sizes and strides in the order `[batch, heads, length, size]`, and its address."""

    var sizes: List[Int]
    var strides: List[Int]
    var address: Int

    def extent(self) -> Int:
        """The number of elements from the first to the last."""
        var count = 1
        for i in range(4):
            count += (self.sizes[i] - 1) * self.strides[i]
        return count


@fieldwise_init
struct Attention(Copyable, Movable):
    """What to compute: `softmax(query @ key^T * scale + bias) @ value`, and perhaps the logarithms of the sums.

    `bias` and `logarithms` count only if their address is not 0. `logarithms` are float32, `[batch, heads, length, 1]`.
    """

    var type: DType
    var is_causal: Bool
    var query: Laid
    var key: Laid
    var value: Laid
    var result: Laid
    var bias: Laid
    var logarithms: Laid

    def plan_key(self) -> List[Int]:
        """All of it but the addresses, as numbers."""
        var numbers: List[Int] = [
            ATTENTION_KEY,
            type_code(self.type),
            Int(self.is_causal) + 2 * Int(self.bias.address != 0) + 4 * Int(self.logarithms.address != 0),
        ]
        var tensors: List[Laid] = [
            self.query.copy(),
            self.key.copy(),
            self.value.copy(),
            self.result.copy(),
            self.bias.copy(),
        ]
        for tensor in tensors:
            numbers.extend(tensor.sizes.copy())
            numbers.extend(tensor.strides.copy())
        return numbers^


struct Builder(Movable):
    """The operations of one graph, and the number of the last tensor without memory."""

    var operations: List[Int]
    var last: Int

    def __init__(out self):
        self.operations = List[Int]()
        self.last = VIRTUAL

    def tensor(
        self,
        cudnn: Cudnn,
        id: Int,
        code: Int,
        sizes: List[Int],
        strides: List[Int],
        *,
        virtual: Bool = False,
        by_value: Bool = False,
    ) raises -> Int:
        """A tensor in memory; or one that is never stored; or a number that is handed over when the plan runs."""
        var made = cudnn.create(TENSOR)
        cudnn.set(made, 906, OF_INT64, id)
        cudnn.set(made, 901, OF_DATA_TYPE, code)
        cudnn.set_all(made, 902, OF_INT64, sizes)
        cudnn.set_all(made, 903, OF_INT64, strides)
        cudnn.set(made, 900, OF_INT64, ALIGNMENT)
        cudnn.set(made, 907, OF_BOOL, Int(virtual))
        cudnn.set(made, 908, OF_BOOL, Int(by_value))
        cudnn.finalize(made)
        return made

    def number(self, cudnn: Cudnn, id: Int) raises -> Int:
        """A float32 that is handed over when the plan runs."""
        var one: List[Int] = [1, 1, 1, 1]
        return self.tensor(cudnn, id, FLOAT, one, one, by_value=True)

    def virtual(mut self, cudnn: Cudnn, sizes: List[Int], code: Int = FLOAT) raises -> Int:
        """A tensor that is never stored."""
        self.last += 1
        var strides: List[Int] = [sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1]
        return self.tensor(cudnn, self.last, code, sizes, strides, virtual=True)

    def product(mut self, cudnn: Cudnn, a: Int, b: Int, y: Int) raises:
        """`y = a @ b` of matrices, summed in float32."""
        var made = cudnn.create(MATMUL)
        cudnn.set(made, 1500, OF_DATA_TYPE, FLOAT)
        cudnn.finalize(made)
        var operation = cudnn.create(MATMUL_OPERATION)
        cudnn.set(operation, 1520, OF_DESCRIPTOR, a)
        cudnn.set(operation, 1521, OF_DESCRIPTOR, b)
        cudnn.set(operation, 1522, OF_DESCRIPTOR, y)
        cudnn.set(operation, 1523, OF_DESCRIPTOR, made)
        cudnn.finalize(operation)
        self.operations.append(operation)

    def pointwise(
        mut self,
        cudnn: Cudnn,
        mode: Int,
        y: Int,
        x: Int,
        b: Int = NO_TENSOR,
        condition: Int = NO_TENSOR,
        *,
        axis: Int = NO_AXIS,
        code: Int = FLOAT,
    ) raises:
        """`y`, element by element, from one to three tensors; or the index along an axis."""
        var made = cudnn.create(POINTWISE)
        cudnn.set(made, 0, OF_POINTWISE_MODE, mode)
        cudnn.set(made, 1, OF_DATA_TYPE, code)
        if axis != NO_AXIS:
            cudnn.set(made, 9, OF_INT64, axis)
        cudnn.finalize(made)
        var operation = cudnn.create(POINTWISE_OPERATION)
        cudnn.set(operation, 750, OF_DESCRIPTOR, made)
        cudnn.set(operation, 751, OF_DESCRIPTOR, x)
        if b != NO_TENSOR:
            cudnn.set(operation, 752, OF_DESCRIPTOR, b)
        cudnn.set(operation, 753, OF_DESCRIPTOR, y)
        if condition != NO_TENSOR:
            cudnn.set(operation, 758, OF_DESCRIPTOR, condition)
        cudnn.finalize(operation)
        self.operations.append(operation)

    def reduce(mut self, cudnn: Cudnn, mode: Int, y: Int, x: Int) raises:
        """`y`, the sum or the largest element along those dimensions in which it has size 1."""
        var made = cudnn.create(REDUCTION)
        cudnn.set(made, 1600, OF_REDUCTION_MODE, mode)
        cudnn.set(made, 1601, OF_DATA_TYPE, FLOAT)
        cudnn.finalize(made)
        var operation = cudnn.create(REDUCTION_OPERATION)
        cudnn.set(operation, 1610, OF_DESCRIPTOR, x)
        cudnn.set(operation, 1611, OF_DESCRIPTOR, y)
        cudnn.set(operation, 1612, OF_DESCRIPTOR, made)
        cudnn.finalize(operation)
        self.operations.append(operation)


def swapped(x: List[Int]) -> List[Int]:
    """The last two numbers of four the other way round."""
    return [x[0], x[1], x[3], x[2]]


def operations_of(cudnn: Cudnn, attention: Attention) raises -> List[Int]:
    """The operations of attention, in the order in which the library expects them."""
    ref a = attention
    var type = type_code(a.type)
    var rows: List[Int] = [a.query.sizes[0], a.query.sizes[1], a.query.sizes[2], 1]
    var wide: List[Int] = [a.query.sizes[0], a.query.sizes[1], a.query.sizes[2], a.key.sizes[2]]
    var b = Builder()
    var query = b.tensor(cudnn, QUERY, type, a.query.sizes, a.query.strides)
    var key = b.tensor(cudnn, KEY, type, swapped(a.key.sizes), swapped(a.key.strides))
    var value = b.tensor(cudnn, VALUE, type, a.value.sizes, a.value.strides)
    var result = b.tensor(cudnn, RESULT, type, a.result.sizes, a.result.strides)

    var scores = b.virtual(cudnn, wide)
    b.product(cudnn, query, key, scores)
    var scaled = b.virtual(cudnn, wide)
    b.pointwise(cudnn, MULTIPLY, scaled, scores, b.number(cudnn, SCALE))
    scores = scaled
    if a.bias.address != 0:
        var biased = b.virtual(cudnn, wide)
        var bias = b.tensor(cudnn, BIAS, type, a.bias.sizes, a.bias.strides)
        b.pointwise(cudnn, ADD, biased, scores, bias)
        scores = biased
    if a.is_causal:
        var row = b.virtual(cudnn, wide, INT32)
        b.pointwise(cudnn, INDEX, row, scores, axis=2)
        var column = b.virtual(cudnn, wide, INT32)
        b.pointwise(cudnn, INDEX, column, scores, axis=3)
        var seen = b.virtual(cudnn, wide, BOOL)
        b.pointwise(cudnn, AT_LEAST, seen, row, column, code=BOOL)
        var masked = b.virtual(cudnn, wide)
        b.pointwise(cudnn, SELECT, masked, scores, b.number(cudnn, NEVER), seen)
        scores = masked

    var top = b.virtual(cudnn, rows)
    b.reduce(cudnn, LARGEST, top, scores)
    var below = b.virtual(cudnn, wide)
    b.pointwise(cudnn, SUBTRACT, below, scores, top)
    var weights = b.virtual(cudnn, wide)
    b.pointwise(cudnn, EXPONENTIAL, weights, below)
    var total = b.virtual(cudnn, rows)
    b.reduce(cudnn, SUM, total, weights)
    var logarithm = b.virtual(cudnn, rows)
    b.pointwise(cudnn, LOGARITHM, logarithm, total)
    var logarithms: Int
    if a.logarithms.address != 0:
        logarithms = b.tensor(cudnn, LOGARITHMS, FLOAT, a.logarithms.sizes, a.logarithms.strides)
    else:
        logarithms = b.virtual(cudnn, rows)
    b.pointwise(cudnn, ADD, logarithms, top, logarithm)
    var shares = b.virtual(cudnn, wide, type)
    b.pointwise(cudnn, DIVIDE, shares, weights, total)
    b.product(cudnn, shares, value, result)
    return b.operations.copy()


def first_plan(cudnn: Cudnn, handle: Int, operations: List[Int], key: List[Int]) raises -> Plan:
    """The first plan that the library proposes for a graph and that can be had."""
    var graph = cudnn.create(OPERATION_GRAPH)
    cudnn.set_all(graph, 801, OF_DESCRIPTOR, operations)
    cudnn.set(graph, 800, OF_HANDLE, handle)
    cudnn.finalize(graph)
    var reason = String("no engine")
    var modes: List[Int] = [3, 2]  # by a model of speed; then whatever works
    for mode in modes:
        var heuristic = cudnn.create(HEURISTIC)
        cudnn.set(heuristic, 201, OF_DESCRIPTOR, graph)
        cudnn.set(heuristic, 200, OF_HEURISTIC_MODE, mode)
        var configs = Scratch(MOST_CONFIGS)
        var count = 0
        try:
            cudnn.finalize(heuristic)
            for i in range(MOST_CONFIGS):
                configs.memory[unsafe_offset=i] = cudnn.create(ENGINE_CONFIG)
            count = min(cudnn.get(heuristic, 202, OF_DESCRIPTOR, configs, MOST_CONFIGS), MOST_CONFIGS)
        except error:
            reason = String(error)
        for i in range(count):
            try:
                var made = cudnn.create(PLAN)
                cudnn.set(made, 400, OF_HANDLE, handle)
                cudnn.set(made, 401, OF_DESCRIPTOR, configs[i])
                cudnn.finalize(made)
                var bytes = Scratch(1)
                _ = cudnn.get(made, 402, OF_INT64, bytes, 1)
                return Plan(key.copy(), made, bytes[0])
            except error:
                reason = String(error)
    raise Error(String("cuDNN has no way to compute attention: ", reason))


def find(mut cudnn: Cudnn, device: Int, attention: Attention) raises -> Int:
    """The index of the plan for what is to be computed."""
    var key = attention.plan_key()
    for i in range(len(cudnn.devices[device].plans)):
        if cudnn.devices[device].plans[i].key == key:
            return i
    var made = first_plan(cudnn, cudnn.devices[device].handle, operations_of(cudnn, attention), key)
    cudnn.devices[device].plans.append(made^)
    return len(cudnn.devices[device].plans) - 1


def run(cudnn: Cudnn, handle: Int, plan: Int, attention: Attention, numbers: Scratch, workspace: Int) raises:
    """Enqueue a plan. `numbers` are the scale and minus infinity, float32 in 8 bytes each; addresses are the device's."""
    ref a = attention
    var ids: List[Int] = [QUERY, KEY, VALUE, RESULT, SCALE]
    var places: List[Int] = [a.query.address, a.key.address, a.value.address, a.result.address, numbers.address()]
    if a.bias.address != 0:
        ids.append(BIAS)
        places.append(a.bias.address)
    if a.is_causal:
        ids.append(NEVER)
        places.append(numbers.address() + 8)
    if a.logarithms.address != 0:
        ids.append(LOGARITHMS)
        places.append(a.logarithms.address)
    var pack = cudnn.create(VARIANT_PACK)
    cudnn.set_all(pack, 1000, OF_INT64, ids)
    cudnn.set_all(pack, 1001, OF_POINTER, places)
    cudnn.set(pack, 1003, OF_POINTER, workspace)
    cudnn.finalize(pack)
    var status = cudnn.library.value().get_function[Int32]("cudnnBackendExecute")(handle, plan, pack)
    cudnn.destroy(pack)
    cudnn.check(status, "attention")


def align(mut x: Laid, mut copies: List[DeviceBuffer[DType.uint16]], ctx: DeviceContext) raises:
    """Copy a tensor of 16-bit floats that begins where the library would read something else."""
    if x.address % ALIGNMENT == 0:
        return
    var place = Pointer[UInt16, MutUntrackedOrigin](unsafe_from_address=x.address)
    var copy = ctx.enqueue_create_buffer[DType.uint16](x.extent())
    ctx.enqueue_copy(copy, DeviceBuffer[DType.uint16](ctx, place, x.extent(), owning=False))
    x.address = Int(copy.unsafe_ptr())
    copies.append(copy^)


@no_inline
def attend(mut attention: Attention, scale: Int, ctx: DeviceContext) raises:
    """Enqueue attention. `scale` are the bits of a float32."""
    var cudnn = CUDNN.get_or_create_ptr()
    if not cudnn[].library:
        raise Error(
            "attention on an NVIDIA GPU needs cuDNN, which comes with PyTorch for CUDA; ", LIBRARY, " was not found"
        )
    var values: List[Int] = [scale, 0xFF800000]
    var numbers = Scratch(values)
    var copies = List[DeviceBuffer[DType.uint16]]()
    align(attention.query, copies, ctx)
    align(attention.key, copies, ctx)
    align(attention.value, copies, ctx)
    align(attention.bias, copies, ctx)
    with ctx.push_context():
        var stream = CUDA(ctx.stream())
        var number = Int(stream.value()) if stream else 0
        with BlockingScopedLock(cudnn[].lock):
            var device = cudnn[].device(Int(ctx.id()))
            cudnn[].use_stream(device, number)
            var plan = find(cudnn[], device, attention)
            var handle = cudnn[].devices[device].handle
            var descriptor = cudnn[].devices[device].plans[plan].descriptor
            var bytes = cudnn[].devices[device].plans[plan].workspace
            var workspace = ctx.enqueue_create_buffer[DType.uint8](max(bytes, 1))
            run(cudnn[], handle, descriptor, attention, numbers, Int(workspace.unsafe_ptr()))
            _ = workspace^  # given back behind the kernel, in the stream's order
    _ = copies^
    _ = numbers^  # it would end before the call
