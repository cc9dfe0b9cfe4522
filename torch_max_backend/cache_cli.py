"""``torch-max-backend cache``: what is in the store of compiled regions, why a region was compiled, and bundles."""

from __future__ import annotations

import time
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(no_args_is_help=True, help="Look into the store of compiled regions, carry it elsewhere, empty it.")


def _store():  # type: ignore[no-untyped-def]
    """The store that the environment's options choose. Imported late: the engine takes a second to load."""
    from torch_max_backend.compiler.compile import store_for
    from torch_max_backend.options import resolve

    return store_for(resolve())


@app.command()
def info() -> None:
    """Show where the store is, what is in it and its limit."""
    store = _store()
    entries, size = store.usage()
    limit = f"{store.limit / 1e6:.0f} MB" if store.limit else "none"
    result = Table(show_header=False)
    rows = [
        ("folder", str(store.folder)),
        ("regions", str(entries)),
        ("artifacts", str(len(store.blobs()))),
        ("size", f"{size / 1e6:.1f} MB"),
        ("limit", limit),
    ]
    for row in rows:
        result.add_row(*row)
    Console().print(result)


@app.command("list")
def list_entries() -> None:
    """List the compiled regions, those used last first."""
    store = _store()
    blobs = store.blobs()
    result = Table("key", "artifact, MB", "last used", "target", "max")
    records = [r for r in store.records() if r.sha in blobs]
    for record in sorted(records, key=lambda r: -blobs[r.sha].st_mtime):
        stat = blobs[record.sha]
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(stat.st_mtime))
        parts = record.parts
        result.add_row(record.key[:12], f"{stat.st_size / 1e6:.2f}", used, parts.get("target"), parts.get("max"))
    Console().print(result)


@app.command()
def explain(
    key: str = typer.Argument("", help="The start of a key; by default all."),
    last: int = typer.Option(20, min=1, help="How many lookups to show."),
) -> None:
    """Say of the latest lookups whether they hit, and if not, in what the nearest entry differed."""
    found = [line for line in _store().lookups() if str(line.get("key", "")).startswith(key)]
    result = Table("when", "process", "key", "answer")
    for line in found[-last:]:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.get("time", 0)))
        result.add_row(when, str(line.get("pid")), str(line.get("key"))[:12], str(line.get("answer")))
    Console().print(result if found else "no lookups are noted")


@app.command()
def clear() -> None:
    """Delete all compiled regions."""
    typer.echo(f"deleted {_store().clear()} entries")


@app.command("export")
def export_file(file: Path = typer.Argument(help="The bundle to write.")) -> None:
    """Write all compiled regions to one file, for another machine of the same architecture."""
    from torch_max_backend.compiler.bundle import export_bundle

    typer.echo(f"wrote {export_bundle(_store(), file)} entries to {file}")


@app.command("import")
def import_file(file: Path = typer.Argument(exists=True, dir_okay=False, help="The bundle to read.")) -> None:
    """Add the compiled regions of a bundle. They are programs: import only what you trust."""
    from torch_max_backend.compiler.bundle import import_bundle
    from torch_max_backend.compiler.key import cpu_target
    from torch_max_backend.errors import BundleError

    try:
        taken = import_bundle(_store(), file)
    except BundleError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    typer.echo(f"read {taken.entries} entries")
    if not any(target.startswith(cpu_target()) for target in taken.targets):
        typer.echo(
            f"none of them is for this machine ({cpu_target()}): they are for {', '.join(sorted(taken.targets))}"
        )
