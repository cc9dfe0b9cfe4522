"""A file of plain torch that shows that a graph is wrong: it ends with status 1 while it is."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx.graph_module import _format_import_block
from torch.package import sys_importer

from torch_max_backend.base.digests import digest
from torch_max_backend.diagnostics.verify.judgement import Difference
from torch_max_backend.diagnostics.verify.references import MULTIPLE, UNITS
from torch_max_backend.diagnostics.verify.shrink import shrunk
from torch_max_backend.diagnostics.verify.smallest import Compiled, Wrong, results_of, wrong_results

EMBEDDED = 64
"""The largest number of elements that a file has as text; more are drawn, or saved beside it."""

_TEXT = '''"""{what}

{story}

Run it: it ends with status 1 while torch-max-backend and torch differ.
"""

import sys

import torch
{imports}

class Region(torch.nn.Module):
{code}


def inputs():
    drawn = torch.Generator().manual_seed(0)
{inputs}


TOLERANCES = {tolerances}  # absolute and relative, for each result

if __name__ == "__main__":
    region, given = Region(), inputs()
    with torch.no_grad():
        expected = region(*given)
        options = {options}
        compiled = torch.compile(region, backend="max_backend", fullgraph=True, dynamic={dynamic}, options=options)
        results = compiled(*given)
    for ours, right, (absolute, relative) in zip(results, expected, TOLERANCES):
        try:
            torch.testing.assert_close(ours, right, atol=absolute, rtol=relative, equal_nan=True)
        except AssertionError as difference:
            sys.exit(f"max_backend is wrong:\\n{{difference}}")
    print("max_backend and torch agree")
'''


def write_repro(folder: Path, wrong: Wrong, compiled: Compiled, story: str) -> Path:
    """Write the file; with the inputs beside it, if they are large and drawn ones show nothing.

    Returns:
        The file's path.
    """
    wrong = shrunk(wrong, compiled)
    inputs = list(wrong.inputs)
    lines, saved = _drawn(inputs), False
    found = wrong_results(wrong.gm, _evaluated(lines), compiled)
    same = [w for w in found if w.result == wrong.result]
    if same:
        wrong = same[0]
    else:
        lines, saved = _kept(inputs)
    code = wrong.gm.graph.python_code("self")
    op = str(wrong.node.target)
    lines = [*lines, f"return [{', '.join(f'x{k}' for k in range(len(inputs)))}]"]
    text = _TEXT.format(
        what=f"{op}: torch-max-backend's result is wrong.",
        story=story.strip(),
        imports=_imports(code.globals, "\n".join([code.src, *lines])),
        code=textwrap.indent(code.src.strip(), "    "),
        inputs=textwrap.indent("\n".join(lines), "    "),
        tolerances=_tolerances(wrong),
        dynamic=compiled.dynamic,
        options=compiled.options,
    )
    name = f"wrong_{op.replace('.', '_').replace('::', '_')}_{digest(text)[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    if saved:
        torch.save([x.detach().cpu() if isinstance(x, torch.Tensor) else x for x in inputs], folder / f"{name}.pt")
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return path


def _imports(known: dict[str, Any], text: str) -> str:
    """Lines that define the names which a text uses."""
    names = {"torch": torch, "inf": math.inf, "nan": math.nan, **known}
    used = set(re.findall(r"[A-Za-z_]\w*", text))
    lines = ["from math import inf, nan"] if used & {"inf", "nan"} else []
    lines += ["from pathlib import Path"] if "Path" in used else []
    others = {k: v for k, v in names.items() if k in used - {"torch", "inf", "nan"}}
    return "".join(f"{line}\n" for line in (*lines, _format_import_block(others, sys_importer).strip()) if line)


def _tolerances(wrong: Wrong) -> list[tuple[float, float]]:
    """What torch's result and ours may differ by; nothing is said of results other than the wrong one.

    Ours may be ``allowed`` away from float64, which torch's is at most its own error away from. So what is as far from
    torch's as this, is wrong, and what is right is nearer.
    """
    found = []
    for k, node in enumerate(results_of(wrong.gm)):
        dtype, d = node.meta["val"].dtype, wrong.difference
        if k != wrong.result:
            found.append((math.inf, math.inf))
        elif dtype.is_floating_point:
            found.append((_finite(d, dtype), UNITS * torch.finfo(dtype).eps))
        else:
            found.append((0.0, 0.0))
    return found


def _finite(d: Difference, dtype: torch.dtype) -> float:
    info = torch.finfo(dtype)
    return (MULTIPLE - 1 - UNITS * info.eps) * d.eager_error + UNITS * info.smallest_normal * info.eps


# -- inputs --------------------------------------------------------------------------------------------------------
def _drawn(inputs: Sequence[Any]) -> list[str]:
    """Python lines that make inputs of the same shapes, strides, dtypes and, for integers, range, of random numbers."""
    lines = []
    for k, x in enumerate(inputs):
        if not isinstance(x, torch.Tensor):
            lines.append(f"x{k} = {x!r}")
            continue
        size = tuple(x.shape)
        if x.is_floating_point():
            text = f"torch.randn({size}, generator=drawn)"
        elif x.dtype is torch.bool:
            text = f"torch.randint(0, 2, {size}, generator=drawn)"
        else:
            low, high = (int(x.min()), int(x.max())) if x.numel() else (0, 0)
            text = f"torch.randint({low}, {high + 1 if high < 2**63 - 1 else high}, {size}, generator=drawn)"
        lines.append(f"x{k} = {_placed(text, x)}")
    return lines


def _placed(text: str, x: torch.Tensor) -> str:
    """The expression, with the dtype, the device and the strides of ``x``."""
    text = f"{text}.to({x.device.type!r}, {x.dtype})"
    if x.is_contiguous():
        return text
    span = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    size, stride = tuple(x.shape), tuple(x.stride())
    if 0 in stride or span > 4 * x.numel():  # elements that are one in memory, or far apart
        narrow = tuple(1 if step == 0 else n for n, step in zip(size, stride, strict=True))
        dense = text if narrow == size else f"{text}[{', '.join(f':{n}' for n in narrow)}]"
        return f"{dense}.expand({size})"
    empty = f"torch.empty_strided({size}, {stride}, dtype={x.dtype}, device={x.device.type!r})"
    return f"{empty}.copy_({text})"


def _evaluated(lines: Sequence[str]) -> list[Any]:
    scope: dict[str, Any] = {"torch": torch, "drawn": torch.Generator().manual_seed(0)}
    exec("\n".join(lines), scope)  # the text is ours
    return [scope[f"x{k}"] for k in range(len(lines))]


def _kept(inputs: Sequence[Any]) -> tuple[list[str], bool]:
    """Python lines that give the inputs themselves, and whether they read a file."""
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    if sum(x.numel() for x in tensors) > EMBEDDED:
        lines = ['saved = torch.load(Path(__file__).with_suffix(".pt"))']
        for k, x in enumerate(inputs):
            to = f".to({x.device.type!r})" if isinstance(x, torch.Tensor) and x.device.type != "cpu" else ""
            lines.append(f"x{k} = saved[{k}]{to}")
        return lines, True
    lines = []
    for k, x in enumerate(inputs):
        text = f"torch.tensor({x.tolist()}, dtype={x.dtype})" if isinstance(x, torch.Tensor) else repr(x)
        lines.append(f"x{k} = {_placed(text, x) if isinstance(x, torch.Tensor) else text}")
    return lines, False
