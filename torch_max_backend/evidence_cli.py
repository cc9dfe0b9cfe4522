"""``torch-max-backend bench`` and ``profile``: speed compared honestly, and where it goes."""

from __future__ import annotations

import enum
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import typer

from torch_max_backend.base.waiting import SOON_S, waiting

app = typer.Typer()

FINE, REGRESSION, NO_ANSWER, WRONG = 0, 1, 2, 3
"""Exit statuses of ``bench``."""
TARGET = (
    "path/to/file.py:function or module:function; it returns (model, args), (model, args, kwargs), or a dict of them."
)


class By(enum.StrEnum):
    """What times are taken by."""

    wall = "wall"
    device = "device"


class ProfileTool(enum.StrEnum):
    """What profiles."""

    auto = "auto"
    ncu = "ncu"
    builtin = "builtin"


@contextmanager
def no_answer(wait: str = "") -> Iterator[None]:
    """Turn what goes wrong in a user's function, or on the way to it, into a message and exit status 2.

    Args:
        wait: What a terminal shows meanwhile, if it takes a second.
    """
    from torch_max_backend.base.errors import MaxBackendError

    try:
        with waiting(wait, after=SOON_S) if wait else nullcontext():
            yield
    except MaxBackendError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise typer.Exit(NO_ANSWER) from error
    except Exception as error:  # the user's function may raise anything
        traceback.print_exc()
        typer.echo(f"the function raised {type(error).__name__}", err=True)
        raise typer.Exit(NO_ANSWER) from error


@app.command()
def bench(
    targets: list[str] = typer.Argument(metavar="FUNCTION...", help=TARGET),
    contenders: str = typer.Option(
        "eager,inductor,max", help="Names, with commas; +patch behind one patches its model."
    ),
    device: str = typer.Option("cpu", help="cpu, cuda or cuda:N."),
    baseline: str = typer.Option("", help="Speed-ups are over this contender; the first if not given."),
    training: bool = typer.Option(False, "--training", help="Forward and backward, and not the inference."),
    cold: bool = typer.Option(False, "--cold", help="Empty the last-level cache before each call."),
    by: By = typer.Option(By.wall, help="Judge by the clock, or by what the GPU takes."),
    rounds: int = typer.Option(20, help="Samples of each contender."),
    sample_ms: float = typer.Option(20.0, help="Milliseconds of calls that make a sample."),
    warm_up_s: float = typer.Option(10.0, help="The longest warm-up of a contender, in seconds."),
    seed: int = typer.Option(
        0, help="Of the order in each round, the bootstrap, and torch where results are compared."
    ),
    items: int = typer.Option(0, help="How many items a call delivers, for a rate."),
    unit: str = typer.Option("item", help="What these are: token, image."),
    tolerance: list[str] = typer.Option([], help="DTYPE=NUMBER, such as float32=1e-5; may be given several times."),
    memory: bool = typer.Option(False, "--memory", help="On a CPU, measure peak memory, in a process a contender."),
    save: Path | None = typer.Option(None, help="Write the study to this file, as JSON lines."),
    compare: Path | None = typer.Option(None, help="Compare with a study that --save wrote on this machine."),
    threshold: float | None = typer.Option(None, help="Per cent by which a regression is slower; 5 if not given."),
    fail_on_regression: bool = typer.Option(
        False, "--fail-on-regression", help="Exit with 1 if there is a regression."
    ),
    json_output: bool = typer.Option(False, "--json", help="Print JSON lines in place of Markdown."),
    markdown: Path | None = typer.Option(None, help="Also write the Markdown to this file."),
    plot: Path | None = typer.Option(None, help="Also draw the samples, into this .svg, .png or .pdf file."),
) -> None:
    """Compare contenders on models: in turns, warmed up, with intervals, and results held against eager's.

    The exit status is 0 if all is fine, 1 if --fail-on-regression found one, 2 if there is no answer (wrong usage, a
    file that is missing), 3 if a contender's results are wrong or it raised.
    """
    from torch_max_backend.base.errors import EvidenceError
    from torch_max_backend.evidence import record
    from torch_max_backend.evidence.cases import load_cases
    from torch_max_backend.evidence.files import Files
    from torch_max_backend.evidence.markdown import with_changes
    from torch_max_backend.evidence.regressions import THRESHOLD, check_threshold
    from torch_max_backend.evidence.settings import Settings
    from torch_max_backend.evidence.study import study

    percent = THRESHOLD if threshold is None else threshold
    files = Files(save, markdown, plot, compare)
    with no_answer():
        if compare is None and (threshold is not None or fail_on_regression):
            raise EvidenceError("--threshold and --fail-on-regression need --compare FILE")
        check_threshold(percent)
        files.check()
        settings = Settings(
            contenders=tuple(name.strip() for name in contenders.split(",") if name.strip()),
            device=device,
            baseline=baseline,
            rounds=rounds,
            sample_s=sample_ms / 1e3,
            seed=seed,
            cold=cold,
            training=training,
            by=by.value,
            tolerance=_tolerances(tolerance),
            warm_up_s=warm_up_s,
            items=items,
            unit=unit,
            memory=memory,
        )
        before = files.load(settings)
        cases = [case for target in targets for case in load_cases(target, device)]
        found = study(cases, settings, lambda text: typer.echo(text, err=True))
        if save is not None:
            record.save(found, save)
        changed = files.changes(found, before)
        text = with_changes(found, before, changed, percent)
        files.write(found, text)
    typer.echo(record.to_lines(found) if json_output else text, nl=False)
    if json_output and changed:
        typer.echo(record.changes_to_lines(changed, percent), nl=False)
    if found.wrong:
        raise typer.Exit(WRONG)
    raise typer.Exit(REGRESSION if fail_on_regression and any(c.is_regression(percent) for c in changed) else FINE)


def _tolerances(given: list[str]) -> dict[str, float]:
    from torch_max_backend.base.errors import EvidenceError

    found = {}
    for text in given:
        name, _, number = text.partition("=")
        try:
            found[name] = float(number)
        except ValueError as error:
            raise EvidenceError(f"--tolerance must be DTYPE=NUMBER such as float32=1e-5, got {text!r}") from error
    return found


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def profile(
    command: list[str] = typer.Argument(
        metavar="COMMAND...", help="A program with its arguments, or path/to/file.py:function as for bench."
    ),
    tool: ProfileTool = typer.Option(
        ProfileTool.auto, help="auto is ncu where it is on PATH, else the built-in profiler."
    ),
    sanitize: bool = typer.Option(False, "--sanitize", help="Look for wrong accesses, with compute-sanitizer."),
    device: str = typer.Option("cpu", help="Of a function: cpu, cuda or cuda:N."),
    calls: int = typer.Option(10, help="Of a function: how many calls are profiled."),
) -> None:
    """Profile a command kernel by kernel: under NVIDIA's ncu, or by the built-in profiler where it is not there.

    The exit status is the command's own; 2 if there is no answer.
    """
    from rich.console import Console

    from torch_max_backend.evidence import profiling

    with no_answer():
        if sanitize:
            found = profiling.sanitize(command, device, calls)
        else:
            found = profiling.profile(command, profiling.Tool(tool.value), device, calls)
    typer.echo(f"profiled by {found.tool}")
    if found.told:
        typer.echo(found.told) if isinstance(found.told, str) else Console().print(found.told)
    raise typer.Exit(found.status)
