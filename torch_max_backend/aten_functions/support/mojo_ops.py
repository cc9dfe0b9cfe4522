"""Calling the kernels of ``mojo_kernels`` from a MAX graph under construction."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import max as max_package
import platformdirs
from max.dtype import DType
from max.graph import DeviceRef, Dim, Graph, TensorType, TensorValue, Value, ops

from torch_max_backend.aten_functions.support.tensor_ops import Shape, device_of
from torch_max_backend.base.digests import digest, kernels_digest, kernels_path, package_version
from torch_max_backend.base.waiting import waiting


@functools.cache
def kernel_library() -> Path:
    """The precompiled Mojo package, made on first use and kept in the user's cache folder.

    Given the source folder, MAX would precompile it again for every graph, which costs more than many graphs do. The
    source folder is the answer where the package cannot be precompiled or saved.
    """
    source = kernels_path()
    name = digest(package_version("mojo-compiler") + kernels_digest())[:32]
    cache = Path(platformdirs.user_cache_dir("torch-max-backend", appauthor=False))
    target = cache / "v1" / "kernels" / name / "mojo_kernels.mojoc"
    if target.exists():
        return target
    mojo = Path(max_package.__path__[0]).parent / "modular" / "bin" / "mojo"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            with waiting("Mojo precompiles the kernels of this package, once"):
                subprocess.run([mojo, "precompile", source, "-o", made], check=True, capture_output=True)
            os.replace(made, target)
    except (OSError, subprocess.CalledProcessError):
        return source
    return target


def mojo_op(
    name: str,
    values: Sequence[TensorValue],
    out: Sequence[tuple[DType, Shape]],
    parameters: dict[str, Any] | None = None,
    device: DeviceRef | None = None,
) -> list[TensorValue]:
    """Call a kernel of ``mojo_kernels``; the package is added to the graph on first use.

    Args:
        name: The name given to ``@extensibility.register``.
        values: Operands, in the kernel's order.
        out: dtype and shape of each output.
        parameters: Compile-time parameters of the kernel's struct.
        device: Where it runs; by default where the operands are.
    """
    where = device or device_of(*values)
    _import_kernels()
    types = [TensorType(dtype, [Dim(d) for d in shape], where) for dtype, shape in out]
    return [v.tensor for v in ops.custom(name, where, list(values), types, parameters)]


def _import_kernels() -> None:
    graph, path = Graph.current, kernel_library()
    if path not in graph.kernel_libraries_paths:
        graph._import_kernels([path])


def mojo_op_in_place(
    name: str,
    values: Sequence[Value[Any]],
    parameters: dict[str, Any] | None = None,
    device: DeviceRef | None = None,
) -> None:
    """Call a kernel of ``mojo_kernels`` that writes to buffers among ``values`` and gives nothing.

    Args:
        device: Where it runs; by default where the tensors among ``values`` are.
    """
    _import_kernels()
    where = device or device_of(*(v for v in values if isinstance(v, TensorValue)))
    ops.inplace_custom(name, where, list(values), [], parameters)
