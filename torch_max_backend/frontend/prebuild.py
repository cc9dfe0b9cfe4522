"""Running a user's function to learn which regions it compiles: for a machine that is not here, or to explain misses.

For another machine the function runs on fake tensors, which have devices, shapes and dtypes but no values. So it may
build and compile a model of any size, on a GPU that is not attached, and cannot look at a number.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config

from torch_max_backend.base.errors import MaxBackendError
from torch_max_backend.base.target import Machine
from torch_max_backend.capture.fake_modules import conversion_of_fake_modules
from torch_max_backend.compile.compiler import Batch, compile_batch, put_off
from torch_max_backend.compile.job import Job
from torch_max_backend.compile.program_libraries import LibraryJob
from torch_max_backend.options import Options


@dataclass(frozen=True)
class Prebuilt:
    """What a function's regions came to: jobs in order, without repeats, by whether they were compiled.

    ``launchers`` are what programs on a GPU need beside their kernels.
    """

    compiled: list[Job | LibraryJob]
    present: list[Job | LibraryJob]
    failed: list[Job | LibraryJob]
    launchers: list[LibraryJob]

    @property
    def keys(self) -> set[str]:
        """The keys that the store has now."""
        return {job.key for job in [*self.compiled, *self.present, *self.launchers]}


def prebuild(function: Callable[..., Any], machine: Machine, options: Options) -> Prebuilt:
    """Compile for ``machine`` what ``function`` compiles with this backend; see :func:`regions_of`."""
    with machine.pretended():
        batch = regions_of(function, machine.device)
        failed = compile_batch(batch, options)
    keys = {job.key for job in failed}
    found = {job.key: (job, there) for job, there in batch.looked_up if job.key not in keys}
    compiled, present = ([job for job, there in found.values() if there is known] for known in (False, True))
    launchers = [job for key, job in batch.launchers.items() if key not in keys]
    return Prebuilt(compiled, present, failed, launchers)


def regions_of(function: Callable[..., Any], device: str) -> Batch:
    """Call ``function`` with compiles put off.

    Args:
        function: Calls what it wants compiled; gets ``device`` if it takes an argument.
    """
    torch._dynamo.reset()
    arguments = (device,) if inspect.signature(function).parameters else ()
    always_traced = torch._functorch.config.patch(enable_autograd_cache=False)
    with put_off() as batch, conversion_of_fake_modules(), always_traced:
        function(*arguments)
    torch._dynamo.reset()
    return batch


def load_function(text: str) -> Callable[..., Any]:
    """The function that ``path/to/file.py:name`` or ``package.module:name`` means.

    Raises:
        MaxBackendError: There is no such file, module or function.
    """
    place, _, name = text.rpartition(":")
    if not place or not name.isidentifier():
        raise MaxBackendError(f"{text!r} names no function: expected path/to/file.py:function or module:function")
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise MaxBackendError(f"there is no file {place}")
        sys.path.insert(0, str(path.resolve().parent))  # as Python does for a script
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, "")
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise MaxBackendError(f"there is no module {place}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise MaxBackendError(f"{place} has no function {name}")
    return function
