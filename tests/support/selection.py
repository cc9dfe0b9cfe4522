"""Which op cases an ordinary test run has, beside the core: those of what a change touches, at most a tenth of all.

All of them compile for over an hour on two cores. So a run takes the cases that reach a lowering whose modules the
change touches, through the import graph; where they are many, or the change is everybody's, it takes some of them,
drawn by the commit, so that a run can be repeated and the next commit has others.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.reach import all_cases, read
from torch_max_backend.aten_functions.registry import aten_functions
from torch_max_backend.base.import_graph import import_closure

ROOT = Path(__file__).resolve().parents[2]
SHARE = 10
"""One of how many cases runs at most, beside the core."""
HARNESS = frozenset(f"tests/support/{name}.py" for name in ("cases", "chunks", "harness"))


@dataclass(frozen=True)
class Change:
    """What differs from the main branch, or on it from the last commit: files, and the commit that it stands on."""

    commit: str
    files: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Selection:
    """Ids of cases, and a line that says which they are."""

    cases: tuple[str, ...]
    told: str


def change_of(root: Path = ROOT) -> Change | None:
    """The change that a checkout holds; nothing where there is no git."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        top, commit = git("rev-parse", "--show-toplevel"), git("rev-parse", "HEAD")
    except OSError:
        return None
    if not commit or Path(top) != root:
        return None
    bases = (git("merge-base", "HEAD", name) for name in ("origin/main", "main"))
    base = next((b for b in bases if b), commit)
    lists = [git("diff", "--name-only", base), git("ls-files", "--others", "--exclude-standard")]
    return Change(commit, frozenset(line for text in lists for line in text.splitlines()))


def drawn(cases: Iterable[str], commit: str, count: int) -> list[str]:
    """``count`` of the cases, others for another commit."""
    return sorted(cases, key=lambda case: hashlib.sha256(f"{commit} {case}".encode()).digest())[:count]


def modules_in(files: Iterable[str]) -> set[str]:
    """The modules of the package among files."""
    names = (f.removesuffix(".py").removesuffix("/__init__") for f in files if f.endswith(".py"))
    return {name.replace("/", ".") for name in names if name.startswith("torch_max_backend/")}


def affected(
    files: Collection[str], reached: Mapping[str, tuple[str, ...]], uses: Mapping[str, Collection[str]]
) -> tuple[set[str], bool]:
    """The cases that a change of files concerns, and whether it is one that concerns all cases in the same way.

    Args:
        files: Paths in the repository.
        reached: The overloads that each case reaches.
        uses: The modules that the lowering of each overload consists of.
    """
    modules = modules_in(files)
    touched = {overload for overload, used in uses.items() if not modules.isdisjoint(used)}
    in_lowerings = {m for used in uses.values() for m in used}
    is_everybodys = (
        any(f in HARNESS or f.startswith("mojo_kernels/") for f in files)
        or bool(modules - in_lowerings)
        or (bool(touched) and len(touched) == len(uses))
    )
    tables = {Path(f).stem.removeprefix("cases_") for f in files if Path(f).name.startswith("cases_")}
    chosen = {case for case, overloads in reached.items() if not touched.isdisjoint(overloads)}
    if len(touched) == len(uses):
        chosen = set()
    return chosen | {case for case in reached if case.partition("-")[0] in tables}, is_everybodys


def select(
    change: Change | None,
    reached: Mapping[str, tuple[str, ...]],
    uses: Mapping[str, Collection[str]],
    share: int = SHARE,
) -> Selection:
    """The cases to run beside the core: at most one of ``share``, and none if that is 0."""
    if change is None:
        return Selection((), "no git checkout: the core")
    most = -(-len(reached) // share) if share else 0
    concerned, is_everybodys = affected(change.files, reached, uses)
    cases = drawn(concerned, change.commit, most)
    told = f"{len(cases)} of {len(concerned)} cases that the change concerns"
    if is_everybodys or not change.files:
        others = drawn(set(reached).difference(cases), change.commit, most - len(cases))
        told += f", {len(others)} of all {len(reached)}"
        cases += others
    return Selection(tuple(sorted(cases)), f"the core, {told}, by commit {change.commit[:10]} (--all-ops: all)")


def share_of(names: Iterable[str], variable: str) -> frozenset[str]:
    """All names, or one of so many as an environment variable says, drawn by the commit."""
    every, share = sorted(names), int(os.environ.get(variable, 1))
    change = change_of() if share > 1 else None
    return frozenset(drawn(every, change.commit if change else "", -(-len(every) // share)))


@functools.cache
def modules_of_lowerings() -> dict[str, frozenset[str]]:
    """The modules that each registered overload's lowering consists of, imports included."""
    closures = {m: import_closure(m) for m in {low.modules for low in aten_functions if low.is_own}}
    return {str(low.overload): closures[low.modules] for low in aten_functions if low.is_own}


@functools.cache
def selection() -> Selection:
    """That of this checkout. A case that the record lacks is a new one, and belongs to a table that changed."""
    reached = dict.fromkeys(all_cases(), ()) | read()[1]
    known = {case: overloads for case, overloads in reached.items() if case in all_cases()}
    return select(change_of(), known, modules_of_lowerings(), int(os.environ.get("OP_CASES_SHARE", SHARE)))
