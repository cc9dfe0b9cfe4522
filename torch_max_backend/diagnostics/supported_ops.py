"""The supported-ops page, made from the registry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from torch._ops import OpOverload

from torch_max_backend.aten_functions.registry import Lowering, aten_functions
from torch_max_backend.aten_functions.support.dtypes import TO_MAX

HEAD = """# Supported ops

Made from the op registry by `python -m torch_max_backend.diagnostics.docs --write`.

An op runs on MAX in every dtype that both torch and MAX have for it, on CPU and GPU, unless its limits say otherwise:
{dtypes}.
Complex numbers, sparse, quantized and nested tensors stay with torch. On NVIDIA's GPUs, the libraries that torch uses
compute products and convolutions of floating-point tensors, and most attention in 16 bits. On other GPUs, MAX computes
products in float16 and bfloat16, and in float32 where `torch.set_float32_matmul_precision` allows TF32; convolutions
of floating-point tensors stay with torch. An op or an argument that is not here is an island: torch runs it, and a
warning names it. A heading is the module below `torch_max_backend/aten_functions/`."""


def page() -> str:
    """The whole page as Markdown."""
    own = [low for low in aten_functions if low.is_own]
    dtypes = ", ".join(str(d).removeprefix("torch.") for d in TO_MAX)
    lines = [HEAD.format(dtypes=dtypes), "", f"{len(own)} overloads have a lowering.", ""]
    families: dict[str, list[Lowering]] = defaultdict(list)
    for low in own:
        families[low.function.__module__.partition(".aten_functions.")[2].replace(".", "/")].append(low)
    for family in sorted(families):
        lines += [f"## {family}", "", "| op | overloads | limits |", "|---|---|---|"]
        lines += _rows(families[family])
        lines.append("")
    lines += ["## Run by torch by design", "", "These are no islands.", ""]
    lines += _reasons(aten_functions.torch_ops.items())
    lines += ["", "## Islands by decision", ""]
    lines += _reasons(aten_functions.islands.items())
    return "\n".join(lines) + "\n"


def _rows(lowerings: Iterable[Lowering]) -> list[str]:
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for low in lowerings:
        name, overload = _name(low.overload)
        groups[name, low.limits.replace("|", "\\|")].append(overload)
    return [f"| `{n}` | {', '.join(sorted(o))} | {limits} |" for (n, limits), o in sorted(groups.items())]


def _reasons(pairs: Iterable[tuple[OpOverload, str]]) -> list[str]:
    groups: dict[str, set[str]] = defaultdict(set)
    for overload, reason in pairs:
        groups[reason].add(_name(overload)[0])
    lines = ["| ops | reason |", "|---|---|"]
    return lines + [
        f"| {', '.join(f'`{n}`' for n in sorted(names))} | {why} |" for why, names in sorted(groups.items())
    ]


def _name(overload: OpOverload | str) -> tuple[str, str]:
    namespace, _, rest = str(overload).partition(".")
    name, _, variant = rest.rpartition(".")
    return (name if namespace == "aten" else f"{namespace}.{name}"), variant
