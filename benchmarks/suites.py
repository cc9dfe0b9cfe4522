"""Reads ``suites.yaml``: every suite, and its cases written out one by one."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("suites.yaml")
MEASURES = ("device", "wall")


class SuiteError(Exception):
    """``suites.yaml`` or what was asked of it is wrong; the message says where."""


@dataclass(frozen=True)
class Case:
    """One thing to measure: an op or a model with its parameters. Small and plain, so that it can travel as JSON."""

    suite: str
    name: str
    kind: str
    what: str
    device: str
    dtype: str
    parameters: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The case for another process."""
        return asdict(self)


@dataclass(frozen=True)
class Suite:
    """A table of cases that are measured and judged alike.

    ``judged_by`` is the time that counts: ``device`` (what the GPU takes when it never waits for the host) or ``wall``
    (what a loop of calls takes). A case's speed-up is the best of ``against`` over the best of this backend;
    ``required`` is what every case should reach, ``geomean`` the geometric mean of all. With ``fresh_process`` each
    case has a process of its own, so that its peak memory is its own.
    """

    name: str
    about: str
    kind: str
    device: str
    dtype: str
    contenders: tuple[str, ...]
    against: tuple[str, ...]
    judged_by: str = "wall"
    required: float | None = None
    geomean: float | None = None
    rounds: int = 15
    sample_ms: float = 5.0
    fresh_process: bool = False
    cases: tuple[Case, ...] = field(default=(), repr=False)

    def facts(self) -> dict[str, Any]:
        """What a record keeps of the suite: everything but its cases."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "cases"}


def load(file: Path = FILE) -> dict[str, Suite]:
    """All suites by name.

    Raises:
        SuiteError: A key that no suite has, one that is missing, or two cases of one name.
    """
    return {name: _suite(name, body) for name, body in yaml.safe_load(file.read_text(encoding="utf-8")).items()}


def _suite(name: str, body: dict[str, Any]) -> Suite:
    body = dict(body)
    entries = body.pop("cases", [])
    known = [f.name for f in fields(Suite) if f.name not in ("name", "cases")]
    if unknown := set(body) - set(known):
        raise SuiteError(f"suite {name}: no key is called {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    body |= {key: tuple(body[key]) for key in ("contenders", "against") if key in body}
    try:
        suite = Suite(name=name, **body)
    except TypeError as error:
        raise SuiteError(f"suite {name}: {error}") from error
    if suite.judged_by not in MEASURES:
        raise SuiteError(f"suite {name}: judged_by is {suite.judged_by!r}, use one of {', '.join(MEASURES)}")
    cases = tuple(
        Case(name, title, suite.kind, what, suite.device, suite.dtype, parameters)
        for entry in entries
        for title, what, parameters in expand(entry)
    )
    names = [case.name for case in cases]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise SuiteError(f"suite {name}: two cases are called {', '.join(twice)}")
    return Suite(name=name, **body, cases=cases)


def expand(entry: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The cases of one entry as (name, what, parameters).

    A list is an axis: the entry stands for every combination. A value that is a table joins its keys to the parameters;
    its ``name`` stands for it in the case's name.
    """
    axes = {key: value if isinstance(value, list) else [value] for key, value in entry.items()}
    for chosen in itertools.product(*axes.values()):
        parameters: dict[str, Any] = {}
        words = []
        for key, value in zip(axes, chosen, strict=True):
            if isinstance(value, dict):
                parameters |= {k: v for k, v in value.items() if k != "name"}
                words.append(str(value.get("name") or ",".join(f"{k}={v}" for k, v in value.items())))
            else:
                parameters[key] = value
                if key != "what" and len(axes[key]) > 1:
                    words.append(f"{key}={value}")
        what = parameters.pop("what", None)
        if what is None:
            raise SuiteError(f"an entry says no `what`: {entry}")
        yield (f"{what}[{','.join(words)}]" if words else str(what)), str(what), parameters


def choose(suites: dict[str, Suite], names: Sequence[str], only: Sequence[str]) -> list[tuple[Suite, list[Case]]]:
    """The named suites with their cases; ``only`` keeps the cases that match one of its patterns.

    A pattern is a name, or else a shell pattern or a part of a name. A bracket in it stands for itself.

    Raises:
        SuiteError: No suite of that name, or no case left.
    """
    if unknown := [name for name in names if name not in suites]:
        raise SuiteError(f"no suite is called {', '.join(unknown)}; there are {', '.join(suites)}")
    chosen = []
    whole = {case.name for name in names for case in suites[name].cases}
    for name in names:
        cases = [c for c in suites[name].cases if not only or any(_matches(c.name, p, p in whole) for p in only)]
        if cases:
            chosen.append((suites[name], cases))
    if not chosen:
        raise SuiteError(f"no case matches {', '.join(only)}")
    return chosen


def _matches(name: str, pattern: str, is_whole: bool) -> bool:
    if is_whole:
        return name == pattern
    return pattern in name or fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))
