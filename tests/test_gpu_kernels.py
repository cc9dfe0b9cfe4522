"""Every Mojo kernel compiles, inside a graph, for GPUs that are not attached: the graphs are those of op cases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from max.graph import DeviceRef, Module, ops

from tests.cases import Case
from tests.harness import STRICT, compiled
from tests.test_aten_functions import _families
from torch_max_backend.aten_functions.common import kernels_path
from torch_max_backend.aten_functions.context import CodeSettings
from torch_max_backend.compiler import lowering
from torch_max_backend.compiler.compile import Job, compile_together
from torch_max_backend.compiler.pool import Target, pool_for
from torch_max_backend.options import resolve

CPU_ONLY = {"tmb_select": "torch's own selection on a GPU has another order; there rows are sorted"}

GRAPHS = {
    "antialias": ["resizes"],
    "attention": ["forward_bf16"],
    "bitwise": ["bits_i64", "shifts_i64"],
    "comparison": ["tests_f32", "nextafter"],
    "distance": ["pdist"],
    "floats": ["frexp"],
    "fractional": ["gradients"],
    "gamma": ["every"],
    "integer_convolution": ["plain_2d"],
    "mode": ["modes_f32"],
    "pointwise": ["empty", "gcd", "integer_powers"],
    "polynomials": ["every"],
    "pooling": ["places_hard", "adaptive_largest_hard"],
    "resize": ["sampled_backward", "dynamic", "images_f32"],
    "segment": ["lengths", "hashes"],
    "sorting": ["zero_dim", "searches_f32"],
    "views": ["reshapes"],
    "volumes": ["gradients", "samples"],
}


class _Traced(Exception):
    """Ends a batch before it is compiled."""


def _jobs(cases: list[Case]) -> list[Job]:
    try:
        with torch.no_grad(), compile_together(resolve(STRICT)) as batch:
            for case in cases:
                compiled(case)(*case.make())
            raise _Traced
    except _Traced:
        return list(batch.jobs.values())


@contextmanager
def _on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Lower everything for a GPU; gives the names of the kernels that were called."""
    called: set[str] = set()
    custom = ops.custom

    def noted(name: str, *args: object, **options: object) -> object:
        called.add(name)
        return custom(name, *args, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(ops, "custom", noted)
        patch.setattr(lowering, "device_ref", lambda device: DeviceRef.GPU(0))
        yield called


def _kernels() -> set[str]:
    texts = (file.read_text() for file in kernels_path().rglob("*.mojo"))
    return {name for text in texts for name in re.findall(r'@extensibility\.register\("(\w+)"\)', text)}


@pytest.mark.xdist_group("gpu_kernels")
@pytest.mark.parametrize(("api", "architecture"), [("cuda", "sm_90a")])
def test_every_kernel_compiles(api: str, architecture: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    families = _families()
    cases = [c for family, names in GRAPHS.items() for c in families[family] if c.name in names]
    assert len(cases) == sum(map(len, GRAPHS.values())), "a case was renamed"
    monkeypatch.setenv("TORCH_MAX_BACKEND_CACHE_DIR", str(tmp_path))  # every case is traced, none is a cache hit
    jobs = _jobs(cases)
    module, libraries = Module(), {}
    with _on_a_gpu(monkeypatch) as called:
        for i, job in enumerate(jobs):
            graph = lowering.build_graph(job.region, f"region_{i}", module, CodeSettings("high"))
            libraries.update(dict.fromkeys(graph.kernel_libraries_paths))
    assert called >= _kernels() - CPU_ONLY.keys()
    artifact, _ = pool_for(Target(api, architecture, 1), 1).submit(module, list(libraries)).result()
    assert architecture.encode() in artifact
