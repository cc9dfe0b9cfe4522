"""Which lowerings the op cases reach: the nodes that MAX shall run, after AOTAutograd and the graph passes.

A case is traced for that, and not lowered. All of it takes minutes, so the result is a record, which tests check in
part (``tests/aten_functions/test_every_op_has_a_case.py``); ``python -m tests.reached --write`` brings it up to date.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import fx

from tests.support.case_tables import case_tables
from tests.support.cases import Case
from tests.support.harness import compiled
from torch_max_backend.aten_functions.registry import aten_functions
from torch_max_backend.frontend import pipeline
from torch_max_backend.partition.classify import Runner, classify

RECORD = Path(__file__).resolve().parents[1] / "aten_functions" / "reached.txt"
TORCH = torch.__version__.partition("+")[0]

Reached = Mapping[str, tuple[str, ...]]
"""The overloads that a case reaches, by its id: the table, a dash, the name."""


class _Traced(Exception):
    """Ends a compile at the partition."""


def reached(case: Case) -> tuple[str, ...]:
    """The registered overloads among the nodes that MAX shall run."""
    found: set[str] = set()

    def look(graph: fx.Graph, *_: Any) -> None:
        nodes = [n for n in graph.nodes if n.op == "call_function" and n.target in aten_functions]
        found.update(str(n.target) for n in nodes if classify(n, {}, ()).runner is Runner.MAX)
        raise _Traced

    with mock.patch.object(pipeline, "partition", look), torch.no_grad():
        try:
            compiled(case)(*case.make())
        except Exception as error:
            if _Traced.__name__ not in f"{type(error)} {error}":
                raise
    return tuple(sorted(found))


def all_cases() -> dict[str, Case]:
    """Every op case by its id."""
    return {f"{table}-{case.name}": case for table, cases in case_tables().items() for case in cases}


def registered() -> set[str]:
    """The overloads that have a lowering of this package."""
    return {str(low.overload) for low in aten_functions if low.is_own}


def read(file: Path = RECORD) -> tuple[str, dict[str, tuple[str, ...]]]:
    """The version of torch that a record was made with, and the record."""
    first, *lines = file.read_text().splitlines()
    rows = [line.split() for line in lines]
    return first.rpartition(" ")[2], {case: tuple(overloads) for case, *overloads in rows}


def write(record: Reached, file: Path = RECORD) -> None:
    """Write a record, a line for each case."""
    lines = [" ".join([case, *overloads]) for case, overloads in sorted(record.items())]
    file.write_text("\n".join([f"# The lowerings that each op case reaches, with torch {TORCH}", *lines]) + "\n")


def cover(record: Reached) -> list[str]:
    """A few cases that together reach every overload that any case reaches."""
    left = {overload for overloads in record.values() for overload in overloads}
    chosen = []
    while left:
        best = max(sorted(record), key=lambda case: len(left.intersection(record[case])))
        chosen.append(best)
        left.difference_update(record[best])
    return chosen


def without_a_case(overloads: Iterable[str], record: Reached) -> list[str]:
    """Those of the overloads that no case reaches."""
    return sorted(set(overloads).difference(*record.values()))
