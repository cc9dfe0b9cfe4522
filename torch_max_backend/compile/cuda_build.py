"""Kernels for NVIDIA GPUs from Mojo source that is written against the kernel interface. No GPU is needed.

Mojo's compiler makes PTX, a text, of each exported function a kernel; CUDA's linker makes machine code of it, a cubin.
Functions of the C library that the interface calls, such as ``pow``, are CUDA's own: those that a text calls are
compiled by CUDA's compiler library and become part of it.
"""

from __future__ import annotations

import collections
import functools
import logging
import re
from collections.abc import Mapping
from pathlib import Path

from torch_max_backend.base.errors import CompileError
from torch_max_backend.compile.cuda_toolkit import Linked, compile_cuda, link
from torch_max_backend.compile.mojo_build import (
    INTERFACE,
    build_shared_library,
    compiler_environment,
    compiler_folder,
    program,
    run_compiler,
)
from torch_max_backend.runtime.cuda_launch import LAUNCHER_SOURCE

log = logging.getLogger("torch_max_backend")

_EXTERN = re.compile(r"^\.extern \.func \(\.param \.b(\d+) \w+\) (\w+)\n\(\n((?:[^;]*\n)??)\)\n;\n", re.MULTILINE)
_BOUNDED_ENTRY = re.compile(r"^(\.visible \.entry (\w+)\([^)]*\)\n\.maxntid .*)", re.MULTILINE)
_ENTRY = re.compile(r"^(\.visible \.entry (\w+)\([^)]*\))\n\{", re.MULTILINE)
_ASSIGNED = re.compile(r"(?m)^\t(?:@!?%p\d+ )?[a-z][\w.:]* +\t?(%r\d+),")
_NEGATED = re.compile(r"(?m)^\tneg\.s32 \t(%r\d+), (%r\d+);")
_GREATER = re.compile(r"(?m)^\tmax\.s32 \t(%r\d+), (%r\d+), (%r\d+);")
_TYPES = {"32": "float", "64": "double"}

REGISTERS, REGISTER_STEP = 1 << 16, 8
"""Registers of a multiprocessor, and the step in which a thread gets some."""
FEW_BLOCKS, BUSY_THREADS = 2, 1024
"""Blocks at the same time, of less than so many threads together, to which another one is much."""
WORTH_TRYING = 0.85
"""The part of a kernel's registers that another block must leave it."""


def build_cubin(
    source: str,
    *,
    arch: str = "sm_90a",
    threads: Mapping[str, int] | None = None,
    clusters: Mapping[str, int] | None = None,
    resident: Mapping[str, int] | None = None,
    contract: bool = False,
) -> bytes:
    """Compile ``source`` for GPUs of one architecture; where CUDA's linker is not installed, the result is PTX.

    Args:
        source: Begins with ``from kernel import *``; kernels are its functions with ``@export`` and ``abi("C")``.
        arch: As ``sm_90a``.
        threads: The most threads that a block of a kernel is launched with, by the kernel's name. A kernel without one
            may take so many registers that it cannot be launched with more than 256.
        clusters: How many neighbouring blocks are a cluster, by the kernel's name.
        resident: How many blocks a multiprocessor shall run at the same time, by the kernel's name; threads get no more
            registers than that leaves them. For others it is decided by the registers that they take.
        contract: Let a product and a sum become one rounding.

    Raises:
        CompileError: With the text of the compiler that refused, or with the reason why one could not run.
    """
    ptx = build_ptx(source, arch=arch, threads=threads, clusters=clusters, resident=resident, contract=contract)
    linked = link(ptx, arch)
    if linked is None:
        log.debug("CUDA's linker is not installed: the driver compiles PTX where it is loaded")
        return ptx.encode() + b"\0"
    undecided = {name: count for name, count in (threads or {}).items() if name not in (resident or {})}
    linked = _with_more_blocks(linked, ptx, arch, undecided)
    for name, used in linked.resources.items():
        if used.stack or used.spills:
            log.debug("%s: %s", name, used)
    return linked.cubin


def _with_more_blocks(linked: Linked, ptx: str, arch: str, threads: Mapping[str, int]) -> Linked:
    """The kernels with fewer registers, where that lets one more block run at the same time and moves none to memory.

    Blocks of 512 threads with 72 registers each run one by one, with half of a multiprocessor's threads.
    """
    resources = linked.resources
    wanted = {name: blocks_of(used.registers, threads.get(name, 0)) for name, used in resources.items()}
    wanted = {name: blocks for name, blocks in wanted.items() if blocks}
    while wanted:
        found = link(_with_blocks(ptx, wanted), arch)
        assert found is not None
        after = found.resources
        moved = [n for n in wanted if (after[n].stack, after[n].spills) > (resources[n].stack, resources[n].spills)]
        if not moved:
            return found
        wanted = {name: blocks for name, blocks in wanted.items() if name not in moved}
    return linked


def blocks_of(registers: int, threads: int) -> int:
    """How many blocks of a kernel shall run at the same time; 0 if that is no question of a few registers.

    Args:
        registers: Of a thread.
        threads: Of a block.
    """
    if not threads:
        return 0
    blocks = REGISTERS // (threads * _rounded_up(registers))
    left = REGISTERS // (threads * (blocks + 1))
    is_near = left - left % REGISTER_STEP >= registers * WORTH_TRYING
    is_much = blocks <= FEW_BLOCKS and blocks * threads < BUSY_THREADS
    return blocks + 1 if is_much and is_near else 0


def _rounded_up(registers: int) -> int:
    return -(-registers // REGISTER_STEP) * REGISTER_STEP


def build_launcher(cpu: str = "") -> bytes:
    """The library by which a program launches kernels.

    Args:
        cpu: LLVM's name of the processor that runs it; this machine's unless it is given.

    Raises:
        CompileError: With the compiler's text, or with the reason why it could not run.
    """
    return build_shared_library(LAUNCHER_SOURCE.read_text(), name="cuda_launch", cpu=cpu)


def build_ptx(
    source: str,
    *,
    arch: str = "sm_90a",
    threads: Mapping[str, int] | None = None,
    clusters: Mapping[str, int] | None = None,
    resident: Mapping[str, int] | None = None,
    contract: bool = False,
) -> str:
    """The PTX of a source: see :func:`build_cubin`."""
    with compiler_folder() as folder:
        text, product = folder / "kernels.mojo", folder / "kernels.ptx"
        text.write_text(source)
        command: list[str | Path] = [
            program("mojo"),
            "build",
            "-j",
            "1",
            "--emit",
            "asm",
            "--disable-warnings",
            "-I",
            INTERFACE,
        ]
        command += ["--target-triple", "nvptx64-nvidia-cuda", "--target-cpu", arch]
        command += [] if contract else ["--fp-mode", "contract=off"]
        additions = INTERFACE / ("cuda_sm_90" if _number(arch) >= 90 else "cuda_before_sm_90")
        environment = compiler_environment(INTERFACE / "cuda", additions, INTERFACE / "raw")
        run_compiler([*command, text, "-o", product], product, environment)
        ptx = product.read_text()
    ptx = _with_math(_with_absolute_values(ptx), arch)
    return _with_version(_with_block_sizes(ptx, threads or {}, clusters or {}, resident or {}))


def _number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))


def _with_version(ptx: str) -> str:
    """The text with the version that additions of vectors, and floats of 8 bits, need."""
    if not re.search(r"(?m)^\tred\..*\.v[24]\.|\tcvt\.rn\.f16x2\.e4m3x2 ", ptx):
        return ptx
    return re.sub(r"(?m)^\.version ([0-7]\..*|8\.0)$", ".version 8.1", ptx)


def _with_absolute_values(ptx: str) -> str:
    """The text with ``abs`` for the greater of a number and its negative.

    LLVM writes an absolute value so, and the assembler of CUDA 13.0 loses the sign where it makes one instruction of
    that and another maximum: ``max(max(x, -x), y)`` has become ``max(x, x, y)``.
    """
    return re.sub(r"(?ms)^\{\n.*?^\}", lambda body: _absolute_in(body[0]), ptx)


def _absolute_in(body: str) -> str:
    assigned = collections.Counter(_ASSIGNED.findall(body))
    negative = {b: a for b, a in _NEGATED.findall(body) if assigned[a] == assigned[b] == 1}

    def shorter(found: re.Match[str]) -> str:
        head, a, b = found.groups()
        x = a if negative.get(b) == a else b if negative.get(a) == b else ""
        return f"\tabs.s32 \t{head}, {x};" if x else found[0]

    return _GREATER.sub(shorter, body)


def _with_block_sizes(
    ptx: str, threads: Mapping[str, int], clusters: Mapping[str, int], resident: Mapping[str, int]
) -> str:
    """The text with the threads of blocks, the blocks of clusters, and how many shall run at the same time."""

    def bounded(entry: re.Match[str]) -> str:
        name = entry[2]
        lines = [f".maxntid {threads[name]}, 1, 1"] if name in threads else []
        lines += [f".reqnctapercluster {clusters[name]}, 1, 1"] if name in clusters else []
        lines += [f".minnctapersm {resident[name]}"] if name in resident else []
        return "\n".join([entry[1], *lines, "{"]) if lines else entry[0]

    return _ENTRY.sub(bounded, ptx)


def _with_blocks(ptx: str, blocks: Mapping[str, int]) -> str:
    """The text with how many blocks of a kernel shall run at the same time on a multiprocessor."""

    def told(entry: re.Match[str]) -> str:
        least = blocks.get(entry[2])
        return f"{entry[0]}\n.minnctapersm {least}" if least else entry[0]

    return _BOUNDED_ENTRY.sub(told, ptx)


def _with_math(ptx: str, arch: str) -> str:
    """The text with the functions that it declares, which are CUDA's."""
    functions = {}
    for result, name, parameters in _EXTERN.findall(ptx):
        functions[name] = (_TYPES[result], *(_TYPES[size] for size in re.findall(r"\.param \.b(\d+)", parameters)))
    if ".extern .func" in _EXTERN.sub("", ptx):
        raise CompileError("A generated kernel calls a function that is none of numbers.")
    if not functions:
        return ptx
    version, definitions = math_functions(frozenset(functions.items()), arch)
    calls = re.compile(rf"^(\tcall\.uni \(\w+\), )({'|'.join(functions)})(, )", re.MULTILINE)
    ptx = calls.sub(r"\1cuda_\2\3", _EXTERN.sub("", ptx))
    head, size, rest = ptx.partition(".address_size 64\n")
    return re.sub(r"(?m)^\.version .*$", version, head) + size + definitions + rest


@functools.cache
def math_functions(functions: frozenset[tuple[str, tuple[str, ...]]], arch: str) -> tuple[str, str]:
    """CUDA's functions, under names with ``cuda_`` before them, and the line with the version of their text.

    Args:
        functions: A name, and the types of the result and the parameters.
        arch: As ``sm_90a``.
    """
    lines = []
    for name, (result, *types) in sorted(functions):
        parameters = ", ".join(f"{kind} x{k}" for k, kind in enumerate(types))
        call = f"{name}({', '.join(f'x{k}' for k in range(len(types)))})"
        lines.append(f'extern "C" __device__ {result} cuda_{name}({parameters}) {{ return {call}; }}\n')
    ptx = compile_cuda("".join(lines), f"--gpu-architecture=compute_{_number(arch)}", "--relocatable-device-code=true")
    head, _, definitions = ptx.partition(".address_size 64\n")
    version = re.search(r"(?m)^\.version .*$", head)
    assert version, head
    return version[0], re.sub(r"(?m)^\.visible (\.func)", r"\1", definitions)
