"""What is compiled for: this machine, or one that is described because it is not at hand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch_max_backend.base.errors import EnvironmentUnsupportedError


@dataclass(frozen=True)
class Target:
    """What a worker compiles for: the CPU, and GPUs by API, architecture and count.

    ``cpu`` is LLVM's name of the processor; empty means the one that compiles.
    """

    api: str = ""
    arch: str = ""
    count: int = 0
    cpu: str = ""

    def spec(self) -> dict[str, object]:
        """The form that travels to a worker."""
        return {"api": self.api, "arch": self.arch, "count": self.count, "cpu": self.cpu}


@dataclass(frozen=True)
class Machine:
    """A machine to compile for that need not be this one.

    ``host`` is the name of its processor in cache keys, ``cpu`` LLVM's name of one whose code it can run; empty means
    this machine's processor.
    """

    api: str = ""
    arch: str = ""
    count: int = 1
    host: str = ""
    cpu: str = ""

    @classmethod
    def parse(cls, text: str, count: int = 1, host: str = "", cpu: str = "") -> Machine:
        """A machine from ``cpu``, ``cuda:sm_90a`` or ``hip:gfx942``.

        Raises:
            EnvironmentUnsupportedError: The text is none of these.
        """
        api, _, arch = text.partition(":")
        known = {"cpu": r"", "cuda": r"sm_\d+[a-z]?", "hip": r"gfx[0-9a-f]+"}
        if api not in known or not re.fullmatch(known[api], arch):
            raise EnvironmentUnsupportedError(
                f"cannot compile for {text!r}: expected cpu, or a GPU by its architecture, such as cuda:sm_90a"
            )
        return cls("" if api == "cpu" else api, arch, count, host, cpu)

    @property
    def device(self) -> str:
        """The torch device type that its programs use."""
        return "cuda" if self.api else "cpu"

    def target(self, gpu: bool, host: str) -> tuple[Target, str]:
        """What to compile for, and its name in cache keys.

        Args:
            gpu: Whether the region is on a GPU.
            host: The name of this machine's processor.
        """
        host = self.host or host
        if not gpu:
            return Target(cpu=self.cpu), host
        return Target(self.api, self.arch, self.count, self.cpu), f"{host}+{self.api}:{self.arch}"

    @contextmanager
    def pretended(self) -> Iterator[Any]:
        """Compile for this machine inside the block, where every tensor is fake; nothing compiled can be run there.

        Gives the mode that makes tensors fake.
        """
        global _elsewhere
        before, _elsewhere = _elsewhere, self
        try:
            with _convolutions_as_on_gpus(), _numbers_untracked(), on_fake_tensors() as mode:
                yield mode
        finally:
            _elsewhere = before


@contextmanager
def _convolutions_as_on_gpus() -> Iterator[None]:
    """Lay fake convolutions on a GPU out as cuDNN does: without a GPU torch takes its own, which gives other strides.

    Channels are last where either operand's are, but in float64.
    """
    import torch
    from torch._prims_common import suggest_memory_format

    def format_of(x: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
        if not x.is_cuda:
            return here(x, weight, backend)
        formats = {suggest_memory_format(x), suggest_memory_format(weight)} - {torch.contiguous_format}
        return formats.pop() if formats and x.dtype != torch.float64 else torch.contiguous_format

    here = torch._C._conv_determine_backend_memory_format
    if not torch.cuda.is_available():
        torch._C._conv_determine_backend_memory_format = format_of
    try:
        yield
    finally:
        torch._C._conv_determine_backend_memory_format = here


@contextmanager
def _numbers_untracked() -> Iterator[None]:
    """Have traces keep no values of tensors: torch moves such a value to the GPU that its tensor goes to."""
    import torch
    from torch.fx.experimental import proxy_tensor

    tracked = proxy_tensor.CONSTANT_NUMEL_LIMIT
    proxy_tensor.CONSTANT_NUMEL_LIMIT = tracked if torch.cuda.is_available() else 0
    try:
        yield
    finally:
        proxy_tensor.CONSTANT_NUMEL_LIMIT = tracked


_elsewhere: Machine | None = None
_fake_mode: Any = None


def elsewhere() -> Machine | None:
    """The machine that is compiled for, if it is not this one."""
    return _elsewhere


@contextmanager
def on_fake_tensors() -> Iterator[Any]:
    """Have every tensor that is made inside the block be fake; gives the mode that makes them so."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    global _fake_mode
    before, _fake_mode = _fake_mode, FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with _fake_mode:
            yield _fake_mode
    finally:
        _fake_mode = before


def is_faked() -> bool:
    """Whether tensors are fake, so that nothing compiled can be run."""
    return _fake_mode is not None


def fake_like(value: Any, device: Any) -> Any:
    """A fake tensor with the shape, strides and dtype of ``value``, where :func:`is_faked`."""
    import torch

    with _fake_mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


def architecture(gpu: int) -> str:
    """What compilers call a GPU here, or that of the machine that is compiled for: ``sm_90a``."""
    machine = elsewhere()
    if machine is not None:
        return machine.arch
    import torch

    major, minor = torch.cuda.get_device_capability(gpu)
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"
