"""Kernels that use every name of the kernel interface for NVIDIA GPUs, and launching them.

``python -m tests.gpu.prebuild_cuda_interface DIR`` compiles them where Mojo is; tests run them where a GPU is.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import torch

import tests.gpu.without_max  # noqa: F401

# isort: split
from tests.codegen.test_kernel_interface import EXACT, FLOATS, INTEGER, INTS, MATH, PREDICATES, REDUCTIONS, TYPES, table
from torch_max_backend.base.digests import digest
from torch_max_backend.runtime.cuda_launch import CudaLibrary, Launch, Launches, Size, current_stream, load_cubin

Argument = torch.Tensor | int | float
WIDTHS = {"f32": (1, 4), "f64": (2,), "f16": (8,), "bf16": (8,), "i32": (1, 4), "i64": (2,)}
THREADS = 128
"""Of a block, for kernels that take an element or a vector a thread."""

TILE = 32
LAUNCHER = "launcher.so"

HEAD = "from kernel import *\n"

MEMORY = """
@export
def aligned_{d}(to: Ptr[{d}], a: Ptr[{d}], s0: Int) abi("C"):
    var i = (block_index() * threads_in_block() + thread_in_block()) * {w}
    if i < s0:
        store_aligned(to, i, load_aligned[{w}](a, i))


@export
def once_{d}(to: Ptr[{d}], a: Ptr[{d}], s0: Int) abi("C"):
    var i = (block_index() * threads_in_block() + thread_in_block()) * {w}
    if i < s0:
        store_aligned(to, i, load_once[{w}](a, i))


@export
def large_{d}(to: Ptr[{d}], a: Ptr[{d}], s0: Int) abi("C"):
    var i = (block_index() * threads_in_block() + thread_in_block()) * {w2}
    if i < s0:
        store_aligned(to, i, load_aligned[{w2}](a, i))


@export
def unaligned_{d}(to: Ptr[{d}], a: Ptr[{d}], s0: Int) abi("C"):
    var i = (block_index() * threads_in_block() + thread_in_block()) * {w}
    if i < s0:
        store(to, i, load[{w}](a, i))


@export
def masked_{d}(to: Ptr[{d}], a: Ptr[{d}], s0: Int) abi("C"):
    var i = (block_index() * threads_in_block() + thread_in_block()) * {w}
    if i < s0:
        store_masked(to, i, s0 - i, load_masked[{w}](a, i, s0 - i, const[{d}, {w}](1)))


@export
def tail_{d}(to: Ptr[{d}], a: Ptr[{d}], s0: Int) abi("C"):
    store(to, 0, load_masked[{w}](a, 0, s0, const[{d}, {w}](1)))


@export
def where_{d}(to: Ptr[{d}], a: Ptr[{d}], here: Ptr[boolean], offsets: Ptr[i64]) abi("C"):
    var chosen = load[{w}](here, 0)
    store(to, 0, load_where[{w}](a, 0, chosen))
    store(to, {w}, load_at_where[{w}](a, load[{w}](offsets, 0), chosen))
    store(to, {w2}, load_strided[{w}](a, 1, 3))
    store(to, {w2} + {w}, load_strided_masked[{w}](a, 1, 3, 2))
    store_strided(to, {w2} * 2, 2, load[{w}](a, 0))
    store_strided_masked(to, {w2} * 3, 2, 1, load[{w}](a, 0))
    store_at(to, add(load_at[{w}](offsets, iota[i64, {w}]()), from_int[i64, {w}]({w2} * 4)), load[{w}](a, 0))


@export
def shuffled_{d}(to: Ptr[{d}], a: Ptr[{d}]) abi("C"):
    var x = load[1](a, thread_in_block())
    store(to, thread_in_block(), shuffle_xor(x, 5))
    store(to, 32 + thread_in_block(), shuffle_down(x, 3))
    store(to, 64 + thread_in_block(), shuffle_up(x, 3))
    store(to, 96 + thread_in_block(), shuffle_from(x, 7))


@export
def transposed_{d}(to: Ptr[{d}], a: Ptr[{d}], s0: Int, s1: Int) abi("C"):
    var tile = shared[{d}, 33 * 32]()
    var x = rem32(thread_in_block(), 32)
    var y = div32(thread_in_block(), 32)
    var row = block_index_y() * 32 + y
    var column = block_index() * 32 + x
    if row < s0 and column < s1:
        shared_store(tile, y * 33 + x, load[1](a, row * s1 + column))
    block_barrier()
    row = block_index() * 32 + y
    column = block_index_y() * 32 + x
    if row < s1 and column < s0:
        store(to, row * s0 + column, shared_load[1](tile, x * 33 + y))
"""

FOLD = """
@export
def fold_{name}_{d}(to: Ptr[{d}], a: Ptr[{d}], s0: Int) abi("C"):
    var x = load[1](a, block_index() * threads_in_block() + thread_in_block())
    store(to, block_index() * threads_in_block() + thread_in_block(), block_{name}(x))
    var k = s0 + block_index() * threads_in_block() + thread_in_block()
    store(to, k, block_{name}(load[1](a, k)))
    var r = warp_{name}[8](x)
    store(to, s0 * 2 + block_index() * threads_in_block() + thread_in_block(), r)
    store(to, s0 * 3 + block_index() * threads_in_block() + thread_in_block(), warp_{name}[32](x))
"""

ATOMIC = """
@export
def atomic_{name}_{d}(to: Ptr[{d}], a: Ptr[{d}], s0: Int) abi("C"):
    var i = block_index() * threads_in_block() + thread_in_block()
    if i < s0:
        atomic_{name}(to, rem32(i, 3), load[1](a, i))
"""

ATOMIC_VECTORS = """
@export
def atomic_vectors_{d}_{w}(to: Ptr[{d}], a: Ptr[{d}], s0: Int) abi("C"):
    var i = block_index() * threads_in_block() + thread_in_block()
    if i < s0:
        atomic_add_vector(to, rem32(i, 3) * {w}, load_aligned[{w}](a, i * {w}))
"""
ADDED_VECTORS = {"f32": (2, 4), "f16": (2, 4, 8), "bf16": (2, 4, 8)}
"""The lanes of vectors that are added to memory."""

FIXED = """
@export
def where_threads_are(to: Ptr[i64]) abi("C"):
    var block = block_index_y() * grid_size() + block_index()
    var p = (block * threads_in_block() + thread_in_block()) * 8
    store(to, p, from_int[i64, 1](block_index()))
    store(to, p + 1, from_int[i64, 1](block_index_y()))
    store(to, p + 2, from_int[i64, 1](thread_in_block()))
    store(to, p + 3, from_int[i64, 1](threads_in_block()))
    store(to, p + 4, from_int[i64, 1](grid_size() * 100 + grid_size_y()))
    store(to, p + 5, from_int[i64, 1](lane_in_warp() * 100 + warp_in_block()))
    store(to, p + 6, from_int[i64, 1](warps_in_block()))
    store(to, p + 7, from_int[i64, 1](div32(p, 7) * 1000 + small(p) // 3 % 7))


@export
def parameters(to: Ptr[f64], a: Int, b: Vec[f64, 1], c: Vec[i64, 1], d: Int) abi("C"):
    store(to, 0, cast[f64](from_int[i64, 1](a)))
    store(to, 1, b)
    store(to, 2, cast[f64](c))
    store(to, 3, cast[f64](from_int[i64, 1](d)))


@export
def row_sum(to: Ptr[f32], a: Ptr[bf16], s0: Int) abi("C"):
    var row = block_index() * s0
    var i = thread_in_block() * 8
    var sum = const[f32, 8](0)
    while i < s0:
        sum = add(sum, cast[f32](load_once[8](a, row + i)))
        i += threads_in_block() * 8
    var total = block_add(reduce_add(sum))
    if thread_in_block() == 0:
        store(to, block_index(), total)


@export
def silu_product(to: Ptr[bf16], a: Ptr[bf16], b: Ptr[bf16], s0: Int) abi("C"):
    var i = (block_index() * threads_in_block() + thread_in_block()) * 8
    if i < s0:
        var x = cast[f32](load_once[8](a, i))
        var y = cast[f32](load_once[8](b, i))
        store_aligned(to, i, cast[bf16](mul(mul(x, sigmoid(x)), y)))


@always_inline("nodebug")
def larger_magnitude(a: Vec[f32, 1], b: Vec[f32, 1]) -> Vec[f32, 1]:
    return select(gt(float_abs(b), float_abs(a)), b, a)


@export
def own_fold(to: Ptr[f32], a: Ptr[f32]) abi("C"):
    var x = load[1](a, thread_in_block())
    store(to, thread_in_block(), block_fold[f32, larger_magnitude](x, const[f32, 1](0)))
    var tile = shared[f32, 32]()
    if warp_in_block() == 0:
        shared_store(tile, lane_in_warp(), x)
        warp_barrier()
        store(to, threads_in_block() + lane_in_warp(), shared_load[1](tile, 31 - lane_in_warp()))


@export
def checked(to: Ptr[f32], a: Ptr[f32], index: Ptr[i64], errors: Ptr[i64], s0: Int, s1: Int) abi("C"):
    var i = (block_index() * threads_in_block() + thread_in_block()) * 2
    if i < s1:
        var k = wrapped_index(errors, load[2](index, i), s0, 5)
        store(to, i, load_at[2](a, checked_index(errors, k, s0, 6)))


@export
def exchanged(to: Ptr[i64], seen: Int, x: Int) abi("C"):
    store(to, 1, exchange_if(to, 0, from_int[i64, 1](seen), from_int[i64, 1](x)))
    if store_first(to, 2, from_int[i64, 1](x)):
        store(to, 3, from_int[i64, 1](1))


@export
def fused(to: Ptr[f32], a: Ptr[f32], b: Ptr[f32]) abi("C"):
    var i = thread_in_block()
    store(to, i, add(mul(load[1](a, i), load[1](b, i)), load[1](a, i)))
    store(to, threads_in_block() + i, fma(load[1](a, i), load[1](b, i), load[1](a, i)))


@export
def shared_work(to: Ptr[i64], s0: Int) abi("C"):
    var i = share_begin(s0, 2)
    var end = share_end(s0, 2)
    while i < end:
        atomic_add(to, i, from_int[i64, 1](thread_index() + 1))
        i += 1


@export
def near(to: Ptr[f32], a: Ptr[f32], b: Ptr[f32]) abi("C"):
    var i = thread_in_block()
    var n = threads_in_block()
    store(to, i, exp2_nearly(load[1](a, i)))
    store(to, n + i, rsqrt_nearly(float_abs(load[1](a, i))))
    store(to, n * 2 + i, div_nearly(load[1](a, i), load[1](b, i)))
    store(to, n * 3 + i, float_maximum(load[1](a, i), load[1](b, i)))
    store(to, n * 4 + i, float_minimum(load[1](a, i), load[1](b, i)))
    store(to, n * 5 + i, exp_nearly(load[1](a, i)))
    store(to, n * 6 + i, sigmoid_nearly(load[1](a, i)))
    store(to, n * 7 + i, tanh_nearly(load[1](a, i)))
    store(to, n * 8 + i, reciprocal_nearly(load[1](a, i)))
    store(to, n * 9 + i, erf_nearly(load[1](b, i)))
    store(to, n * 10 + i, log_nearly(float_abs(load[1](b, i))))
    store(to, n * 11 + i, log1p_nearly(float_abs(load[1](b, i))))
    store(to, n * 12 + i, div_closely(load[1](a, i), load[1](b, i)))
"""

FOLDS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.sum,
    "mul": torch.prod,
    "max": torch.amax,
    "min": torch.amin,
}
BITWISE = ("and", "or")
ATOMICS: dict[str, str] = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
"""With the name of the same in ``index_reduce`` and ``scatter_reduce``."""

FOLDED = ("f32", "f64", "i8", "i32", "i64", "u8")
ADDED = ("f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8")


def elementwise(name: str, arguments: int, d: str, e: str, w: int) -> str:
    """A kernel of a function; with one argument, the second tensor is not read."""
    call = ", ".join(f"load[{w}]({p}, i)" for p in "ab"[:arguments])
    return f"""
@export
def {name.partition("[")[0]}_{d}_{e}_{w}(to: Ptr[{e}], a: Ptr[{d}], b: Ptr[{d}], s0: Int) abi("C"):
    var i = (block_index() * threads_in_block() + thread_in_block()) * {w}
    if i < s0:
        store(to, i, {name}({call}))
"""


def vector(d: str) -> int:
    """The elements of 16 bytes."""
    return 16 // TYPES[d].itemsize


def sources() -> dict[str, str]:
    """The sources by name; each is a library."""
    found = {d: "".join(_functions_of(d)) for d in FLOATS}
    found["integers"] = "".join(
        elementwise(name, arguments, d, d, w)
        for d in INTS
        for name, (arguments, _) in INTEGER.items()
        for w in WIDTHS.get(d, (4,))
    )
    found["casts"] = "".join(elementwise(f"cast[{e}]", 1, d, e, 4) for d in TYPES for e in TYPES)
    found["memory"] = "".join(MEMORY.format(d=d, w=vector(d), w2=2 * vector(d)) for d in TYPES)
    found["folds"] = "".join(FOLD.format(name=name, d=d) for d in FOLDED for name in FOLDS) + "".join(
        FOLD.format(name=name, d=d) for d in ("boolean", "i32", "u8", "i64") for name in BITWISE
    )
    found["atomics"] = "".join(
        ATOMIC.format(name=name, d=d) for name in ATOMICS for d in (ADDED if name == "add" else FOLDED)
    ) + "".join(ATOMIC_VECTORS.format(d=d, w=w) for d, widths in ADDED_VECTORS.items() for w in widths)
    found["fixed"] = FIXED + "".join(
        f'\n@export\ndef {name}_{d}(to: Ptr[{d}], a: Ptr[{d}]) abi("C"):\n'
        + "".join(f"    store(to, {k}, {name}(load[{w}](a, 0)))\n" for k, w in enumerate((1, 4, 16)))
        for d in FOLDED
        for name in REDUCTIONS
    )
    return {name: f"{HEAD}\n{text}" for name, text in found.items()}


def _functions_of(d: str) -> list[str]:
    found = [(name, arguments, d) for name, (arguments, *_) in {**EXACT, **MATH}.items()]
    found += [(name, arguments, "boolean") for name, (arguments, _) in PREDICATES.items()]
    return [elementwise(name, arguments, d, e, w) for name, arguments, e in found for w in WIDTHS[d]]


def large_blocks(source: str) -> dict[str, int]:
    """The kernels that run with blocks of up to 1,024 threads."""
    return dict.fromkeys(re.findall(r"(?:transposed|fold)_\w+", source), 1024)


def prebuild(folder: Path, arch: str) -> None:
    """Compile all into ``folder``: a cubin for each source, and the launcher."""
    from torch_max_backend.compile.cuda_build import build_cubin, build_launcher

    folder.mkdir(parents=True, exist_ok=True)
    for name, source in sources().items():
        (folder / f"{name}.cubin").write_bytes(build_cubin(source, arch=arch, threads=large_blocks(source)))
    (folder / LAUNCHER).write_bytes(build_launcher())


class Kernels:
    """The kernels in a folder, on torch's current GPU."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._libraries: dict[str, CudaLibrary] = {}

    def library(self, name: str) -> CudaLibrary:
        if name not in self._libraries:
            blob = (self._folder / f"{name}.cubin").read_bytes()
            self._libraries[name] = load_cubin(blob, digest(blob))
        return self._libraries[name]

    def launch(
        self, library: str, name: str, *words: Argument, blocks: Size = 1, threads: Size = THREADS, rows: Size = 1
    ) -> None:
        """Launch a kernel; its parameters are the words, in order."""
        function = self.library(library).function(name)
        launch = Launch(function, blocks, threads, tuple(range(len(words))), grid_y=rows)
        launches = Launches([launch], self._folder / LAUNCHER)
        kept = table(*words)  # an address alone keeps nothing
        launches.launch(ctypes.addressof(kept), current_stream(torch.cuda.current_device()))

    def map(self, library: str, name: str, args: list[torch.Tensor], e: str, w: int) -> torch.Tensor:
        """What :func:`elementwise` gives of tensors on the GPU."""
        d = next(name for name, dtype in TYPES.items() if dtype == args[0].dtype)
        n = args[0].numel()
        assert n % w == 0
        out = torch.full(args[0].shape, 7, dtype=torch.uint8, device="cuda").to(TYPES[e])
        blocks = -(-n // (w * THREADS))
        self.launch(library, f"{name}_{d}_{e}_{w}", out, args[0], args[-1], n, blocks=blocks)
        return out
