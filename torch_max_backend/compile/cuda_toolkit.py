"""What torch's CUDA packages bring and a compile of ours uses: the linker of PTX, and the compiler of CUDA's math.

Neither needs a GPU. They are the libraries ``nvJitLink`` and ``NVRTC``, which stand beside torch.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_max_backend.base.digests import package_version
from torch_max_backend.base.errors import CompileError

_PTX_INPUT = 2
"""``NVJITLINK_INPUT_PTX``."""


@dataclass(frozen=True)
class Resources:
    """What one thread of a kernel takes: registers, and bytes of stack and of registers moved to memory."""

    registers: int
    stack: int
    spills: int


@dataclass(frozen=True)
class Linked:
    """A cubin and what the linker said about it."""

    cubin: bytes
    log: str

    @property
    def resources(self) -> dict[str, Resources]:
        """By kernel."""
        return resources_in(self.log)


def resources_in(log: str) -> dict[str, Resources]:
    """What the assembler's verbose log says about each kernel."""
    found = {}
    for text in log.split("Compiling entry function ")[1:]:
        text = text.split("Compile time")[0]
        registers = re.search(r"Used (\d+) registers", text)
        memory = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", text)
        if registers and memory:
            stack, stores, loads = (int(memory[k]) for k in (1, 2, 3))
            found[text.split("'")[1]] = Resources(int(registers[1]), stack, stores + loads)
    return found


@functools.cache
def library(name: str) -> ctypes.CDLL | None:
    """``nvJitLink`` or ``nvrtc``, of the newest toolkit that is there; None if there is none."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    found = [path for folder in folders for path in folder.glob(f"*/lib/lib{name}.so*")]
    versions = sorted(found, key=lambda path: [int(n) for n in re.findall(r"\d+", path.suffix)], reverse=True)
    for path in [*map(str, versions), f"lib{name}.so.13", f"lib{name}.so.12"]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def toolkit_version() -> str:
    """The versions of the packages that bring both libraries: part of the key of what they make."""
    packages = ("nvidia-nvjitlink", "nvidia-cuda-nvrtc", "nvidia-nvjitlink-cu12", "nvidia-cuda-nvrtc-cu12")
    return " ".join(f"{name} {package_version(name)}" for name in packages)


def link(ptx: str, arch: str) -> Linked | None:
    """The cubin of a PTX text for ``sm_90a`` and the like; None where the linker is not installed.

    Raises:
        CompileError: With the linker's text.
    """
    linker = library("nvJitLink")
    if linker is None:
        return None
    options = _strings(f"-arch={arch}", "-verbose")
    handle, text = ctypes.c_void_p(), ptx.encode()
    if linker.nvJitLinkCreate(ctypes.byref(handle), len(options), options):
        raise CompileError(f"CUDA's linker does not know the architecture {arch}.")
    try:
        status = linker.nvJitLinkAddData(handle, _PTX_INPUT, text, ctypes.c_size_t(len(text)), b"kernels")
        status = status or linker.nvJitLinkComplete(handle)
        log = _text(linker, "nvJitLinkGetInfoLog", handle)
        if status:
            raise CompileError(
                f"CUDA's linker refused a generated kernel.\n{_text(linker, 'nvJitLinkGetErrorLog', handle)}"
            )
        size = ctypes.c_size_t()
        linker.nvJitLinkGetLinkedCubinSize(handle, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        linker.nvJitLinkGetLinkedCubin(handle, cubin)
        return Linked(cubin.raw, log)
    finally:
        linker.nvJitLinkDestroy(ctypes.byref(handle))


def compile_cuda(source: str, *options: str) -> str:
    """The PTX of a CUDA C++ source.

    Raises:
        CompileError: With the compiler's text, or because it is not installed.
    """
    compiler = library("nvrtc")
    if compiler is None:
        raise CompileError("CUDA's compiler library is missing: no package nvidia-cuda-nvrtc is beside torch.")
    handle = ctypes.c_void_p()
    if compiler.nvrtcCreateProgram(ctypes.byref(handle), source.encode(), b"math.cu", 0, None, None):
        raise CompileError("CUDA's compiler library did not start.")
    try:
        if compiler.nvrtcCompileProgram(handle, len(options), _strings(*options)):
            raise CompileError(f"CUDA's compiler refused a source.\n{_text(compiler, 'nvrtcGetProgramLog', handle)}")
        return _text(compiler, "nvrtcGetPTX", handle)
    finally:
        compiler.nvrtcDestroyProgram(ctypes.byref(handle))


def _strings(*texts: str) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


def _text(of: Any, function: str, handle: ctypes.c_void_p) -> str:
    """The text that one of the libraries gives by a function, beside which another one gives its size."""
    size = ctypes.c_size_t()
    getattr(of, f"{function}Size")(handle, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value + 1)
    getattr(of, function)(handle, text)
    return text.value.decode(errors="replace")
