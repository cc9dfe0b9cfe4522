"""Ops of Mojo files: ``mojo_op("softcap.mojo")`` makes one of a file whose head says what it takes.

The head is comments: the schema, a pattern for each tensor and result (see ``arguments.py``), and the dtypes::

    # op: softcap(Tensor x, float cap) -> Tensor
    # x: ... n
    # result: ... n
    # dtypes: float32, bfloat16

The file defines a function of the op's name. It is called with, in this order,

- ``Ptr[d]`` for each result and then for each tensor, all of them contiguous and of one dtype;
- ``Int`` for the product of the leading dimensions, if a pattern has ``...``, and for each size that patterns name, by
  first appearance;
- the numbers of the schema in its order: ``Vec[f64, 1]`` for a float, ``Int`` for an integer or a boolean.

A call is made by each thread of PyTorch's team, or by one thread where there is little to do: ``share_begin`` and
``share_end`` give a thread its part. ``from kernel import *`` brings all these names; a file that imports from ``std``
may use Mojo's standard library beside them, and takes seconds to compile.
"""

from __future__ import annotations

import ctypes
import functools
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_max_backend.base.errors import CompileError, RegistrationError
from torch_max_backend.compile.cache.configured_store import store_for
from torch_max_backend.compile.mojo_build import build_shared_library
from torch_max_backend.compile.program_libraries import LibraryJob, library_parts
from torch_max_backend.compile.stats import CompileStats
from torch_max_backend.ops.arguments import BATCH, ArgumentError, Pattern, Sizes
from torch_max_backend.ops.declaration import FLOATS, Tolerance, declaration_of
from torch_max_backend.ops.define import public_op
from torch_max_backend.ops.precision import rows_of
from torch_max_backend.options import resolve
from torch_max_backend.runtime.program import load_library, team

SHARED = 1 << 15
"""Elements of arguments and results from which a call is shared among threads."""
_HEAD = re.compile(r"^# ?(\w+): *(.+?) *$", re.MULTILINE)
_NUMBERS = {"float": "f64", "int": "int", "bool": "int"}
_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64"}
_made: dict[str, Callable[..., Any]] = {}
"""The op of each file, by its text."""


@dataclass(frozen=True)
class MojoFile:
    """A file's text and what its head says."""

    path: Path
    text: str
    schema: str
    patterns: Mapping[str, str]
    results: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]

    @classmethod
    def read(cls, path: Path) -> MojoFile:
        """Read a file.

        Raises:
            RegistrationError: Its head lacks something, or says what is not possible.
        """
        text = path.read_text(encoding="utf-8")
        comments = re.match(r"(#.*\n|\s*\n)*", text)
        assert comments is not None
        head = _HEAD.findall(comments[0])
        said = dict(head)
        for needed in ("op", "result", "dtypes"):
            if needed not in said:
                raise RegistrationError(
                    f"{path}: its head must have a line '# {needed}: …'; see mojo_op's documentation"
                )
        known = {str(dtype).removeprefix("torch."): dtype for dtype in FLOATS}
        names = said["dtypes"].replace(",", " ").split()
        if not names or not known.keys() >= set(names):
            raise RegistrationError(f"{path}: dtypes must be of {', '.join(known)}, got {said['dtypes']!r}")
        patterns = {name: pattern for name, pattern in head if name not in ("op", "result", "dtypes")}
        results = tuple(pattern for name, pattern in head if name == "result")
        return cls(path, text, said["op"], patterns, results, tuple(known[n] for n in names))

    @property
    def name(self) -> str:
        """The op's name, and that of its function."""
        return self.schema.partition("(")[0]

    @functools.cached_property
    def sizes(self) -> list[str]:
        """The sizes that the function is given: that of leading dimensions first."""
        patterns = list(map(Pattern.of, [*self.patterns.values(), *self.results]))
        names = dict.fromkeys(s.name for p in patterns for s in p.sizes if s.name)
        return [BATCH] * any(p.has_batch for p in patterns) + list(names)

    def numbers(self) -> list[str]:
        """The types of the schema's numbers.

        Raises:
            RegistrationError: One is neither a float, nor an integer, nor a boolean.
        """
        arguments = torch._C.parse_schema(self.schema).arguments
        types = [str(a.type) for a in arguments if a.name not in self.patterns]
        for kind in types:
            if kind not in _NUMBERS:
                raise RegistrationError(f"{self.path}: arguments must be Tensor, float, int or bool, got {kind}")
        return types

    def call(self, dtype: torch.dtype) -> str:
        """The call of the function, from a table of words."""
        tensors = len(self.results) + len(self.patterns)
        words = [f"t.pointer[{_NAMES[dtype]}]({k})" for k in range(tensors)]
        words += [f"t.int({tensors + k})" for k in range(len(self.sizes))]
        first = tensors + len(self.sizes)
        words += [f"t.{_NUMBERS[kind]}({first + k})" for k, kind in enumerate(self.numbers())]
        return f"{self.name}({', '.join(words)})"

    def source(self, dtype: torch.dtype) -> str:
        """The file with an entry for a dtype behind it."""
        return f'{self.text.rstrip()}\n\n\n@export\ndef entry(t: Table) abi("C"):\n    {self.call(dtype)}\n'

    def built(self, dtype: torch.dtype) -> tuple[Any, Any]:
        """The entry for one thread and for a team, from the store or compiled now.

        Raises:
            CompileError: Mojo refuses the file; the message has its lines.
        """
        source = self.source(dtype)
        raw = re.search(r"^\s*(from|import)\s+std\b", self.text, re.MULTILINE) is None
        build = functools.partial(build_shared_library, source, name=self.path.stem, raw=raw)
        job = LibraryJob(library_parts(source), "op of a file", build, store_for(resolve({}, None)), kernels=1)
        try:
            library = load_library(*job.done(CompileStats()))
        except CompileError as error:
            raise CompileError(self._explained(str(error), dtype)) from error
        return library.function("entry", False), library.function("entry", True)

    def _explained(self, message: str, dtype: torch.dtype) -> str:
        """The compiler's message with the file's own name, and what it means if the call does not fit."""
        _, _, said = message.partition("\n")
        shown = re.sub(rf"\S*/{re.escape(self.path.name)}(?=:\d)", str(self.path), said or message)
        lines = [int(n) for n in re.findall(rf"{re.escape(str(self.path))}:(\d+)", shown)]
        end = len(self.text.rstrip().splitlines())
        note = (
            f"\nBehind the file, in line {end + 5}, is the call: {self.call(dtype)}"
            if max(lines, default=0) > end
            else ""
        )
        return f"Mojo refuses {self.path} for {str(dtype).removeprefix('torch.')}.\n{shown}{note}"


def mojo_op(path: str | Path) -> Callable[..., Any]:
    """Make an op of a Mojo file, for CPUs; the module says what the file must have.

    The op works where the ops of ``torch_max_backend.ops`` do: in eager, in ``torch.compile`` with any backend, without
    a graph break, and under ``torch.vmap``. It has no gradient of its own: ``torch.library.register_autograd`` gives
    it one, under the name ``torch_max_backend::<op>``. The file is compiled for its first dtype at once, and for others
    when they are first used; the store keeps what is compiled. The same text gives the same op again.

    Args:
        path: The file.

    Returns:
        A function of the schema's arguments.

    Raises:
        RegistrationError: The file's head is not complete, or an op of the name exists.
        CompileError: Mojo refuses the file; the message has the file's lines.
    """
    file = MojoFile.read(Path(path).resolve())
    if file.text in _made:
        return _made[file.text]
    kernel = _Kernel(file)
    kernel.entry(file.dtypes[0])
    _made[file.text] = public_op(
        file.schema,
        shapes=file.patterns,
        results=file.results,
        tolerance=Tolerance(0, 0, 0, 0, "none is declared"),
        flops=lambda sizes: 0,
        requires=kernel.check,
        kernel=kernel,
    )(kernel.by_name())
    return _made[file.text]


class _Kernel:
    """Calls the function of a file."""

    def __init__(self, file: MojoFile) -> None:
        self.file = file
        self.entries: dict[torch.dtype, tuple[Any, Any]] = {}

    def entry(self, dtype: torch.dtype) -> tuple[Any, Any]:
        if dtype not in self.entries:
            self.entries[dtype] = self.file.built(dtype)
        return self.entries[dtype]

    def by_name(self) -> Callable[..., Any]:
        """A function that stands for the reference, which a file does not have."""

        def reference(*args: Any) -> Any:
            return self(*args)

        reference.__name__ = self.file.name
        return reference

    def check(self, sizes: Sizes, *args: Any) -> None:
        """Check what patterns do not say.

        Raises:
            ArgumentError: A dtype that the file does not have, or a GPU.
        """
        first, name = args[0], next(iter(self.file.patterns))
        if first.dtype not in self.file.dtypes:
            known = " or ".join(str(d).removeprefix("torch.") for d in self.file.dtypes)
            got = str(first.dtype).removeprefix("torch.")
            raise ArgumentError(f"{self.file.name}: {name} must be {known}, got {got}")
        if first.device.type not in ("cpu", "meta"):
            raise ArgumentError(f"{self.file.name}: {name} must be on a cpu, got {first.device}")

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
        self._run(args[0].dtype, words, sum(x.numel() for x in (*results, *tensors)))
        return results[0] if d.returns_one else tuple(results)

    def _run(self, dtype: torch.dtype, words: Sequence[int], elements: int) -> None:
        alone, shared = self.entry(dtype)
        table = (ctypes.c_int64 * len(words))(*words)
        if elements >= SHARED:
            team()(shared, ctypes.addressof(table), torch.get_num_threads(), 0)
        else:
            alone(table)


def _word(x: float | int | bool) -> int:
    """A number as a word of the table; a float by its bits."""
    return struct.unpack("q", struct.pack("d", x))[0] if isinstance(x, float) else int(x)
