"""A program's kernels in several sources, which are compiled side by side, and their machine code as one library."""

from __future__ import annotations

import re

import pytest

from torch_max_backend.codegen.grid_source import PART, in_parts
from torch_max_backend.runtime.cuda_launch import packed, unpacked

pytestmark = pytest.mark.any_runner("texts")


def source(kernels: int) -> str:
    texts = []
    for k in range(kernels):
        texts.append(f'# aten.mul\n@export\ndef kernel{k}(p0: Ptr[f32]) abi("C"):\n    store(p0, {"1" * k}, x)')
    return "\n\n\n".join(["from kernel import *", *texts]) + "\n"


@pytest.mark.parametrize(
    ("kernels", "most", "parts"), [(1, 8, 1), (PART, 8, 1), (5 * PART, 8, 5), (90, 2, 2), (90, 1, 1)]
)
def test_parts_have_all_kernels(kernels: int, most: int, parts: int) -> None:
    found = in_parts(source(kernels), most)
    assert len(found) == parts
    names = [name for part in found for name in re.findall(r"(?m)^def (\w+)", part)]
    assert sorted(names) == sorted(f"kernel{k}" for k in range(kernels))
    lengths = [len(part) for part in found]
    assert all(part.startswith("from kernel import *\n\n\n# aten.mul\n@export\n") for part in found)
    assert max(lengths) < 1.3 * min(lengths)


@pytest.mark.parametrize(
    "cubins", [[b""], [b"\x7fELF one"], [b"// PTX\n\0"], [b"\x7fELF one", b"\x7fELF other", b"\x7fELF"]]
)
def test_machine_code_is_packed(cubins: list[bytes]) -> None:
    assert unpacked(packed(cubins)) == cubins
    assert packed(cubins[:1]) == cubins[0]
