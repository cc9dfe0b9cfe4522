"""Which stage made a function wrong, where every region is right: the function in torch, after more and more stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._functorch.config

from torch_max_backend.capture import graph_passes


@dataclass
class Stopped:
    """Graphs that torch runs after ``passes`` graph passes, and their text then."""

    passes: int
    graphs: list[str] = field(default_factory=list)


_stopped: Stopped | None = None


@contextmanager
def stopped_after(passes: int) -> Iterator[Stopped]:
    """Compile nothing inside the block: graphs run in torch after so many graph passes."""
    global _stopped
    _stopped = Stopped(passes)
    try:
        with torch._functorch.config.patch(enable_autograd_cache=False):
            yield _stopped
    finally:
        _stopped = None


def where_to_stop() -> Stopped | None:
    """After how many passes graphs run in torch; ``None`` where they are compiled."""
    return _stopped


@dataclass(frozen=True)
class WrongStage:
    """A stage behind which a function is wrong, and the graphs before and behind it, if it is a graph pass."""

    name: str
    before: str = ""
    after: str = ""


def wrong_stage(is_wrong: Callable[[str], bool]) -> WrongStage:
    """The first stage behind which a function is wrong; the last one is what remains if it is behind none.

    Args:
        is_wrong: Whether the function is, compiled by the backend of that name.
    """
    for backend, name in (("eager", "Dynamo"), ("aot_eager", "AOTAutograd")):
        torch._dynamo.reset()
        if is_wrong(backend):
            return WrongStage(f"PyTorch's {name}: backend={backend!r} is wrong as well")
    before = ""
    names = ["the decompositions, or the cut into forward and backward", *(p.__name__ for p in graph_passes.PASSES)]
    for passes, name in enumerate(names):
        torch._dynamo.reset()
        with stopped_after(passes) as stopped:
            found = is_wrong("max_backend")
        after = "\n".join(stopped.graphs)
        if found:
            return WrongStage(f"the graph pass {name}" if passes else name, before, after)
        before = after
    return WrongStage("the call path, which calls the regions and what torch runs between them")


def options_for(backend: str, options: dict[str, Any]) -> dict[str, Any] | None:
    """The options that a backend takes."""
    return options if backend == "max_backend" else None
