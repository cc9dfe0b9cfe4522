"""Warm starts: a second process takes traced and lowered graphs from AOTAutograd's cache."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.processes import Processes
from torch_max_backend.compile.cache.store import Store

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.own_processes, pytest.mark.sampled]

PRELUDE = """
import json, sys, warnings
import torch

def compiled(function, dynamic=None, **options):
    from torch_max_backend import max_backend
    options = {"fallback": "error", **options}
    backend = lambda gm, inputs: max_backend(gm, inputs, options=options)
    return torch.compile(function, backend=backend, dynamic=dynamic)

def same(given, wanted):
    torch.testing.assert_close(given, wanted)

def tell(**more):
    from torch._dynamo.utils import counters
    from torch_max_backend import reports
    found = reports()
    print(json.dumps({
        "warm": [r.warm for r in found],
        "regions": [r.stats.regions for r in found],
        "hits": [r.stats.hits for r in found],
        "compiled": sum(r.stats.compile_s > 0 for r in found),
        "cache": {k: v for k, v in counters["aot_autograd"].items() if k.startswith("autograd_cache")},
        "lowering": "torch_max_backend.lowering.graph_builder" in sys.modules,
        "max_graph": "max.graph" in sys.modules,
        "max_driver": "max._core" in sys.modules,
        "programs": sum(r.stats.programs for r in found),
        "inductor": "torch._inductor.lowering" in sys.modules,
        **more,
    }))
"""

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path, processes: Processes) -> Run:
    """Runs a program in a process of its own. The processes of one test share a cache of torch's.

    The regions are in the ordinary cache, so that they are compiled once for all tests.
    """

    def call(program: str, **environment: str) -> dict[str, Any]:
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch")}
        done = processes.run(PRELUDE + textwrap.dedent(program), tmp_path, **{**caches, **environment})
        assert done.told, done.errors[-4000:]
        return done.told

    return call


SIMPLE = """
def f(x, y):
    table = (x * y + torch.arange(x.shape[-1])).sin()
    x.add_(1)
    return table, table.t(), [x.shape[0], None]

x, y = torch.randn(3, 4), torch.randn(3, 4)
mine, theirs = x.clone(), x.clone()
given, wanted = compiled(f{options})(mine, y), f(theirs, y)
same(given, wanted)
same(mine, theirs)
assert given[1].data_ptr() == given[0].data_ptr()
tell()
"""


def simple(**options: Any) -> str:
    return SIMPLE.replace("{options}", "".join(f", {k}={v!r}" for k, v in options.items()))


def test_a_second_process_neither_traces_nor_lowers(run: Run) -> None:
    first, second = run(simple()), run(simple())
    assert first["warm"] == [False] and first["cache"]["autograd_cache_saved"] == 1
    assert second["warm"] == [True] and second["compiled"] == 0 and second["cache"] == {"autograd_cache_hit": 1}
    assert (second["regions"], second["hits"]) == ([1], [1])
    assert first["lowering"] and first["max_graph"]
    assert not second["lowering"] and not second["max_graph"], "a warm start must not import what compiles"
    assert not second["inductor"], "a key needs nothing of Inductor's"
    assert second["max_driver"] == (second["programs"] == 0), "programs need nothing of MAX"


def test_keys_of_torch_are_as_before_outside() -> None:
    """What is replaced while a key is made is there again after it, also after an error; a missing name is no error."""
    from torch._inductor import codecache, config

    from torch_max_backend.frontend import cache_key

    def now() -> list[Any]:
        system = vars(codecache.CacheBase)["get_system"]
        return [codecache.torch_key, codecache.init_backend_registration, config._cache_config_serializer, system]

    before = now()
    with cache_key.light_cache_key():
        assert not any(a is b for a, b in zip(before, now(), strict=True))
        assert torch.__version__.encode() in codecache.torch_key()
        assert codecache.CacheBase.get_system() == {"cuda": torch.version.cuda, "hip": torch.version.hip}
    assert all(a is b for a, b in zip(before, now(), strict=True))
    with pytest.raises(ZeroDivisionError), cache_key.light_cache_key():
        raise ZeroDivisionError
    assert all(a is b for a, b in zip(before, now(), strict=True))
    cache_key._replaced(codecache, "no such name", max)()
    assert not hasattr(codecache, "no such name")


def test_keys_of_torch_in_other_threads_are_as_ever() -> None:
    """And whichever thread ends first, what was replaced is there again after the last one."""
    from torch._inductor import codecache

    from torch_max_backend.frontend.cache_key import light_cache_key

    before, system = codecache.torch_key, vars(codecache.CacheBase)["get_system"]
    first, second = light_cache_key(), light_cache_key()
    first.__enter__()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(lambda: codecache.torch_key() == before()).result()
        other.submit(second.__enter__).result()
        first.__exit__(None, None, None)
        assert codecache.torch_key is not before and codecache.torch_key() == before()
        other.submit(second.__exit__, None, None, None).result()
    assert codecache.torch_key is before and vars(codecache.CacheBase)["get_system"] is system


def test_what_is_part_of_the_key_misses(run: Run) -> None:
    """Another option, torch setting or lowering is another graph; what changes no code is not."""
    run(simple())
    assert run(simple(verbose=True, compile_workers=1))["warm"] == [True]
    assert run(simple(min_block_size=5))["warm"] == [False]
    assert run(simple(), TORCH_MAX_BACKEND_PROFILE="1")["warm"] == [False]
    assert run("torch.set_float32_matmul_precision('high')" + simple())["warm"] == [False]
    edited = "import torch_max_backend.frontend.warm_start as w\nw.package_digest = lambda: 'edited'\n"
    assert run(edited + simple())["warm"] == [False]


MODES = """
def f(x):
    return (x * 2).sin().sum(0)

x = torch.randn(3, 4)
for mode in {modes!r}:
    torch._dynamo.reset()
    same(torch.compile(f, backend="max_backend", mode=mode)(x), f(x))
tell()
"""


def test_one_artifact_serves_every_mode(run: Run) -> None:
    """In one process and in the next: a mode decides how a graph is called, not what is compiled."""
    first = run(MODES.format(modes=["default", "reduce-overhead", "max-autotune"]))
    assert first["warm"] == [False, True, True]
    assert first["compiled"] <= 1 and first["hits"][1:] == [1, 1]
    second = run(MODES.format(modes=["reduce-overhead"]))
    assert second["warm"] == [True] and second["compiled"] == 0 and not second["lowering"]


@pytest.mark.full
def test_without_a_cache_nothing_is_kept(run: Run) -> None:
    assert run(simple(cache=False))["cache"] == {}
    assert run("torch.compiler.config.force_disable_caches = True" + simple())["cache"] == {}


@pytest.mark.full
def test_artifacts_that_are_gone_or_damaged_are_compiled_again(run: Run, tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    store = Store(tmp_path / "cache")
    assert run(simple(cache_dir=folder))["compiled"] == 1
    assert store.clear() == 1
    again, after = run(simple(cache_dir=folder)), run(simple(cache_dir=folder))
    assert again["warm"] == [False] and again["compiled"] == 1
    assert after["warm"] == [True] and after["compiled"] == 0
    for sha in store.blobs():
        store.blob_path(sha).write_bytes(b"no artifact")
    again, after = run(simple(cache_dir=folder)), run(simple(cache_dir=folder))
    assert again["warm"] == [False] and again["compiled"] == 1
    assert after["warm"] == [True]


UNLUCKY = """
from torch_max_backend.frontend import pipeline
from torch_max_backend.base.errors import CompileError

compile_regions = pipeline.compile_regions

def without_luck(regions, *how):
    if regions:
        raise CompileError("no luck")
    return compile_regions(regions, *how)

pipeline.compile_regions = without_luck
"""


def test_a_graph_whose_compile_failed_is_compiled_by_the_next_process(run: Run) -> None:
    failed, after = run(UNLUCKY + simple(fallback="eager")), run(simple(fallback="eager"))
    assert failed["regions"] == [0] and "autograd_cache_saved" not in failed["cache"]
    assert after["warm"] == [False] and after["regions"] == [1]


DYNAMIC = """
def f(x, n):
    return x.reshape(n, -1).cumsum(0) * x.shape[0]

function = compiled(f, dynamic=True)
for size in {sizes}:
    x = torch.randn(size, 6)
    same(function(x, 2), f(x, 2))
tell(graphs=torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""


@pytest.mark.full
def test_symbolic_sizes(run: Run) -> None:
    """Sizes that the first process never saw hit, and guards on sizes hold in the second process as in the first."""
    first = run(DYNAMIC.replace("{sizes}", "[4, 6]"))
    second = run(DYNAMIC.replace("{sizes}", "[10, 12, 8]"))
    assert first["warm"] == [False]
    assert second["warm"] == [True] and second["graphs"] == first["graphs"] == 1


SPECIALISED = """
def f(x):
    return torch.nn.functional.group_norm(x, 2).sin()

function = compiled(f, dynamic=True)
for channels in {channels}:
    x = torch.randn(2, channels, 5)
    same(function(x), f(x))
tell()
"""


@pytest.mark.full
def test_guards_that_lowering_added(run: Run) -> None:
    """A size that a lowering specialised is guarded in the second process too."""
    first = run(SPECIALISED.replace("{channels}", "[4]"))
    second = run(SPECIALISED.replace("{channels}", "[4, 6]"))
    assert first["warm"] == [False]
    assert second["warm"] == [True, False], "4 channels were compiled before, 6 were not"


TRAINING = """
torch.manual_seed(0)
def f(x, w):
    return ((x * w).tanh() + x.exp()).sum()

def gradients(function):
    torch.manual_seed(0)
    x, w = torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    for _ in range(2):
        function(x, w).backward()
    return x.grad, w.grad

same(gradients(compiled(f, dynamic={dynamic})), gradients(f))
tell(bundled=torch._functorch.config.bundled_autograd_cache)
"""


@pytest.mark.full
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.full)])
def test_training(run: Run, dynamic: bool) -> None:
    """Forward and backward are kept, whether the backward is compiled with the forward (symbolic sizes) or later."""
    program = TRAINING.replace("{dynamic}", str(dynamic))
    first, second = run(program), run(program)
    assert first["warm"] == [False, False] and first["cache"]["autograd_cache_saved"] == 1
    assert second["warm"] == [True, True] and second["compiled"] == 0 and not second["lowering"]
    assert not first["bundled"] and not second["bundled"], "torch's setting is as it was"


ISLANDS = """
def f(x):
    noise = torch.rand(3, 4)
    return (x.sin() * noise).cos(), torch.linalg.pinv(x).exp()

torch.manual_seed(0)
x = torch.randn(3, 4)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.manual_seed(1)
    given = compiled(f, fallback="eager", min_block_size=1)(x)
torch.manual_seed(1)
same(given, f(x))
tell(warned=sum("pinv" in str(w.message) or "svd" in str(w.message) for w in caught))
"""


@pytest.mark.full
def test_torch_ops_and_random_numbers(run: Run) -> None:
    first, second = run(ISLANDS), run(ISLANDS)
    assert first["warm"] == [False] and first["warned"] == 1
    assert second["warm"] == [True] and second["warned"] == 1, "what torch runs is said in every process"


LOWERED = """
from torch_max_backend import map_to
from max.graph import ops

@torch.library.custom_op("warm::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    return x / 2

@half.register_fake
def _(x):
    return torch.empty_like(x)

{register}
x = torch.randn(8)
same(compiled(lambda x: half(x).sin())(x), (x / {factor}).sin())
tell()
"""


@pytest.mark.full  # four processes, each of which compiles
def test_a_users_lowering_is_part_of_the_key(run: Run) -> None:
    def program(factor: int) -> str:
        register = f"@map_to(torch.ops.warm.half.default)\ndef lowered(x):\n    return x / {factor}\n"
        return LOWERED.replace("{register}", register).replace("{factor}", str(factor))

    assert run(program(2))["warm"] == [False]
    assert run(program(2))["warm"] == [True]
    assert run(program(4))["warm"] == [False]
    by_exec = LOWERED.replace("{factor}", "4").replace(
        "{register}", "exec('@map_to(torch.ops.warm.half.default)\\ndef lowered(x):\\n    return x / 4')"
    )
    assert run(by_exec)["cache"] == {}, "a lowering without a source file is valid for its own process only"


BACKGROUND = """
from torch_max_backend import wait_for_compiles
x = torch.randn(8)
function = compiled(lambda x: x.sin() + 1, compile="background")
same(function(x), x.sin() + 1)
assert wait_for_compiles(300.0)
same(function(x), x.sin() + 1)
tell()
"""


@pytest.mark.full
def test_a_graph_that_is_compiled_in_the_background_is_kept_once_it_is_there(run: Run, tmp_path: Path) -> None:
    own = {"TORCH_MAX_BACKEND_CACHE_DIR": str(tmp_path / "cache")}
    first, second, third = run(BACKGROUND, **own), run(BACKGROUND, **own), run(BACKGROUND, **own)
    assert first["cache"]["autograd_cache_bypass"] == 1 and first["warm"] == [False]
    assert second["warm"] == [False] and second["hits"] == [1] and second["cache"]["autograd_cache_saved"] == 1
    assert third["warm"] == [True]


def test_a_torch_without_this_cache_still_works(run: Run) -> None:
    lacking = "import torch_max_backend.frontend.warm_start as w\nw._missing = ['SerializableAOTDispatchCompiler']\n"
    run(simple())
    found = run(lacking + simple())
    assert found["warm"] == [False] and found["hits"] == [1] and found["cache"] == {}


CHOICE = """
def f(x, p):
    return torch.cond(p, lambda x: (x.sin() * 2).exp(), lambda x: x.cos(), (x,)).sum()

g = compiled(f, executor="auto")
x = torch.randn(6, 5)
for p in (torch.tensor(True), torch.tensor(False)):
    same(g(x, p), f(x, p))
tell()
"""

LAYERS = """
@torch.compiler.nested_compile_region
def layer(x, w):
    return (x @ w).relu()

def f(x, w):
    return layer(layer(x, w), w).sum()

x, w = torch.randn(6, 5), torch.randn(5, 5)
same(compiled(f, executor="auto")(x, w), f(x, w))
tell()
"""


def test_the_store_has_the_graphs_that_a_condition_chooses_between(run: Run) -> None:
    """AOTAutograd keeps no graph with a condition, so it is traced again."""
    run(CHOICE)
    second = run(CHOICE)
    assert second["compiled"] == 0 and second["hits"] == second["regions"] == [1, 1, 1]
    assert second["cache"] == {"autograd_cache_bypass": 1}


def test_a_graph_is_kept_with_its_marked_regions(run: Run) -> None:
    """They are a part of it."""
    first, second = run(LAYERS), run(LAYERS)
    assert first["warm"] == [False] and first["cache"]["autograd_cache_saved"] == 1
    assert second["warm"] == [True] and second["compiled"] == 0
    assert second["hits"] == second["regions"] == [1]
    assert not second["lowering"]
