"""Every function of the kernel interface for NVIDIA GPUs, and the launcher, on a GPU, against torch and numpy.

Kernels come from the folder in ``CUDA_INTERFACE_KERNELS``, or are compiled now: see ``prebuild_cuda_interface.py``.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.gpu.cuda_kernels import (
    ADDED,
    ADDED_VECTORS,
    ATOMICS,
    BITWISE,
    FOLDED,
    FOLDS,
    LAUNCHER,
    TILE,
    WIDTHS,
    Kernels,
    prebuild,
    vector,
)

# isort: split
from tests.codegen.test_kernel_interface import (
    EXACT,
    FLOATS,
    INF,
    INTEGER,
    INTS,
    MATH,
    NAN,
    PREDICATES,
    REDUCTIONS,
    TYPES,
    Tensors,
    errors,
    floats,
    hard_angles,
    integer_arguments,
    pairs,
    same,
    table,
)
from torch_max_backend.base.errors import ExecutionError, OutOfRangeError
from torch_max_backend.base.index_sites import Site
from torch_max_backend.runtime.cuda_launch import Launch, Launches, Word, current_stream
from torch_max_backend.runtime.index_reports import DeviceReports

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

BOUNDS = {
    "exp": 3, "sinh": 3, "cosh": 3, "tanh": 3, "sigmoid": 5, "erf": 3, "rsqrt": 2, "power": 8, "erfinv": 4,
    "lgamma": 6, "erfc": 5, "hypot": 3, "acosh": 4, "asinh": 4, "atanh": 4, "log": 1.1, "log1p": 1.7,
}  # fmt: skip
"""Of float32's functions in units in the last place, where they are others than on a CPU: CUDA's own and fast ones."""

FLOAT64_BOUNDS = {"digamma": 12, "lgamma": 12}
"""As far as this from torch's, which is up to two units off itself; the others are within 6."""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    given = os.environ.get("CUDA_INTERFACE_KERNELS")
    if given:
        return Kernels(Path(given))
    folder = tmp_path_factory.mktemp("cuda")
    major, minor = torch.cuda.get_device_capability()
    prebuild(folder, f"sm_{major}{minor}")
    return Kernels(folder)


def gpu(args: Tensors) -> Tensors:
    return [a.cuda() for a in args]


def values(d: str, n: int) -> torch.Tensor:
    """Small ones of a type, whose sums are exact."""
    return torch.randint(0, 2 if d == "boolean" else 7, (n,)).to(TYPES[d]).cuda()


def plain(x: torch.Tensor) -> torch.Tensor:
    """On the CPU and not unsigned, for which torch has few functions."""
    signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
    return x.cpu().view(signed.get(x.dtype, x.dtype))


# -- functions of numbers --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("d", FLOATS)
def test_exact_functions_of_floats_are_torchs(kernels: Kernels, d: str) -> None:
    for name, (arguments, function) in {**EXACT, **PREDICATES}.items():
        args = pairs(FLOATS[d]) if arguments == 2 else [floats(FLOATS[d])]
        want = function(*args)
        for w in WIDTHS[d]:
            got = kernels.map(d, name, gpu(args), "boolean" if name in PREDICATES else d, w).cpu()
            wrong = ~(same(got, want) if got.is_floating_point() else got == want)
            if name in ("minimum", "maximum", "fmin", "fmax"):
                wrong &= got != want
            assert not wrong.any(), (name, w, [a[wrong][:5] for a in args], got[wrong][:5], want[wrong][:5])


@pytest.mark.parametrize("d", FLOATS)
@pytest.mark.parametrize("name", MATH)
def test_elementary_functions_are_exact_to_a_few_units(kernels: Kernels, name: str, d: str) -> None:
    arguments, function, bound = MATH[name]
    args = pairs(FLOATS[d]) if arguments == 2 else [floats(FLOATS[d], name)]
    if name == "digamma":
        args = [torch.where(args[0] < 0, args[0].abs() + 2.2, args[0])]
    eager, cuda = function(*args), function(*gpu(args)).cpu()
    got = kernels.map(d, name, gpu(args), d, WIDTHS[d][-1]).cpu()
    for w in WIDTHS[d][:-1]:
        assert same(got, kernels.map(d, name, gpu(args), d, w).cpu()).all()
    edge = torch.stack([(a == 0) | ~a.isfinite() for a in args]).any(0) | ~eager.isfinite()
    near = cuda.isfinite() & (got - cuda).abs().le(cuda.abs() * 1e-6)  # it may end later than a CPU's
    wrong = edge & ~same(got, eager) & ~same(got, cuda) & ~near
    assert not wrong.any(), ([a[wrong][:5] for a in args], got[wrong][:5], eager[wrong][:5])
    args, got, eager = [a[~edge] for a in args], got[~edge], eager[~edge]
    exact = function(*(a.double() for a in args)) if d == "f32" else eager
    error = errors(got, exact)
    flushed = (exact.abs() < torch.finfo(got.dtype).tiny) & (got.abs() <= torch.finfo(got.dtype).tiny)
    error = torch.where(flushed, 0.0, error)
    worst = int(error.argmax())
    print(f"{name} {d}: {error.max():.2f} units")
    allowed = BOUNDS.get(name, bound) if d == "f32" else FLOAT64_BOUNDS.get(name, 6)
    assert error.max() <= allowed, (float(error.max()), [a[worst] for a in args], got[worst], exact[worst])


def test_angles_that_are_large_or_close_to_quarter_turns(kernels: Kernels) -> None:
    x = hard_angles()
    for name, bound in (("sin", 2), ("cos", 2), ("tan", 4)):
        got = kernels.map("f32", name, gpu([x]), "f32", 4).cpu()
        assert errors(got, getattr(torch, name)(x.double())).max() <= bound


@pytest.mark.parametrize("d", INTS)
def test_functions_of_integers_wrap_and_divide_by_zero_to_zero(kernels: Kernels, d: str) -> None:
    dtype = INTS[d]
    a, b = integer_arguments(dtype)
    for name, (arguments, function) in INTEGER.items():
        args = [a, b][:arguments]
        with np.errstate(all="ignore"):
            want = function(*args).astype(dtype)
        for w in WIDTHS.get(d, (4,)):
            got = kernels.map("integers", name, [torch.from_numpy(x).cuda() for x in args], d, w).cpu().numpy()
            wrong = got != want
            assert not wrong.any(), (name, w, [x[wrong][:5] for x in args], got[wrong][:5], want[wrong][:5])


@pytest.mark.parametrize("d", TYPES)
def test_casts_are_those_of_to(kernels: Kernels, d: str) -> None:
    if TYPES[d].is_floating_point:
        small = torch.tensor([0, -0.0, 1, 1.75, 0.3, 100.2, 1e-40, 65504, 3.4e38, 1e-8, -1.5, INF, -INF, NAN, 5e-39, 3])
        x = torch.cat([small.double(), torch.exp2(torch.rand(512, dtype=torch.float64) * 80 - 60)]).to(TYPES[d])
    elif d == "boolean":
        x = torch.arange(16) % 3 == 0
    else:
        limits = np.iinfo(INTS[d])
        x = torch.from_numpy(np.random.default_rng(0).integers(limits.min, limits.max, 512, INTS[d], endpoint=True))
    for e, dtype in TYPES.items():
        got, want = kernels.map("casts", "cast", gpu([x]), e, 4).cpu(), x.to(dtype)
        fits = torch.ones(x.shape, dtype=torch.bool)
        if x.is_floating_point() and e in INTS:
            limits = torch.iinfo(dtype)
            fits = (x.double().trunc() >= limits.min) & (x.double().trunc() < float(limits.max))
        wrong = fits & ~(same(got, want) if dtype.is_floating_point else got == want)
        assert not wrong.any(), (e, x[wrong][:5], got[wrong][:5], want[wrong][:5])


@pytest.mark.parametrize("d", FOLDED)
def test_reductions_of_lanes(kernels: Kernels, d: str) -> None:
    cases = [(torch.randn(16) * 3).to(TYPES[d]) for _ in range(4)]
    if TYPES[d].is_floating_point:
        cases += [torch.tensor([x, 1.0, 2.0, 3.0] * 4, dtype=TYPES[d]) for x in (NAN, INF)]
    for x in cases:
        for name, function in REDUCTIONS.items():
            got = torch.zeros(3, dtype=TYPES[d], device="cuda")
            kernels.launch("fixed", f"{name}_{d}", got, x.cuda(), threads=32)
            want = torch.stack([function(x[:w], 0).to(TYPES[d]) for w in (1, 4, 16)])
            assert torch.allclose(got.cpu(), want, rtol=1e-5, equal_nan=True), (name, x, got, want)


def test_fast_functions(kernels: Kernels) -> None:
    a, b = torch.randn(128) * 20, torch.randn(128)
    a[0], b[1] = NAN, NAN
    b[2:10] = torch.tensor([1e-30, -1e-5, 0.0624, 9.0, 1.00002, 0.99998, 0.874, 1e-40])
    got = torch.zeros(13, 128, device="cuda")
    kernels.launch("fixed", "near", got, *gpu([a, b]))
    x, y = a.double(), b.double()
    for k, exact in enumerate([x.exp2(), x.abs().rsqrt(), x / y]):
        assert errors(got[k].cpu(), exact).max() <= 2.5
    assert errors(got[12].cpu(), x / y).max() <= 0.51
    for k, exact in enumerate([x.exp(), x.sigmoid(), x.tanh(), 1 / x], 5):
        assert torch.allclose(got[k].cpu().double(), exact, rtol=2**-17, atol=0, equal_nan=True), k
    for k, exact in enumerate([y.erf(), y.abs().log(), y.abs().log1p()], 9):
        assert torch.allclose(got[k].cpu().double(), exact, rtol=2**-17, atol=0, equal_nan=True), k
    assert same(got[3].cpu(), torch.maximum(a, b)).all() and same(got[4].cpu(), torch.minimum(a, b)).all()


def test_close_quotients_of_extremes(kernels: Kernels) -> None:
    values = torch.tensor([0.0, 1.0, INF, -INF, NAN, 3e38, -2.0, 1e-37, 1e-30, 1e30, -7.0])
    a, b = (x.flatten() for x in torch.meshgrid(values, values, indexing="ij"))
    got = torch.zeros(13, len(a), device="cuda")
    kernels.launch("fixed", "near", got, *gpu([a, b]), threads=len(a))
    want = a / b
    normal = want.isnan() | want.isinf() | (want.abs() > torch.finfo(want.dtype).tiny) | (want == 0)
    assert torch.allclose(got[12].cpu()[normal], want[normal], rtol=1e-7, atol=1e-44, equal_nan=True)


def test_products_and_sums_are_not_fused_unless_asked(kernels: Kernels) -> None:
    a, b = torch.randn(128), torch.randn(128)
    got = torch.zeros(2, 128, device="cuda")
    kernels.launch("fixed", "fused", got, *gpu([a, b]))
    assert torch.equal(got[0].cpu(), a * b + a)
    assert torch.equal(got[1].cpu(), (a.double() * b.double() + a.double()).float())


# -- memory ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("d", TYPES)
def test_vectors_in_memory(kernels: Kernels, d: str) -> None:
    w = vector(d)
    n = 300 * w
    a = values(d, n + w)
    x = plain(a)
    unaligned = [("unaligned", w, shift) for shift in range(w)]
    for name, per, shift in (("aligned", w, 0), ("once", w, 0), ("large", 2 * w, 0), *unaligned):
        to = torch.zeros_like(a)
        kernels.launch("memory", f"{name}_{d}", to[shift:], a[shift:], n, blocks=Word(2, per * 128))
        got = plain(to)
        assert torch.equal(got[shift : n + shift], x[shift : n + shift]) and not got[n + shift :].any(), name
    for count in (1, w - 1, n - 1, n - w + 1):
        to = torch.zeros_like(a)
        kernels.launch("memory", f"masked_{d}", to, a, count, blocks=Word(2, w * 128))
        assert torch.equal(plain(to)[:count], x[:count]) and not plain(to)[count:].any()
    for count in (0, 1, w, w + 5):
        to = torch.zeros_like(a)
        kernels.launch("memory", f"tail_{d}", to, a, count, threads=1)
        assert torch.equal(plain(to)[:w], torch.where(torch.arange(w) < count, x[:w], torch.ones_like(x[:w])))


@pytest.mark.parametrize("d", TYPES)
def test_memory_of_chosen_lanes(kernels: Kernels, d: str) -> None:
    w = vector(d)
    here = torch.arange(w) % 2 == 1
    order = torch.randperm(w)
    a = values(d, 4 * w)
    to = torch.zeros(16 * w, dtype=TYPES[d], device="cuda")
    kernels.launch("memory", f"where_{d}", to, a, here.cuda(), order.cuda(), threads=1)
    x, got = plain(a), plain(to)
    zero = torch.zeros_like(x[:w])
    assert torch.equal(got[:w], torch.where(here, x[:w], zero))
    assert torch.equal(got[w : 2 * w], torch.where(here, x[order], zero))
    assert torch.equal(got[2 * w : 3 * w], x[1 : 1 + 3 * w : 3])
    assert torch.equal(got[3 * w : 4 * w], x[[1] + [4] * (w - 1)])
    want = torch.zeros_like(got)
    want[4 * w : 6 * w : 2] = x[:w]
    want[6 * w] = x[0]
    assert torch.equal(got[4 * w : 8 * w], want[4 * w : 8 * w])
    assert torch.equal(got[8 * w : 9 * w][order], x[:w])


@pytest.mark.parametrize("d", TYPES)
def test_tiles_in_shared_memory(kernels: Kernels, d: str) -> None:
    rows, columns = 70, 45
    a = values(d, rows * columns)
    to = torch.zeros_like(a)
    name, blocks, lines = f"transposed_{d}", Word(3, TILE), Word(2, TILE)
    kernels.launch("memory", name, to, a, rows, columns, blocks=blocks, rows=lines, threads=TILE * TILE)
    assert torch.equal(plain(to).reshape(columns, rows), plain(a).reshape(rows, columns).t())


def test_index_errors(kernels: Kernels) -> None:
    a = torch.randn(10)
    index = torch.tensor([0, -1, 9, -10, 3, 5, 2, 2])
    reports = DeviceReports(torch.device("cuda", torch.cuda.current_device()))
    reports.report_for(())
    report = reports.report_for(tuple(Site(f"op{k}", "index {index} of {size}") for k in range(6)))
    got = torch.zeros(8, device="cuda")
    kernels.launch("fixed", "checked", got, a.cuda(), index.cuda(), report, 10, 8, threads=4)
    torch.cuda.synchronize()
    assert torch.equal(got.cpu(), a[index]) and not reports.words[0]
    many = torch.full((2048,), 3)
    many[77], many[1900] = 10, -11
    got = torch.zeros(2048, device="cuda")
    for address in (0, report, report):  # at 0, nothing is told
        kernels.launch("fixed", "checked", got, a.cuda(), many.cuda(), address, 10, 2048, blocks=8)
        torch.cuda.synchronize()
        if address is not report:
            assert not reports.words[0]
            continue
        assert list(reports.words) in ([1, 1, 4, 10, 10], [1, 1, 4, -11, 10])
        with pytest.raises(OutOfRangeError, match=r"index (10|-11) of 10\n.*op4"):
            reports.raise_found()


# -- threads ---------------------------------------------------------------------------------------------------------
def test_where_threads_are(kernels: Kernels) -> None:
    got = torch.zeros(2 * 3 * 96 * 8, dtype=torch.int64, device="cuda")
    kernels.launch("fixed", "where_threads_are", got, blocks=3, rows=2, threads=96)
    y, x, t = torch.meshgrid(torch.arange(2), torch.arange(3), torch.arange(96), indexing="ij")
    p = torch.arange(2 * 3 * 96) * 8
    want = [x, y, t, torch.full_like(x, 96), torch.full_like(x, 302), t % 32 * 100 + t // 32, torch.full_like(x, 3)]
    want = [*(v.reshape(-1) for v in want), p // 7 * 1000 + p // 3 % 7]
    assert torch.equal(got.cpu().reshape(-1, 8), torch.stack(want, 1))


def test_parameters(kernels: Kernels) -> None:
    got = torch.zeros(4, dtype=torch.float64, device="cuda")
    kernels.launch("fixed", "parameters", got, -3, 0.1, 2**40, 5, threads=1)
    assert got.tolist() == [-3, 0.1, 2**40, 5]


@pytest.mark.parametrize("d", TYPES)
def test_shuffles(kernels: Kernels, d: str) -> None:
    a = values(d, 32)
    to = torch.zeros(4, 32, dtype=TYPES[d], device="cuda")
    kernels.launch("memory", f"shuffled_{d}", to, a, threads=32)
    lanes = torch.arange(32)
    down, up = torch.where(lanes + 3 < 32, lanes + 3, lanes), torch.where(lanes >= 3, lanes - 3, lanes)
    assert torch.equal(plain(to), torch.stack([plain(a)[k] for k in (lanes ^ 5, down, up, lanes * 0 + 7)]))


@pytest.mark.parametrize("threads", [32, 96, 256, 1024])
@pytest.mark.parametrize("d", FOLDED)
def test_folds_of_warps_and_blocks(kernels: Kernels, d: str, threads: int) -> None:
    blocks = 3
    n = blocks * threads
    for name, function in FOLDS.items():
        cases = [torch.randint(1, 3 if name == "mul" else 7, (2 * n,)).to(TYPES[d])]
        if TYPES[d].is_floating_point:
            cases.append(cases[0].clone().index_fill_(0, torch.tensor([n // 2]), NAN))
        if name == "mul":
            cases = [torch.where(torch.rand(2 * n) < 0.01, x, torch.ones_like(x)) for x in cases]
        for a in cases:
            _check_fold(kernels, name, d, a, function, blocks, threads)


@pytest.mark.parametrize("d", ["boolean", "i32", "u8", "i64"])
def test_folds_of_bits(kernels: Kernels, d: str) -> None:
    for name in BITWISE:
        a = torch.randint(0, 2 if d == "boolean" else 128, (6 * 256,))
        a = a | (torch.rand(6 * 256) < 0.999) if name == "and" else a * (torch.rand(6 * 256) < 0.001)

        def function(x: torch.Tensor, _: int, name: str = name) -> torch.Tensor:
            ufunc = np.bitwise_and if name == "and" else np.bitwise_or
            return torch.from_numpy(ufunc.reduce(x.numpy(), axis=-1))

        _check_fold(kernels, name, d, a.to(TYPES[d]), function, 3, 256)


def _check_fold(kernels: Kernels, name: str, d: str, a: torch.Tensor, function: object, blocks: int, n: int) -> None:
    """The kernel folds two parts of ``a`` by blocks, and the first by eight lanes and by warps."""
    assert callable(function)
    total = blocks * n
    got = torch.zeros(4 * total, dtype=a.dtype, device="cuda")
    kernels.launch("folds", f"fold_{name}_{d}", got, a.cuda(), total, blocks=blocks, threads=n)
    parts = [
        a.reshape(2, blocks, n)[0],
        a.reshape(2, blocks, n)[1],
        a[:total].reshape(-1, 8),
        a[:total].reshape(-1, 32),
    ]
    want = [function(x, -1).to(a.dtype).unsqueeze(-1).expand(x.shape).reshape(-1) for x in parts]
    assert torch.allclose(got.cpu().double(), torch.cat(want).double(), rtol=1e-5, equal_nan=True), (name, d)


def test_folds_of_ones_own(kernels: Kernels) -> None:
    a = torch.randn(256)
    got = torch.zeros(256 + 32, device="cuda")
    kernels.launch("fixed", "own_fold", got, a.cuda(), threads=256)
    assert torch.equal(got[:256].cpu(), a[a.abs().argmax()].expand(256))
    assert torch.equal(got[256:].cpu(), a[:32].flip(0))


@pytest.mark.parametrize("name", ATOMICS)
@pytest.mark.parametrize("d", ADDED)
def test_atomics(kernels: Kernels, name: str, d: str) -> None:
    if name != "add" and d not in FOLDED:
        pytest.skip("the kernel is not made")
    n = 3 * 200
    a = torch.randint(0, 2, (n,)) if name == "add" else torch.randint(1, 100, (n,))
    if name == "mul":
        a = torch.where(torch.rand(n) < 0.005, 2, 1)
    a = a.to(TYPES[d])
    got = torch.ones(3, dtype=TYPES[d], device="cuda")
    kernels.launch("atomics", f"atomic_{name}_{d}", got, a.cuda(), n, blocks=Word(2, 128))
    x = torch.cat([a.reshape(200, 3), torch.ones(1, 3, dtype=a.dtype)])
    want = FOLDS[name](x.double() if x.is_floating_point() else x, 0).to(a.dtype)
    assert torch.equal(got.cpu(), want)
    if a.is_floating_point() and name in ("max", "min"):
        a[4] = NAN
        kernels.launch("atomics", f"atomic_{name}_{d}", got, a.cuda(), n, blocks=Word(2, 128))
        assert got.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize(("d", "w"), [(d, w) for d, widths in ADDED_VECTORS.items() for w in widths])
def test_atomic_additions_of_vectors(kernels: Kernels, d: str, w: int) -> None:
    a = torch.randint(0, 2, (300, w)).to(TYPES[d])
    got = torch.ones(3, w, dtype=TYPES[d], device="cuda")
    kernels.launch("atomics", f"atomic_vectors_{d}_{w}", got, a.cuda(), 300, blocks=Word(2, 128))
    assert torch.equal(got.cpu(), (a.view(100, 3, w).double().sum(0) + 1).to(TYPES[d]))


def test_exchanges(kernels: Kernels) -> None:
    got = torch.tensor([5, 0, 0, 0], device="cuda")
    kernels.launch("fixed", "exchanged", got, 4, 9, threads=1)
    assert got.tolist() == [5, 5, 9, 1]
    kernels.launch("fixed", "exchanged", got, 5, 7, threads=1)
    assert got.tolist() == [7, 5, 9, 1]


def test_shares_of_work_are_each_once(kernels: Kernels) -> None:
    got = torch.zeros(1001, dtype=torch.int64, device="cuda")
    kernels.launch("fixed", "shared_work", got, 1001, blocks=2)
    assert got.tolist() == [k // 4 + 1 for k in range(1001)]


# -- whole kernels ---------------------------------------------------------------------------------------------------
def test_rows_are_summed(kernels: Kernels) -> None:
    a = torch.randn(50, 4096, device="cuda", dtype=torch.bfloat16)
    got = torch.zeros(50, device="cuda")
    kernels.launch("fixed", "row_sum", got, a, 4096, blocks=50, threads=256)
    assert torch.allclose(got.double(), a.double().sum(1), atol=1e-3)


def test_a_product_of_bfloat16(kernels: Kernels) -> None:
    a, b = (torch.randn(8 * 1000, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    got = torch.zeros_like(a)
    kernels.launch("fixed", "silu_product", got, a, b, a.numel(), blocks=Word(3, 8 * 128))
    want = torch.nn.functional.silu(a.double()) * b.double()
    assert (got.double() - want).abs().max() <= want.abs().max() * 2**-8


# -- launches --------------------------------------------------------------------------------------------------------
def _launches(kernels: Kernels, *launches: Launch) -> Launches:
    return Launches(launches, kernels._folder / LAUNCHER)


def test_launches_in_order_on_the_stream_of_the_call(kernels: Kernels) -> None:
    n = 1 << 20
    a, b, c = (torch.full((n,), float(k), device="cuda") for k in range(3))
    add = kernels.library("f32").function("add_f32_f32_4")
    some = [Launch(add, Word(3, 4 * 256), 256, (0, 0, 1, 3)), Launch(add, Word(3, 4 * 256), 256, (2, 0, 0, 3))]
    none = Launch(add, Word(4), 256, (2, 2, 2, 3))
    launches = _launches(kernels, *some, none, *some)
    words = table(a, b, c, n, 0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        launches.launch(ctypes.addressof(words), current_stream(torch.cuda.current_device()))
    stream.synchronize()
    assert a.unique().tolist() == [2.0] and c.unique().tolist() == [4.0]


def test_launches_are_captured_by_a_graph(kernels: Kernels) -> None:
    a, b = torch.zeros(1024, device="cuda"), torch.ones(1024, device="cuda")
    add = kernels.library("f32").function("add_f32_f32_1")
    launches, words = _launches(kernels, Launch(add, 8, 128, (0, 0, 1, 2))), table(a, b, 1024)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launches.launch(ctypes.addressof(words), current_stream(torch.cuda.current_device()))
    for _ in range(3):
        graph.replay()
    assert a.unique().tolist() == [3.0]


def test_launches_from_a_thread_that_cuda_has_not_seen(kernels: Kernels) -> None:
    a, b = torch.zeros(1024, device="cuda"), torch.ones(1024, device="cuda")
    add = kernels.library("f32").function("add_f32_f32_1")
    launches, words = _launches(kernels, Launch(add, 8, 128, (0, 0, 1, 2))), table(a, b, 1024)
    failed: list[Exception] = []

    def run() -> None:
        try:
            launches.launch(ctypes.addressof(words), 0)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert not failed and a.unique().tolist() == [1.0]


def test_errors_have_cudas_names(kernels: Kernels) -> None:
    add = kernels.library("f32").function("add_f32_f32_1")
    launches, words = _launches(kernels, Launch(add, 8, 4096, (0, 0, 0, 0))), table(0)
    with pytest.raises(ExecutionError, match="launch 0 of 1 generated kernels failed: CUDA_ERROR_INVALID_VALUE"):
        launches.launch(ctypes.addressof(words), 0)
    with pytest.raises(ExecutionError, match="no nothing: CUDA_ERROR_NOT_FOUND"):
        kernels.library("f32").function("nothing")
    assert kernels.library("f32").registers("add_f32_f32_1") > 0
