"""Every Mojo kernel compiles, inside a graph, for GPUs that are not attached.

How each kernel is called is taken from the graphs of op cases, lowered for a GPU: one call of each form that differs in
its parameters and dtypes. The calls alone are compiled, since the rest of those graphs is not under test here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from max.dtype import DType
from max.graph import BufferType, BufferValue, DeviceRef, Graph, Module, TensorType, ops

from tests.support.case_tables import case_tables
from tests.support.cases import Case
from tests.support.harness import STRICT, compiled
from tests.support.selection import change_of, drawn
from torch_max_backend.aten_functions.support.mojo_ops import kernel_library
from torch_max_backend.aten_functions.support.node_context import CodeSettings
from torch_max_backend.base.digests import kernels_path
from torch_max_backend.base.target import Target
from torch_max_backend.compile.compiler import compile_together
from torch_max_backend.compile.job import Job
from torch_max_backend.compile.worker_pool import pool_for
from torch_max_backend.lowering import graph_builder
from torch_max_backend.options import resolve

SHARE = 4
"""One of how many kernels is compiled for one GPU in an ordinary run: all take four minutes."""
CPU_ONLY = {
    "tmb_select": "torch's own selection on a GPU has another order; there rows are sorted",
    "tmb_product": "on a GPU a library or MAX multiplies",
    "tmb_convolve": "on a GPU a library convolves",
    "tmb_phase_filters": "on a GPU a library computes gradients",
    "tmb_filter_gradients": "on a GPU a library computes gradients",
    "tmb_filter_gradients_at_once": "on a GPU a library computes gradients",
    "tmb_channel_statistics": "on a GPU kernels for columns, or MAX, add up",
    "tmb_channel_gradients": "on a GPU kernels for columns, or MAX, add up",
    "tmb_layer_norm": "on a GPU rows are normalized by kernels of their own",
    "tmb_layer_norm_gradients": "on a GPU rows have kernels of their own, or MAX adds up",
    "tmb_depthwise_image_gradient": "on a GPU a library computes gradients",
    "tmb_depthwise_filter_gradient": "on a GPU a library computes gradients",
    "tmb_turned_product": "on a GPU a library or MAX multiplies",
    "tmb_turned_product_plus_rows": "on a GPU a library or MAX multiplies",
    "tmb_row_gradients": "on a GPU MAX adds rows up",
    "tmb_update_listed": "on a GPU each update has a kernel of its own, which is given its tensors",
}
AMD_ONLY = {"tmb_first_columns": "it cuts what MAX's own products pad"}
NVIDIA_ONLY = {
    "tmb_library_product",
    "tmb_library_convolution",
    "tmb_library_attention",
    "tmb_library_attention_with_logarithms",
    "tmb_library_attention_gradients",
}
"""They call NVIDIA's libraries."""

ATTENTION = {
    "tmb_flash_attention": {"is_causal": True},
    "tmb_biased_attention": {},
    "tmb_sliced_attention": {"is_causal": True, "groups": 2, "query_at": 0, "key_at": 4, "value_at": 6},
}
"""Kernels that take minutes to compile, and so have a test of their own, which is not always run."""

CASES = {
    "antialias": ["resizes"],
    "attention": ["forward_bf16", "logarithms_bf16", "backward_bf16"],
    "bitwise": ["bits_i64", "shifts_i64"],
    "comparison": ["tests_f32", "nextafter"],
    "convolution": ["gradient_plain", "finished"],
    "distance": ["pdist"],
    "embedding": ["bag_maxima"],
    "floats": ["frexp"],
    "fractional": ["gradients"],
    "gamma": ["every"],
    "grouped": ["rows", "inner"],
    "indexing": ["caches", "caches_alike", "reads"],
    "integer_convolution": ["plain_2d"],
    "matmul": ["odd_width_bf16"],
    "mode": ["modes_f32"],
    "normalization": [
        "norms_of_rows",
        "norms_of_long_rows",
        "statistics_of_columns",
        "layer_norm_gradients",
        "likelihoods_of_logits",
    ],
    "pointwise": ["empty", "gcd", "integer_powers"],
    "polynomials": ["every"],
    "pooling": [
        "places_hard",
        "largest_channels_last",
        "places_channels_last",
        "largest_backward_channels_last",
        "adaptive_largest_hard",
    ],
    "reductions": ["row_sums", "column_sums", "argmax_wide_f32"],
    "resize": ["sampled_backward", "sampled_f32", "images_f32", "columns_bf16"],
    "segment": ["lengths", "gradients", "hashes"],
    "sorting": ["zero_dim", "searches_f32"],
    "updates": ["every"],
    "views": ["reshapes", "transposes"],
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


@dataclass(frozen=True)
class Call:
    """A kernel and the types it is called with."""

    name: str
    inputs: tuple[TensorType | BufferType, ...]
    outputs: tuple[TensorType, ...]
    parameters: tuple[tuple[str, Any], ...]

    @property
    def form(self) -> tuple[Any, ...]:
        """What the compiler specialises the kernel on, apart from sizes."""
        kinds = [(t.dtype, len(t.shape)) for t in (*self.inputs, *self.outputs)]
        return self.name, self.parameters, tuple(kinds[:3])

    @property
    def has_blocks(self) -> bool:
        """Whether several blocks share a row."""
        return dict(self.parameters).get("blocks", 1) > 1


@contextmanager
def _on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[tuple[Any, ...], Call]]:
    """Lower everything for a GPU; gives the calls of our kernels, one of each form."""
    calls: dict[tuple[Any, ...], Call] = {}

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(name: str, device: DeviceRef, values: Sequence[Any], out_types: Any, *rest: Any) -> Any:
            if name.startswith("tmb_"):
                parameters = tuple(sorted((rest[0] or {}).items()))
                call = Call(name, tuple(v.type for v in values), tuple(out_types), parameters)
                calls.setdefault(call.form, call)
            return original(name, device, values, out_types, *rest)

        return noted

    with monkeypatch.context() as patch:
        patch.setattr(ops, "custom", noting(ops.custom))
        patch.setattr(ops, "inplace_custom", noting(ops.inplace_custom))
        patch.setattr(graph_builder, "device_ref", lambda device: DeviceRef.GPU(0))
        yield calls


def _kernels() -> set[str]:
    texts = (file.read_text() for file in kernels_path().rglob("*.mojo"))
    return {name for text in texts for name in re.findall(r'@extensibility\.register\("(\w+)"\)', text)}


def _graph(calls: list[Call], module: Module) -> None:
    """One graph that makes all calls."""
    types = [t for c in calls for t in c.inputs]
    with Graph("kernels", input_types=types, module=module) as graph:
        graph._import_kernels([kernel_library()])
        values = [v if isinstance(v, BufferValue) else v.tensor for v in graph.inputs]
        results = []
        for call in calls:
            operands, values = values[: len(call.inputs)], values[len(call.inputs) :]
            custom = ops.custom if call.outputs else ops.inplace_custom
            results += custom(call.name, DeviceRef.GPU(0), operands, call.outputs, dict(call.parameters))
        graph.output(*results)


@pytest.mark.xdist_group("gpu_kernels")
@pytest.mark.parametrize(
    ("api", "architecture", "every_form"),
    [
        ("cuda", "sm_90a", False),
        pytest.param("cuda", "sm_90a", True, marks=pytest.mark.full),
        pytest.param("hip", "gfx942", True, marks=pytest.mark.full),
    ],
)
def test_every_kernel_compiles(
    api: str, architecture: str, every_form: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In all of the forms that it is called in; or a part of the kernels, drawn by the commit, in one or two forms."""
    families = case_tables()
    cases = [c for family, names in CASES.items() for c in families[family] if c.name in names]
    assert len(cases) == sum(map(len, CASES.values())), "a case was renamed"
    monkeypatch.setenv("TORCH_MAX_BACKEND_CACHE_DIR", str(tmp_path))  # every case is traced, none is a cache hit
    jobs = _jobs(cases)
    with _on_a_gpu(monkeypatch) as calls:
        for i, job in enumerate(jobs):
            graph_builder.build_graph(job.region, f"region_{i}", Module(), CodeSettings("high", "cuda"))
    assert {c.name for c in calls.values()} >= _kernels() - CPU_ONLY.keys() - AMD_ONLY.keys() - ATTENTION.keys()
    left_out = ATTENTION.keys() | (NVIDIA_ONLY if api != "cuda" else set())
    chosen = list(calls.values()) if every_form else list({(c.name, c.has_blocks): c for c in calls.values()}.values())
    chosen = [c for c in chosen if c.name not in left_out]
    if not every_form:
        names = sorted({c.name for c in chosen})
        change = change_of()
        some = set(drawn(names, change.commit if change else "", len(names) // SHARE))
        chosen = [c for c in chosen if c.name in some]
    _compile(chosen, api, architecture)


@pytest.mark.full
@pytest.mark.parametrize(("api", "architecture"), [("cuda", "sm_90a"), ("hip", "gfx942")])
def test_attention_compiles(api: str, architecture: str) -> None:
    def tensor(*shape: int | str, dtype: DType = DType.bfloat16) -> TensorType:
        return TensorType(dtype, shape, DeviceRef.GPU(0))

    out, q, k, wide = (tensor("b", "s", h, 64) for h in (4, 4, 2, 8))
    scale = TensorType(DType.float32, [], DeviceRef.CPU())
    inputs = {
        "tmb_flash_attention": (q, k, k, scale),
        "tmb_biased_attention": (q, k, k, tensor("b", 1, "s", "s"), scale),
        "tmb_sliced_attention": (wide, wide, wide, scale),
    }
    calls = [Call(name, inputs[name], (out,), tuple(parameters.items())) for name, parameters in ATTENTION.items()]
    _compile(calls, api, architecture)


def _compile(calls: list[Call], api: str, architecture: str) -> None:
    module = Module()
    _graph(calls, module)
    pool = pool_for(Target(api, architecture, 1), 1)
    artifact, _ = pool.submit(module.mlir_module.bytecode, [kernel_library()]).result()
    assert architecture.encode() in artifact
