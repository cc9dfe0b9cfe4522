"""``torch-max-backend cache``: what is in the store of compiled regions, why a region was compiled, and bundles."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.table import Table

from torch_max_backend.base.waiting import SOON_S, waiting

app = typer.Typer(no_args_is_help=True, help="Look into the store of compiled regions, carry it elsewhere, empty it.")


def _store():  # type: ignore[no-untyped-def]
    """The store that the environment's options choose. Imported late: the engine takes a second to load."""
    from torch_max_backend.compile.compiler import store_for
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


FUNCTION = "path/to/file.py:function or module:function; it gets the device if it takes an argument."
MACHINE = "cpu, or a GPU by its architecture, which need not be attached: cuda:sm_90a, hip:gfx942."


@app.command()
def prebuild(
    function: str = typer.Argument(help=FUNCTION),
    device: str = typer.Option(help=MACHINE),
    host: str = typer.Option("", help="The other machine's processor, as `torch-max-backend env` names it there."),
    cpu: str = typer.Option("", help="LLVM's name of a processor whose code it can run, such as x86-64-v3."),
    gpus: int = typer.Option(1, min=1, help="How many GPUs the function uses."),
    export: Path | None = typer.Option(None, help="Also write the function's regions to this bundle."),
) -> None:
    """Compile for a machine that is not this one what a function compiles. It runs on fake tensors."""
    from torch_max_backend.base.target import Machine
    from torch_max_backend.compile.cache.bundle import export_bundle
    from torch_max_backend.frontend.prebuild import load_function
    from torch_max_backend.frontend.prebuild import prebuild as build
    from torch_max_backend.options import resolve

    if bool(host) != bool(cpu):
        raise typer.BadParameter("--host and --cpu belong together")
    with _told(), waiting("Tracing the function", after=SOON_S):
        machine = Machine.parse(device, gpus, host, cpu)
        done = build(load_function(function), machine, resolve())
    typer.echo(f"{len(done.compiled)} compiled, {len(done.present)} in the cache already")
    stores = list({id(job.store): job.store for job in done.compiled + done.present}.values())
    for store in stores:
        typer.echo(f"in {store.folder}")
    if export is not None and stores:
        if len(stores) > 1:
            _fail("the function uses several cache folders: give it one to export them")
        records = [r for r in stores[0].records() if r.key in done.keys]
        typer.echo(f"wrote {export_bundle(stores[0], export, records)} entries to {export}")
    if done.failed:
        _fail(f"{len(done.failed)} regions did not compile")
    if not done.keys:
        _fail("the function compiled nothing with max_backend")


@app.command()
def explain(
    what: str = typer.Argument("", help=f"The start of a key, by default all; or a function: {FUNCTION}"),
    last: int = typer.Option(20, min=1, help="How many lookups to show."),
    device: str = typer.Option("", help=f"For a function, the machine, by default this one: {MACHINE}"),
    check: bool = typer.Option(False, "--check", help="For a function: exit status 1 if a region is missing."),
) -> None:
    """Say of the latest lookups, or of a function's regions, whether they hit, and if not, what differed.

    A function is called, and nothing is compiled.
    """
    if ":" in what:
        missing = _explain_function(what, device)
        if missing and check:
            _fail(f"{missing} regions are not in the cache")
        return
    found = [line for line in _store().lookups() if str(line.get("key", "")).startswith(what)]
    result = Table("when", "process", "key", "answer")
    for line in found[-last:]:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.get("time", 0)))
        result.add_row(when, str(line.get("pid")), str(line.get("key"))[:12], str(line.get("answer")))
    Console().print(result if found else "no lookups are noted")


def _explain_function(function: str, device: str) -> int:
    """Print the regions of a function; how many are missing."""
    import torch

    from torch_max_backend.base.target import Machine
    from torch_max_backend.frontend.prebuild import load_function, regions_of
    from torch_max_backend.runtime.session import get_accelerators

    with _told(), waiting("Tracing the function", after=SOON_S):
        called = load_function(function)
        if device:
            machine = Machine.parse(device)
            with machine.pretended():
                batch = regions_of(called, machine.device)
        else:
            gpu = bool(get_accelerators()) and torch.cuda.is_available()
            batch = regions_of(called, "cuda" if gpu else "cpu")
    if not batch.looked_up:
        _fail("the function compiled nothing with max_backend")
    result = Table("region", "begins at", "ops", "key", "answer")
    for number, (job, there) in enumerate(batch.looked_up):
        answer = "hit" if there else f"miss: {job.store.why_missing(job.parts)}"
        ops = str(job.region.compute_nodes)
        result.add_row(str(number), job.region.begins_at(), ops, job.key[:12], answer)
    Console().print(result)
    return sum(not there for _, there in batch.looked_up)


@contextmanager
def _told() -> Iterator[None]:
    """Turn what goes wrong in a user's function, or on the way to it, into a message and an exit status."""
    from torch_max_backend.base.errors import MaxBackendError

    try:
        yield
    except MaxBackendError as error:
        _fail(f"{type(error).__name__}: {error}")
    except Exception as error:  # the user's function may raise anything
        traceback.print_exc()
        hint = ""
        if "hasPrimaryContext" in str(error):  # torch's CUDA autograd asks for the GPU itself
            hint = "; gradients of GPU tensors cannot be traced where there is no GPU: use torch.no_grad()"
        _fail(f"the function raised {type(error).__name__}{hint}")


def _fail(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(1)


@app.command()
def clear() -> None:
    """Delete all compiled regions."""
    typer.echo(f"deleted {_store().clear()} entries")


@app.command("export")
def export_file(file: Path = typer.Argument(help="The bundle to write.")) -> None:
    """Write all compiled regions to one file, for another machine of the same architecture."""
    from torch_max_backend.compile.cache.bundle import digest_of, export_bundle

    with waiting("Writing the bundle", after=SOON_S):
        entries, digest = export_bundle(_store(), file), digest_of(file)
    typer.echo(f"wrote {entries} entries to {file}")
    typer.echo(f"sha256 {digest}")


@app.command("import")
def import_file(
    file: Path = typer.Argument(exists=True, dir_okay=False, help="The bundle to read."),
    sha256: str = typer.Option("", help="What `cache export` printed: any other file is refused unread."),
) -> None:
    """Add the compiled regions of a bundle. They are programs: import only what you trust."""
    from torch_max_backend.base.errors import BundleError
    from torch_max_backend.compile.cache.bundle import digest_of, import_bundle
    from torch_max_backend.compile.cache.key import cpu_target

    if sha256 and digest_of(file) != sha256.lower():
        _fail(f"{file} is another file than was asked for: its sha256 is {digest_of(file)}")
    try:
        with waiting("Reading the bundle", after=SOON_S):
            taken = import_bundle(_store(), file)
    except BundleError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    typer.echo(f"read {taken.entries} entries")
    if not any(target.startswith(cpu_target()) for target in taken.targets):
        typer.echo(
            f"none of them is for this machine ({cpu_target()}): they are for {', '.join(sorted(taken.targets))}"
        )
