"""The tables of the page on public ops: ``python -m torch_max_backend.ops.page --check`` or ``--write``."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import sympy
import torch
import typer

from torch_max_backend import ops
from torch_max_backend.diagnostics.docs import bring_up_to_date, replaced
from torch_max_backend.ops.arguments import BATCH
from torch_max_backend.ops.declaration import Declaration, Tolerance, declarations

PAGE = Path("docs/public-ops.md")
MEASURED = Path("benchmarks/records/public-ops.jsonl")
"""What ``python -m benchmarks.public_ops --save`` has measured."""
SHOWN = ("copy", "Inductor")
"""What an op's time is compared with."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def table() -> str:
    """What each op computes and takes, as a Markdown table."""
    lines = ["| op | what | shapes | gradients of | operations |", "|---|---|---|---|---|"]
    for d in _own():
        doc = inspect.getdoc(getattr(ops, d.name)) or ""
        what = doc.split("\n\n")[0].replace("\n", " ").replace("``", "`").replace(":func:", "").replace("|", "\\|")
        shapes = ", ".join(f"`{name}` {pattern}" for name, pattern in d.patterns.items())
        gradients = ", ".join(f"`{name}`" for name in d.differentiable) or "–"
        lines.append(f"| `{_call(d)}` | {what} | {shapes} | {gradients} | {_operations(d)} |")
    return "\n".join(lines)


def tolerances() -> str:
    """The ops' tolerances with their reasons, as a Markdown table: ops of one tolerance share a line."""
    head = " | ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
    lines = [f"| ops | {head} | why |", "|---|---|---|---|---|---|"]
    groups: dict[Tolerance, list[str]] = {}
    for d in _own():
        groups.setdefault(d.tolerance, []).append(f"`{d.name}`")
    for tolerance, names in groups.items():
        shown = " | ".join(f"{tolerance.of(dtype) / torch.finfo(dtype).eps:.0f}" for dtype in DTYPES)
        of = "; roundings of the arguments' dtype" if tolerance.of_arguments else ""
        lines.append(f"| {', '.join(names)} | {shown} | {tolerance.reason}{of} |")
    return "\n".join(lines)


def shares() -> str:
    """How fast the ops were measured to be, against a copy of as many bytes and Inductor, as a Markdown table."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for text in MEASURED.read_text(encoding="utf-8").splitlines():
        row = json.loads(text)
        where = f"{row.get('gpu', 'CPU').removeprefix('NVIDIA ')}, {row['dtype']}"
        found.setdefault(row["op"], {})[where] = row["s"]
    places = list(dict.fromkeys(place for rows in found.values() for place in rows))
    heads = [f"{place}: {what}" for place in places for what in ("of a copy", "× Inductor")]
    lines = [f"| op | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for op, rows in found.items():
        cells = []
        for place in places:
            s = rows.get(place)
            cells += [f"{s[other] / s['op']:.2f}" if s and s[other] * 4 > s["copy"] else "–" for other in SHOWN]
        lines.append(f"| {op} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _own() -> list[Declaration]:
    return [d for d in declarations() if not d.gradient_of and d.name in ops.__all__]


def _call(d: Declaration) -> str:
    given = [
        a.name if not a.has_default_value() else f"{a.name}={a.default_value!r}" for a in d.overload._schema.arguments
    ]
    return f"{d.name}({', '.join(given)})"


def _operations(d: Declaration) -> str:
    """Arithmetic operations as a formula of sizes, where ``rows`` is the product of leading dimensions."""
    names = {s.name for p in d.patterns.values() for s in p.sizes if s.name}
    sizes = {name: sympy.Symbol(name) for name in names} | {BATCH: (sympy.Symbol("rows"),)}
    return f"`{sympy.sympify(d.flops(sizes))}`"


def main(
    write: bool = typer.Option(False, "--write", help="Bring the page up to date."),
    check: bool = typer.Option(False, "--check", help="Fail if it is out of date."),
) -> None:
    """Write the tables of the page, or check that they are up to date."""
    bring_up_to_date([(PAGE, with_tables(PAGE.read_text(encoding="utf-8")))], write, check)


def with_tables(text: str) -> str:
    """A page with fresh tables."""
    for name, made in (("ops", table()), ("tolerances", tolerances()), ("shares", shares())):
        text = replaced(text, name, made)
    return text


if __name__ == "__main__":
    typer.run(main)
