"""The list of the standard's functions, made by the declarations themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

LAZY, AT_ONCE, INFORMATION = "recorded", "at once, by torch", "nothing to compute"


@dataclass(frozen=True)
class Declared:
    """A function of the standard: the namespace it is in, the part of the standard, and when it computes."""

    name: str
    section: str
    when: str
    namespace: str = ""


declared: dict[str, Declared] = {}


def function(section: str, when: str = LAZY, namespace: str = "") -> Callable[[F], F]:
    """Note the decorated function as one of the standard's.

    Args:
        section: The part of the standard that has it.
        when: ``LAZY``, ``AT_ONCE`` (its result's shape depends on values, or torch's library computes it) or
            ``INFORMATION``.
        namespace: ``"linalg"`` or ``"fft"`` for an extension's.
    """

    def note(f: F) -> F:
        full = f"{namespace}.{f.__name__}" if namespace else f.__name__
        declared[full] = Declared(f.__name__, section, when, namespace)
        return f

    return note
