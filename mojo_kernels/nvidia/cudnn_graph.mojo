"""Graphs of many operations for NVIDIA's cuDNN, which has fused kernels for those whose form it knows.

So there are operations whose results nobody reads, and their order matters.
"""

from max.gpu.host import DeviceContext
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
)

# Kinds of descriptors and types of attributes.
comptime POINTWISE = 0
comptime POINTWISE_OPERATION = 13
comptime MATMUL = 18
comptime MATMUL_OPERATION = 19
comptime REDUCTION = 21
comptime REDUCTION_OPERATION = 22
comptime RESHAPE_OPERATION = 31
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
comptime COPY = 21
comptime AT_LEAST = 303
comptime INDEX = 501
comptime SELECT = 601
comptime SUM = 0
comptime LARGEST = 3

comptime ALIGNMENT = 16
"""Bytes: what the kernels need of every address and of every stride."""
comptime FIRST_VIRTUAL = 100
"""The numbers of tensors that are never stored count from here; those of others are less."""
comptime NO_TENSOR = 0
comptime NO_AXIS = -1


trait Computation:
    """What the library computes by one plan."""

    def key(self) -> List[Int]:
        """What a plan depends on. No two computations have the same key."""
        ...

    def operations(self, cudnn: Cudnn) raises -> List[Int]:
        """The operations, in the order in which the library expects them."""
        ...

    def tensors(self) -> List[Int]:
        """The numbers of tensors that have memory, each with its address behind it."""
        ...


struct Builder(Movable):
    """The operations of one graph, of tensors with four dimensions."""

    var operations: List[Int]
    var last: Int

    def __init__(out self):
        self.operations = List[Int]()
        self.last = FIRST_VIRTUAL

    # -- tensors -------------------------------------------------------------------------------------------------------
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

    def virtual(mut self, cudnn: Cudnn, sizes: List[Int], strides: List[Int], code: Int = FLOAT) raises -> Int:
        """A tensor that is never stored."""
        self.last += 1
        return self.tensor(cudnn, self.last, code, sizes, strides, virtual=True)

    def virtual(mut self, cudnn: Cudnn, sizes: List[Int], code: Int = FLOAT) raises -> Int:
        """A dense tensor that is never stored."""
        return self.virtual(cudnn, sizes, dense(sizes), code)

    # -- operations ----------------------------------------------------------------------------------------------------
    def product(mut self, cudnn: Cudnn, y: Int, a: Int, b: Int) raises:
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
        """`y`, the sum or the largest element along those dimensions in which it is smaller than `x`."""
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

    def reshape(mut self, cudnn: Cudnn, y: Int, x: Int) raises:
        """`y`, which has the elements of `x` by other sizes and strides."""
        var operation = cudnn.create(RESHAPE_OPERATION)
        cudnn.set(operation, 2200, OF_DESCRIPTOR, x)
        cudnn.set(operation, 2201, OF_DESCRIPTOR, y)
        cudnn.finalize(operation)
        self.operations.append(operation)


def dense(sizes: List[Int]) -> List[Int]:
    """The strides of a tensor that lies in the order of its four sizes."""
    return [sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1]


# -- plans -------------------------------------------------------------------------------------------------------------
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
    raise Error(String("cuDNN has no way to compute this: ", reason))


def find[T: Computation](mut cudnn: Cudnn, device: Int, computation: T) raises -> Int:
    """The index of the plan for what is to be computed."""
    var key = computation.key()
    for i in range(len(cudnn.devices[device].plans)):
        if cudnn.devices[device].plans[i].key == key:
            return i
    var made = first_plan(cudnn, cudnn.devices[device].handle, computation.operations(cudnn), key)
    cudnn.devices[device].plans.append(made^)
    return len(cudnn.devices[device].plans) - 1


def run(cudnn: Cudnn, handle: Int, plan: Int, tensors: List[Int], workspace: Int) raises:
    """Enqueue a plan."""
    var ids = List[Int]()
    var addresses = List[Int]()
    for i in range(len(tensors) // 2):
        ids.append(tensors[2 * i])
        addresses.append(tensors[2 * i + 1])
    var pack = cudnn.create(VARIANT_PACK)
    cudnn.set_all(pack, 1000, OF_INT64, ids)
    cudnn.set_all(pack, 1001, OF_POINTER, addresses)
    cudnn.set(pack, 1003, OF_POINTER, workspace)
    cudnn.finalize(pack)
    var status = cudnn.library.value().get_function[Int32]("cudnnBackendExecute")(handle, plan, pack)
    cudnn.destroy(pack)
    cudnn.check(status, "a graph")


def launch[T: Computation](computation: T, ctx: DeviceContext) raises:
    """Enqueue what is to be computed."""
    var cudnn = CUDNN.get_or_create_ptr()
    if not cudnn[].library:
        raise Error(
            "attention on an NVIDIA GPU needs cuDNN, which comes with PyTorch for CUDA; ", LIBRARY, " was not found"
        )
    with ctx.push_context():
        var stream = CUDA(ctx.stream())
        var number = Int(stream.value()) if stream else 0
        with BlockingScopedLock(cudnn[].lock):
            var device = cudnn[].device(Int(ctx.id()))
            cudnn[].use_stream(device, number)
            var plan = find(cudnn[], device, computation)
            var handle = cudnn[].devices[device].handle
            var descriptor = cudnn[].devices[device].plans[plan].descriptor
            var bytes = cudnn[].devices[device].plans[plan].workspace
            var workspace = ctx.enqueue_create_buffer[DType.uint8](max(bytes, 1))
            run(cudnn[], handle, descriptor, computation.tensors(), Int(workspace.unsafe_ptr()))
            _ = workspace^  # given back behind the kernel, in the stream's order
