"""The table of ``docs/arrays.md``: ``python -m torch_max_backend.array.page --check`` or ``--write``."""

from __future__ import annotations

import inspect
from pathlib import Path

import typer

from torch_max_backend import array
from torch_max_backend.array.declaration import declared
from torch_max_backend.diagnostics.docs import bring_up_to_date, replaced

PAGE = Path("docs/arrays.md")


def table() -> str:
    """Every function of the standard by section: how it is called, and when it computes."""
    lines = ["| section | function | computed |", "|---|---|---|"]
    for full, d in sorted(declared.items(), key=lambda item: (item[1].section, item[0])):
        space = getattr(array, d.namespace) if d.namespace else array
        lines.append(f"| {d.section} | `{full}({_arguments(getattr(space, d.name))})` | {d.when} |")
    return "\n".join(lines)


def _arguments(function: object) -> str:
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    shown = []
    has_star = False
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            shown.append(f"*{p.name}")
            has_star = True
            continue
        if p.kind is p.KEYWORD_ONLY and not has_star:
            shown.append("*")
            has_star = True
        shown.append(p.name if p.default is p.empty else f"{p.name}={p.default!r}")
    return ", ".join(shown)


def with_tables(text: str) -> str:
    """The page with a fresh table."""
    return replaced(text, "functions", table())


def main(
    write: bool = typer.Option(False, "--write", help="Bring the page up to date."),
    check: bool = typer.Option(False, "--check", help="Fail if it is out of date."),
) -> None:
    """Write the table of the page, or check that it is up to date."""
    bring_up_to_date([(PAGE, with_tables(PAGE.read_text(encoding="utf-8")))], write, check)


if __name__ == "__main__":
    typer.run(main)
