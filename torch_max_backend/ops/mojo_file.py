"""Mojo files that are ops: what their head says, and the sources that they become."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from torch_max_backend.base.errors import RegistrationError
from torch_max_backend.ops.arguments import BATCH, Pattern
from torch_max_backend.ops.declaration import FLOATS

ENTRY = "entry"
"""The name of what is called."""
_HEAD = re.compile(r"^# ?(\w+): *(.+?) *$", re.MULTILINE)
_NUMBERS = {"float": "f64", "int": "int", "bool": "int"}
_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64"}


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

    @property
    def needs_std(self) -> bool:
        """Whether it uses Mojo's standard library."""
        return re.search(r"^\s*(from|import)\s+std\b", self.text, re.MULTILINE) is not None

    def kinds(self) -> list[str]:
        """What the function is called with, word by word: a pointer, an integer or a float."""
        tensors = len(self.results) + len(self.patterns)
        return ["pointer"] * tensors + ["int"] * len(self.sizes) + [_NUMBERS[kind] for kind in self.numbers()]

    def call(self, dtype: torch.dtype) -> str:
        """The call of the function, from a table of words."""
        texts = {"pointer": f"t.pointer[{_NAMES[dtype]}]({{}})", "int": "t.int({})", "f64": "t.f64({})"}
        return f"{self.name}({', '.join(texts[kind].format(k) for k, kind in enumerate(self.kinds()))})"

    def source(self, dtype: torch.dtype) -> str:
        """The file with an entry for a dtype behind it."""
        return f'{self.text.rstrip()}\n\n\n@export\ndef {ENTRY}(t: Table) abi("C"):\n    {self.call(dtype)}\n'

    def gpu_source(self, dtype: torch.dtype) -> str:
        """The file with a kernel for a GPU behind it, whose parameters are words of 64 bits."""
        types = [f"Ptr[{_NAMES[dtype]}]" if kind == "pointer" else "Int" for kind in self.kinds()]
        given = ", ".join(f"w{k}: {name}" for k, name in enumerate(types))
        texts = {"pointer": "w{}", "int": "w{}", "f64": "bitcast[f64](from_int[i64, 1](w{}))"}
        call = f"{self.name}({', '.join(texts[kind].format(k) for k, kind in enumerate(self.kinds()))})"
        return f'{self.text.rstrip()}\n\n\n@export\ndef {ENTRY}({given}) abi("C"):\n    {call}\n'

    def explained(self, message: str, dtype: torch.dtype) -> str:
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
