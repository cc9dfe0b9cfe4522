"""Tensors in memory and the table of a kernel's arguments. A boolean is a byte, 0 or 1."""
from .types import *
from .arithmetic import *
from std.memory import Pointer, stack_allocation
from std.atomic import Atomic


struct Ptr[d: DType](TrivialRegisterPassable):
    """An address: a struct may not hold a pointer without an origin."""

    var address: Int

    @always_inline("nodebug")
    def __init__(out self, address: Int):
        self.address = address

    @always_inline("nodebug")
    def at[e: DType](self, i: Int) -> Pointer[Scalar[e], MutUntrackedOrigin]:
        return Pointer[Scalar[e], MutUntrackedOrigin](unsafe_from_address=self.address).unsafe_offset(i)


struct Table(TrivialRegisterPassable):
    """The argument of a kernel: words of 64 bits."""

    var words: Ptr[i64]

    @always_inline("nodebug")
    def pointer[d: DType](self, k: Int) -> Ptr[d]:
        return Ptr[d](self.int(k))

    @always_inline("nodebug")
    def int(self, k: Int) -> Int:
        return to_int(load[1](self.words, k))

    @always_inline("nodebug")
    def f64(self, k: Int) -> Vec[f64, 1]:
        return bitcast[f64](load[1](self.words, k))


@always_inline("nodebug")
def own_memory[d: DType, count: Int]() -> Ptr[d]:
    """Memory of `count` elements on the stack of the kernel that calls this; its values are not set."""
    return Ptr[d](Int(stack_allocation[count, d, alignment=64]()))


@always_inline("nodebug")
def load[w: Int, d: DType](p: Ptr[d], i: Int) -> Vec[d, w]:
    comptime if d == boolean:
        return p.at[u8](i).unsafe_load[width=w, alignment=1]().ne(0).cast[d]()
    else:
        return p.at[d](i).unsafe_load[width=w, alignment=1]()


@always_inline("nodebug")
def store[d: DType, w: Int](p: Ptr[d], i: Int, x: Vec[d, w]):
    comptime if d == boolean:
        p.at[u8](i).unsafe_store[alignment=1](x.v.cast[u8]())
    else:
        p.at[d](i).unsafe_store[alignment=1](x.v)


@always_inline("nodebug")
def load_masked[w: Int, d: DType](p: Ptr[d], i: Int, count: Int, other: Vec[d, w]) -> Vec[d, w]:
    """The first `count` lanes from memory, the others from `other`."""
    var r = other
    for k in range(min(count, w)):
        r.v[k] = load[1](p, i + k).v[0]
    return r


@always_inline("nodebug")
def load_where[w: Int, d: DType](p: Ptr[d], i: Int, here: Vec[boolean, w]) -> Vec[d, w]:
    """The lanes for which `here` holds from memory, zeros in the others."""
    var r = const[d, w](0)
    for k in range(w):
        if here.v[k]:
            r.v[k] = load[1](p, i + k).v[0]
    return r


@always_inline("nodebug")
def store_masked[d: DType, w: Int](p: Ptr[d], i: Int, count: Int, x: Vec[d, w]):
    """The first `count` lanes to memory."""
    for k in range(min(count, w)):
        store(p, i + k, lane_at(x, k))


@always_inline("nodebug")
def load_at[w: Int, d: DType](p: Ptr[d], offsets: Vec[i64, w]) -> Vec[d, w]:
    var r = const[d, w](0)
    for k in range(w):
        r.v[k] = load[1](p, Int(offsets.v[k])).v[0]
    return r


@always_inline("nodebug")
def load_at_where[w: Int, d: DType](p: Ptr[d], offsets: Vec[i64, w], here: Vec[boolean, w]) -> Vec[d, w]:
    """The lanes for which `here` holds from memory, zeros in the others."""
    var r = const[d, w](0)
    for k in range(w):
        if here.v[k]:
            r.v[k] = load[1](p, Int(offsets.v[k])).v[0]
    return r


@always_inline("nodebug")
def store_at[d: DType, w: Int](p: Ptr[d], offsets: Vec[i64, w], x: Vec[d, w]):
    for k in range(w):
        store(p, Int(offsets.v[k]), lane_at(x, k))


@always_inline("nodebug")
def load_strided[w: Int, d: DType](p: Ptr[d], i: Int, step: Int) -> Vec[d, w]:
    var r = const[d, w](0)
    for k in range(w):
        r.v[k] = load[1](p, i + k * step).v[0]
    return r


@always_inline("nodebug")
def load_every[step: Int, n: Int, last: Int, w: Int, d: DType](p: Ptr[d], i: Int) -> Vec[d, w]:
    """`w` elements, from the one at `i` on each `step`-th."""
    return load_strided[w](p, i, step)


@always_inline("nodebug")
def moved_up[k: Int, d: DType, w: Int](before: Vec[d, w], x: Vec[d, w]) -> Vec[d, w]:
    """Each lane `k` further up; the last ones of `before` take the places of the first."""
    var r = x
    for i in range(w):
        r.v[i] = before.v[w - k + i] if i < k else x.v[i - k]
    return r


@always_inline("nodebug")
def load_reversed[w: Int, d: DType](p: Ptr[d], i: Int) -> Vec[d, w]:
    """The element at `i`, and those before it."""
    return load_strided[w](p, i, -1)


@always_inline("nodebug")
def load_reversed_masked[w: Int, d: DType](p: Ptr[d], i: Int, count: Int) -> Vec[d, w]:
    """The first `count` lanes from memory, zeros in the others."""
    var r = const[d, w](0)
    for k in range(min(w, count)):
        r.v[k] = load[1](p, i - k).v[0]
    return r


@always_inline("nodebug")
def as_words[d: DType](p: Ptr[d]) -> Ptr[u16]:
    """A tensor of 16-bit elements as their bits."""
    return Ptr[u16](p.address)


@always_inline("nodebug")
def store_strided[d: DType, w: Int](p: Ptr[d], i: Int, step: Int, x: Vec[d, w]):
    for k in range(w):
        store(p, i + k * step, lane_at(x, k))


@always_inline("nodebug")
def load_strided_masked[w: Int, d: DType](p: Ptr[d], i: Int, step: Int, count: Int) -> Vec[d, w]:
    """The first `count` lanes, at least one, from memory; the others repeat the last of them."""
    var r = const[d, w](0)
    for k in range(w):
        r.v[k] = load[1](p, i + min(k, count - 1) * step).v[0]
    return r


@always_inline("nodebug")
def store_strided_masked[d: DType, w: Int](p: Ptr[d], i: Int, step: Int, count: Int, x: Vec[d, w]):
    """The first `count` lanes to memory."""
    for k in range(w):
        if k < count:
            store(p, i + k * step, lane_at(x, k))


@always_inline("nodebug")
def atomic_add[d: DType](p: Ptr[d], i: Int, x: Vec[d, 1]):
    _ = Atomic[Scalar[d]].fetch_add(p.at[d](i), x.v[0])


@always_inline("nodebug")
def store_first(p: Ptr[i64], i: Int, x: Vec[i64, 1]) -> Bool:
    """Store `x` if zero is there; whether it was."""
    if to_int(load[1](p, i)) != 0:
        return False
    store(p, i, x)
    return True

@always_inline("nodebug")
def note_error(p: Ptr[i64], code: Int, value: Int, size: Int):
    """Store a code and the value that it is about, if none is stored yet."""
    if store_first(p, 0, from_int[i64, 1](code)):
        store(p, 1, from_int[i64, 1](value))


@always_inline("nodebug")
def turn_block[d: DType](q: Ptr[d], p: Ptr[d], i: Int, step: Int, rows: Int, columns: Int):
    """Up to 16 rows of up to 16 elements, `step` apart, to `q` as 16 vectors: lane `k` of each is of row `k`."""
    for k in range(16):
        var row = i + min(k, rows - 1) * step
        for j in range(columns):
            store(q, 16 * j + k, load[1](p, row + j))


@always_inline("nodebug")
def turn_half_a_block[d: DType](q: Ptr[d], p: Ptr[d], i: Int, step: Int, columns: Int):
    """8 rows of up to 16 elements, `step` apart, to `q` as 16 vectors of 8 lanes: lane `k` of each is of row `k`."""
    for k in range(8):
        for j in range(columns):
            store(q, 8 * j + k, load[1](p, i + k * step + j))


@always_inline("nodebug")
def store_2_in_turns[d: DType](p: Ptr[d], i: Int, a: Vec[d, 16], b: Vec[d, 16]):
    store_2_in_turns_masked(p, i, 16, a, b)


@always_inline("nodebug")
def store_2_in_turns_masked[d: DType](p: Ptr[d], i: Int, count: Int, a: Vec[d, 16], b: Vec[d, 16]):
    """The first `count` lanes of each."""
    store_strided_masked(p, i, 2, count, a)
    store_strided_masked(p, i + 1, 2, count, b)


@always_inline("nodebug")
def store_4_in_turns[d: DType](p: Ptr[d], i: Int, a: Vec[d, 16], b: Vec[d, 16], c: Vec[d, 16], e: Vec[d, 16]):
    store_4_in_turns_masked(p, i, 16, a, b, c, e)


@always_inline("nodebug")
def store_4_in_turns_masked[d: DType](
    p: Ptr[d], i: Int, count: Int, a: Vec[d, 16], b: Vec[d, 16], c: Vec[d, 16], e: Vec[d, 16]
):
    """The first `count` lanes of each."""
    store_strided_masked(p, i, 4, count, a)
    store_strided_masked(p, i + 1, 4, count, b)
    store_strided_masked(p, i + 2, 4, count, c)
    store_strided_masked(p, i + 3, 4, count, e)


@always_inline("nodebug")
def store_8_in_turns[d: DType](
    p: Ptr[d], i: Int,
    a0: Vec[d, 16], a1: Vec[d, 16], a2: Vec[d, 16], a3: Vec[d, 16],
    a4: Vec[d, 16], a5: Vec[d, 16], a6: Vec[d, 16], a7: Vec[d, 16],
):
    store_8_in_turns_masked(p, i, 16, a0, a1, a2, a3, a4, a5, a6, a7)


@always_inline("nodebug")
def store_8_in_turns_masked[d: DType](
    p: Ptr[d], i: Int, count: Int,
    a0: Vec[d, 16], a1: Vec[d, 16], a2: Vec[d, 16], a3: Vec[d, 16],
    a4: Vec[d, 16], a5: Vec[d, 16], a6: Vec[d, 16], a7: Vec[d, 16],
):
    """The first `count` lanes of each."""
    store_strided_masked(p, i + 0, 8, count, a0)
    store_strided_masked(p, i + 1, 8, count, a1)
    store_strided_masked(p, i + 2, 8, count, a2)
    store_strided_masked(p, i + 3, 8, count, a3)
    store_strided_masked(p, i + 4, 8, count, a4)
    store_strided_masked(p, i + 5, 8, count, a5)
    store_strided_masked(p, i + 6, 8, count, a6)
    store_strided_masked(p, i + 7, 8, count, a7)


@always_inline("nodebug")
def opaque32[d: DType, w: Int](x: Vec[d, w]) -> Vec[d, w]:
    """`x`: only a GPU's compiler must not know what it can be."""
    return x


@always_inline("nodebug")
def opaque64[d: DType, w: Int](x: Vec[d, w]) -> Vec[d, w]:
    return x
