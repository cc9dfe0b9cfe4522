"""The command line: ``torch-max-backend demo``, ``env``, ``options`` and ``cache``."""

from __future__ import annotations

import enum
import importlib.metadata
import platform
import sys

import typer
from rich.console import Console
from rich.table import Table

from torch_max_backend import cache_cli
from torch_max_backend.base.versions import check_this_environment
from torch_max_backend.options import ENVIRONMENT_ONLY, PREFIX, table

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
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
        console.print(f"[red]{type(error).__name__}[/red]: {error}", soft_wrap=True)
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


@app.command()
def env() -> None:
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
