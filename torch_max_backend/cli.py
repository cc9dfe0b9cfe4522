"""The command line, ``torch-max-backend``: demo, coverage, verify, report, bench, profile, env, options and cache."""

from __future__ import annotations

import enum
import importlib.metadata
import json
import platform
import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torch_max_backend import cache_cli, evidence_cli
from torch_max_backend.base.versions import check_this_environment
from torch_max_backend.evidence_cli import no_answer
from torch_max_backend.options import ENVIRONMENT_ONLY, PREFIX, table

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(evidence_cli.app)
app.add_typer(cache_cli.app, name="cache")


class Dtype(enum.StrEnum):
    """Floating-point types of the demo."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class DemoModel(enum.StrEnum):
    """Models of the demo."""

    all = "all"
    gpt2 = "gpt2"
    resnet50 = "resnet50"


@app.callback()
def _root() -> None:
    """torch.compile on Modular's MAX engine and Mojo kernels."""


@app.command()
def demo(
    model: DemoModel = typer.Option(DemoModel.all, help="Which model to run."),
    device: str = typer.Option("cpu", help="cpu, cuda or cuda:N."),
    dtype: Dtype | None = typer.Option(None, help="Default: float32 on the CPU, bfloat16 on a GPU."),
    batch: int = typer.Option(1, min=1, help="Sequences or images a call."),
) -> None:
    """Run GPT-2 small and ResNet-50 with random weights in eager and through the backend, and compare."""
    import torch

    from torch_max_backend.base.errors import MaxBackendError
    from torch_max_backend.demo import MODELS, run
    from torch_max_backend.runtime.session import check_device

    console = Console()
    chosen = dtype or (Dtype.bfloat16 if device.startswith("cuda") else Dtype.float32)
    try:
        check_device(torch.device(device))
        names = list(MODELS) if model is DemoModel.all else [model.value]
        rows = run(names, device, getattr(torch, chosen.value), batch)
    except (MaxBackendError, RuntimeError) as error:
        console.print(f"[red]{type(error).__name__}[/red]: {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from error
    result = Table(title=f"{device}, {chosen.value}, batch {batch}, torch {torch.__version__}")
    result.add_column("")
    for row in rows:
        result.add_column(f"{row.name} ({row.parameters / 1e6:.0f} M)", justify="right")
    lines = [
        ("MAX regions (from the cache)", [f"{r.regions} ({r.from_cache})" for r in rows]),
        ("ops that torch ran", [str(r.islands) for r in rows]),
        ("compile, s", [f"{r.compile_s:.1f}" for r in rows]),
        ("first call, s (in eager while MAX compiles)", [f"{r.first_s:.2f}" for r in rows]),
        ("eager, ms a call", [f"{r.eager_s * 1e3:.2f}" for r in rows]),
        ("max_backend, ms a call", [f"{r.backend_s * 1e3:.2f}" for r in rows]),
        ("eager / max_backend", [f"{r.eager_s / r.backend_s:.2f}" for r in rows]),
        ("throughput", [f"{r.work / r.backend_s:.1f} {r.unit}" for r in rows]),
        ("largest difference", [f"{r.max_difference:.2e}" for r in rows]),
        ("mean difference", [f"{r.mean_difference:.2e}" for r in rows]),
        ("largest value of eager", [f"{r.largest_value:.2e}" for r in rows]),
    ]
    for title, cells in lines:
        result.add_row(title, *cells)
    console.print(result)


MODEL = "path/to/file.py:function or module:function; it returns (model, args) or (model, args, kwargs)."
MACHINE = "cpu, cuda, or a GPU by its architecture, which need not be attached: cuda:sm_90a."


@app.command()
def coverage(
    function: str = typer.Argument(help=MODEL),
    device: str = typer.Option("cpu", help=MACHINE),
    training: bool = typer.Option(False, "--training", help="Forward and backward, and not the inference."),
    json_output: bool = typer.Option(False, "--json", help="Print JSON in place of tables."),
    plot: Path | None = typer.Option(None, help="Also draw the graphs, into this .svg file."),
) -> None:
    """Show who would run each op of a model: generated kernels, a library, a MAX graph, or PyTorch, and why.

    Nothing is compiled or run. The exit status is 0 if there is no island, 1 if there is one, 2 if there is no answer.
    """
    from torch_max_backend.diagnostics.coverage import coverage_of
    from torch_max_backend.diagnostics.graph_plot import svg
    from torch_max_backend.frontend.prebuild import load_function

    with no_answer("Tracing the model"):
        found = coverage_of(load_function(function), device, training)
    if plot is not None:
        plot.write_text(svg(found.graphs), encoding="utf-8")
    if json_output:
        typer.echo(json.dumps(found.as_dict(), indent=1))
    else:
        for part in found.tables():
            Console().print(part)
    raise typer.Exit(1 if found.islands else 0)


@app.command()
def verify(
    function: str = typer.Argument(help=MODEL),
    device: str = typer.Option("cpu", help="cpu, cuda or cuda:N."),
    training: bool = typer.Option(False, "--training", help="Forward and backward, and not the inference."),
    repro_dir: str = typer.Option("", help="Folder of files that show a difference: max_backend_repros."),
    json_output: bool = typer.Option(False, "--json", help="Print JSON in place of a table."),
) -> None:
    """Compare every region of a model, and what it returns, with PyTorch, and find the op, pass or kernel at fault.

    The exit status is 0 if all is right, 1 if something is wrong, 2 if there is no answer.
    """
    from torch_max_backend.diagnostics.verify.whole_function import verify as run
    from torch_max_backend.frontend.prebuild import load_function

    with no_answer("Comparing the model with PyTorch"):
        found = run(load_function(function), device, training, repro_dir)
    if json_output:
        typer.echo(json.dumps(found.as_dict(), indent=1))
    else:
        Console().print(found.table())
        for line in found.lines():
            typer.echo(line)
    raise typer.Exit(0 if found.is_right else 1)


@app.command()
def report(
    function: str = typer.Argument("", help=f"A model to describe as well: {MODEL}"),
    output: Path = typer.Option(Path("max_backend_report.md"), "--output", "-o", help="A .md or .json file."),
    device: str = typer.Option("cpu", help=MACHINE),
    training: bool = typer.Option(False, "--training", help="Forward and backward, and not the inference."),
    run: bool = typer.Option(False, "--run", help="Also compile and call the model, and write what fails."),
    with_data: bool = typer.Option(False, "--with-data", help="Also write the model's weights and arguments."),
) -> None:
    """Write what a bug report needs to one file: versions, machine, options, and of a model coverage, graphs, failures.

    It has lines of the program and its paths, and no weights or arguments unless --with-data is given.
    """
    from torch_max_backend.diagnostics.issue_report import write_report
    from torch_max_backend.frontend.prebuild import load_function

    if output.suffix not in (".md", ".json"):
        raise typer.BadParameter(f"--output is {str(output)!r}: its name must end in .md or .json")
    for wanted, name in ((with_data, "--with-data"), (run, "--run")):
        if wanted and not function:
            raise typer.BadParameter(f"{name} needs a function")
    with no_answer("Writing the report"):
        write_report(output, load_function(function) if function else None, device, training, with_data, run)
    typer.echo(f"wrote {output}")


@app.command()
def env(
    measure: bool = typer.Option(
        False, "--measure", help="Measure copies, products, launches and a compile, and keep them."
    ),
) -> None:
    """Show versions, devices and the cache, and run one op against torch."""
    import torch

    from torch_max_backend.compile.cache.key import cpu_target
    from torch_max_backend.compile.compiler import store_for
    from torch_max_backend.options import resolve
    from torch_max_backend.runtime.session import get_accelerators

    console = Console()
    options = resolve()
    store = store_for(options)
    entries, size = store.usage()
    rows = [
        ("torch-max-backend", importlib.metadata.version("torch-max-backend")),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        ("max", importlib.metadata.version("max")),
        ("mojo", importlib.metadata.version("mojo-compiler")),
        ("cpu", f"{cpu_target()}, {torch.get_num_threads()} torch threads"),
        ("gpus that MAX can use", ", ".join(f"{d.api}:{d.architecture_name}" for d in get_accelerators()) or "none"),
        ("cache", f"{store.folder}: {entries} entries, {size / 1e6:.1f} MB" if options.cache else "off"),
    ]
    result = Table(show_header=False)
    for name, value in rows:
        result.add_row(name, value)
    console.print(result)
    x = torch.linspace(-3, 3, 16)
    compiled = torch.compile(torch.nn.functional.gelu, backend="max_backend", options={"fallback": "error"})
    difference = float((compiled(x) - torch.nn.functional.gelu(x)).abs().max())
    console.print(f"gelu through the backend: largest difference to torch {difference:.1e}")
    if not difference < 1e-5:
        raise typer.Exit(1)
    if measure:
        _measure(console)


def _measure(console: Console) -> None:
    """Measure the roofs of every device, show and keep them."""
    import torch

    from torch_max_backend.measurement import roofs

    for device in ("cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))):
        with no_answer(f"Measuring {device}"):
            found = roofs.measure(device)
        result = Table(show_header=False)
        for name, value in found.rows():
            result.add_row(name, value)
        console.print(result)
        console.print(f"kept in {roofs.keep(found)}", soft_wrap=True)


@app.command()
def options() -> None:
    """List every option with its environment variable, type, default and meaning."""
    result = Table("option", "variable", "type", "default", "meaning")
    for row in table():
        result.add_row(*row)
    for name, meaning in ENVIRONMENT_ONLY.items():
        result.add_row("", PREFIX + name, "bool", "False", meaning)
    Console().print(result)


def main() -> None:
    """Entry point of the console script."""
    check_this_environment()
    sys.exit(app())


if __name__ == "__main__":
    main()
