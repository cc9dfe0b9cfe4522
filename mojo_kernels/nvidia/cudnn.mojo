"""NVIDIA's cuDNN by its graph interface: seven C functions and descriptors with numbered attributes.

The library is the one that torch has in the process already. What a convolution needs is made once for each geometry (a
*plan*) and kept for the life of the process, like the handle of each device.
"""

from max.gpu.host import DeviceContext
from max.gpu.host._nvidia_cuda import CUDA
from std.ffi import OwnedDLHandle, _Global
from std.memory.alloc import unsafe_alloc
from std.utils.lock import BlockingScopedLock, BlockingSpinLock

comptime LIBRARY = "libcudnn.so.9"

# What a convolution computes: the result, or the gradient of the image or of the filter.
comptime FORWARD = 0
comptime IMAGE_GRADIENT = 1
comptime FILTER_GRADIENT = 2

# Kinds of descriptors (cudnnBackendDescriptorType_t).
comptime CONVOLUTION = 1
comptime ENGINE = 2
comptime ENGINE_CONFIG = 3
comptime HEURISTIC = 4
comptime PLAN = 5
comptime OPERATION_GRAPH = 15
comptime VARIANT_PACK = 16
comptime TENSOR = 17

# Types of attributes (cudnnBackendAttributeType_t).
comptime OF_HANDLE = 0
comptime OF_DATA_TYPE = 1
comptime OF_INT64 = 3
comptime OF_FLOAT = 4
comptime OF_DOUBLE = 5
comptime OF_POINTER = 6
comptime OF_CONVOLUTION_MODE = 7
comptime OF_HEURISTIC_MODE = 8
comptime OF_NUMERICAL_NOTE = 11
comptime OF_DESCRIPTOR = 15

comptime MOST_CONFIGS = 16
comptime MOST_WORKSPACE = 1 << 30
"""Engines that need more scratch memory are taken only if there is no other."""

comptime NOTE_TENSOR_CORE = 0
comptime NOTE_DOWN_CONVERTED = 1
comptime NOTE_NONDETERMINISTIC = 4


@fieldwise_init
struct Geometry(Copyable, Movable):
    """A convolution: sizes and strides in torch's order (batch, channels, space), of the image, filter and result."""

    var kind: Int
    var type: DType
    var image: List[Int]
    var image_strides: List[Int]
    var filter: List[Int]
    var filter_strides: List[Int]
    var result: List[Int]
    var result_strides: List[Int]
    var stride: List[Int]
    var before: List[Int]
    var after: List[Int]
    var dilation: List[Int]
    var allow_tf32: Bool
    var deterministic: Bool

    def key(self, alignment: Int) -> List[Int]:
        """All of it as numbers."""
        var numbers: List[Int] = [
            self.kind,
            type_code(self.type),
            Int(self.allow_tf32) + 2 * Int(self.deterministic),
            alignment,
        ]
        numbers.extend(self.image.copy())
        numbers.extend(self.image_strides.copy())
        numbers.extend(self.filter.copy())
        numbers.extend(self.filter_strides.copy())
        numbers.extend(self.result.copy())
        numbers.extend(self.result_strides.copy())
        numbers.extend(self.stride.copy())
        numbers.extend(self.before.copy())
        numbers.extend(self.after.copy())
        numbers.extend(self.dilation.copy())
        return numbers^


@fieldwise_init
struct Plan(Copyable, Movable):
    """What cuDNN runs for a geometry, and the bytes of scratch memory that it needs."""

    var key: List[Int]
    var descriptor: Int
    var workspace: Int


def type_code(type: DType) -> Int:
    """`cudnnDataType_t`, or -1."""
    if type == DType.float32:
        return 0
    if type == DType.float64:
        return 1
    if type == DType.float16:
        return 2
    if type == DType.bfloat16:
        return 9
    return -1


struct Scratch(Movable):
    """Memory for what C functions read and write. It is on the heap, so that the compiler keeps every store."""

    var memory: Pointer[Int, MutUntrackedOrigin]

    def __init__(out self, count: Int):
        self.memory = unsafe_alloc[Int](max(count, 1))
        for i in range(count):
            self.memory[unsafe_offset=i] = 0

    def __init__(out self, values: List[Int]):
        self = Self(len(values))
        for i in range(len(values)):
            self.memory[unsafe_offset=i] = values[i]

    def __deinit__(deinit self):
        self.memory.unsafe_free()

    def address(self) -> Int:
        """Of the first number."""
        return Int(self.memory)

    def __getitem__(self, i: Int) -> Int:
        return self.memory[unsafe_offset=i]

    def half(self, i: Int) -> Int:
        """The `i`-th number, read as numbers of 32 bits."""
        return Int(self.memory.unsafe_bitcast[Int32]()[unsafe_offset=i])


struct Device(Copyable, Movable):
    """The state of cuDNN on one device: its handle, the stream that it was last given, and the plans made so far."""

    var id: Int
    var handle: Int
    var stream: Int
    var plans: List[Plan]

    def __init__(out self, id: Int, handle: Int):
        self.id = id
        self.handle = handle
        self.stream = -1
        self.plans = List[Plan]()


struct Cudnn(Movable):
    """The library and its devices. A handle serves one thread at a time, so whoever calls holds the lock."""

    var lock: BlockingSpinLock
    var library: Optional[OwnedDLHandle]
    var devices: List[Device]

    def __init__(out self):
        self.lock = BlockingSpinLock()
        self.devices = List[Device]()
        try:
            self.library = OwnedDLHandle(LIBRARY)
        except:
            self.library = None

    # -- descriptors -----------------------------------------------------------------------------------------------
    def check(self, status: Int32, what: String) raises:
        """An error that says what cuDNN says."""
        if status == 0:
            return
        var text = self.library.value().get_function[Int]("cudnnGetErrorString")(status)
        var name = String(unsafe_from_utf8_ptr=Pointer[UInt8, MutUntrackedOrigin](unsafe_from_address=text))
        raise Error(String("cuDNN: ", what, " failed: ", name))

    def create(self, kind: Int) raises -> Int:
        """A new descriptor."""
        var place = Scratch(1)
        var function = self.library.value().get_function[Int32]("cudnnBackendCreateDescriptor")
        self.check(function(Int32(kind), place.address()), String("making a descriptor of kind ", kind))
        return place[0]

    def destroy(self, descriptor: Int):
        """Give a descriptor back."""
        try:
            _ = self.library.value().get_function[Int32]("cudnnBackendDestroyDescriptor")(descriptor)
        except:
            pass

    def set(self, descriptor: Int, name: Int, type: Int, *values: Int) raises:
        """Set an attribute. Enumerations and floats are 32 bits wide, so of those there can be only one."""
        var numbers = List[Int]()
        for value in values:
            numbers.append(value)
        self.set_all(descriptor, name, type, numbers)

    def set_all(self, descriptor: Int, name: Int, type: Int, values: List[Int]) raises:
        """Set an attribute that has several values."""
        var memory = Scratch(values)
        var function = self.library.value().get_function[Int32]("cudnnBackendSetAttribute")
        var status = function(descriptor, Int32(name), Int32(type), Int(len(values)), memory.address())
        _ = memory^  # it would end before the call
        self.check(status, String("setting attribute ", name))

    def finalize(self, descriptor: Int) raises:
        """End the making of a descriptor."""
        var status = self.library.value().get_function[Int32]("cudnnBackendFinalize")(descriptor)
        self.check(status, "finishing a descriptor")

    def get(self, descriptor: Int, name: Int, type: Int, mut memory: Scratch, most: Int) raises -> Int:
        """Read an attribute into `memory`; the number of values."""
        var count = Scratch(1)
        var function = self.library.value().get_function[Int32]("cudnnBackendGetAttribute")
        var status = function(descriptor, Int32(name), Int32(type), Int(most), count.address(), memory.address())
        self.check(status, String("reading attribute ", name))
        return count[0]

    # -- a convolution ---------------------------------------------------------------------------------------------
    def tensor(self, id: Int, type: DType, sizes: List[Int], strides: List[Int], alignment: Int) raises -> Int:
        """A tensor's descriptor."""
        var made = self.create(TENSOR)
        self.set(made, 906, OF_INT64, id)
        self.set(made, 901, OF_DATA_TYPE, type_code(type))
        self.set_all(made, 902, OF_INT64, sizes)
        self.set_all(made, 903, OF_INT64, strides)
        self.set(made, 900, OF_INT64, alignment)
        self.finalize(made)
        return made

    def operation(self, geometry: Geometry, alignment: Int) raises -> Int:
        """The one operation of a convolution's graph. Tensors are numbered 1 (image), 2 (filter), 3 (result)."""
        ref g = geometry
        var image = self.tensor(1, g.type, g.image, g.image_strides, alignment)
        var filter = self.tensor(2, g.type, g.filter, g.filter_strides, alignment)
        var result = self.tensor(3, g.type, g.result, g.result_strides, alignment)
        var wide = g.type == DType.float64
        var convolution = self.create(CONVOLUTION)
        self.set(convolution, 100, OF_DATA_TYPE, 1 if wide else 0)
        self.set(convolution, 101, OF_CONVOLUTION_MODE, 1)
        self.set(convolution, 106, OF_INT64, len(g.stride))
        self.set_all(convolution, 102, OF_INT64, g.dilation)
        self.set_all(convolution, 103, OF_INT64, g.stride)
        self.set_all(convolution, 105, OF_INT64, g.before)
        self.set_all(convolution, 104, OF_INT64, g.after)
        self.finalize(convolution)
        # The attributes of the three operations are numbered alike, from 700, 706 and 712 on.
        var kinds: List[Int] = [10, 12, 11]
        var made = self.create(kinds[g.kind])
        var first = 700 + 6 * g.kind
        var one = 0x3FF0000000000000 if wide else 0x3F800000
        self.set(made, first, OF_DOUBLE if wide else OF_FLOAT, one)
        self.set(made, first + 1, OF_DOUBLE if wide else OF_FLOAT, 0)
        self.set(made, first + 2, OF_DESCRIPTOR, convolution)
        var places: List[Int] = [703, 704, 705]
        if g.kind == IMAGE_GRADIENT:
            places = [709, 710, 711]
        elif g.kind == FILTER_GRADIENT:
            places = [715, 716, 717]
        self.set(made, places[0], OF_DESCRIPTOR, filter)
        self.set(made, places[1], OF_DESCRIPTOR, image)
        self.set(made, places[2], OF_DESCRIPTOR, result)
        self.finalize(made)
        return made

    def is_allowed(self, config: Int, geometry: Geometry) raises -> Bool:
        """Whether an engine computes as exactly as it is asked to."""
        var engine = self.create(ENGINE)
        var place = Scratch(1)
        place.memory[unsafe_offset=0] = engine
        _ = self.get(config, 300, OF_DESCRIPTOR, place, 1)
        var notes = Scratch(16)
        var count = self.get(engine, 1303, OF_NUMERICAL_NOTE, notes, 16)
        var allowed = True
        for i in range(count):
            var note = notes.half(i)
            if geometry.type == DType.float32:
                if note == NOTE_DOWN_CONVERTED or (note == NOTE_TENSOR_CORE and not geometry.allow_tf32):
                    allowed = False
            if note == NOTE_NONDETERMINISTIC and geometry.deterministic:
                allowed = False
        self.destroy(engine)
        return allowed

    def plan(self, device: Device, geometry: Geometry, alignment: Int) raises -> Plan:
        """The first engine that cuDNN proposes, is exact enough, and can be had."""
        var graph = self.create(OPERATION_GRAPH)
        self.set(graph, 801, OF_DESCRIPTOR, self.operation(geometry, alignment))
        self.set(graph, 800, OF_HANDLE, device.handle)
        self.finalize(graph)
        var reason = String("no engine")
        var spare: Optional[Plan] = None
        var modes: List[Int] = [3, 2]  # by a model of their speed; then whatever works
        for mode in modes:
            var heuristic = self.create(HEURISTIC)
            self.set(heuristic, 201, OF_DESCRIPTOR, graph)
            self.set(heuristic, 200, OF_HEURISTIC_MODE, mode)
            var configs = Scratch(MOST_CONFIGS)
            var count = 0
            try:
                self.finalize(heuristic)
                for i in range(MOST_CONFIGS):
                    configs.memory[unsafe_offset=i] = self.create(ENGINE_CONFIG)
                count = min(self.get(heuristic, 202, OF_DESCRIPTOR, configs, MOST_CONFIGS), MOST_CONFIGS)
            except error:
                reason = String(error)
            for i in range(count):
                try:
                    if not self.is_allowed(configs[i], geometry):
                        continue
                    var made = self.create(PLAN)
                    self.set(made, 400, OF_HANDLE, device.handle)
                    self.set(made, 401, OF_DESCRIPTOR, configs[i])
                    self.finalize(made)
                    var bytes = Scratch(1)
                    _ = self.get(made, 402, OF_INT64, bytes, 1)
                    var plan = Plan(geometry.key(alignment), made, bytes[0])
                    if bytes[0] <= MOST_WORKSPACE:
                        return plan^
                    if not spare:
                        spare = plan^
                except error:
                    reason = String(error)
        if spare:
            return spare.take()
        raise Error(String("cuDNN has no way to compute a convolution: ", reason))

    def device(mut self, id: Int) raises -> Int:
        """The index of a device, whose context is current."""
        for i in range(len(self.devices)):
            if self.devices[i].id == id:
                return i
        var place = Scratch(1)
        self.check(self.library.value().get_function[Int32]("cudnnCreate")(place.address()), "making a handle")
        self.devices.append(Device(id, place[0]))
        return len(self.devices) - 1

    def find(mut self, device: Int, geometry: Geometry, alignment: Int) raises -> Int:
        """The index of the plan for a geometry."""
        var key = geometry.key(alignment)
        for i in range(len(self.devices[device].plans)):
            if self.devices[device].plans[i].key == key:
                return i
        var made = self.plan(self.devices[device], geometry, alignment)
        self.devices[device].plans.append(made^)
        return len(self.devices[device].plans) - 1

    def execute(self, device: Int, plan: Int, image: Int, filter: Int, result: Int, workspace: Int) raises:
        """Enqueue a plan. All but the first two are addresses."""
        var pack = self.create(VARIANT_PACK)
        self.set(pack, 1000, OF_INT64, 1, 2, 3)
        self.set(pack, 1001, OF_POINTER, image, filter, result)
        self.set(pack, 1003, OF_POINTER, workspace)
        self.finalize(pack)
        var function = self.library.value().get_function[Int32]("cudnnBackendExecute")
        var status = function(self.devices[device].handle, self.devices[device].plans[plan].descriptor, pack)
        self.destroy(pack)
        self.check(status, "a convolution")

    def use_stream(mut self, device: Int, stream: Int) raises:
        """Enqueue on `stream` from now on."""
        if self.devices[device].stream != stream:
            var function = self.library.value().get_function[Int32]("cudnnSetStream")
            self.check(function(self.devices[device].handle, stream), "setting the stream")
            self.devices[device].stream = stream


def _open() -> Cudnn:
    return Cudnn()


comptime CUDNN = _Global["TMB_CUDNN_1", _open]


def alignment_of(*addresses: Int) -> Int:
    """The largest power of two up to 16 that divides all of them."""
    var bits = 16
    for address in addresses:
        bits |= address
    return bits & -bits


@no_inline
def convolve(geometry: Geometry, image: Int, filter: Int, result: Int, ctx: DeviceContext) raises:
    """Enqueue a convolution or one of its gradients. `image`, `filter` and `result` are addresses on the device."""
    var cudnn = CUDNN.get_or_create_ptr()
    if not cudnn[].library:
        raise Error(
            "a convolution on an NVIDIA GPU needs cuDNN, which comes with PyTorch for CUDA; ", LIBRARY, " was not found"
        )
    with ctx.push_context():
        var stream = CUDA(ctx.stream())
        var number = Int(stream.value()) if stream else 0
        with BlockingScopedLock(cudnn[].lock):
            var device = cudnn[].device(Int(ctx.id()))
            cudnn[].use_stream(device, number)
            var plan = cudnn[].find(device, geometry, alignment_of(image, filter, result))
            var bytes = cudnn[].devices[device].plans[plan].workspace
            var workspace = ctx.enqueue_create_buffer[DType.uint8](max(bytes, 1))
            cudnn[].execute(device, plan, image, filter, result, Int(workspace.unsafe_ptr()))
            _ = workspace^  # given back behind the convolution, in the stream's order
