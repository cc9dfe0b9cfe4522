"""The kernel interface for NVIDIA GPUs without a GPU: what its kernels become, and the launcher.

``tests/gpu/test_cuda_interface.py`` runs the same kernels on a GPU.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.gpu.cuda_kernels import HEAD, large_blocks, sources
from torch_max_backend.base.errors import CompileError, ExecutionError
from torch_max_backend.base.target import Machine
from torch_max_backend.compile import cuda_build, cuda_toolkit
from torch_max_backend.compile.cuda_build import build_cubin, build_launcher, build_ptx
from torch_max_backend.compile.cuda_toolkit import link, resources_in
from torch_max_backend.compile.program_libraries import library_parts
from torch_max_backend.runtime.cuda_launch import CudaLibrary, Launch, Launches, Word

pytestmark = pytest.mark.any_runner("kernels without a graph")

ARCH = "sm_90a"
LIBRARIES = ("atomics", "casts", "f32", "f64", "fixed", "folds", "integers", "memory")
IN_FLOAT64 = {"digamma"}
"""Functions of float32 that compute in float64."""

needs_linker = pytest.mark.skipif(cuda_toolkit.library("nvJitLink") is None, reason="CUDA's linker is not installed")
needs_math = pytest.mark.skipif(cuda_toolkit.library("nvrtc") is None, reason="CUDA's compiler is not installed")

KERNEL = f"""{HEAD}

@export
def kernel0(p0: Ptr[bf16], p1: Ptr[f32], s0: Int) abi("C"):
    var i = (block_index() * threads_in_block() + thread_in_block()) * 8
    if i < s0:
        store_aligned(p1, i, cast[f32](load_once[8](p0, i)))
"""


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The PTX of all kernels, by library."""
    return {name: build_ptx(source, threads=large_blocks(source)) for name, source in sources().items()}


def bodies(ptx: str) -> dict[str, str]:
    """The text of each kernel."""
    return {m[1]: m[0] for m in re.finditer(r"^\.visible \.entry (\w+)\((?:.*\n)*?\}", ptx, re.MULTILINE)}


@needs_math
@needs_linker
@pytest.mark.xdist_group("cuda")
@pytest.mark.parametrize("name", LIBRARIES)
def test_every_function_becomes_machine_code(texts: dict[str, str], name: str) -> None:
    """Without local memory, and with few enough registers for the blocks that it runs with."""
    source = sources()[name]
    exported = set(re.findall(r"@export\ndef (\w+)", source))
    found = bodies(texts[name])
    assert set(found) == exported and sources().keys() == set(LIBRARIES)
    assert not [k for k, text in found.items() if ".local" in text]
    linked = link(texts[name], ARCH)
    assert linked is not None and linked.cubin.startswith(b"\x7fELF") and linked.resources.keys() == exported
    for kernel, used in linked.resources.items():
        assert used.registers <= (64 if kernel in large_blocks(source) else 128), (kernel, used)
        assert not used.spills, (kernel, used)


@needs_math
@pytest.mark.xdist_group("cuda")
def test_memory_is_read_and_written_16_bytes_at_a_time(texts: dict[str, str]) -> None:
    found = bodies(texts["memory"])
    for name, text in found.items():
        kind, _, d = name.partition("_")
        vector = r"v2\.b64" if d in ("f64", "i64", "u64") else r"v4\.b32"
        loads = [line for line in text.splitlines() if "ld.global" in line]
        stores = [line for line in text.splitlines() if "st.global" in line]
        if kind in ("aligned", "once", "large"):
            count = 2 if kind == "large" else 1
            cache = r"\.nc" if kind == "once" else ""
            assert len(loads) == len(stores) == count, name
            assert all(re.search(rf"ld\.global{cache}\.{vector}", line) for line in loads), (name, loads)
            assert all(re.search(rf"st\.global\.{vector}", line) for line in stores), (name, stores)
        if kind == "unaligned":
            count = {"8": 16, "boolean": 16, "16": 8, "32": 4, "64": 2}[_bits(d)]
            assert len(stores) == count, name
            assert len(loads) == (5 if _bits(d) == "16" else count), name
            assert len(re.findall(r"\bshf\.r\.wrap\.b32", text)) == (4 if _bits(d) == "16" else 0), name


def _bits(d: str) -> str:
    return d if d == "boolean" else re.sub(r"\D", "", d)


@needs_math
@pytest.mark.xdist_group("cuda")
def test_functions_of_float32_compute_in_float32(texts: dict[str, str]) -> None:
    found = bodies(texts["f32"])
    assert {name.split("_f32")[0] for name, text in found.items() if ".f64" in text} == IN_FLOAT64
    fast = {"exp": "ex2.approx", "sigmoid": "ex2.approx", "rsqrt": "rsqrt.approx", "sqrt": "sqrt.rn", "div": "div.rn"}
    assert not [name for name, code in fast.items() if code not in found[f"{name}_f32_f32_4"]]
    assert "max.NaN.f32" in found["maximum_f32_f32_4"]
    assert bodies(texts["fixed"])["fused"].count("fma.rn.f32") == 1  # where it is asked for


@needs_math
@pytest.mark.xdist_group("cuda")
def test_short_floats_are_converted_by_the_processor(texts: dict[str, str]) -> None:
    found = bodies(texts["fixed"])["silu_product"]
    assert found.count("cvt.f32.bf16") == 16 and found.count("cvt.rn.bf16x2.f32") == 4
    assert "cvt.rn.bf16" in bodies(texts["casts"])["cast_f32_bf16_4"]


@needs_math
@pytest.mark.xdist_group("cuda")
def test_an_index_out_of_range_fills_the_record_before_it_says_so(texts: dict[str, str]) -> None:
    """The record's words, by ``runtime/index_reports.py``: state, call path, site, index, size."""
    lines = [line.strip() for line in bodies(texts["fixed"])["checked"].splitlines()]
    taken = [k for k, line in enumerate(lines) if line.startswith("atom.") and "cas" in line]
    assert len(taken) == 4  # two lanes, two checks
    for k in taken:
        stores = re.findall(r"st\.b64 \t\[%rd\d+(\+\d+)?\], (\S+);|(membar\.sys);", "\n".join(lines[k : k + 13]))
        assert [fence or place for place, _, fence in stores] == ["+8", "+16", "+24", "+32", "membar.sys", ""]
        assert stores[-1][1] == "1" and stores[1][1] in ("4", "5")  # their codes are 5 and 6


@pytest.mark.parametrize("mask", [None, 63], ids=["any", "few bits"])
@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"])
def test_integers_are_divided_by_constants_without_a_division(dtype: str, mask: int | None) -> None:
    """LLVM cannot select the code of vectors of 16 bits, to which it narrows what it knows to fit."""
    x = "load_aligned[8](p0, i)" if mask is None else f"bit_and(load_aligned[8](p0, i), const[{dtype}, 8]({mask}))"
    source = f"""{HEAD}

@export
def kernel0(p0: Ptr[{dtype}], p1: Ptr[{dtype}]) abi("C"):
    var i = thread_in_block() * 8
    store_aligned(p1, i, {{name}}({x}, const[{dtype}, 8]({{by}})))
"""
    for name in ("floor_div", "trunc_div", "remainder", "fmod"):
        text = build_ptx(source.format(name=name, by=3))
        assert "mul" in text and not re.search(r"\t(div|rem)\.", text), name


def test_parameters_are_words() -> None:
    ptx = build_ptx(KERNEL, threads={"kernel0": 256})
    assert re.findall(r"\.param \.(\w+)", ptx) == ["u64", "u64", "b64"]
    assert ".maxntid 256, 1, 1\n{" in ptx and "maxntid" not in build_ptx(KERNEL)


@needs_linker
def test_blocks_of_many_threads_get_few_registers() -> None:
    source = f"""{HEAD}

@export
def kernel0(p0: Ptr[f64], p1: Ptr[f64]) abi("C"):
    var a = load_aligned[32](p0, thread_in_block() * 32)
    var b = load_aligned[32](p0, thread_in_block() * 64 + 5)
    block_barrier()
    store_aligned(p1, thread_in_block() * 32, exp(add(a, b)))
"""
    few, many = (link(build_ptx(source, threads={"kernel0": n}), ARCH) for n in (1024, 128))
    assert few and many and few.resources["kernel0"].registers <= 64 < many.resources["kernel0"].registers


@pytest.mark.parametrize(
    ("registers", "threads", "blocks"),
    [(72, 512, 2), (64, 512, 0), (80, 512, 0), (90, 256, 3), (72, 256, 0), (128, 256, 0), (40, 1024, 0), (72, 0, 0)],
)
def test_how_many_blocks_run_at_the_same_time(registers: int, threads: int, blocks: int) -> None:
    assert cuda_build.blocks_of(registers, threads) == blocks


@needs_linker
@pytest.mark.parametrize("spills", [False, True])
def test_a_few_registers_less_let_another_block_run(spills: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless they would go to memory."""
    width = 32 if spills else 8
    source = f"""{HEAD}

@export
def kernel0(p0: Ptr[f64], p1: Ptr[f64]) abi("C"):
    var a = load_aligned[{width}](p0, thread_in_block() * {width})
    var b = load_aligned[{width}](p0, thread_in_block() * {width * 2} + 5)
    block_barrier()
    store_aligned(p1, thread_in_block() * {width}, exp(add(a, b)))
"""
    ptx = build_ptx(source, threads={"kernel0": 512})
    before = link(ptx, ARCH)
    assert before is not None
    monkeypatch.setattr(cuda_build, "blocks_of", lambda registers, threads: 4)  # which leaves 32 registers
    after = cuda_build._with_more_blocks(before, ptx, ARCH, {"kernel0": 512})
    (used,) = after.resources.values()
    assert (used.registers <= 32) != spills and not used.spills


def test_without_cudas_linker_the_driver_gets_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_build, "link", lambda *_: None)
    assert build_cubin(KERNEL).startswith(b"//") and build_cubin(KERNEL).endswith(b"}\n\0")


@needs_linker
def test_a_cubin() -> None:
    assert build_cubin(KERNEL).startswith(b"\x7fELF")
    with Machine.parse("cuda:sm_90a", host="x86_64-0123", cpu="x86-64-v3").pretended():
        kernels, launcher = library_parts(KERNEL, "sm_90a"), library_parts("launcher")
    assert kernels == library_parts(KERNEL, "sm_90a") != library_parts(KERNEL, "sm_80")
    assert launcher == {**library_parts("launcher"), "target": "x86_64-0123"}


def test_the_launcher_for_another_processor() -> None:
    assert build_launcher("x86-64-v3")[:4] == build_launcher()[:4] == b"\x7fELF"
    with pytest.raises(CompileError, match=r"nothing-v3"):
        build_launcher("nothing-v3")


def test_a_refusal_of_mojo_is_one_error_with_its_text() -> None:
    with pytest.raises(CompileError, match=r"refused a generated kernel.*\n.*unknown declaration 'nothing'"):
        build_cubin(f"{HEAD}\n\ndef k():\n    nothing(1)\n")


@needs_linker
def test_a_refusal_of_the_linker_is_one_error_with_its_text() -> None:
    with pytest.raises(CompileError, match=r"refused a generated kernel.*\n.*Unknown modifier '\.wrong'"):
        link(build_ptx(KERNEL).replace("ld.global.nc", "ld.global.wrong"), ARCH)
    with pytest.raises(CompileError, match="does not know the architecture sm_wrong"):
        link("", "sm_wrong")


@needs_math
def test_math_that_cuda_does_not_have() -> None:
    source = f'{HEAD}\n\n@export\ndef k(p: Ptr[f64]) abi("C"):\n    store(p, 0, libm["nothing"](load[1](p, 0)))\n'
    with pytest.raises(CompileError, match=r'(?s)CUDA\'s compiler refused.*identifier "nothing" is undefined'):
        build_cubin(source)


def test_without_cudas_compiler_there_is_no_math(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_build.math_functions.cache_clear()
    monkeypatch.setattr(cuda_toolkit, "library", lambda _: None)
    with pytest.raises(CompileError, match="nvidia-cuda-nvrtc"):
        build_ptx(f'{HEAD}\n\n@export\ndef k(p: Ptr[f64]) abi("C"):\n    store(p, 0, tan(load[1](p, 0)))\n')


def test_what_the_linker_says_about_kernels() -> None:
    log = """ptxas info    : Compiling entry function 'a' for 'sm_90a'
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 27 registers, used 1 barriers, 128 bytes smem
ptxas info    : Compile time = 36.420 ms
ptxas info    : Compiling entry function 'b' for 'sm_90a'
"""
    assert resources_in(log) == {"a": cuda_toolkit.Resources(27, 8, 16)}


# -- launches --------------------------------------------------------------------------------------------------------
KernelFunction = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)


class Stub:
    """In place of ``cuLaunchKernel``: notes sizes and the values of parameters."""

    def __init__(self, parameters: dict[int, int]) -> None:
        self.parameters = parameters
        self.seen: list[tuple[int, ...]] = []
        self.statuses: Iterator[int] = iter(())
        self._callback = KernelFunction(self._launched)
        self.entry = ctypes.cast(self._callback, ctypes.c_void_p).value or 0

    def _launched(self, function: int, *arguments: int) -> int:
        *sizes, stream, parameters, extra = arguments
        count = self.parameters[function]
        addresses = ctypes.cast(parameters, ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)))
        self.seen.append((function, *sizes, stream or 0, extra or 0, *(addresses[k][0] for k in range(count))))
        return next(self.statuses, 0)


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("launcher") / "launcher.so"
    path.write_bytes(build_launcher())
    return path


def test_launches_hand_on_the_words_of_the_table(launcher: Path) -> None:
    stub = Stub({2**40: 3, 8: 0, 9: 2})
    some = [
        Launch(2**40, Word(0, 256), 256, (1, 0, 3)),
        Launch(8, 5, Word(3), (), grid_y=Word(0), shared_bytes=4096),
        Launch(9, Word(2), 32, (0, 0)),
        Launch(9, 1, 32, (4, 4), grid_y=0),
        Launch(9, 2**31 - 1, 32, (4, 2)),
    ]
    launches = Launches(some, launcher, entry=stub.entry)
    words = (ctypes.c_int64 * 5)(1000, -7, 0, 64, 2**63 - 1)
    for _ in range(2):
        launches.launch(ctypes.addressof(words), 2**45)
        assert stub.seen == [
            (2**40, 4, 1, 1, 256, 1, 1, 0, 2**45, 0, -7, 1000, 64),
            (8, 5, 1000, 1, 64, 1, 1, 4096, 2**45, 0),
            (9, 2**31 - 1, 1, 1, 32, 1, 1, 0, 2**45, 0, 2**63 - 1, 0),
        ]
        stub.seen.clear()


def test_a_failed_launch_is_the_last(launcher: Path) -> None:
    stub = Stub({7: 0})
    launches = Launches([Launch(7, 1, 32, ())] * 4, launcher, entry=stub.entry)
    stub.statuses = iter([0, 0, 701])
    with pytest.raises(ExecutionError, match=r"launch 2 of 4 generated kernels failed: CUDA.*"):
        launches.launch(0, 0)
    assert len(stub.seen) == 3
    launches.launch(0, 0)
    assert len(stub.seen) == 7


def test_without_launches_or_with_many(launcher: Path) -> None:
    stub = Stub({7: 512})
    Launches([], launcher, entry=stub.entry).launch(0, 0)
    words = (ctypes.c_int64 * 512)(*range(512))
    Launches([Launch(7, 1, 1, tuple(range(511, -1, -1)))], launcher, entry=stub.entry).launch(
        ctypes.addressof(words), 0
    )
    assert [seen[10:] for seen in stub.seen] == [tuple(range(511, -1, -1))]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver")
def test_without_a_driver_or_a_launcher(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match="NVIDIA's driver, which is not installed"):
        CudaLibrary(b"", 0)
    with pytest.raises(ExecutionError, match="launcher of generated kernels"):
        Launches([], tmp_path / "nothing.so", entry=1)


def test_absolute_values_are_one_instruction() -> None:
    """CUDA 13.0's assembler is wrong about the greater of a number and its negative, next to another maximum."""
    source = """from kernel import *


@export
def kernel0(p0: Ptr[i32], p1: Ptr[i32]) abi("C"):
    var x = load[4](p0, thread_in_block() * 4)
    store(p1, thread_in_block(), reduce_max(absolute(x)))
"""
    ptx = build_ptx(source)
    assert ptx.count("abs.s32") == 4 and not re.search(r"max\.s32\s+(%r\d+), (%r\d+), \2", ptx)
    negated = {b for b, _ in re.findall(r"neg\.s32\s+(%r\d+), (%r\d+)", ptx)}
    assert not any(negated & {*pair} for pair in re.findall(r"max\.s32\s+%r\d+, (%r\d+), (%r\d+)", ptx))


SCATTERED = f"""{HEAD}

@export
def kernel0(p0: Ptr[f32], p1: Ptr[bf16]) abi("C"):
    atomic_add(p0, 1, load[1](p0, 0))
    atomic_add_vector(p0, 4, load_aligned[4](p0, 8))
    atomic_add_vector(p1, 8, load_aligned[8](p1, 16))
"""


@pytest.mark.parametrize(("arch", "wanted"), [
    ("sm_90a", {"red.f32", "red.v4.f32", "red.v4.bf16x2"}), ("sm_80", {"atom.f32", "atom.b32"}),
])  # fmt: skip
def test_additions_tell_nothing_back_where_a_gpu_has_such(arch: str, wanted: set[str]) -> None:
    """Vectors in one operation from sm_90 on, which needs a newer PTX; lane by lane on GPUs before."""
    ptx = build_ptx(SCATTERED, arch=arch)
    version = re.search(r"(?m)^\.version (\d+)\.(\d+)", ptx)
    assert version
    assert ((int(version[1]), int(version[2])) >= (8, 1)) == (arch == "sm_90a")
    found = re.findall(r"\t(red|atom)\.\S*?((?:\.v\d)?\.(?:f32|bf16x2|b32))[ \t]", ptx)
    assert {"".join(parts) for parts in found} == wanted


@pytest.mark.parametrize(("arch", "instructions"), [("sm_90a", 5), ("sm_80", 0)])
def test_two_floats_of_8_bits_are_one_conversion_where_a_gpu_has_it(arch: str, instructions: int) -> None:
    """Those of a vector of 8, and one alone, which needs a newer PTX; else bits are moved."""
    source = f"""{HEAD}

@export
def kernel0(p0: Ptr[f8_e4m3fn], p1: Ptr[f32]) abi("C"):
    store_aligned(p1, 0, e4m3fn_to_f32(load_aligned[8](p0, 0)))
    store(p1, 8, e4m3fn_to_f32(load[1](p0, 8)))
"""
    ptx = build_ptx(source, arch=arch)
    assert ptx.count("cvt.rn.f16x2.e4m3x2") == instructions
    assert (".version 8.1" in ptx) == bool(instructions)
