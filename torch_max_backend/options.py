"""Every option of the backend: name, type, default, meaning. This table is the only place that lists them.

The README table, the command line's help and the error texts are made from it. Each option can be given as
``torch.compile(..., options={"name": value})`` or, as a default, through ``TORCH_MAX_BACKEND_<NAME>``.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_type_hints

from torch_max_backend.base import byte_sizes
from torch_max_backend.base.errors import OptionError

PREFIX = "TORCH_MAX_BACKEND_"
GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes in which torch records device graphs; so does this backend, unless ``device_graphs`` is given."""

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off", ""}


def _option(
    default: Any, meaning: str, *, least: int | None = None, check: Callable[[str], object] | None = None
) -> Any:
    return field(default=default, metadata={"meaning": meaning, "least": least, "check": check})


@dataclass(frozen=True)
class Options:
    """The options of one ``torch.compile`` call. See each field's metadata for its meaning."""

    fallback: Literal["eager", "error"] = _option(
        "eager", "What happens to ops that MAX cannot run: torch runs them between MAX regions, or an error is raised."
    )
    min_block_size: int = _option(
        3, "Where there are islands, regions with fewer ops than this run in torch too.", least=1
    )
    torch_executed_ops: tuple[str, ...] = _option(
        (), "Ops that torch shall run, by name: 'aten.add' or 'aten.add.Tensor'; comma-separated in the environment."
    )
    cache: bool = _option(True, "Keep compiled regions on disk and reuse them.")
    cache_dir: str = _option("", "Folder of the compiled regions; empty means the user's cache folder.")
    cache_limit: int = _option(
        10_000,
        "Megabytes of compiled regions; above it, those not used for longest are deleted. 0 is no limit.",
        least=0,
    )
    compile: Literal["wait", "background"] = _option(
        "wait", "Whether a call waits for its graph to be compiled, or runs in eager until it is."
    )
    compile_workers: int = _option(
        0,
        "Processes that compile at the same time; 0 means one per two cores, and one more for backwards that nobody "
        "waits for yet.",
        least=0,
    )
    freeze: bool = _option(
        False,
        "On a CPU, in inference: keep weights packed for the library that reads them, and what depends on parameters "
        "alone, beside the parameters. What changes is packed again, but a write through `.data`, NumPy or DLPack is "
        "not seen (docs/freezing.md).",
    )
    device_graphs: bool = _option(
        False,
        "On a GPU, capture what a call enqueues once per shape and replay it in one launch per region; "
        'on by default with mode "reduce-overhead" or "max-autotune".',
    )
    gpu_memory_share: int = _option(
        -1,
        "Percent of each GPU's memory that MAX's pool may keep beside PyTorch's; 0 is no pool, which holds least "
        "and is slowest; -1 means 60, or 25 where device graphs are recorded first. Read when a process first uses a "
        "GPU.",
        least=-1,
    )
    memory_budget: str = _option(
        "",
        "What a call may have in memory at its peak, on each device: '4GiB', '512MB', bytes, or a share of the device "
        "as '60%'; empty is no budget. A call that needs more runs op by op, or raises torch's OutOfMemoryError before "
        "it begins (docs/admission.md).",
        check=byte_sizes.parse,
    )
    check_indices: bool = _option(
        True,
        "On a GPU, check indices and classes, and raise for one out of range when the program next calls a compiled "
        "function or synchronizes by this package; off, such an index is silently moved into range.",
    )
    executor: Literal["auto", "program", "graph"] = _option(
        "auto",
        "Run regions as generated kernels and library calls where all of their ops have a loop rule, and compile the "
        'others with MAX; "graph" compiles every region with MAX. "program" is the same as "auto".',
    )
    profile: bool = _option(
        False,
        "Record profiler ranges around regions, every kernel and library call of a program, and islands: "
        "`torch_max_backend.kernel_times` makes a table of them.",
    )
    verify: bool = _option(
        False,
        "Compare the results of every region with PyTorch's in each call, and raise `VerifyError`, naming the op and a "
        "file that shows it, for a wrong one (slow: docs/debugging.md).",
    )
    repro_dir: str = _option(
        "", "Folder of the files that `verify` writes; empty means `max_backend_repros` in the current folder."
    )
    verbose: bool = _option(False, "Log graphs, regions, islands, cache hits and compile times to stderr.")


ENVIRONMENT_ONLY = {
    "BEARTYPE": "Check the types of every call inside this package (for debugging); read when it is imported.",
}
"""Variables without an option, because they act before any option is known."""

TYPES = get_type_hints(Options)
FIELDS = {f.name: f for f in dataclasses.fields(Options)}


def resolve(options: Mapping[str, Any] | None = None, mode: str | None = None) -> Options:
    """Options of a call: its own values over environment variables over defaults.

    Raises:
        OptionError: An unknown key (the message has the nearest name), a value of the wrong type, an unknown mode.
    """
    if mode is not None and mode not in MODES:
        raise OptionError(f"unknown mode {mode!r}: use one of {', '.join(MODES)}{_nearest(mode, MODES)}")
    given = dict(options or {})
    for key in given:
        if key not in FIELDS:
            raise OptionError(
                f"unknown option {key!r} for backend 'max_backend'{_nearest(key, FIELDS)}; "
                f"the options are {', '.join(FIELDS)}"
            )
    _warn_of_unknown_variables(tuple(v for v in os.environ if v.startswith(PREFIX)))
    values = {}
    for name in FIELDS:
        variable = PREFIX + name.upper()
        if name in given:
            values[name] = _checked(name, given[name], f"option {name!r}")
        elif variable in os.environ:
            values[name] = _checked(name, _from_text(name, os.environ[variable], variable), f"variable {variable}")
    if mode in GRAPH_MODES:
        values.setdefault("device_graphs", True)
    return Options(**values)


@functools.cache
def _warn_of_unknown_variables(found: tuple[str, ...]) -> None:
    """Name variables that look like options and are none, once."""
    known = [PREFIX + name.upper() for name in FIELDS] + [PREFIX + name for name in ENVIRONMENT_ONLY]
    for variable in found:
        if variable not in known:
            warnings.warn(f"the variable {variable} is not an option{_nearest(variable, known)}", stacklevel=4)


def flag(name: str) -> bool:
    """The value of an environment-only variable, by its name without the prefix."""
    return bool(_truth(PREFIX + name, os.environ.get(PREFIX + name, "")))


def _truth(variable: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise OptionError(f"variable {variable}={text!r}: expected 1, true, yes, on or 0, false, no, off")
    return word in _TRUE


def _from_text(name: str, text: str, variable: str) -> Any:
    kind = TYPES[name]
    if kind is bool:
        return _truth(variable, text)
    if kind is int:
        try:
            return int(text)
        except ValueError:
            raise OptionError(f"variable {variable}={text!r}: expected an integer") from None
    if kind == tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def _checked(name: str, value: Any, source: str) -> Any:
    kind, least = TYPES[name], FIELDS[name].metadata["least"]
    choices = get_args(kind) if kind not in (bool, int, str) and kind != tuple[str, ...] else ()
    if choices:
        if value not in choices:
            raise OptionError(f"{source} is {value!r}: use one of {', '.join(choices)}{_nearest(str(value), choices)}")
        return value
    if kind == tuple[str, ...]:
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise OptionError(f"{source} is {value!r}: expected a list of op names")
        return tuple(str(v) for v in value)
    if kind is str:
        value = os.fspath(value) if hasattr(value, "__fspath__") else value
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise OptionError(f"{source} is {value!r}: expected {kind.__name__}")
    if least is not None and value < least:
        raise OptionError(f"{source} is {value}: must be at least {least}")
    check = FIELDS[name].metadata["check"]
    if check is not None and value:
        try:
            check(value)
        except ValueError as error:
            raise OptionError(f"{source} is {value!r}: {error}") from None
    return value


def _nearest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def type_name(name: str) -> str:
    """The type of an option as the documentation writes it."""
    kind = TYPES[name]
    if kind == tuple[str, ...]:
        return "list of names"
    return " or ".join(f'"{c}"' for c in get_args(kind)) or kind.__name__


def table() -> list[tuple[str, str, str, str, str]]:
    """Rows (option, environment variable, type, default, meaning) for README and command line."""
    return [(n, PREFIX + n.upper(), type_name(n), repr(f.default), f.metadata["meaning"]) for n, f in FIELDS.items()]
