"""What a machine reaches: copies, products, launches, and a small compile; measured once and kept in the cache folder.

They are what other figures are judged by: a kernel that moves its bytes as fast as a copy cannot get faster.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_max_backend.base.digests import key_of
from torch_max_backend.base.errors import EvidenceError
from torch_max_backend.compile.cache.store import default_folder
from torch_max_backend.measurement.caches import last_level_cache
from torch_max_backend.measurement.clocks import clock_for, on_device
from torch_max_backend.measurement.machine import identity, versions
from torch_max_backend.measurement.turns import interleave
from torch_max_backend.options import resolve

PRODUCT_DTYPES = (torch.float32, torch.bfloat16)
ROUNDS = 9


@dataclass(frozen=True)
class Sizes:
    """What is measured: bytes that are copied, the side of the square matrices, and seconds of a sample."""

    copied: int
    side: int
    sample_s: float = 0.02

    @classmethod
    def of(cls, device: str) -> Sizes:
        """Tensors that no cache holds, and products that are long enough to be at full speed."""
        if device.startswith("cuda"):
            return cls(2**30, 8192)
        return cls(max(2**27, last_level_cache(device)), 1024)


@dataclass(frozen=True)
class Roofs:
    """What a device reaches.

    Attributes:
        copy_bytes_per_s: What a copy of a large tensor reads and writes in a second.
        product_flops: Floating-point operations a second of a large square product, by dtype.
        launch_s: Seconds a call of torch's smallest op, on one element.
        call_s: Seconds a call of a compiled function with one kernel of one element, guards included.
        compile_s: Seconds until a new function of one small kernel has given its first result, nothing cached.
    """

    device: str
    machine: dict[str, str]
    versions: dict[str, str]
    date: str
    copy_bytes_per_s: float
    product_flops: dict[str, float]
    launch_s: float
    call_s: float
    compile_s: float

    def rows(self) -> list[tuple[str, str]]:
        """Names and values for people."""
        products = [(f"product of {name}", f"{flops / 1e12:.3g} TFLOP/s") for name, flops in self.product_flops.items()]
        return [
            ("device", f"{self.device}: {self.machine['device']}, {self.machine['threads']} threads of torch"),
            ("copy", f"{self.copy_bytes_per_s / 1e9:.3g} GB/s, read and written"),
            *products,
            ("smallest op of torch", f"{self.launch_s * 1e6:.3g} µs a call"),
            ("smallest compiled function", f"{self.call_s * 1e6:.3g} µs a call"),
            ("compile of one small kernel", f"{self.compile_s:.3g} s"),
            ("measured", self.date),
        ]

    def cited(self) -> str:
        """One sentence for a report."""
        products = ", ".join(f"{name} {flops / 1e12:.3g} TFLOP/s" for name, flops in self.product_flops.items())
        return (
            f"Roofs of {self.device}, measured {self.date}: a copy {self.copy_bytes_per_s / 1e9:.3g} GB/s, products "
            f"{products}, the smallest op {self.launch_s * 1e6:.3g} µs."
        )


def measure(device: str, sizes: Sizes | None = None) -> Roofs:
    """Measure a device's roofs; this forgets what was compiled in this process, and takes some seconds.

    Raises:
        EvidenceError: torch does not see the device.
    """
    check_device(device)
    with on_device(device):
        return _measured(device, sizes or Sizes.of(device))


def _measured(device: str, sizes: Sizes) -> Roofs:
    compile_s, call = _compiled(device)
    one = torch.zeros(1, device=device)
    return Roofs(
        device=device,
        machine=identity(device),
        versions=versions(),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        copy_bytes_per_s=copy_bandwidth(device, sizes.copied),
        product_flops={str(d).removeprefix("torch."): _product_flops(device, d, sizes) for d in PRODUCT_DTYPES},
        launch_s=_seconds(lambda: one.add_(1), device, sizes.sample_s),
        call_s=_seconds(call, device, sizes.sample_s),
        compile_s=compile_s,
    )


def check_device(device: str) -> None:
    """Refuse a device that torch does not see.

    Raises:
        EvidenceError: Names it.
    """
    kind, _, index = device.partition(":")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()) or int(index or 0) >= count:
        here = ", ".join(["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))])
        raise EvidenceError(f"--device must be one of {here}, got {device!r}")


def copy_bandwidth(device: str, size: int | None = None) -> float:
    """Bytes a second of a copy of one large buffer to another, counting what is read and what is written.

    Args:
        size: Bytes of the buffer, by default more than the last-level cache holds.
    """
    size = size or Sizes.of(device).copied
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _seconds(lambda: target.copy_(source), device)


def _product_flops(device: str, dtype: torch.dtype, sizes: Sizes) -> float:
    a, b = (torch.randn(sizes.side, sizes.side, device=device).to(dtype) for _ in range(2))
    return 2 * sizes.side**3 / _seconds(lambda: a @ b, device, sizes.sample_s)


def _compiled(device: str) -> tuple[float, Callable[[], Any]]:
    """Seconds of a compile once the compiler itself is loaded, and a call of what it gave."""
    x = torch.ones(1, device=device)
    options = {"cache": False, "executor": "auto"}
    with torch.no_grad(), torch._functorch.config.patch(enable_autograd_cache=False):
        torch.compile(lambda x: x.exp() + 1, backend="max_backend", options=options)(x)
        compiled = torch.compile(lambda x: x.sin() * 2, backend="max_backend", options=options)
        begin = time.perf_counter()
        float(compiled(x))  # waits for the device
        return time.perf_counter() - begin, lambda: compiled(x)


@torch.no_grad()
def _seconds(call: Callable[[], Any], device: str, sample_s: float = 0.02) -> float:
    """The median of some samples: of what the device takes where that is told, else of the clock."""
    times, errors = interleave({"it": lambda number: call()}, clock_for(device, sample_s), ROUNDS)
    if errors:
        raise EvidenceError(f"{device}: {errors['it']}")
    return statistics.median(times["it"].device or times["it"].wall)


# -- what is kept --------------------------------------------------------------------------------------------------
def _file(device: str) -> Path:
    folder = Path(resolve().cache_dir) if resolve().cache_dir else default_folder()
    return folder / "roofs" / f"{key_of({'device': device, **identity(device)})[:16]}.json"


def keep(roofs: Roofs) -> Path:
    """Write roofs into the cache folder, in place of older ones of this machine; a reader never sees half of them."""
    file = _file(roofs.device)
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    temporary.write_text(json.dumps(dataclasses.asdict(roofs), indent=1) + "\n", encoding="utf-8")
    temporary.replace(file)
    return file


def kept(device: str) -> Roofs | None:
    """The roofs of this machine that ``env --measure`` has kept; None if there are none, or they cannot be read."""
    try:
        return Roofs(**json.loads(_file(device).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


@functools.cache
def copy_speed(device: str = "cpu") -> tuple[float, str]:
    """Bytes a second of a copy, and where the figure is from: the kept roofs, else a measurement, once a process."""
    roofs = kept(device)
    if roofs is not None:
        return roofs.copy_bytes_per_s, f"kept roofs of {roofs.date}"
    return copy_bandwidth(device), "measured now"
