"""Every name of the kernel interface in both its forms, against torch, numpy and mpmath.

Each form is compiled once, to one library with a kernel for each function, element type and width.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from torch_max_backend.base.errors import CompileError
from torch_max_backend.compile import mojo_build
from torch_max_backend.compile.mojo_build import build_shared_library, interface_digest

FLOATS = {"f32": torch.float32, "f64": torch.float64}
INTS = {
    f"{sign}{bits}": np.dtype(f"{kind}{bits}")
    for sign, kind in (("i", "int"), ("u", "uint"))
    for bits in (8, 16, 32, 64)
}
TYPES: dict[str, torch.dtype] = {
    **FLOATS, "f16": torch.float16, "bf16": torch.bfloat16, "boolean": torch.bool,
    **{name: getattr(torch, dtype.name) for name, dtype in INTS.items()},
}  # fmt: skip
WIDTHS = {"f32": (1, 4, 16), "f64": (1, 8), "i32": (1, 4, 16), "u8": (1, 16)}
INF, NAN = float("inf"), float("nan")
SPECIAL = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1e-40, -1e-40, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1e30, -1e30]

Tensors = list[torch.Tensor]

# Functions of floats: the number of arguments, torch's function and the bound of the error in units in the last place.
# Those without a bound give torch's very number.
EXACT: dict[str, tuple[int, Callable[..., torch.Tensor]]] = {
    "add": (2, torch.add), "sub": (2, torch.sub), "mul": (2, torch.mul), "div": (2, torch.div), "neg": (1, torch.neg),
    "absolute": (1, torch.abs), "minimum": (2, torch.minimum), "maximum": (2, torch.maximum), "fmin": (2, torch.fmin),
    "fmax": (2, torch.fmax), "floor": (1, torch.floor), "ceil": (1, torch.ceil), "trunc": (1, torch.trunc),
    "round_even": (1, torch.round), "sign": (1, torch.sign), "copysign": (2, torch.copysign), "fmod": (2, torch.fmod),
    "remainder": (2, torch.remainder), "floor_div": (2, torch.floor_divide), "reciprocal": (1, torch.reciprocal),
    "trunc_div": (2, lambda a, b: torch.div(a, b, rounding_mode="trunc")),
    "minimum_so_far": (2, lambda a, b: torch.where((b < a) | b.isnan(), b, a)),
    "maximum_so_far": (2, lambda a, b: torch.where((b > a) | b.isnan(), b, a)),
}  # fmt: skip
MATH: dict[str, tuple[int, Callable[..., torch.Tensor], float]] = {
    "sqrt": (1, torch.sqrt, 0.5), "rsqrt": (1, torch.rsqrt, 1.5), "exp": (1, torch.exp, 1.05),
    "exp2": (1, torch.exp2, 1.05), "expm1": (1, torch.expm1, 1.5), "log": (1, torch.log, 1),
    "log2": (1, torch.log2, 1.6), "log10": (1, torch.log10, 1.9), "log1p": (1, torch.log1p, 1.5),
    "sin": (1, torch.sin, 1.5), "cos": (1, torch.cos, 1.5), "tan": (1, torch.tan, 3), "asin": (1, torch.asin, 1.5),
    "acos": (1, torch.acos, 1.5), "atan": (1, torch.atan, 1.5), "sinh": (1, torch.sinh, 2),
    "cosh": (1, torch.cosh, 1.5), "tanh": (1, torch.tanh, 1.6), "asinh": (1, torch.asinh, 2),
    "acosh": (1, torch.acosh, 2), "atanh": (1, torch.atanh, 2), "erf": (1, torch.erf, 1.3),
    "erfc": (1, torch.erfc, 4), "sigmoid": (1, torch.sigmoid, 2), "lgamma": (1, torch.lgamma, 4),
    "erfinv": (1, torch.erfinv, 1), "digamma": (1, torch.digamma, 1), "atan2": (2, torch.atan2, 1.5),
    "power": (2, torch.pow, 1), "hypot": (2, torch.hypot, 1),
}  # fmt: skip
NEAR_ONE: dict[str, tuple[Callable[..., torch.Tensor], float]] = {
    "one_plus_erf": (lambda x: 1 + torch.erf(x), 1.7),
}
"""Functions that are needed for what is added to, or multiplied by, numbers of their size: bounds in units of 1."""
FLOAT64_BOUNDS = {"digamma": 8}  # its terms cancel below 10, as in torch's
PREDICATES: dict[str, tuple[int, Callable[..., torch.Tensor]]] = {
    "eq": (2, torch.eq), "ne": (2, torch.ne), "lt": (2, torch.lt), "le": (2, torch.le), "gt": (2, torch.gt),
    "ge": (2, torch.ge), "is_nan": (1, torch.isnan), "is_inf": (1, torch.isinf), "is_finite": (1, torch.isfinite),
}  # fmt: skip


def _shift(f: Callable[[Any, Any], Any], far: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def shifted(a: Any, b: Any) -> Any:
        out = (b < 0) | (b >= a.dtype.itemsize * 8)
        return np.where(out, far(a), f(a, np.where(out, 0, b).astype(b.dtype)))

    return shifted


def _quotient(a: Any, b: Any) -> Any:
    return np.where(
        b == 0, 0, np.where(b == a.dtype.type(-1 if a.dtype.kind == "i" else 0), 0 - a, _safe_quotient(a, b))
    )


def _safe_quotient(a: Any, b: Any) -> Any:
    c = np.where((b == 0) | ((b + 1 == 0) & (a.dtype.kind == "i")), 1, b).astype(b.dtype)
    return (a - np.fmod(a, c)) // c


def _power(a: Any, b: Any) -> Any:
    """Torch's; it has no power of wide unsigned integers, whose bits are those of the signed ones."""
    signed = np.dtype(f"int{8 * a.dtype.itemsize}") if a.dtype.kind == "u" and a.dtype.itemsize > 1 else a.dtype
    large = (a.dtype.kind == "u") & (b.view(signed) < 0) if signed != a.dtype else np.zeros(a.shape, bool)
    half = np.where(large, b >> b.dtype.type(1), b)
    x, y = (torch.from_numpy(v.astype(signed)) for v in (a, half))
    found = torch.pow(x, y).numpy().astype(a.dtype)
    return np.where(large, found * found * np.where(b % b.dtype.type(2) == 1, a, a.dtype.type(1)), found)


INTEGER: dict[str, tuple[int, Callable[..., Any]]] = {
    "add": (2, np.add), "sub": (2, np.subtract), "mul": (2, np.multiply), "neg": (1, lambda a: 0 - a),
    "absolute": (1, np.abs), "minimum": (2, np.minimum), "maximum": (2, np.maximum), "sign": (1, np.sign),
    "floor_div": (2, np.floor_divide), "trunc_div": (2, _quotient), "remainder": (2, np.remainder),
    "fmod": (2, np.fmod), "integer_power": (2, _power), "bit_and": (2, np.bitwise_and), "bit_or": (2, np.bitwise_or),
    "bit_xor": (2, np.bitwise_xor), "bit_not": (1, np.invert),
    "shift_left": (2, _shift(np.left_shift, lambda a: 0 * a)),
    "shift_right": (2, _shift(np.right_shift, lambda a: np.where(a < 0, -1, 0).astype(a.dtype))),
}  # fmt: skip
REDUCTIONS = {"reduce_add": torch.sum, "reduce_mul": torch.prod, "reduce_max": torch.amax, "reduce_min": torch.amin}

FIXED = """
@export
def constants(t: Table) abi("C"):
    var p = t.pointer[f64](0)
    store(p, 0, const[f64, 1](-0.0))
    store(p, 1, const[f64, 1](0.1))
    store(p, 2, const[f64, 1](-1.7976931348623157e308))
    store(p, 3, const[f64, 1](5e-324))
    store(p, 4, const_bits[f64, 1](0xFFF0000000000000))
    store(p, 5, infinity[f64, 1]())
    store(p, 6, not_a_number[f64, 1]())
    store(p, 7, t.f64(2))
    store(p, 8, cast[f64](const[f32, 1](0.1)))
    store(p, 9, cast[f64](const_bits[f32, 1](0x00000001)))
    store(p, 10, cast[f64](const_bits[f16, 1](0x3555)))
    store(p, 11, cast[f64](const_bits[bf16, 1](0xC2F7)))
    store(p, 12, iota[f64, 4]())
    var q = t.pointer[i64](1)
    store(q, 0, const[i64, 1](-9223372036854775808))
    store(q, 1, const[i64, 1](9223372036854775807))
    store(q, 2, bitcast[i64](const[u64, 1](18446744073709551615)))
    store(q, 3, from_int[i64, 1](imax(imin(t.int(3), -5), -1 * t.int(4) + 3)))
    store(q, 4, from_int[i64, 1](17 // t.int(4) + 17 % t.int(4) * 100))
    store(q, 5, lane(iota[i64, 8](), 6))
    var i = 0
    var turns = 0
    while i < t.int(4) and not (turns >= 50 or i == 1000):
        i += 1
        if i == 3 or i >= 5:
            turns += 10
        elif i != 2:
            turns += 1
    store(q, 6, from_int[i64, 1](turns))
    store(q, 7, cast[i64](splat[1](const[i8, 1](-128))))
    store(q, 8, from_int[i64, 1](to_int(const[i64, 1](77)) - 7))


@export
def masked(t: Table) abi("C"):
    var n = t.int(1)
    var x = load_masked[16](t.pointer[f32](0), 0, n, const[f32, 16](-1.0))
    store(t.pointer[f32](2), 0, x)
    store_masked(t.pointer[f32](3), 0, n, x)
    var b = load_masked[16](t.pointer[boolean](4), 0, n, const[boolean, 16](1))
    store(t.pointer[boolean](5), 0, b)
    store_masked(t.pointer[boolean](6), 0, n, b)
    store_masked(t.pointer[f32](7), 0, n, load_masked[1](t.pointer[f32](0), 0, n, const[f32, 1](9.0)))


@export
def where(t: Table) abi("C"):
    var here = load[16](t.pointer[boolean](0), 0)
    var offsets = load[16](t.pointer[i64](1), 0)
    store(t.pointer[f32](3), 0, load_where[16](t.pointer[f32](2), t.int(6), here))
    store(t.pointer[f32](3), 16, load_at_where[16](t.pointer[f32](2), offsets, here))
    store(t.pointer[boolean](5), 0, load_where[16](t.pointer[boolean](4), t.int(6), here))
    store(t.pointer[f32](3), 32, load_where[1](t.pointer[f32](2), t.int(6), lane_at(here, 0)))


@export
def scattered(t: Table) abi("C"):
    var a = t.pointer[f32](0)
    var out = t.pointer[f32](1)
    var offsets = load[8](t.pointer[i64](2), 0)
    store(out, 0, load_strided[8](a, 1, t.int(3)))
    store(out, 8, load_at[8](a, offsets))
    store_strided(out, 17, t.int(3), load[4](a, 0))
    var few = load_strided_masked[8](a, 1, t.int(3), t.int(3))
    store(out, 40, few)
    store_strided_masked(out, 48, 2, t.int(3), few)
    store_at(t.pointer[boolean](4), offsets, load_strided[8](t.pointer[boolean](5), 0, 2))


@export
def picked(t: Table) abi("C"):
    var out = t.pointer[f32](1)
    store(out, 0, load_every[2, 8, 7, 8](t.pointer[f32](0), 1))
    store(out, 8, load_every[3, 16, 6, 8](t.pointer[f32](0), 1))
    store(out, 16, load_every[4, 32, 29, 16](t.pointer[f32](0), 1))
    store(t.pointer[bf16](3), 0, load_every[3, 32, 14, 16](t.pointer[bf16](2), 2))
    store(t.pointer[boolean](5), 0, load_every[3, 32, 14, 16](t.pointer[boolean](4), 2))


@export
def backwards(t: Table) abi("C"):
    store(t.pointer[bf16](1), 0, load_reversed[16](t.pointer[bf16](0), 20))
    store(t.pointer[bf16](1), 16, load_reversed_masked[16](t.pointer[bf16](0), 2, t.int(4)))
    store(t.pointer[bf16](1), 32, load_strided_masked[16](t.pointer[bf16](0), 8, -1, t.int(4)))
    store(t.pointer[boolean](3), 0, load_reversed[16](t.pointer[boolean](2), 20))
    store(t.pointer[boolean](3), 16, load_reversed_masked[16](t.pointer[boolean](2), 2, t.int(4)))


@export
def gathered(t: Table) abi("C"):
    var i = 0
    while i < t.int(9):
        var at = load[16](t.pointer[i64](0), i)
        store(t.pointer[f64](2), i, load_at[16](t.pointer[f64](1), at))
        store(t.pointer[i32](4), i, load_at[16](t.pointer[i32](3), at))
        store(t.pointer[bf16](6), i, load_at[16](t.pointer[bf16](5), at))
        store(t.pointer[boolean](8), i, load_at[16](t.pointer[boolean](7), at))
        i += 16


@export
def gathered_where(t: Table) abi("C"):
    var at = load[16](t.pointer[i64](0), 0)
    var here = load[16](t.pointer[boolean](9), 0)
    store(t.pointer[f64](2), 0, load_at_where[16](t.pointer[f64](1), at, here))
    store(t.pointer[i32](4), 0, load_at_where[16](t.pointer[i32](3), at, here))
    store(t.pointer[bf16](6), 0, load_at_where[16](t.pointer[bf16](5), at, here))
    store(t.pointer[boolean](8), 0, load_at_where[16](t.pointer[boolean](7), at, here))


@export
def own(t: Table) abi("C"):
    var a = own_memory[f32, 37]()
    var b = own_memory[boolean, 37]()
    var i = 0
    while i < 37:
        store(a, i, load[1](t.pointer[f32](0), i))
        store(b, i, gt(load[1](a, i), const[f32, 1](0)))
        i += 1
    store(t.pointer[f32](1), 0, load[16](a, 21))
    store(t.pointer[boolean](2), 0, load[16](b, 21))


@export
def chosen(t: Table) abi("C"):
    var a = load[16](t.pointer[f32](1), 0)
    var b = load[16](t.pointer[f32](2), 0)
    store(t.pointer[f32](0), 0, select(load[16](t.pointer[boolean](3), 0), a, b))
    store(t.pointer[f32](0), 16, fma(a, b, a))
    store(t.pointer[i32](4), 0, bitcast[i32](a))


@export
def logic(t: Table) abi("C"):
    var a = load[16](t.pointer[boolean](0), 0)
    var b = load[16](t.pointer[boolean](1), 0)
    var out = t.pointer[boolean](2)
    store(out, 0, bit_and(a, b))
    store(out, 16, bit_or(a, b))
    store(out, 32, bit_xor(a, b))
    store(out, 48, bit_not(a))
    store(out, 64, reduce_and(a))
    store(out, 65, reduce_or(a))
    store(out, 66, select(a, b, bit_not(b)))


@export
def shared(t: Table) abi("C"):
    var n = t.int(1)
    var i = share_begin(n, 16)
    var end = share_end(n, 16)
    var sum = const[i64, 1](0)
    while i < end:
        sum = add(sum, load[1](t.pointer[i64](0), i))
        i += 1
    atomic_add(t.pointer[i64](2), thread_index(), const[i64, 1](1))
    atomic_add(t.pointer[i64](3), 0, sum)
    atomic_add(t.pointer[f32](4), 0, const[f32, 1](0.5))
    barrier()
    store(t.pointer[i64](5), thread_index(), load[1](t.pointer[i64](3), 0))
    note_error(t.pointer[i64](6), 5, thread_count(), 0)
"""


def _elementwise(name: str, arguments: int, d: str, e: str, w: int) -> str:
    call = ", ".join(f"load[{w}](t.pointer[{d}]({k + 1}), i)" for k in range(arguments))
    return (
        f'@export\ndef {name.partition("[")[0]}_{d}_{e}_{w}(t: Table) abi("C"):\n    var i = 0\n'
        f"    while i < t.int(3):\n        store(t.pointer[{e}](0), i, {name}({call}))\n        i += {w}\n"
    )


def _source() -> str:
    parts = ["from kernel import *\n", FIXED]
    for d in FLOATS:
        for name, (arguments, *_) in {**EXACT, **MATH, **dict.fromkeys(NEAR_ONE, (1,))}.items():
            parts += [_elementwise(name, arguments, d, d, w) for w in WIDTHS[d]]
        for name, (arguments, _) in PREDICATES.items():
            parts += [_elementwise(name, arguments, d, "boolean", w) for w in WIDTHS[d]]
    for d in INTS:
        for name, (arguments, _) in INTEGER.items():
            parts += [_elementwise(name, arguments, d, d, w) for w in WIDTHS.get(d, (8,))]
    parts += [_elementwise(f"cast[{e}]", 1, d, e, 16) for d in TYPES for e in TYPES]
    for d in ("f32", "f64", "i8", "i32", "i64", "u8"):
        for name in REDUCTIONS:
            parts.append(f'@export\ndef {name}_{d}(t: Table) abi("C"):\n')
            parts += [
                f"    store(t.pointer[{d}](0), {k}, {name}(load[{w}](t.pointer[{d}](1), 0)))\n"
                for k, w in enumerate((1, 4, 16))
            ]
    for d in TYPES:
        parts.append(f'@export\ndef turned_{d}(t: Table) abi("C"):\n')
        parts.append(f"    turn_block(t.pointer[{d}](0), t.pointer[{d}](1), 3, 20, t.int(2), t.int(3))\n")
        parts.append(f'@export\ndef half_turned_{d}(t: Table) abi("C"):\n')
        parts.append(f"    turn_half_a_block(t.pointer[{d}](0), t.pointer[{d}](1), 3, 20, t.int(2))\n")
        parts.append(f'@export\ndef moved_{d}(t: Table) abi("C"):\n')
        parts += [
            f"    store(t.pointer[{d}](0), {16 * n}, moved_up[{k}](load[16](t.pointer[{d}](1), 0), "
            f"load[16](t.pointer[{d}](1), 16)))\n"
            for n, k in enumerate((1, 2, 4, 8))
        ]
        for k in (2, 4):
            vectors = ", ".join(f"load[16](t.pointer[{d}](1), {16 * j})" for j in range(k))
            parts.append(f'@export\ndef in_{k}_turns_{d}(t: Table) abi("C"):\n')
            parts.append(f"    store_{k}_in_turns(t.pointer[{d}](0), 1, {vectors})\n")
            parts.append(f"    store_{k}_in_turns_masked(t.pointer[{d}](2), 1, t.int(3), {vectors})\n")
    return "\n".join(parts)


class Kernels:
    """A loaded library: a kernel is called with tensors, by their addresses, and numbers."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))

    def __call__(self, name: str, *words: torch.Tensor | int | float) -> None:
        getattr(self.library, name)(table(*words))

    def map(self, name: str, args: Tensors, e: str, w: int) -> torch.Tensor:
        d = next(name for name, dtype in TYPES.items() if dtype == args[0].dtype)
        assert args[0].numel() % w == 0
        out = torch.full(args[0].shape, 7, dtype=torch.uint8).to(TYPES[e])
        self(f"{name}_{d}_{e}_{w}", out, args[0], args[-1], out.numel())
        return out


def table(*words: torch.Tensor | int | float) -> ctypes.Array[ctypes.c_int64]:
    def word(value: torch.Tensor | int | float) -> int:
        if isinstance(value, torch.Tensor):
            return value.data_ptr()
        return ctypes.c_int64.from_buffer(ctypes.c_double(value)).value if isinstance(value, float) else value

    return (ctypes.c_int64 * len(words))(*map(word, words))


@pytest.fixture(
    scope="module", params=[pytest.param(form, marks=pytest.mark.xdist_group(form)) for form in ("raw", "std")]
)
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    path = tmp_path_factory.mktemp("kernels") / f"{request.param}.so"
    path.write_bytes(build_shared_library(_source(), raw=request.param == "raw"))
    return Kernels(path)


def floats(dtype: torch.dtype, name: str = "") -> torch.Tensor:
    """Special values, ordinary ones and all magnitudes, where the function is defined; a multiple of 16 of them."""
    few = 512
    magnitudes = torch.exp2(torch.rand(few, dtype=torch.float64) * (250 if dtype == torch.float32 else 2000) - 125)
    near = [(torch.rand(few, dtype=torch.float64) - 0.5) * size for size in (2, 20, 180)]
    values = torch.cat([magnitudes, -magnitudes, *near])
    if name in ("asin", "acos", "atanh", "erfinv"):
        values = torch.cat([near[0], near[0] * 2, torch.exp2(-near[1].abs() * 2), 1 - torch.exp2(-near[1].abs() * 2)])
    if name in ("lgamma", "digamma"):
        values = torch.cat([near[0].abs() + 2.2, near[2].abs() + 2.2, magnitudes.clamp(3, 1e6)])
    if name == "erfc":
        values = torch.cat([near[0], near[1] / 2, near[1] * 3])
    if name == "acosh":
        values = values.abs() + 1
    return torch.cat([torch.tensor(SPECIAL, dtype=torch.float64), values.to(dtype).double()])[
        : len(values) // 16 * 16
    ].to(dtype)


def pairs(dtype: torch.dtype) -> Tensors:
    """Special values with one another, and ordinary ones; no denormals, by which torch's fmod gives NaN."""
    special = torch.tensor([x for x in SPECIAL if abs(x) not in (1e-40, 1.0)] + [1.0, -1.0, 1e-5], dtype=dtype)
    a, b = torch.randn(512, dtype=dtype) * 10, torch.randn(512, dtype=dtype)
    return [
        torch.cat([special.repeat(16), a, a, a.abs()]),
        torch.cat([special.repeat_interleave(16), b, b.round(), b * 5]),
    ]


def same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where two tensors are equal to the sign of zero, or both not a number."""
    return ((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan())


def errors(got: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Errors in units in the last place of the result's type; infinite where only one is a finite number."""
    rounded = exact.to(got.dtype)
    unit = torch.nextafter(rounded.abs(), torch.tensor(INF, dtype=got.dtype)).double() - rounded.abs().double()
    error = (got.double() - exact).abs() / unit
    equal = (got == rounded) | (got.isnan() & rounded.isnan())
    return torch.where(equal, 0.0, torch.nan_to_num(error, nan=INF))


@pytest.mark.parametrize("d", FLOATS)
def test_exact_functions_of_floats_are_torchs(kernels: Kernels, d: str) -> None:
    for name, (arguments, function) in {**EXACT, **PREDICATES}.items():
        args = pairs(FLOATS[d]) if arguments == 2 else [floats(FLOATS[d])]
        want = function(*args)
        for w in WIDTHS[d]:
            got = kernels.map(name, args, "boolean" if name in PREDICATES else d, w)
            wrong = ~(same(got, want) if got.is_floating_point() else got == want)
            if name in ("minimum", "maximum", "fmin", "fmax"):
                wrong &= got != want  # torch's zeros have either sign, by its path
            assert not wrong.any(), (name, w, [a[wrong][:5] for a in args], got[wrong][:5], want[wrong][:5])


def _precisely(name: str, args: Tensors) -> torch.Tensor:
    """The values of mpmath, rounded to float64."""
    own: dict[str, Callable[..., Any]] = {
        "rsqrt": lambda x: 1 / mpmath.sqrt(x), "exp2": lambda x: mpmath.mpf(2) ** x, "log2": lambda x: mpmath.log(x, 2),
        "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)), "lgamma": mpmath.loggamma,
    }  # fmt: skip
    function = own.get(name) or getattr(mpmath, name)

    def value(*row: float) -> float:
        with mpmath.workdps(60 if name not in ("expm1", "log1p", "sinh", "tanh", "asinh", "atanh") else 200):
            exact = mpmath.re(function(*map(mpmath.mpf, row)))
            return float(exact) if abs(exact) < mpmath.mpf(2) ** 1024 else INF

    return torch.tensor([value(*row) for row in zip(*(a.tolist() for a in args), strict=True)], dtype=torch.float64)


@pytest.mark.parametrize("d", FLOATS)
@pytest.mark.parametrize("name", MATH)
def test_elementary_functions_are_exact_to_a_few_units(kernels: Kernels, name: str, d: str) -> None:
    arguments, function, bound = MATH[name]
    dtype = FLOATS[d]
    args = pairs(dtype) if arguments == 2 else [floats(dtype, name)]
    if name == "digamma":  # torch gives NaN at the poles below zero too, but differs at -0.5 and the like
        args = [torch.where(args[0] < 0, args[0].abs() + 2.2, args[0])]
    eager = function(*args)
    got = kernels.map(name, args, d, WIDTHS[d][-1])
    for w in WIDTHS[d][:-1]:
        assert same(got, kernels.map(name, args, d, w)).all()
    edge = torch.stack([(a == 0) | ~a.isfinite() for a in args]).any(0) | ~eager.isfinite()
    wrong = edge & ~same(got, eager)
    assert not wrong.any(), ([a[wrong][:5] for a in args], got[wrong][:5], eager[wrong][:5])
    step = 1 if d == "f32" else 7  # mpmath takes its time
    args, got = [a[~edge][::step] for a in args], got[~edge][::step]
    error = errors(got, function(*(a.double() for a in args)) if d == "f32" else _precisely(name, args))
    worst = int(error.argmax())
    print(f"{name} {d}: {error.max():.2f} units")
    assert error.max() <= (bound if d == "f32" else FLOAT64_BOUNDS.get(name, 4)), ([a[worst] for a in args], got[worst])


@pytest.mark.parametrize("d", FLOATS)
@pytest.mark.parametrize("name", NEAR_ONE)
def test_functions_next_to_one_are_off_by_a_unit_of_one(kernels: Kernels, name: str, d: str) -> None:
    function, bound = NEAR_ONE[name]
    x = torch.cat([floats(FLOATS[d]), torch.linspace(-7, 7, 4096, dtype=FLOATS[d])])
    got, *others = (kernels.map(name, [x], d, w) for w in WIDTHS[d][::-1])
    assert all(same(got, other).all() for other in others)
    assert (got.isnan() == x.isnan()).all()
    exact = function(x.double())
    assert (got[x.isinf()].double() == exact[x.isinf()]).all()
    error = (got.double() - exact).abs()[~x.isnan()].max() / torch.finfo(x.dtype).eps
    print(f"{name} {d}: {error:.2f} units of 1")
    assert error <= bound


def test_what_is_far_below_zero_keeps_its_size(kernels: Kernels) -> None:
    x = torch.linspace(-9, 0, 4096)
    exact = torch.special.erfc(-x.double())
    error = (kernels.map("one_plus_erf", [x], "f32", 16).double() - exact).abs() / exact
    assert error[x > -1].max() < 5e-7
    assert error[x > -2].max() < 6e-6
    assert error[x > -4].max() < 1e-3


def hard_angles() -> torch.Tensor:
    """Angles in float32 that are large, and those next to multiples of a quarter turn."""
    x = torch.tensor([1e5, 1.1e5, 2.0**22, 1e10, -3e38, 33.0, 1e9, -5e5] * 2)
    close = (torch.arange(1, 63009, dtype=torch.float64) * (torch.pi / 2)).float()
    return torch.cat([x, close, torch.nextafter(close, x.new_zeros(())), torch.nextafter(close, x.new_tensor(INF))])


def integer_arguments(dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of the dtype's limits and of small numbers, each with each; of drawn ones; and of drawn ones with small."""
    limits = np.iinfo(dtype)
    edges = np.array([limits.min, limits.max, limits.min + 1, limits.max - 1, 0, 1, 2, 3], dtype)
    edges = np.concatenate([edges, np.array([-1, -2, -3, 7, 8, 31, 63, 64], np.int64).astype(dtype)])
    drawn = np.random.default_rng(0).integers(limits.min, limits.max, 512, dtype, endpoint=True)
    small = drawn % dtype.type(23) - dtype.type(5)
    return np.concatenate([np.repeat(edges, 16), drawn, drawn]), np.concatenate(
        [np.tile(edges, 16), np.roll(drawn, 1), small]
    )


@pytest.mark.parametrize(("d", "w"), [("f32", 1), ("f32", 16), ("f64", 1), ("f64", 8)])
@pytest.mark.parametrize("name", ["exp", "exp2"])
def test_exponentials_of_what_is_far_below_zero_compute_with_no_denormals(
    kernels: Kernels, name: str, d: str, w: int
) -> None:
    if (name, d) == ("exp2", "f64"):
        pytest.skip("the C library's")
    libm, underflow = ctypes.CDLL(None), {"x86_64": 0x10, "aarch64": 0x08}[platform.machine()]
    for x in (-1e4, -2e3, -1e30, -INF):
        given = torch.full((16,), x, dtype=TYPES[d])
        libm.feclearexcept(underflow)
        assert kernels.map(name, [given], d, w).tolist() == [0.0] * 16
        assert not libm.fetestexcept(underflow), x


def test_angles_that_are_large_or_close_to_quarter_turns(kernels: Kernels) -> None:
    x = hard_angles()
    for name, bound in (("sin", 1.5), ("cos", 1.5), ("tan", 4)):
        assert errors(kernels.map(name, [x], "f32", 16), getattr(torch, name)(x.double())).max() <= bound


@pytest.mark.parametrize("d", INTS)
def test_functions_of_integers_wrap_and_divide_by_zero_to_zero(kernels: Kernels, d: str) -> None:
    dtype = INTS[d]
    a, b = integer_arguments(dtype)
    for name, (arguments, function) in INTEGER.items():
        args = [a, b][:arguments]
        with np.errstate(all="ignore"):
            want = function(*args).astype(dtype)
        for w in WIDTHS.get(d, (8,)):
            got = kernels.map(name, [torch.from_numpy(x) for x in args], d, w).numpy()
            wrong = got != want
            assert not wrong.any(), (name, w, [x[wrong][:5] for x in args], got[wrong][:5], want[wrong][:5])


@pytest.mark.parametrize("d", TYPES)
def test_casts_are_those_of_to(kernels: Kernels, d: str) -> None:
    if TYPES[d].is_floating_point:
        small = torch.tensor(
            [0.0, -0.0, 1.0, 1.75, 0.3, 100.2, 1e-40, 65504.0, 3.4e38, 1e-8, -1.5, INF, -INF, NAN, 5e-39, 3e4]
        )
        x = torch.cat([small.double(), torch.exp2(torch.rand(512, dtype=torch.float64) * 80 - 60)]).to(TYPES[d])
    else:
        x = torch.cat([torch.tensor([0, 1, 2, 3, 5, 100, 120, 127]), torch.randint(0, 128, (8,))]).to(TYPES[d])
        if TYPES[d] != torch.bool:
            limits = torch.iinfo(TYPES[d])
            wide = np.random.default_rng(0).integers(limits.min, limits.max, 512, INTS[d], endpoint=True)
            x = torch.cat([x, torch.from_numpy(wide)])
    for e, dtype in TYPES.items():
        got = kernels.map("cast", [x], e, 16)
        want = x.to(dtype)
        fits = torch.ones(x.shape, dtype=torch.bool)
        if (
            x.is_floating_point() and e in INTS
        ):  # torch's results differ from path to path where the number does not fit
            limits = torch.iinfo(dtype)
            fits = (x.double().trunc() >= limits.min) & (x.double().trunc() < float(limits.max))
        wrong = fits & ~(same(got, want) if dtype.is_floating_point else got == want)
        assert not wrong.any(), (e, x[wrong][:5], got[wrong][:5], want[wrong][:5])


@pytest.mark.parametrize("greatest", [2**31, 2**24], ids=["any", "denormal"])
def test_float32_is_rounded_to_bfloat16(kernels: Kernels, greatest: int) -> None:
    """Any bits, and mostly denormals, which processors' instructions make zero."""
    bits = np.random.default_rng(0).integers(-greatest, greatest, 4096)
    x = torch.from_numpy(np.where(bits < 0, -bits | 1 << 31, bits).astype(np.uint32).view(np.float32))
    assert same(kernels.map("cast", [x], "bf16", 16), x.bfloat16()).all()


@pytest.mark.parametrize("d", ["f32", "f64", "i8", "i32", "i64", "u8"])
def test_reductions(kernels: Kernels, d: str) -> None:
    cases = [(torch.randn(16) * 3).to(TYPES[d]) for _ in range(4)]
    if TYPES[d].is_floating_point:
        cases += [
            torch.tensor([1.0, NAN, 2.0, 3.0] * 4, dtype=TYPES[d]),
            torch.tensor([INF, 1.0, -2.0, 3.0] * 4, dtype=TYPES[d]),
        ]
    for x in cases:
        for name, function in REDUCTIONS.items():
            got = torch.zeros(3, dtype=TYPES[d])
            kernels(f"{name}_{d}", got, x)
            want = torch.stack([function(x[:w], 0).to(TYPES[d]) for w in (1, 4, 16)])
            assert torch.allclose(got, want, rtol=1e-5, equal_nan=True), (name, x, got, want)


def test_constants_and_integers(kernels: Kernels) -> None:
    got, whole = torch.zeros(16, dtype=torch.float64), torch.zeros(9, dtype=torch.int64)
    kernels("constants", got, whole, 2.5, -3, 6)
    a_third, sum_of_bits = torch.tensor(0x3555, dtype=torch.int16).view(torch.float16), -123.5
    want = [-0.0, 0.1, -1.7976931348623157e308, 5e-324, -INF, INF, NAN, 2.5, float(torch.tensor(0.1)), 2.0**-149]
    want += [float(a_third), sum_of_bits, 0, 1, 2, 3]
    assert same(got, torch.tensor(want, dtype=torch.float64)).all(), got
    assert whole.tolist() == [-(2**63), 2**63 - 1, -1, -3, 2 + 500, 6, 1 + 10 + 1 + 10 + 10, -128, 70]


@pytest.mark.parametrize("count", [0, 1, 7, 16, 100])
def test_masked_memory(kernels: Kernels, count: int) -> None:
    lanes = torch.arange(16) < count
    a, flags = torch.randn(16), torch.arange(16) % 3 == 0
    loaded, stored, one = torch.zeros(16), torch.full((16,), 5.0), torch.full((16,), 5.0)
    loaded_flags, stored_flags = torch.zeros(16, dtype=torch.bool), torch.zeros(16, dtype=torch.bool)
    kernels("masked", a, count, loaded, stored, flags, loaded_flags, stored_flags, one)
    assert torch.equal(loaded, torch.where(lanes, a, -1.0)) and torch.equal(stored, torch.where(lanes, a, 5.0))
    assert torch.equal(loaded_flags, flags | ~lanes) and torch.equal(stored_flags, flags & lanes)
    assert one.tolist() == [float(a[0]) if count else 5.0] + [5.0] * 15


@pytest.mark.parametrize("chosen", [0x0000, 0xFFFF, 0x8001, 0x7FFE])
def test_memory_of_chosen_lanes(kernels: Kernels, chosen: int) -> None:
    """What the other lanes would read is not there: their addresses are not mapped."""
    here = torch.tensor([bool(chosen >> k & 1) for k in range(16)])
    a, flags, out, some = torch.randn(16), torch.arange(16) % 3 == 0, torch.full((33,), 5.0), torch.ones(16) > 0
    offsets = torch.where(here, torch.arange(16).flip(0), 2**60)
    kernels("where", here, offsets, a, out, flags, some, 0 if chosen else 2**60)
    assert torch.equal(out[:16], torch.where(here, a, 0)) and torch.equal(out[16:32], torch.where(here, a.flip(0), 0))
    assert torch.equal(some, here & flags) and float(out[32]) == float(a[0] if here[0] else 0)


def test_strided_and_scattered_memory(kernels: Kernels) -> None:
    a, out, offsets = torch.randn(40), torch.zeros(64), torch.tensor([7, 0, 3, 30, 1, 39, 2, 5])
    flags, some = torch.zeros(40, dtype=torch.bool), torch.arange(16) % 3 == 0
    kernels("scattered", a, out, offsets, 4, flags, some)
    assert torch.equal(out[:8], a[1:33:4]) and torch.equal(out[8:16], a[offsets]) and torch.equal(out[17:33:4], a[:4])
    assert torch.equal(flags, torch.zeros(40, dtype=torch.bool).index_put_((offsets,), some[::2]))
    first = a[1:17:4]
    assert torch.equal(out[40:48], torch.cat([first, first[-1:].expand(4)]))
    assert torch.equal(out[48:56:2], first) and not out[49:56:2].any() and not out[56:].any()


def test_elements_in_short_steps(kernels: Kernels) -> None:
    """The tensors end with the last element that is read."""
    a, words, flags = torch.randn(62), torch.randn(48).bfloat16(), torch.arange(48) % 5 == 0
    out, found, some = torch.zeros(32), torch.zeros(16).bfloat16(), torch.zeros(16, dtype=torch.bool)
    kernels("picked", a, out, words, found, flags, some)
    assert torch.equal(out, torch.cat([a[1:16:2], a[1:23:3], a[1::4]]))
    assert torch.equal(found, words[2::3]) and torch.equal(some, flags[2::3])


def test_memory_from_last_to_first(kernels: Kernels) -> None:
    a, flags = torch.randn(21).bfloat16(), torch.arange(21) % 3 == 0
    out, found = torch.zeros(48).bfloat16(), torch.zeros(32, dtype=torch.bool)
    kernels("backwards", a, out, flags, found, 3)
    for x, y in ((a, out), (flags, found)):
        assert torch.equal(y[:16], x[5:].flip(0)) and torch.equal(y[16:19], x[:3].flip(0)) and not y[19:32].any()
    assert torch.equal(out[32:], a[[8, 7, 6, *[6] * 13]])


def test_memory_at_places_of_every_width(kernels: Kernels) -> None:
    """So many that what each takes of the stack must be given back."""
    count, dtypes = 1 << 20, (torch.float64, torch.int32, torch.bfloat16, torch.bool)
    places = torch.randint(0, 1000, (count,), generator=torch.Generator().manual_seed(0))
    given = [(torch.randn(1000) * 3).to(dtype) for dtype in dtypes]
    found = [torch.zeros(count, dtype=dtype) for dtype in dtypes]
    kernels("gathered", places, *(t for pair in zip(given, found, strict=True) for t in pair), count)
    assert all(torch.equal(out, x[places]) for x, out in zip(given, found, strict=True))


def test_memory_at_places_of_some_lanes(kernels: Kernels) -> None:
    """Others have zeros, and their places may be anywhere."""
    dtypes = (torch.float64, torch.int32, torch.bfloat16, torch.bool)
    places, here = torch.arange(16) * 7 % 31, torch.arange(16) % 3 > 0
    far = torch.where(here, places, 1 << 60)
    given = [(torch.randn(31) * 3).to(dtype) for dtype in dtypes]
    found = [torch.ones(16, dtype=dtype) for dtype in dtypes]
    kernels("gathered_where", far, *(t for pair in zip(given, found, strict=True) for t in pair), here)
    assert all(torch.equal(out, torch.where(here, x[places], 0).to(x.dtype)) for x, out in zip(given, found))


def test_memory_of_a_thread(kernels: Kernels) -> None:
    a, out, flags = torch.randn(37), torch.zeros(16), torch.zeros(16, dtype=torch.bool)
    kernels("own", a, out, flags)
    assert torch.equal(out, a[21:]) and torch.equal(flags, a[21:] > 0)


def test_choices_and_logic(kernels: Kernels) -> None:
    a, b = torch.randn(16), torch.randn(16)
    c, e = torch.arange(16) % 3 == 0, torch.arange(16) % 2 == 0
    out, bits, flags = torch.zeros(32), torch.zeros(16, dtype=torch.int32), torch.zeros(82, dtype=torch.bool)
    kernels("chosen", out, a, b, c, bits)
    assert torch.equal(out[:16], torch.where(c, a, b)) and torch.equal(bits, a.view(torch.int32))
    assert torch.equal(out[16:], (a.double() * b.double() + a.double()).float())
    kernels("logic", c, e, flags)
    assert torch.equal(flags[:64], torch.cat([c & e, c | e, c ^ e, ~c])) and flags[64:66].tolist() == [False, True]
    assert torch.equal(flags[66:], torch.where(c, e, ~e))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 5, 64, 1000])
def test_threads_share_the_work(kernels: Kernels, threads: int, size: int) -> None:
    work = torch.arange(size)
    ran, total, halves, seen, noted = (torch.zeros(n, dtype=torch.int64) for n in (threads, 1, 1, threads, 2))
    words = table(work, size, ran, total, halves, seen, noted)
    ctypes.CDLL(None).GOMP_parallel(kernels.library.shared, words, ctypes.c_uint(threads), ctypes.c_uint(0))
    assert ran.tolist() == [1] * threads and seen.tolist() == [int(work.sum())] * threads
    assert float(halves.view(torch.float32)[0]) == threads / 2 and noted.tolist() == [5, threads]


def test_the_library_uses_the_processors_vectors(kernels: Kernels, tmp_path: Path) -> None:
    """A fused multiply-add, unless contraction is off."""
    source = """from kernel import *


@export
def k(t: Table) abi("C"):
    var a = load[16](t.pointer[f32](0), 0)
    store(t.pointer[f32](1), 0, add(mul(a, a), a))
"""
    a = torch.randn(16)
    results = []
    for contract in (True, False):
        path = tmp_path / f"{contract}.so"
        path.write_bytes(build_shared_library(source, contract=contract))
        results.append(torch.zeros(16))
        Kernels(path)("k", a, results[-1])
    assert torch.equal(results[0], (a.double() * a.double() + a.double()).float())
    assert torch.equal(results[1], a * a + a)


def test_a_refusal_of_the_compiler_is_one_error_with_its_text() -> None:
    with pytest.raises(CompileError, match=r"refused a generated kernel.*\n.*unknown declaration 'nothing'") as error:
        build_shared_library("from kernel import *\n\n\ndef k():\n    nothing(1)\n")
    assert "Traceback" not in str(error.value)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("#!/bin/sh\nkill -9 $$\n", "stopped by signal 9"),
        ("#!/bin/sh\necho no space >&2\nexit 1\n", "no space"),
        ("#!/bin/sh\nexit 0\n", "refused a generated kernel"),
        (None, "is missing"),
        ("not a program", "could not run"),
    ],
)
def test_a_compiler_that_fails(
    program: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("mojo", "lld") if program is not None else ():
        (tmp_path / "bin" / name).write_text(program or "")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setattr(mojo_build, "_modular_folder", lambda: tmp_path)
    with pytest.raises(CompileError, match=message):
        build_shared_library("from kernel import *\n")


def test_no_other_program_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No C compiler to link with, and no `mojo` on the path."""
    monkeypatch.setenv("PATH", "/nowhere")
    assert build_shared_library("from kernel import *\n").startswith(b"\x7fELF")


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(CompileError, match="No space left on device"):
        build_shared_library("from kernel import *\n")


def test_the_digest_is_of_all_forms() -> None:
    assert len(interface_digest()) == 64
    folders = {path.relative_to(mojo_build.INTERFACE).parts[0] for path in mojo_build.INTERFACE.rglob("*.mojo")}
    assert folders == {"raw", "std_based", "kernel", "cuda", "cuda_sm_90", "cuda_before_sm_90"}


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (16, 5), (9, 16), (1, 1), (11, 13)])
def test_turned_blocks(kernels: Kernels, rows: int, columns: int) -> None:
    """A lane without a row of its own has the last one's; what is behind the vectors is left."""
    for d, dtype in TYPES.items():
        x = (torch.arange(400) % 113).to(dtype)
        block = torch.zeros(256, dtype=dtype)
        kernels(f"turned_{d}", block, x, rows, columns)
        lines = x.as_strided((rows, columns), (20, 1), 3)
        wanted = lines[torch.arange(16).clamp(max=rows - 1)].t()
        assert torch.equal(block.view(16, 16)[:columns], wanted), d


@pytest.mark.parametrize("columns", [1, 7, 16])
def test_turned_halves_of_blocks(kernels: Kernels, columns: int) -> None:
    for d, dtype in TYPES.items():
        x = (torch.arange(400) % 113).to(dtype)
        block = torch.zeros(128, dtype=dtype)
        kernels(f"half_turned_{d}", block, x, columns)
        assert torch.equal(block.view(16, 8)[:columns], x.as_strided((8, columns), (20, 1), 3).t()), d


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("count", [1, 7, 16])
def test_lanes_in_turns(kernels: Kernels, k: int, count: int) -> None:
    for d, dtype in TYPES.items():
        x = (torch.arange(16 * k) % 113).to(dtype)
        whole, part = torch.zeros(2, 16 * k + 2, dtype=dtype)
        kernels(f"in_{k}_turns_{d}", whole, x, part, count)
        wanted = x.view(k, 16).t().flatten()
        for got, lanes in ((whole, 16), (part, count)):
            assert torch.equal(got[1 : 1 + k * lanes], wanted[: k * lanes]), d
            assert not got[0] and not got[1 + k * lanes :].any(), d


def test_lanes_move_up(kernels: Kernels) -> None:
    for d, dtype in TYPES.items():
        x = (torch.arange(32) % 113).to(dtype)
        moved = torch.zeros(64, dtype=dtype)
        kernels(f"moved_{d}", moved, x)
        assert torch.equal(moved.view(4, 16), torch.stack([x[16 - k : 32 - k] for k in (1, 2, 4, 8)])), d
