"""Where the time of compiled functions goes, kernel by kernel, from a profile that ``torch.profiler`` took."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from torch_max_backend.measurement.roofs import copy_speed
from torch_max_backend.runtime.profiler_ranges import MODULE, PREFIX, UNITS, parsed


@dataclass(frozen=True)
class Row:
    """What ran under one name. ``kind`` is kernel, library, torch, region (a MAX graph) or between.

    ``bytes_moved`` is what one launch reads and writes, where it is known.
    """

    kind: str
    name: str
    launches: int
    seconds: float
    bytes_moved: int | None = None

    @property
    def bytes_per_second(self) -> float | None:
        """How fast it moves its bytes."""
        return None if self.bytes_moved is None else self.bytes_moved * self.launches / max(self.seconds, 1e-12)


@dataclass(frozen=True)
class KernelTimes:
    """Rows of a profile, the longest first. ``str()`` is a table.

    ``copy_bytes_per_second`` is what a copy of a large tensor reads and writes in a second on this machine, and
    ``copy_source`` where that figure is from.
    """

    rows: tuple[Row, ...]
    copy_bytes_per_second: float
    copy_source: str = "measured now"

    @property
    def seconds(self) -> float:
        """What all rows took."""
        return sum(row.seconds for row in self.rows)

    def share_of_copy(self, row: Row) -> float | None:
        """A row's speed over a copy's: 1 is as fast as memory; above it, tensors were in a cache."""
        speed = row.bytes_per_second
        return None if speed is None else speed / self.copy_bytes_per_second

    def table(self) -> Table:
        """The rows for a terminal."""
        copy = f"a copy moves {self.copy_bytes_per_second / 1e9:.3g} GB/s ({self.copy_source})"
        title = f"{self.seconds * 1e3:.1f} ms; {copy}"
        table = Table(title=title, title_justify="left")
        table.add_column("what", overflow="fold")
        for head in ("launches", "µs a launch", "time", "bytes", "GB/s", "of a copy"):
            table.add_column(head, justify="right")
        for row in self.rows:
            speed, share = row.bytes_per_second, self.share_of_copy(row)
            table.add_row(
                f"{row.name} (MAX graph)" if row.kind == "region" else row.name,
                str(row.launches),
                f"{row.seconds / row.launches * 1e6:.1f}",
                f"{row.seconds / self.seconds:.1%}",
                "" if row.bytes_moved is None else _size(row.bytes_moved),
                "" if speed is None else f"{speed / 1e9:.1f}",
                "" if share is None else f"{share:.0%}",
            )
        return table

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=120, force_jupyter=False)
        console.print(self.table())
        return console.file.getvalue().rstrip()  # type: ignore[attr-defined]


def kernel_times(profile: Any) -> KernelTimes:
    """What a profile has of functions that were compiled with the option ``profile``.

    Times are the host's: on a GPU they are those of launches.

    Args:
        profile: A ``torch.profiler.profile`` that has ended.

    Raises:
        ValueError: Nothing that the profile saw was compiled with ``profile=True``.
    """
    rows, whole, inside = [], 0.0, 0.0
    calls = 0
    for event in profile.key_averages():
        if not event.key.startswith(PREFIX):
            continue
        name, moved = parsed(event.key)
        kind, seconds = _kind(name), event.cpu_time_total / 1e6
        if kind == MODULE:  # around a kernel that has a row of its own
            continue
        if kind == "program":
            whole, calls = whole + seconds, calls + event.count
            continue
        inside += seconds if kind in ("kernel", "library") else 0.0
        rows.append(Row(kind, name, event.count, seconds, moved))
    if calls:
        rows.append(Row("between", "between kernels: memory, arguments", calls, max(0.0, whole - inside)))
    if not rows:
        raise ValueError('no kernel is in the profile: compile with options={"profile": True}')
    rows.sort(key=lambda row: -row.seconds)
    return KernelTimes(tuple(rows), *copy_speed())


def _kind(name: str) -> str:
    first = name.split()[0].rstrip("0123456789")
    return first if first in ("kernel", "program", "region", "torch", MODULE) else "library"


def _size(count: int) -> str:
    unit = max((u for u, size in UNITS.items() if count >= size), key=UNITS.__getitem__, default="B")
    return f"{count / UNITS[unit]:.3g} {unit}"
