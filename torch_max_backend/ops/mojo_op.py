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

A call is made by each thread: of PyTorch's team on a CPU, or by one where there is little to do; on an NVIDIA GPU by as
many threads as the largest tensor has eighths, in blocks of 256. ``share_begin`` and ``share_end`` give a thread its
part, so that on a GPU neighbours have neighbouring parts of a few elements. ``from kernel import *`` brings all these
names. A file that imports from ``std`` may use Mojo's standard library beside them; it takes seconds to compile, and is
for CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_max_backend.ops.declaration import Tolerance
from torch_max_backend.ops.define import public_op
from torch_max_backend.ops.mojo_file import MojoFile
from torch_max_backend.ops.mojo_kernel import MojoKernel

_made: dict[str, Callable[..., Any]] = {}
"""The op of each file, by its text."""


def mojo_op(path: str | Path) -> Callable[..., Any]:
    """Make an op of a Mojo file, for CPUs and NVIDIA GPUs; the module says what the file must have.

    The op works where the ops of ``torch_max_backend.ops`` do: in eager, in ``torch.compile`` with any backend, without
    a graph break, and under ``torch.vmap``. It has no gradient of its own: ``torch.library.register_autograd`` gives
    it one, under the name ``torch_max_backend::<op>``. The file is compiled for a CPU and its first dtype at once, and
    for others and for a GPU when they are first used; the store keeps what is compiled. The same text gives the same op
    again.

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
    kernel = MojoKernel(file)
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
