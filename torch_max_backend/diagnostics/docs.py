"""Generated parts of the documentation: ``python -m torch_max_backend.diagnostics.docs --check`` or ``--write``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import typer

from torch_max_backend.diagnostics.supported_ops import page
from torch_max_backend.options import ENVIRONMENT_ONLY, PREFIX, table


def options_markdown() -> str:
    """Every option as a Markdown table, and the variables without an option as a second one."""
    lines = ["| option | variable | type | default | meaning |", "|---|---|---|---|---|"]
    for name, variable, kind, default, meaning in table():
        lines.append(f"| `{name}` | `{variable}` | {_cell(kind)} | `{default}` | {_cell(meaning)} |")
    lines += ["", "Variables without an option:", "", "| variable | meaning |", "|---|---|"]
    lines += [f"| `{PREFIX}{name}` | {_cell(meaning)} |" for name, meaning in ENVIRONMENT_ONLY.items()]
    return "\n".join(lines)


def with_options(text: str) -> str:
    """``text`` with a fresh table between its markers.

    Raises:
        ValueError: The text does not have exactly one pair of markers.
    """
    return replaced(text, "options", options_markdown())


def replaced(text: str, name: str, part: str) -> str:
    """``text`` with ``part`` between the markers of a name.

    Raises:
        ValueError: The text does not have exactly one pair of markers.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"expected one {begin} and after it one {end}")
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    return f"{head}{begin}\n{part}\n{end}{tail}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(
    write: bool = typer.Option(False, "--write", help="Bring the files up to date."),
    check: bool = typer.Option(False, "--check", help="Fail if a file is out of date."),
) -> None:
    """Write the generated parts of the documentation, or check that they are up to date."""
    readme, ops = Path("README.md"), Path("docs/supported-ops.md")
    bring_up_to_date([(readme, with_options(readme.read_text(encoding="utf-8"))), (ops, page())], write, check)


def bring_up_to_date(files: Iterable[tuple[Path, str]], write: bool, check: bool) -> None:
    """Write files as they should be, or fail if one is not so.

    Raises:
        typer.BadParameter: Neither or both are asked for.
        typer.Exit: A file is out of date.
    """
    if write == check:
        raise typer.BadParameter("give one of --write and --check")
    stale = False
    for file, wanted in files:
        if write:
            file.write_text(wanted, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != wanted:
            print(f"{file} is out of date; bring it up to date with --write", file=sys.stderr)
            stale = True
    if stale:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
