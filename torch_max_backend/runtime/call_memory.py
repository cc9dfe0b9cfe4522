"""What a call path allocates, as formulas of its symbolic sizes: known before the call, and without a trace."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CallMemory:
    """What a call allocates beside its arguments and the constants of its graph, by device ("cpu", "cuda:0").

    ``sizes`` are the call path's names of what the formulas depend on, in the order in which it gives their values.
    ``peaks`` are totals of which the greatest is the most that is allocated at once, ``results`` what is left when the
    call is over, ``constants`` the bytes of the graph's own tensors.
    """

    sizes: tuple[str, ...] = ()
    peaks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    results: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, int] = field(default_factory=dict)

    def at(self, sizes: Sequence[int]) -> dict[str, tuple[int, int]]:
        """The peak and the results in bytes, by device, of a call with these sizes."""
        found = _formulas(self.sizes, tuple(self.peaks.items()), tuple(self.results.items()))(*sizes)
        return {device: (max(0, int(peak)), int(results)) for device, (peak, results) in found.items()}


@functools.lru_cache(maxsize=4096)
def _formulas(
    sizes: tuple[str, ...], peaks: tuple[tuple[str, tuple[str, ...]], ...], results: tuple[tuple[str, str], ...]
) -> Callable[..., dict[str, tuple[int, int]]]:
    left = dict(results)
    rows = [f"{device!r}: (max(0, {', '.join(totals)}), {left.get(device, '0')})" for device, totals in peaks]
    names = {"math": __import__("math")}
    return eval(f"lambda {', '.join(sizes)}: {{{', '.join(rows)}}}", names)  # the text is ours: names and numbers
