"""What a call path does before and after a region, with the option ``verify``."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from torch_max_backend.base.errors import VerifyError
from torch_max_backend.base.waiting import waiting
from torch_max_backend.capture.fake_tensors import user_line
from torch_max_backend.diagnostics.verify.collect import CheckedRegion, note
from torch_max_backend.diagnostics.verify.fault import fault_of
from torch_max_backend.diagnostics.verify.judgement import Difference
from torch_max_backend.diagnostics.verify.region_graph import graph_of
from torch_max_backend.diagnostics.verify.repro import write_repro
from torch_max_backend.diagnostics.verify.smallest import (
    Compiled,
    References,
    Wrong,
    has_symbols,
    results_of,
    smallest_wrong_part,
)
from torch_max_backend.options import Options, resolve
from torch_max_backend.partition.region import Region
from torch_max_backend.runtime.call_path import restride

log = logging.getLogger("torch_max_backend")

_SAME_CODE = ("torch_executed_ops", "executor", "check_indices")
"""Options that decide what a part of a region becomes when it is compiled by itself."""


class ComparedRegion:
    """Compares a region's results with torch's, call by call.

    Args:
        number: The region's position in its graph.

    ``numbers`` are the expressions of the numbers that a call hands over.
    """

    def __init__(self, region: Region, number: int, options: Options) -> None:
        self.gm, self.numbers = graph_of(region)
        self.number, self.options = number, options
        self.graph = str(torch._guards.CompileContext.current_compile_id() or "")
        self.ops, self.where = region.compute_nodes, region.begins_at()
        self.folder = Path(options.repro_dir or "max_backend_repros")
        inputs = {port.node: k for k, port in enumerate(region.inputs)}
        self.stored = [inputs[target] for target, _ in region.stores]
        self.reads_memory = any("as_strided" in str(n.target) for n in region.nodes)

    def before(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Copies of the inputs, which the region may write."""
        return [_copy(x, self.reads_memory) for x in inputs]

    def after(
        self,
        copies: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        numbers: Sequence[Any],
    ) -> None:
        """Compare what the region returned, and what it wrote into inputs.

        Raises:
            VerifyError: Something is wrong. Inputs that the region wrote have their old values again.
        """
        error = self._judged([*copies, *numbers], [*outputs, *(inputs[k] for k in self.stored)])
        if note(CheckedRegion(self.graph, self.number, self.ops, self.where, error)) or error is None:
            return
        for k in self.stored:
            inputs[k].copy_(copies[k])
        raise error

    def _judged(self, given: Sequence[Any], ours: Sequence[torch.Tensor]) -> VerifyError | None:
        try:
            wrong = self._wrong(given, ours)
        except VerifyError as error:
            return error
        if not wrong:
            return None
        node, difference = next(iter(wrong.items()))
        return self._error(given, node, difference, list(wrong))

    def _wrong(self, given: Sequence[Any], ours: Sequence[torch.Tensor]) -> dict[fx.Node, Difference | str]:
        try:
            references = References(self.gm, given)
        except Exception as error:  # whatever torch raises for these inputs, the region should have raised too
            told = (
                f"torch raises {type(error).__name__} for the inputs of region {self.number}, which returned: {error}"
            )
            raise VerifyError(told) from error
        found: dict[fx.Node, Difference | str] = {}
        for node, x in zip(results_of(self.gm), ours, strict=True):
            right = references.eager[node.name]
            if x.shape != right.shape or x.dtype != right.dtype:
                found[node] = f"it is {x.dtype}{list(x.shape)}, where torch has {right.dtype}{list(right.shape)}"
            elif (difference := references.difference(node, x)) is not None:
                found[node] = difference
        return found

    # -- the error ---------------------------------------------------------------------------------------------
    def _error(
        self, given: Sequence[Any], node: fx.Node, difference: Difference | str, suspects: list[fx.Node]
    ) -> VerifyError:
        compiled = Compiled(self._code_options(), has_symbols(self.gm))
        told = f"region {self.number} of {len(self.gm.graph.nodes)} nodes is wrong in its result {node.target}"
        lines = [f"{told}: {difference}"]
        path = None
        try:
            with waiting("Looking for the op that is wrong"):
                smallest = smallest_wrong_part(self.gm, given, suspects, compiled)
                fault = fault_of(smallest, compiled) if smallest is not None else ""
            if smallest is not None:
                node = smallest.node
                lines.insert(0, self._first_wrong(smallest))
                lines += [fault.replace("\n", "\n    ")] if fault else []
                path = write_repro(self.folder, smallest, compiled, _story(smallest))
        except Exception as error:  # the search compiles and runs; what was found already must be told all the same
            log.warning("the search for the op at fault failed", exc_info=True)
            lines.append(f"the search for the op at fault failed: {type(error).__name__}: {error}")
        if path is not None:
            lines.append(f"python {path} shows it")
        else:
            lines.append("no part of the region is wrong when it is compiled by itself")
        return VerifyError("\n  ".join(lines), str(node.target), user_line(node), path)

    def _first_wrong(self, smallest: Wrong) -> str:
        size = sum(n.op == "call_function" for n in smallest.gm.graph.nodes)
        where = user_line(smallest.node)
        alone = "by itself" if size == 1 else f"in a part of {size} ops"
        place = f" (at {where})" if where else ""
        return f"{smallest.node.target}{place} is wrong {alone}: {smallest.difference}"

    def _code_options(self) -> dict[str, Any]:
        """The options of the call that change what a region becomes. Nothing is left to torch, nor cached."""
        own, others = dataclasses.asdict(self.options), [dataclasses.asdict(o) for o in (Options(), resolve())]
        changed = {k: own[k] for k in _SAME_CODE if any(own[k] != other[k] for other in others)}
        return {"fallback": "error", "verify": False, "cache": False, **changed}


def _story(wrong: Wrong) -> str:
    where = user_line(wrong.node)
    lines = [f"At {where}" if where else "", f"When it was found, {wrong.difference}."]
    lines.append(f"Versions: torch {torch.__version__}.")
    return "\n".join(line for line in lines if line)


def _copy(x: torch.Tensor, whole: bool) -> torch.Tensor:
    """A tensor of the same strides with a copy of the memory; with ``whole``, of all its storage."""
    with torch.no_grad():
        if not whole:
            return restride(x, x.shape, x.stride())
        storage = x.untyped_storage().clone()
        result = torch.empty(0, dtype=x.dtype, device=x.device)
        return result.set_(storage, x.storage_offset(), x.shape, x.stride())
