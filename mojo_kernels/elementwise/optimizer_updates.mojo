"""Updates of tensors in place, element by element, as an optimizer makes them: every tensor read and written once.

What is computed is a program, a text of words of `WORD` characters: whether the value is one for all elements (`u`) or
one for each (`v`), what is done (a letter), and three numbers of three digits, or the sixteen hexadecimal digits of a
float64. A word's value is called by the word's position. The words, with numbers `a`, `b` and `c`:

- `k` a constant, `l` what operand `a` holds, `w` the value `a`, which is written to operand `b`;
- `+`, `-`, `*`, `/`, `f` (`a * b + c`, rounded once), `x` and `m` (the larger and the smaller one; NaN if one is), `p` (a power);
- `n` (minus `a`), `r` (1 / `a`), `q` (a root), `a` (without sign).

Values that are one for all elements are computed in float64, as Python computes them.
"""

import extensibility
from extensibility import InputTensor, _MutableInputTensor, _MutableInputVariadicTensors
from max.algorithm import sync_parallelize
from max.gpu import block_dim, block_idx, grid_dim, thread_idx
from max.gpu.host import DeviceContext
from std.math import ceildiv, floor, sqrt
from std.runtime import parallelism_level
from std.sys import simd_width_of
from std.utils.numerics import isnan
from std.utils.static_tuple import StaticTuple

from .float64 import exp, log

comptime WORD = 18
comptime TASK = 1 << 16
"""Elements of a task on a CPU, at least."""
comptime TASKS = 4
"""Tasks of a thread, at most."""
comptime THREADS = 256
"""Threads of a block on a GPU."""
comptime BLOCKS = 1024
"""Blocks of an update on a GPU, at most."""

comptime Place = MutPointer[Float32, MutUntrackedOrigin]


def place(memory: Pointer[Float32, _]) -> Place:
    """The same place; the caller keeps the memory alive."""
    return memory.unsafe_mut_cast[True]().unsafe_origin_cast[MutUntrackedOrigin]()


def listed(address: Int) -> Place:
    """The memory at an address; the caller keeps it alive."""
    return Place(unsafe_from_address=address)


@fieldwise_init
struct Word(TrivialRegisterPassable):
    """A word of a program."""

    var is_uniform: Bool
    var does: Int
    var a: Int
    var b: Int
    var c: Int
    var constant: Float64


def word(program: StaticString, position: Int) -> Word:
    """The word at a position."""
    var text = program.as_bytes()
    var start = position * WORD
    var bits: UInt64 = 0
    var numbers = SIMD[DType.int64, 4](0)
    var does = Int(text[start + 1])
    for i in range(WORD - 2):
        var letter = Int(text[start + 2 + i])
        var digit = letter - ord("0") if letter <= ord("9") else letter - ord("a") + 10
        bits = bits * 16 + UInt64(digit)
        if i < 9:
            numbers[i // 3] = numbers[i // 3] * 10 + Int64(digit)
    var constant = Float64(0)
    if does == ord("k"):
        constant = Float64(from_bits=bits)
    return Word(Int(text[start]) == ord("u"), does, Int(numbers[0]), Int(numbers[1]), Int(numbers[2]), constant)


def power(base: Float64, exponent: Float64) -> Float64:
    """`base**exponent` for a base above zero."""
    if floor(exponent) != exponent or abs(exponent) >= 2147483648.0:
        return exp(exponent * log(base))
    var value = Float64(1)
    var square = base
    var left = Int64(abs(exponent))
    while left > 0:
        if left & 1 != 0:
            value *= square
        square *= square
        left >>= 1
    return 1 / value if exponent < 0 else value


@always_inline
def computed[
    T: DType, width: Int, does: Int
](a: SIMD[T, width], b: SIMD[T, width], c: SIMD[T, width]) -> SIMD[T, width]:
    """What a word does with values."""
    comptime if does == ord("+"):
        return a + b
    elif does == ord("-"):
        return a - b
    elif does == ord("*"):
        return a * b
    elif does == ord("/"):
        return a / b
    elif does == ord("f"):
        return a.fma(b, c)
    elif does == ord("x"):
        return (isnan(a) | a.gt(b)).select(a, b)
    elif does == ord("m"):
        return (isnan(a) | a.lt(b)).select(a, b)
    elif does == ord("n"):
        return -a
    elif does == ord("r"):
        return 1 / a
    elif does == ord("q"):
        return sqrt(a)
    else:
        comptime assert does == ord("a"), "a word that is not known"
        return abs(a)


struct Update[program: StaticString, tensors: Int]:
    """A program and its tensors."""

    comptime count = Self.program.byte_length() // WORD
    comptime Places = StaticTuple[Place, Self.tensors]
    comptime Uniform = StaticTuple[Float64, Self.count]

    @staticmethod
    @always_inline
    def writes_uniform() -> Bool:
        """Whether it writes values that are one for all elements."""
        comptime for i in range(Self.count):
            comptime at = word(Self.program, i)
            comptime if at.is_uniform and at.does == ord("w"):
                return True
        return False

    @staticmethod
    @always_inline
    def is_varying(operand: Int) -> Bool:
        """Whether an operand has a value for each element."""
        comptime for i in range(Self.count):
            comptime at = word(Self.program, i)
            comptime if not at.is_uniform:
                if (at.does == ord("l") and at.a == operand) or (at.does == ord("w") and at.b == operand):
                    return True
        return False

    @staticmethod
    def uniform(places: Self.Places) -> Self.Uniform:
        """The values that are one for all elements."""
        var values = Self.Uniform(fill=0)
        comptime for i in range(Self.count):
            comptime at = word(Self.program, i)
            comptime if at.is_uniform:
                comptime if at.does == ord("k"):
                    values[i] = at.constant
                elif at.does == ord("l"):
                    values[i] = places[at.a][].cast[DType.float64]()
                elif at.does == ord("p"):
                    values[i] = power(values[at.a], values[at.b])
                elif at.does != ord("w"):
                    values[i] = computed[DType.float64, 1, at.does](values[at.a], values[at.b], values[at.c])
        return values

    @staticmethod
    def write_uniform(places: Self.Places, values: Self.Uniform):
        """Write those of them that are results."""
        comptime for i in range(Self.count):
            comptime at = word(Self.program, i)
            comptime if at.is_uniform and at.does == ord("w"):
                places[at.b][] = values[at.a].cast[DType.float32]()

    @staticmethod
    @always_inline
    def update[width: Int, alignment: Int = 4](places: Self.Places, uniform: Self.Uniform, j: Int):
        """Update `width` elements from element `j` on. All are read before one is written."""
        comptime V = SIMD[DType.float32, width]
        var values = StaticTuple[V, Self.count](fill=V(0))
        comptime for i in range(Self.count):
            comptime at = word(Self.program, i)
            comptime if at.is_uniform:
                comptime if at.does != ord("w"):
                    values[i] = V(uniform[i].cast[DType.float32]())
            elif at.does == ord("l"):
                values[i] = places[at.a].unsafe_load[width=width, alignment=alignment](j)
            elif at.does != ord("w"):
                values[i] = computed[DType.float32, width, at.does](values[at.a], values[at.b], values[at.c])
        comptime for i in range(Self.count):
            comptime at = word(Self.program, i)
            comptime if not at.is_uniform and at.does == ord("w"):
                places[at.b].unsafe_store[width=width, alignment=alignment](j, values[at.a])

    @staticmethod
    @no_inline
    def update_range(places: Self.Places, first: Int, last: Int):
        """Update elements [first, last)."""
        comptime lanes = simd_width_of[DType.float32]()
        var uniform = Self.uniform(places)
        var whole = first + (last - first) // lanes * lanes
        for j in range(first, whole, lanes):
            Self.update[lanes](places, uniform, j)
        for j in range(whole, last):
            Self.update[1](places, uniform, j)


def update_on_gpu[program: StaticString, tensors: Int, width: Int](places: StaticTuple[Place, tensors], size: Int64):
    """Update `size` elements, which all threads share."""
    comptime U = Update[program, tensors]
    var uniform = U.uniform(places)
    var step = Int(grid_dim.x * block_dim.x) * width
    var first = Int(block_idx.x * block_dim.x + thread_idx.x) * width
    for j in range(first, Int(size) // width * width, step):
        U.update[width, 4 * width](places, uniform, j)
    var rest = Int(size) // width * width + first // width
    if rest < Int(size):
        U.update[1](places, uniform, rest)


def write_uniform_on_gpu[program: StaticString, tensors: Int](places: StaticTuple[Place, tensors]):
    """Write what is one value for all elements."""
    comptime U = Update[program, tensors]
    if thread_idx.x == 0:
        U.write_uniform(places, U.uniform(places))


@fieldwise_init
struct Updates[program: StaticString, tensors: Int](Copyable):
    """Updates by one program, of several tensors each, in tasks."""

    comptime U = Update[Self.program, Self.tensors]

    var places: List[Self.U.Places]
    var ends: List[Int]
    """How many elements an update and those before it have."""

    @no_inline
    def update(self, first: Int, last: Int):
        """Update elements [first, last) of all, one update's behind the other's."""
        var start = 0
        for i in range(len(self.ends)):
            var end = self.ends[i]
            if start < last and first < end:
                Self.U.update_range(self.places[i], max(first, start) - start, min(last, end) - start)
            start = end

    def update_all(self):
        """Update everything."""
        var total = self.ends[len(self.ends) - 1]
        var tasks = min(total // TASK, TASKS * parallelism_level())
        if tasks < 2:
            self.update(0, total)
        else:
            var job = Pointer(to=self)

            def work(task: Int) {var job, var total, var tasks}:
                job[].update(total * task // tasks, total * (task + 1) // tasks)

            sync_parallelize(work, tasks)
        comptime if Self.U.writes_uniform():
            for i in range(len(self.places)):
                Self.U.write_uniform(self.places[i], Self.U.uniform(self.places[i]))


@extensibility.register("tmb_update")
struct UpdateInPlace[program: StaticString, tensors: Int, first: Int]:
    """Updates by one program. Each has `tensors` operands, of which number `first` tells how many elements they have."""

    @staticmethod
    def execute[
        target: StaticString
    ](memory: _MutableInputVariadicTensors[dtype=DType.float32, rank=1, ...], ctx: DeviceContext) raises:
        comptime U = Update[Self.program, Self.tensors]
        comptime count = memory.size // Self.tensors
        var all = List[U.Places](capacity=count)
        var ends = List[Int](capacity=count)
        var total = 0
        comptime for i in range(count):
            var places = U.Places(fill=place(memory[i * Self.tensors].unsafe_ptr()))
            comptime for k in range(1, Self.tensors):
                places[k] = place(memory[i * Self.tensors + k].unsafe_ptr())
            all.append(places)
            total += memory[i * Self.tensors + Self.first].size()
            ends.append(total)
        comptime if target == "cpu":
            Updates[Self.program, Self.tensors](all^, ends^).update_all()
        else:
            for i in range(count):
                var size = ends[i] - (ends[i - 1] if i > 0 else 0)
                var bits = 0
                comptime for k in range(Self.tensors):
                    comptime if U.is_varying(k):
                        bits |= Int(all[i][k])
                comptime for width in [4, 1]:
                    if size > 0 and (width == 4) == (bits % 16 == 0):
                        ctx.enqueue_function[update_on_gpu[Self.program, Self.tensors, width]](
                            all[i],
                            Int64(size),
                            grid_dim=min(ceildiv(size, THREADS * width), BLOCKS),
                            block_dim=THREADS,
                        )
                comptime if U.writes_uniform():
                    ctx.enqueue_function[write_uniform_on_gpu[Self.program, Self.tensors]](
                        all[i], grid_dim=1, block_dim=32
                    )


@extensibility.register("tmb_update_listed")
struct UpdateListed[program: StaticString, tensors: Int, first: Int]:
    """`tmb_update` of tensors that are listed, on a CPU: row `i` of `memory` has the address and the size of tensor `i`.

    A row of `chosen` [updates, tensors] has the numbers of an update's operands.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        memory: _MutableInputTensor[dtype=DType.int64, rank=2, ...],
        chosen: InputTensor[dtype=DType.int64, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        comptime assert target == "cpu", "tmb_update_listed runs on CPUs"
        comptime U = Update[Self.program, Self.tensors]
        var table = memory.unsafe_ptr()
        var numbers = chosen.unsafe_ptr()
        var count = chosen.dim_size(0)
        var all = List[U.Places](capacity=count)
        var ends = List[Int](capacity=count)
        var total = 0
        for i in range(count):
            var row = i * Self.tensors
            total += Int(table[unsafe_offset=2 * Int(numbers[unsafe_offset=row + Self.first]) + 1])
            ends.append(total)
            var places = U.Places(fill=listed(Int(table[unsafe_offset=2 * Int(numbers[unsafe_offset=row])])))
            comptime for k in range(1, Self.tensors):
                places[k] = listed(Int(table[unsafe_offset=2 * Int(numbers[unsafe_offset=row + k])]))
            all.append(places)
        if count > 0:
            Updates[Self.program, Self.tensors](all^, ends^).update_all()
