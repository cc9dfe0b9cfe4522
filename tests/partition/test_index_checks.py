"""Checks of indices on a GPU: what of a graph is checked, and that its error says what eager says on a CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from max.graph import Module
from torch.nn import functional as F

from torch_max_backend.base.target import Machine
from torch_max_backend.codegen.region_spec import region_spec
from torch_max_backend.compile.job import Job
from torch_max_backend.frontend import prebuild
from torch_max_backend.lowering.graph_builder import build_graph
from torch_max_backend.partition.index_checks import IndexChecks, index_checks
from torch_max_backend.runtime.index_reports import error_at

aten = torch.ops.aten
STRICT = {"fallback": "error"}


def lowered_for_gpu(function: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool = False, **options: Any) -> Job:
    """The only region of a function, of tensors like these on a GPU that is not there."""

    def run(device: str) -> None:
        fake = [torch.empty(x.shape, dtype=x.dtype, device=device) for x in inputs]
        torch.compile(function, backend="max_backend", dynamic=dynamic, options={**STRICT, **options})(*fake)

    with Machine.parse("cuda:sm_90a").pretended(), torch.no_grad():
        (job,) = prebuild.regions_of(run, "cuda").jobs.values()
    return job


def graph_of(job: Job, **settings: Any) -> str:
    """The MAX graph of a region for a GPU that is not there."""
    with Machine.parse("cuda:sm_90a").pretended():
        return str(build_graph(job.region, "whole", Module(), dataclasses.replace(job.settings, **settings)))


X = torch.arange(12.0).reshape(4, 3)
ONE_BAD = [5, -7]


def _index(value: int, *sizes: int) -> torch.Tensor:
    return torch.full(sizes, value, dtype=torch.int64)


OPS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "index": (lambda x, i: x[i], (2,)),
    "index_second": (lambda x, i: x[i * 0, i], (2,)),
    "index_put": (lambda x, i: x.index_put((i,), x[0]), (2,)),
    "index_put_accumulate": (lambda x, i: x.index_put((i * 0, i), x[0, 0], accumulate=True), (2,)),
    "index_select": (lambda x, i: x.index_select(0, i), (2,)),
    "index_add": (lambda x, i: x.index_add(0, i, x[:2]), (2,)),
    "index_add_line": (lambda x, i: x[0].index_add(0, i, x[0, :2]), (2,)),
    "index_copy": (lambda x, i: x.index_copy(0, i, x[:2]), (2,)),
    "index_copy_in_place": (lambda x, i: x.index_copy_(0, i, torch.ones(2, 3, device=x.device)) + 1, (2,)),
    "index_fill": (lambda x, i: x.index_fill(0, i, 1.0), (2,)),
    "index_reduce": (lambda x, i: x.index_reduce(0, i, x[:2], "amax"), (2,)),
    "gather": (lambda x, i: x.gather(0, i), (2, 3)),
    "gather_columns": (lambda x, i: x.gather(-1, i), (2, 3)),
    "scatter": (lambda x, i: x.scatter(0, i, 1.0), (2, 3)),
    "scatter_source": (lambda x, i: x.scatter(1, i, x), (2, 3)),
    "scatter_add": (lambda x, i: x.scatter_add(0, i, x), (2, 3)),
    "scatter_reduce": (lambda x, i: x.scatter_reduce(0, i, x, "amax"), (2, 3)),
    "take": (lambda x, i: x.take(i * 3), (2,)),
    "put": (lambda x, i: x.put(i * 3, x[0, :2]), (2,)),
    "embedding": (lambda x, i: F.embedding(i, x), (2,)),
    "nll_loss": (lambda x, i: F.nll_loss(x, i), (4,)),
    "cross_entropy": (lambda x, i: F.cross_entropy(x, i), (4,)),
    "cross_entropy_weighted": (lambda x, i: F.cross_entropy(x, i, x[0]), (4,)),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_the_error_says_what_eager_says(name: str) -> None:
    function, sizes = OPS[name]
    job = lowered_for_gpu(function, X, _index(0, *sizes))
    checks = index_checks(job.region)
    columns = any(word in name for word in ("columns", "second", "line", "source", "nll", "entropy", "accumulate"))
    size = 12 if name in ("take", "put") else 3 if columns else 4
    scale = 3 if name in ("take", "put") else 1
    for value in ONE_BAD:
        with pytest.raises((IndexError, RuntimeError)) as eager:
            function(X.clone(), _index(value, *sizes))
        words = [str(error_at(site, value * scale, size)).splitlines()[0] for site in checks.sites]
        assert str(eager.value).splitlines()[0] in words
    assert all(len(s.lines) == 1 and "test_index_checks.py" in s.lines[0] for s in checks.sites)
    spec = region_spec(job.region, frozenset())
    assert spec.sites == checks.sites and spec.reporting == (0,)
    text = graph_of(job)
    assert "tmb_index" in text or "tmb_losses" in text
    assert "checks = false" not in text


def test_a_column_is_named_by_its_own_dimension() -> None:
    """Eager moves indexed dimensions to the front and then names those."""
    (site,) = index_checks(lowered_for_gpu(lambda x, i: x[:, i], X, _index(0, 2)).region).sites
    assert "dimension 1 with size" in site.message


def test_every_check_that_is_declared_is_made() -> None:
    """By the number of its site, also where one lowering makes several."""

    def several(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        bags = F.embedding_bag(i, x, torch.arange(2, device=x.device) * 0 + i[:2])
        sorter = torch.searchsorted(x[0], x, sorter=i[:3])
        return x[i, i[:1]], bags, sorter, x.masked_scatter(x > 0, x[0]), aten.embedding_renorm(x, i, 1.0, 2.0)

    job = lowered_for_gpu(several, X, _index(0, 8))
    sites = index_checks(job.region).sites
    assert len(sites) == 7
    assert graph_of(job).count('symbol = "tmb_index') == 7


def test_equal_nodes_share_a_site_and_others_do_not() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = F.embedding(i, x) * 2
        b = F.embedding(i + 1, x) * 3
        return a, b, F.embedding(i[:1], x)

    checks = index_checks(lowered_for_gpu(function, X, _index(0, 2)).region)
    assert [len(site.lines) for site in checks.sites] == [2, 1]
    assert sorted(checks.of_node.values()) == [(0,), (0,), (1,)]


def test_without_the_option_nothing_is_checked_by_other_code() -> None:
    function = OPS["embedding"][0]
    job, other = (lowered_for_gpu(function, X, _index(0, 2), check_indices=c) for c in (True, False))
    assert job.key != other.key
    assert {k for k in job.parts if job.parts[k] != other.parts[k]} == {"settings"}
    assert region_spec(other.region, frozenset(), check_indices=False).sites == ()
    assert "tmb_index" not in graph_of(other)
    assert "checks = false" in graph_of(
        lowered_for_gpu(OPS["index_copy_in_place"][0], X, _index(0, 2), check_indices=False)
    )


def test_the_option_matters_only_where_something_is_checked() -> None:
    job, other = (lowered_for_gpu(lambda x: x * 2 + 1, X, check_indices=c) for c in (True, False))
    assert job.key == other.key
    assert index_checks(job.region) == IndexChecks()


def test_nothing_is_checked_on_a_cpu() -> None:
    """There MAX raises by itself."""

    def run(device: str) -> None:
        torch.compile(lambda x, i: x[i] + 1, backend="max_backend", options=STRICT)(X, _index(0, 2))

    with torch.no_grad():
        jobs = prebuild.regions_of(run, "cpu").jobs.values()
    assert all(not index_checks(job.region).sites and not job.settings.check_indices for job in jobs)


def test_sizes_may_be_symbolic() -> None:
    job = lowered_for_gpu(lambda x, i: x[i] + F.embedding(i, x), X, _index(0, 2), dynamic=True)
    assert len(index_checks(job.region).sites) == 2
    assert graph_of(job).count('symbol = "tmb_index') == 2
