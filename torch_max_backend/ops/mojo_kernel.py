"""Calling the function of a Mojo file: compiled for this processor and for GPUs, and run on tensors."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_max_backend.base.errors import CompileError
from torch_max_backend.base.target import architecture
from torch_max_backend.compile.cache.configured_store import store_for
from torch_max_backend.compile.cuda_build import build_cubin
from torch_max_backend.compile.mojo_build import build_shared_library
from torch_max_backend.compile.program_libraries import LibraryJob, launcher_job, library_parts
from torch_max_backend.compile.stats import CompileStats
from torch_max_backend.ops.arguments import BATCH, ArgumentError, Sizes
from torch_max_backend.ops.declaration import declaration_of
from torch_max_backend.ops.mojo_file import ENTRY, MojoFile
from torch_max_backend.ops.precision import rows_of
from torch_max_backend.options import resolve
from torch_max_backend.runtime.cuda_launch import Launch, Launches, Word, load_cubin
from torch_max_backend.runtime.program import load_library, team

SHARED = 1 << 15
"""Elements of arguments and results from which a call on a CPU is shared among threads."""
BLOCK, EACH = 256, 8
"""Threads of a block on a GPU, and elements of the largest tensor for each of them."""


class MojoKernel:
    """Calls the function of a file."""

    def __init__(self, file: MojoFile) -> None:
        self.file = file
        self.entries: dict[torch.dtype, tuple[Any, Any]] = {}
        self.launches: dict[tuple[torch.dtype, int], Launches] = {}

    def by_name(self) -> Callable[..., Any]:
        """A function that stands for the reference, which a file does not have."""

        def reference(*args: Any) -> Any:
            return self(*args)

        reference.__name__ = self.file.name
        return reference

    def check(self, sizes: Sizes, *args: Any) -> None:
        """Check what patterns do not say.

        Raises:
            ArgumentError: A dtype that the file does not have, or a device that it is not for.
        """
        first, name = args[0], next(iter(self.file.patterns))
        if first.dtype not in self.file.dtypes:
            known = " or ".join(str(d).removeprefix("torch.") for d in self.file.dtypes)
            got = str(first.dtype).removeprefix("torch.")
            raise ArgumentError(f"{self.file.name}: {name} must be {known}, got {got}")
        known_devices = ("cpu", "meta") if self.file.needs_std else ("cpu", "cuda", "meta")
        if first.device.type not in known_devices:
            why = ", since the file imports from std" if self.file.needs_std else ""
            raise ArgumentError(
                f"{self.file.name}: {name} must be on a {' or '.join(known_devices[:-1])}{why}, got {first.device}"
            )

    def __call__(self, *args: Any) -> Any:
        d = declaration_of(self.file.name)
        args = d.filled(args)
        sizes = d.check(args)
        tensors = [x.contiguous() for x in d.given(args).values()]
        results = [args[0].new_empty(shape) for shape in d.result_shapes(sizes, args)]
        numbers = [x for k, x in enumerate(args) if k not in d.tensors]
        words = [x.data_ptr() for x in (*results, *tensors)]
        words += [rows_of(sizes) if name == BATCH else sizes[name] for name in self.file.sizes]
        words += [_word(x) for x in numbers]
        elements = [x.numel() for x in (*results, *tensors)]
        if args[0].is_cuda:
            self._launch(args[0].dtype, args[0].device.index, words, max(elements))
        else:
            self._run(args[0].dtype, words, sum(elements))
        return results[0] if d.returns_one else tuple(results)

    # -- on a CPU --------------------------------------------------------------------------------------------------
    def entry(self, dtype: torch.dtype) -> tuple[Any, Any]:
        """The entry for one thread and for a team, from the store or compiled now.

        Raises:
            CompileError: Mojo refuses the file; the message has its lines.
        """
        if dtype not in self.entries:
            source = self.file.source(dtype)
            raw = not self.file.needs_std
            build = functools.partial(build_shared_library, source, name=self.file.path.stem, raw=raw)
            library = load_library(*self._done(dtype, library_parts(source), build))
            self.entries[dtype] = library.function(ENTRY, False), library.function(ENTRY, True)
        return self.entries[dtype]

    def _run(self, dtype: torch.dtype, words: Sequence[int], elements: int) -> None:
        alone, shared = self.entry(dtype)
        table = (ctypes.c_int64 * len(words))(*words)
        if elements >= SHARED:
            team()(shared, ctypes.addressof(table), torch.get_num_threads(), 0)
        else:
            alone(table)

    # -- on a GPU --------------------------------------------------------------------------------------------------
    def _launch(self, dtype: torch.dtype, gpu: int, words: Sequence[int], elements: int) -> None:
        if (dtype, gpu) not in self.launches:
            self.launches[dtype, gpu] = self._on_gpu(dtype, gpu, len(words))
        table = (ctypes.c_int64 * (len(words) + 1))(*words, -(-elements // EACH))
        with torch.cuda.device(gpu):
            stream = torch._C._cuda_getCurrentRawStream(gpu)
            self.launches[dtype, gpu].launch(ctypes.addressof(table), stream)

    def _on_gpu(self, dtype: torch.dtype, gpu: int, words: int) -> Launches:
        arch, source = architecture(gpu), self.file.gpu_source(dtype)
        build = functools.partial(build_cubin, source, arch=arch, threads={ENTRY: BLOCK})
        path, sha = self._done(dtype, library_parts(source, arch), build)
        kernel = load_cubin(path.read_bytes(), sha, gpu).function(ENTRY)
        launcher, _ = launcher_job(store_for(resolve({}, None))).done(CompileStats())
        return Launches([Launch(kernel, Word(words, BLOCK), BLOCK, tuple(range(words)))], launcher, device=gpu)

    def _done(self, dtype: torch.dtype, parts: dict[str, str], build: Callable[[], bytes]) -> Any:
        try:
            job = LibraryJob(parts, "op of a file", build, store_for(resolve({}, None)), kernels=1)
            return job.done(CompileStats())
        except CompileError as error:
            raise CompileError(self.file.explained(str(error), dtype)) from error


def _word(x: float | int | bool) -> int:
    """A number as a word of the table; a float by its bits."""
    return struct.unpack("q", struct.pack("d", x))[0] if isinstance(x, float) else int(x)
