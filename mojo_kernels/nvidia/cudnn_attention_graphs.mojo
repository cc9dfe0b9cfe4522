"""Attention and its gradients as graphs of operations for NVIDIA's cuDNN.

Sizes and strides are in the order `[batch, heads, length, size]`, wherever a tensor lies in memory.
"""

from max.gpu.host import DeviceBuffer, DeviceContext

from .cudnn import Cudnn, Scratch, type_code
from .cudnn_graph import (
    ADD,
    ALIGNMENT,
    AT_LEAST,
    BOOL,
    COPY,
    DIVIDE,
    EXPONENTIAL,
    FLOAT,
    INDEX,
    INT32,
    LARGEST,
    LOGARITHM,
    MULTIPLY,
    SELECT,
    SUBTRACT,
    SUM,
    Builder,
    Computation,
    dense,
    launch,
)

# The numbers of tensors that have memory.
comptime QUERY = 1
comptime KEY = 2
comptime VALUE = 3
comptime RESULT = 4
comptime SCALE = 5
comptime BIAS = 6
comptime NEVER = 7
comptime LOGARITHMS = 8
comptime GRADIENT = 9
comptime OF_QUERY = 10
comptime OF_KEY = 11
comptime OF_VALUE = 12
comptime SUMS = 13
comptime EXACT = 14
comptime ONE = 15

# What keys of plans begin with.
comptime ATTENTION_KEY = 1000
comptime GRADIENTS_KEY = 1001

comptime BITS_NEVER = 0xFF800000
comptime BITS_ONE = 0x3F800000
"""Minus infinity and 1 in float32."""


@fieldwise_init
struct Laid(Copyable, Movable):
    """A tensor on the device: sizes and strides, and its address."""

    var sizes: List[Int]
    var strides: List[Int]
    var address: Int

    def extent(self) -> Int:
        """The number of elements from the first to the last."""
        var count = 1
        for i in range(4):
            count += (self.sizes[i] - 1) * self.strides[i]
        return count

    def tensor(self, builder: Builder, cudnn: Cudnn, id: Int, code: Int) raises -> Int:
        """Its descriptor."""
        return builder.tensor(cudnn, id, code, self.sizes, self.strides)

    def transposed(self, builder: Builder, cudnn: Cudnn, id: Int, code: Int) raises -> Int:
        """The descriptor of its matrices' transposes."""
        return builder.tensor(cudnn, id, code, swapped(self.sizes), swapped(self.strides))


@fieldwise_init
struct Operands(Copyable, Movable):
    """What attention and its gradients have in common. The bias counts only if its address is not 0.

    `logarithms` are float32 and dense, `[batch, heads, length, 1]`. `numbers` is where a scale, minus infinity and 1
    are on the host, float32 in 8 bytes each.
    """

    var type: DType
    var is_causal: Bool
    var query: Laid
    var key: Laid
    var value: Laid
    var result: Laid
    var bias: Laid
    var logarithms: Laid
    var numbers: Int

    def rows(self) -> List[Int]:
        """The sizes of what there is once for each row of the scores."""
        return [self.query.sizes[0], self.query.sizes[1], self.query.sizes[2], 1]

    def wide(self) -> List[Int]:
        """The sizes of the scores."""
        return [self.query.sizes[0], self.query.sizes[1], self.query.sizes[2], self.key.sizes[2]]

    def key_of(self, first: Int, flags: Int, others: List[Laid]) -> List[Int]:
        """The key of a plan."""
        var numbers: List[Int] = [
            first,
            type_code(self.type),
            Int(self.is_causal) + 2 * Int(self.bias.address != 0) + 4 * flags,
        ]
        var tensors: List[Laid] = [
            self.query.copy(),
            self.key.copy(),
            self.value.copy(),
            self.result.copy(),
            self.bias.copy(),
        ]
        tensors.extend(others.copy())
        for tensor in tensors:
            numbers.extend(tensor.sizes.copy())
            numbers.extend(tensor.strides.copy())
        return numbers^

    def tensors(self) -> List[Int]:
        """The numbers of tensors that have memory, each with its address behind it."""
        var found: List[Int] = [
            QUERY, self.query.address,
            KEY, self.key.address,
            VALUE, self.value.address,
            RESULT, self.result.address,
            SCALE, self.numbers,
        ]  # fmt: skip
        if self.bias.address != 0:
            found.extend([BIAS, self.bias.address])
        if self.is_causal:
            found.extend([NEVER, self.numbers + 8])
        if self.logarithms.address != 0:
            found.extend([LOGARITHMS, self.logarithms.address])
        return found^

    def scores(self, mut b: Builder, cudnn: Cudnn, query: Int, key: Int, scale: Int) raises -> Int:
        """The scaled scores, with a bias if there is one."""
        var scores = b.virtual(cudnn, self.wide())
        b.product(cudnn, scores, query, key)
        var scaled = b.virtual(cudnn, self.wide())
        b.pointwise(cudnn, MULTIPLY, scaled, scores, scale)
        if self.bias.address == 0:
            return scaled
        var biased = b.virtual(cudnn, self.wide())
        b.pointwise(cudnn, ADD, biased, scaled, self.bias.tensor(b, cudnn, BIAS, type_code(self.type)))
        return biased

    def masked(self, mut b: Builder, cudnn: Cudnn, scores: Int) raises -> Int:
        """The scores, with minus infinity where nothing is attended to."""
        if not self.is_causal:
            return scores
        var row = b.virtual(cudnn, self.wide(), INT32)
        b.pointwise(cudnn, INDEX, row, scores, axis=2)
        var column = b.virtual(cudnn, self.wide(), INT32)
        b.pointwise(cudnn, INDEX, column, scores, axis=3)
        var seen = b.virtual(cudnn, self.wide(), BOOL)
        b.pointwise(cudnn, AT_LEAST, seen, row, column, code=BOOL)
        var masked = b.virtual(cudnn, self.wide())
        b.pointwise(cudnn, SELECT, masked, scores, b.number(cudnn, NEVER), seen)
        return masked


@fieldwise_init
struct Attention(Computation, Movable):
    """`softmax(query @ key^T * scale + bias) @ value`; and the logarithms of rows' sums, if they have an address."""

    var given: Operands

    def key(self) -> List[Int]:
        """What a plan depends on."""
        return self.given.key_of(ATTENTION_KEY, Int(self.given.logarithms.address != 0), List[Laid]())

    def tensors(self) -> List[Int]:
        """The numbers of tensors that have memory, each with its address behind it."""
        return self.given.tensors()

    def operations(self, cudnn: Cudnn) raises -> List[Int]:
        """The operations, in the order in which the library expects them."""
        ref a = self.given
        var type = type_code(a.type)
        var rows = a.rows()
        var wide = a.wide()
        var b = Builder()
        var query = a.query.tensor(b, cudnn, QUERY, type)
        var key = a.key.transposed(b, cudnn, KEY, type)
        var scores = a.masked(b, cudnn, a.scores(b, cudnn, query, key, b.number(cudnn, SCALE)))
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
            logarithms = a.logarithms.tensor(b, cudnn, LOGARITHMS, FLOAT)
        else:
            logarithms = b.virtual(cudnn, rows)
        b.pointwise(cudnn, ADD, logarithms, top, logarithm)
        var shares = b.virtual(cudnn, wide, type)
        b.pointwise(cudnn, DIVIDE, shares, weights, total)
        b.product(
            cudnn,
            a.result.tensor(b, cudnn, RESULT, type),
            shares,
            a.value.tensor(b, cudnn, VALUE, type),
        )
        return b.operations.copy()


@fieldwise_init
struct Gradients(Computation, Movable):
    """Gradients of query, key and value, from that of the result, from the result and from the saved logarithms.

    `sums` `[batch, heads, length, 1]` and `exact` `[batch, heads, length, size]`, both float32, are memory to work in.
    """

    var given: Operands
    var gradient: Laid
    var of_query: Laid
    var of_key: Laid
    var of_value: Laid
    var sums: Laid
    var exact: Laid

    def key(self) -> List[Int]:
        """What a plan depends on."""
        var others: List[Laid] = [
            self.gradient.copy(),
            self.of_query.copy(),
            self.of_key.copy(),
            self.of_value.copy(),
        ]
        return self.given.key_of(GRADIENTS_KEY, 0, others)

    def tensors(self) -> List[Int]:
        """The numbers of tensors that have memory, each with its address behind it."""
        var found = self.given.tensors()
        var more: List[Int] = [
            GRADIENT, self.gradient.address,
            OF_QUERY, self.of_query.address,
            OF_KEY, self.of_key.address,
            OF_VALUE, self.of_value.address,
            SUMS, self.sums.address,
            EXACT, self.exact.address,
            ONE, self.given.numbers + 16,
        ]  # fmt: skip
        found.extend(more^)
        return found^

    def operations(self, cudnn: Cudnn) raises -> List[Int]:
        """The operations, in the order in which the library expects them."""
        ref a = self.given
        var type = type_code(a.type)
        var rows = a.rows()
        var wide = a.wide()
        var b = Builder()
        var query = a.query.tensor(b, cudnn, QUERY, type)
        var key = a.key.transposed(b, cudnn, KEY, type)
        var value = a.value.transposed(b, cudnn, VALUE, type)
        var scale = b.number(cudnn, SCALE)
        var gradient = self.gradient.tensor(b, cudnn, GRADIENT, type)

        # The sum of gradient * result over each row: what softmax takes from the gradient of its weights.
        ref o = a.result.sizes
        var strides: List[Int] = [o[1] * o[2] * o[3], o[2] * o[3], o[1] * o[3], 1]  # as torch's graphs have them
        var products = b.virtual(cudnn, o, strides)
        b.pointwise(cudnn, MULTIPLY, products, gradient, a.result.tensor(b, cudnn, RESULT, type))
        var along = b.virtual(cudnn, rows)
        b.reduce(cudnn, SUM, along, products)
        var sums = self.sums.tensor(b, cudnn, SUMS, FLOAT)
        b.pointwise(cudnn, MULTIPLY, sums, along, b.number(cudnn, ONE))

        # The weights, by which the value's gradient is a product.
        var scores = a.scores(b, cudnn, query, key, scale)
        var below = b.virtual(cudnn, wide)
        b.pointwise(cudnn, SUBTRACT, below, scores, a.logarithms.tensor(b, cudnn, LOGARITHMS, FLOAT))
        var weights = b.virtual(cudnn, wide)
        b.pointwise(cudnn, EXPONENTIAL, weights, a.masked(b, cudnn, below))
        self.product_of_turned(b, cudnn, self.of_value, OF_VALUE, weights, gradient)

        # The gradient of the scores, by which those of key and query are products.
        var of_weights = b.virtual(cudnn, wide)
        b.product(cudnn, of_weights, gradient, value)
        var centred = b.virtual(cudnn, wide)
        b.pointwise(cudnn, SUBTRACT, centred, of_weights, sums)
        var of_scores = b.virtual(cudnn, wide)
        b.pointwise(cudnn, MULTIPLY, of_scores, centred, weights)
        var scaled = b.virtual(cudnn, wide)
        b.pointwise(cudnn, MULTIPLY, scaled, of_scores, scale)
        self.product_of_turned(b, cudnn, self.of_key, OF_KEY, scaled, query)
        var keys = b.virtual(cudnn, a.key.sizes, a.key.strides)
        b.reshape(cudnn, keys, key)
        var exact = self.exact.tensor(b, cudnn, EXACT, FLOAT)
        b.product(cudnn, exact, scaled, keys)
        b.pointwise(cudnn, COPY, self.of_query.tensor(b, cudnn, OF_QUERY, type), exact)
        return b.operations.copy()

    def product_of_turned(self, mut b: Builder, cudnn: Cudnn, y: Laid, id: Int, x: Int, rows: Int) raises:
        """`y = x^T @ rows` for `x` of the scores' sizes. Heads that share one of `y` are summed."""
        var wide = self.given.wide()
        var type = type_code(self.given.type)
        var turned = b.virtual(cudnn, swapped(wide), swapped(dense(wide)), type)
        b.reshape(cudnn, turned, x)
        var result = y.tensor(b, cudnn, id, type)
        if y.sizes[1] == wide[1]:
            b.product(cudnn, result, turned, rows)
            return
        var sizes: List[Int] = [wide[0], wide[1], wide[3], y.sizes[3]]
        var every = b.virtual(cudnn, sizes, type)
        b.product(cudnn, every, turned, rows)
        b.reduce(cudnn, SUM, result, every)


def swapped(x: List[Int]) -> List[Int]:
    """The last two numbers of four the other way round."""
    return [x[0], x[1], x[3], x[2]]


# -- on the device -----------------------------------------------------------------------------------------------------
struct Copies(Movable):
    """Copies of tensors of 16-bit floats that begin where the library would read something else."""

    var buffers: List[DeviceBuffer[DType.uint16]]

    def __init__(out self):
        self.buffers = List[DeviceBuffer[DType.uint16]]()

    def align(mut self, mut x: Laid, ctx: DeviceContext) raises:
        """Let `x` be a copy of itself if need be."""
        if x.address % ALIGNMENT == 0:
            return
        var place = Pointer[UInt16, MutUntrackedOrigin](unsafe_from_address=x.address)
        var copy = ctx.enqueue_create_buffer[DType.uint16](x.extent())
        ctx.enqueue_copy(copy, DeviceBuffer[DType.uint16](ctx, place, x.extent(), owning=False))
        x.address = Int(copy.unsafe_ptr())
        self.buffers.append(copy^)

    def align_all(mut self, mut given: Operands, ctx: DeviceContext) raises:
        """Do so for what is read by attention and by its gradients."""
        self.align(given.query, ctx)
        self.align(given.key, ctx)
        self.align(given.value, ctx)
        self.align(given.bias, ctx)


@no_inline
def attend(var given: Operands, scale: Int, ctx: DeviceContext) raises:
    """Enqueue attention. `scale` are the bits of a float32."""
    var copies = Copies()
    copies.align_all(given, ctx)
    var values: List[Int] = [scale, BITS_NEVER]
    var numbers = Scratch(values)
    given.numbers = numbers.address()
    launch(Attention(given^), ctx)
    _ = copies^  # given back behind the kernel, in the stream's order
    _ = numbers^  # it would end before the call


@no_inline
def attend_backward(
    var given: Operands,
    var gradient: Laid,
    var of_query: Laid,
    var of_key: Laid,
    var of_value: Laid,
    scale: Int,
    ctx: DeviceContext,
) raises:
    """Enqueue the gradients of attention. `scale` are the bits of a float32."""
    var copies = Copies()
    copies.align_all(given, ctx)
    copies.align(given.result, ctx)
    copies.align(gradient, ctx)
    var rows = given.rows()
    var values: List[Int] = [scale, BITS_NEVER, BITS_ONE]
    var numbers = Scratch(values)
    given.numbers = numbers.address()
    var count = rows[0] * rows[1] * rows[2]
    var size = given.query.sizes[3]
    var wide: List[Int] = [rows[0], rows[1], rows[2], size]
    var sums = ctx.enqueue_create_buffer[DType.float32](count)
    var exact = ctx.enqueue_create_buffer[DType.float32](count * size)
    var of_sums = Laid(rows.copy(), dense(rows), Int(sums.unsafe_ptr()))
    var of_exact = Laid(wide.copy(), dense(wide), Int(exact.unsafe_ptr()))
    launch(Gradients(given^, gradient^, of_query^, of_key^, of_value^, of_sums^, of_exact^), ctx)
    _ = copies^  # given back behind the kernels, in the stream's order
    _ = sums^
    _ = exact^
    _ = numbers^  # it would end before the call
