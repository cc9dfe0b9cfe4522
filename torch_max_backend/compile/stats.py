"""What compiling one FX graph did."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class CompileStats:
    """What compiling one FX graph did.

    Regions, how many of them are programs, how many the store had, seconds in lowering and in the compilers. ``keys``
    are the regions' keys in the store, in their order.
    """

    regions: int = 0
    programs: int = 0
    hits: int = 0
    lower_s: float = 0.0
    compile_s: float = 0.0
    keys: list[str] = field(default_factory=list)
