"""The compiler's promises that need more than values: fallback, errors, options, caching, threads, user lowerings."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from max.graph import TensorValue, ops
from torch import nn

from tests.support.programs import Block
from torch_max_backend import compile_together, map_to, reports
from torch_max_backend.aten_functions.registry import aten_functions, missing_names, registered_overloads
from torch_max_backend.base.errors import (
    EnvironmentUnsupportedError,
    MaxBackendError,
    OptionError,
    RegistrationError,
    UnsupportedOpError,
)
from torch_max_backend.compile.compiler import put_off, store_for
from torch_max_backend.diagnostics import report
from torch_max_backend.options import resolve
from torch_max_backend.partition.partitioner import Plan

aten = torch.ops.aten
pytestmark = [pytest.mark.xdist_group("compiler"), pytest.mark.sampled]


def compiled(function, **options):  # type: ignore[no-untyped-def]
    dynamic = options.pop("dynamic", None)
    mode = options.pop("mode", None)
    torch._dynamo.reset()
    return torch.compile(function, backend="max_backend", dynamic=dynamic, mode=mode, options=options or None)


def root_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return error


def regions_and_islands() -> list[tuple[int, list[str]]]:
    """Of every graph that was compiled since the reports were cleared: how many regions, and which ops torch ran."""
    return [(r.stats.regions, [i.op for i in r.islands]) for r in reports()]


def simple(x: torch.Tensor) -> torch.Tensor:
    return (x * 2 + 1).sum(0)


@pytest.fixture(autouse=True)
def compiled_before(caplog: pytest.LogCaptureFixture) -> None:
    """What many of these tests compile, in one module: a compile has a fixed cost of about ten seconds."""
    if _compiled_before:
        return
    _compiled_before.append(True)
    with compile_together(resolve({})):
        for test in TOGETHER:
            with contextlib.suppress(Exception):  # what a test asserts may not hold in this rehearsal
                test(caplog) if inspect.signature(test).parameters else test()
    caplog.clear()
    torch._dynamo.reset()
    torch.manual_seed(0)


_compiled_before: list[bool] = []


# -- the front door ------------------------------------------------------------------------------------------------
@pytest.mark.any_runner("the entry point")
def test_found_by_name_without_import() -> None:
    code = (
        "import torch, sys; from torch._dynamo.backends.registry import list_backends, lookup_backend;"
        "assert 'max_backend' in list_backends(); assert 'max' not in sys.modules;"
        "print(lookup_backend('max_backend').__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "torch_max_backend.backend"


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes(mode: str) -> None:
    x = torch.randn(3, 4)
    torch._dynamo.reset()
    report.clear()
    torch.testing.assert_close(torch.compile(simple, backend="max_backend", mode=mode)(x), simple(x))
    assert regions_and_islands() == [(1, [])]


@pytest.mark.any_runner("refused before there is a graph")
def test_unknown_option_names_the_nearest() -> None:
    with pytest.raises(Exception, match="did you mean 'fallback'") as caught:
        compiled(simple, falback="error")(torch.randn(3))
    assert isinstance(root_cause(caught.value), OptionError)


@pytest.mark.any_runner("refused before there is a graph")
def test_meta_tensors_are_refused() -> None:
    with pytest.raises(Exception, match="device 'meta' is not supported by max_backend"):
        compiled(simple)(torch.randn(3, 4, device="meta"))


@pytest.mark.any_runner("refused before there is a graph")
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_missing_gpu_is_named() -> None:
    from torch_max_backend.runtime.session import check_device

    with pytest.raises(EnvironmentUnsupportedError, match="MAX sees 0 GPU"):
        check_device(torch.device("cuda", 0))


@pytest.mark.any_runner("environment variables")
@pytest.mark.parametrize(
    ("comes_first", "option", "share"),
    [
        ("recordings", -1, "25"),
        ("recordings", 40, "40"),
        ("recordings", 0, "0"),
        ("others", -1, "60"),
        ("others", 10, "60"),
        ("the user", 10, "33"),
        ("a parent", -1, "25"),
    ],
)
def test_share_of_a_gpus_memory(monkeypatch: pytest.MonkeyPatch, comes_first: str, option: int, share: str) -> None:
    """Recording reserves all of it, so it is small where the first function to compile asks for device graphs."""
    from torch_max_backend.runtime import session

    monkeypatch.setenv(session.POOL_SIZE, "1")  # so that what the test sets is undone
    monkeypatch.delenv(session.POOL_SIZE)
    for name in (session.POOL_PERCENT, session.CHOSEN):
        monkeypatch.setenv(name, "33")
        if comes_first != "a parent" and (comes_first != "the user" or name == session.CHOSEN):
            monkeypatch.delenv(name)
    monkeypatch.setattr(session, "_share", session.SHARE)
    monkeypatch.setattr("max.driver.accelerator_count", lambda: 0)
    monkeypatch.setattr(session, "get_accelerators", functools.cache(session.get_accelerators.__wrapped__))
    if comes_first == "others":
        session.get_accelerators()
    session.choose_memory_share.__wrapped__(option, True)
    session.get_accelerators()
    assert os.environ[session.POOL_PERCENT] == share
    assert os.environ.get(session.POOL_SIZE) == ("0" if share == "0" else None)


def test_a_share_that_comes_too_late_is_told_where_the_pool_is_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not before: programs take no memory of it."""
    from torch_max_backend.runtime import session

    monkeypatch.setattr(session, "get_accelerators", functools.cache(lambda: (object(),)))
    monkeypatch.setattr(session, "_share", session.SHARE)
    monkeypatch.setattr(session, "session", lambda: SimpleNamespace(_wrap_compiled=bytes, _load_all=lambda *_: []))
    monkeypatch.setattr(session, "_loaded", {})
    monkeypatch.setattr(session, "read", bytes)
    for name in (session.POOL_PERCENT, session.CHOSEN):
        monkeypatch.delenv(name, raising=False)
    session.get_accelerators()
    with caplog.at_level(logging.WARNING, logger="torch_max_backend"):
        session.choose_memory_share.__wrapped__(-1, True)
        assert not caplog.messages
        assert session.load(b"", "a model that there is none of") == {}
    (told,) = caplog.messages
    assert told.startswith("MAX's pool has 60 % of the GPU's memory, not 25")


# -- fallback ------------------------------------------------------------------------------------------------------
def with_island(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = (x * 2).relu() + 1
    q = torch.linalg.qr(y).Q.abs()
    return (q + y).exp().sum(0), y


def test_islands_run_in_torch_and_are_reported() -> None:
    x = torch.randn(4, 4)
    report.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        given = compiled(with_island, min_block_size=1)(x)
    for a, b in zip(given, with_island(x), strict=True):
        torch.testing.assert_close(a, b)
    (last,) = reports()
    assert last.stats.regions == 2
    assert [i.op for i in last.islands] == ["aten.linalg_qr.default"]
    assert "with_island" in last.islands[0].where
    texts = [str(w.message) for w in caught if "max_backend: torch runs" in str(w.message)]
    assert len(texts) == 1
    assert "1 x aten.linalg_qr.default" in texts[0]
    assert "torch.linalg.qr(y)" in texts[0]


def test_strict_mode_names_op_reason_and_line() -> None:
    with pytest.raises(Exception, match=r"aten\.linalg_qr") as caught:
        compiled(with_island, fallback="error")(torch.randn(4, 4))
    text = str(caught.value)
    assert isinstance(root_cause(caught.value), UnsupportedOpError)
    assert "torch.linalg.qr(y)" in text
    assert re.search(r"test_compiler\.py:\d+", text)


def test_small_regions_join_the_island(plans: list[Plan]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.qr(x + 1).Q * 2

    x = torch.randn(3, 3)
    with warnings.catch_warnings(), put_off():  # how many regions there are does not depend on the compiler
        warnings.simplefilter("ignore")
        for least in (1, 4):
            torch.testing.assert_close(compiled(function, min_block_size=least)(x), function(x))
    assert [len(plan.regions) for plan in plans] == [2, 0]


def test_torch_executed_ops() -> None:
    x = torch.randn(3, 4)
    report.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = compiled(simple, torch_executed_ops=["aten.add.Tensor"], min_block_size=1)(x)
    torch.testing.assert_close(given, simple(x))
    assert {i.op for i in reports()[0].islands} == {"aten.add.Tensor"}


def rows_of_a_norm(x: torch.Tensor) -> torch.Tensor:
    """Fake tensors have this norm keep the strides of ``x``, so that its rows are a view. Eager makes it contiguous."""
    y = torch.nn.functional.batch_norm(x.transpose(1, 2), None, None, training=True)
    return y.transpose(1, 2).reshape(48, 64) * 2


@pytest.mark.any_runner("torch runs these ops by request, or while they are compiled")
@pytest.mark.parametrize("while_compiling", [False, True])
def test_torch_may_give_strides_that_were_not_traced(while_compiling: bool) -> None:
    x = torch.randn(6, 8, 64)
    ops = ["aten.view.default", "aten.permute.default", "aten.transpose.int", "aten.mul.Tensor"]
    ops += ["aten._native_batch_norm_legit.no_stats", "aten._native_batch_norm_legit_functional.default"]
    with warnings.catch_warnings(), put_off() if while_compiling else contextlib.nullcontext():
        warnings.simplefilter("ignore")
        given = compiled(rows_of_a_norm, torch_executed_ops=[] if while_compiling else ops)(x)
    torch.testing.assert_close(given, rows_of_a_norm(x), rtol=0, atol=0)


def test_complex_tensors_are_islands() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (torch.view_as_complex(x * 2) * 1j).abs()

    x = torch.randn(3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(compiled(function)(x), function(x))
    with pytest.raises(Exception, match=r"MAX has no complex numbers"):
        compiled(function, fallback="error")(x)


@pytest.mark.full
def test_data_dependent_sizes() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return ((x * 2)[x > 0] + 1).sum()

    x = torch.randn(20)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report.clear()
        run = compiled(function, min_block_size=1)
        torch.testing.assert_close(run(x), function(x))
        torch.testing.assert_close(run(x.abs() + 1), function(x.abs() + 1))
    assert regions_and_islands() == [(2, ["aten.index.Tensor"])]


def test_a_slice_of_a_size_that_data_decide_stays_with_torch() -> None:
    def function(x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.tensor_split(x * 2, places)

    x = torch.randn(10, 3)
    with torch._dynamo.config.patch(capture_scalar_outputs=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report.clear()
        run = compiled(function, min_block_size=1)
        for places in (torch.tensor([2, 5]), torch.tensor([4, 4])):
            for given, wanted in zip(run(x, places), function(x, places), strict=True):
                torch.testing.assert_close(given, wanted)
    assert regions_and_islands() == [(1, ["aten.slice.Tensor"] * 3)]


@pytest.mark.any_runner("MAX has no complex numbers")
def test_outputs_with_a_lazy_conjugate() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        spectrum = torch.fft.fft(x)
        return spectrum, spectrum.conj(), spectrum.conj().imag

    x = torch.randn(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for given, wanted in zip(compiled(function)(x), function(x), strict=True):
            torch.testing.assert_close(given, wanted)
            assert (given.is_conj(), given.is_neg()) == (wanted.is_conj(), wanted.is_neg())


@pytest.mark.full
def test_a_number_that_must_be_known_is_specialised(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, stride: int) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, weight, stride=stride)

    run = torch.compile(function, backend="max_backend", dynamic=True, options={"fallback": "error"})
    weight = torch.randn(4, 3, 3, 3)
    with caplog.at_level(logging.INFO, "torch_max_backend"):
        for size, stride in ((12, 2), (14, 2), (12, 3)):
            x = torch.randn(2, 3, size, size)
            torch.testing.assert_close(run(x, weight, stride), function(x, weight, stride))
    named = [r.message for r in caplog.records if r.message.startswith("specialised on")]
    assert len(named) == 2, named  # once for each stride, not for the size of the image
    assert "= 2 for aten.convolution.default" in named[0]
    assert "conv2d(x, weight, stride=stride)" in named[0]


def test_a_part_of_a_number_is_specialised() -> None:
    """That ``kernel // 2`` is 0 does not tell ``kernel``."""

    def function(x: torch.Tensor, weight: torch.Tensor, kernel: int) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, weight, padding=kernel // 2)

    run = torch.compile(function, backend="max_backend", dynamic=True, options={"fallback": "error"})
    x, weight = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 1, 1)
    torch.testing.assert_close(run(x, weight, 1), function(x, weight, 1))


def test_a_number_that_may_be_negative_is_specialised(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: torch.Tensor, number: int) -> torch.Tensor:
        return x * 2 + torch.scalar_tensor(number)

    run = torch.compile(function, backend="max_backend", dynamic=True, options={"fallback": "error"})
    x = torch.randn(3)
    with caplog.at_level(logging.INFO, "torch_max_backend"):
        for number in (5, 0, 11, -2):  # the first three share a graph
            torch.testing.assert_close(run(x, number), function(x, number))
    named = [r.message for r in caplog.records if r.message.startswith("specialised on")]
    assert len(named) == 1, named
    assert "= -2 for aten.scalar_tensor.default" in named[0]


@pytest.mark.full
def test_a_size_of_which_a_region_sees_only_a_part() -> None:
    def function(number: int, x: torch.Tensor) -> torch.Tensor:
        return torch.ones(number + 1).sin() * 2 + x

    options = {"torch_executed_ops": ["aten.sin.default"], "min_block_size": 1}
    run = torch.compile(function, backend="max_backend", dynamic=True, options=options)
    x = torch.randn(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report.clear()
        for number in (4, 6):
            torch.testing.assert_close(run(number, x), function(number, x))
    assert regions_and_islands() == [(1, ["aten.sin.default"])]


def test_a_repeated_value_between_regions() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        row = (x * 2)[:1].expand(4, 3)
        return row.sin() + row

    x = torch.randn(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report.clear()
        given = compiled(function, torch_executed_ops=["aten.sin.default"], min_block_size=1)(x)
    torch.testing.assert_close(given, function(x))
    assert regions_and_islands() == [(2, ["aten.sin.default"])]


def test_random_ops_equal_eager() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask = torch.bernoulli(torch.full_like(x, 0.5))
        return x * mask + torch.rand_like(x), torch.randn(3) * 2, torch.randint(0, 9, (4,)) + 1

    x = torch.randn(4, 5)
    report.clear()
    run = compiled(function, fallback="error")
    torch.manual_seed(3)
    wanted = function(x)
    torch.manual_seed(3)
    given = run(x)
    for a, b in zip(given, wanted, strict=True):
        torch.testing.assert_close(a, b)
    assert not reports()[0].islands


# -- user lowerings ------------------------------------------------------------------------------------------------
def test_user_lowering_wins_over_a_decomposition() -> None:
    original = aten_functions.lowerings.copy()
    try:

        @map_to(aten.addcmul.default)
        def addcmul(self: TensorValue, tensor1: TensorValue, tensor2: TensorValue, *, value: float = 1) -> TensorValue:
            return ops.mul(self, 100.0)  # not what addcmul does, so that it shows

        x = torch.randn(3, 4)
        run = compiled(lambda a, b, c: torch.addcmul(a, b, c), fallback="error")
        torch.testing.assert_close(run(x, x, x), x * 100)
    finally:
        aten_functions.lowerings = original


@pytest.mark.full
def test_user_lowering_of_a_custom_op() -> None:
    @torch.library.custom_op("tmb_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    original = aten_functions.lowerings.copy()
    try:

        @map_to(torch.ops.tmb_test.twice.default)
        def lower(x: TensorValue) -> TensorValue:
            return ops.mul(x, 2.0)

        x = torch.randn(3, 4)
        torch.testing.assert_close(compiled(lambda a: twice(a) + 1, fallback="error")(x), x * 2 + 1)
    finally:
        aten_functions.lowerings = original


@pytest.mark.full
def test_user_lowering_of_an_op_that_is_defined_later() -> None:
    original = aten_functions.lowerings.copy()
    name = "tmb_test.thrice.default"
    try:

        @map_to(name)
        def lower(x: TensorValue) -> TensorValue:
            return ops.mul(x, 3.0)

        assert name in [str(low.overload) for low in aten_functions]
        assert not missing_names(name, lower)

        @torch.library.custom_op("tmb_test::thrice", mutates_args=())
        def thrice(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        thrice.register_fake(torch.empty_like)
        x = torch.randn(3, 4)
        torch.testing.assert_close(compiled(lambda a: thrice(a) + 1, fallback="error")(x), x * 3 + 1)
        assert torch.ops.tmb_test.thrice.default in aten_functions
        assert torch.ops.tmb_test.thrice.default in registered_overloads()

        @map_to(torch.ops.tmb_test.thrice.default)
        def lower_again(x: TensorValue) -> TensorValue:
            return ops.mul(x, 30.0)

        torch.testing.assert_close(compiled(lambda a: thrice(a) + 2, fallback="error")(x), x * 30 + 2)
    finally:
        aten_functions.lowerings = original


def test_a_broken_lowering_is_named_not_believed() -> None:
    original = aten_functions.lowerings.copy()

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + 1

    try:

        @map_to(aten.sin.default)
        def sin(self: TensorValue) -> TensorValue:
            return ops.unsqueeze(ops.sin(self), 0)

        x = torch.randn(3, 4)
        with pytest.raises(Exception, match=r"aten\.sin\.default: output 0 has shape .*torch promises"):
            compiled(function, fallback="error")(x)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.testing.assert_close(compiled(function)(x), function(x))
        assert any("aten.sin.default" in str(w.message) for w in caught)
    finally:
        aten_functions.lowerings = original


def test_user_lowering_of_a_composite_op() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight).relu()

    original = aten_functions.lowerings.copy()
    try:

        @map_to(aten.linear.default)
        def linear(input: TensorValue, weight: TensorValue, bias: TensorValue | None = None) -> TensorValue:
            terms = ops.unsqueeze(input, 1) * weight * 3.0  # so that it shows
            return ops.squeeze(ops.sum(terms, axis=-1), -1)

        x, weight = torch.randn(5, 8), torch.randn(6, 8)
        run = compiled(function, fallback="error")
        torch.testing.assert_close(run(x, weight), function(x, weight) * 3)
        assert aten.linear.default._can_decompose()  # nothing of torch is changed for longer than a trace
        assert not aten.linear.default.py_kernels
        weight.requires_grad_()
        with torch.no_grad():
            torch.testing.assert_close(run(x, weight), function(x, weight) * 3)
        # Torch has no derivative of it.
        with pytest.warns(UserWarning, match=r"aten\.linear\.default .*gradients"), put_off():
            given = run(x, weight)
        torch.testing.assert_close(given, function(x, weight))
    finally:
        aten_functions.lowerings = original


@pytest.mark.any_runner("what registering refuses")
def test_a_lowering_of_a_composite_view_is_warned_of() -> None:
    original = aten_functions.lowerings.copy()
    try:
        with pytest.warns(UserWarning, match=r"aten\.reshape\.default is a view"):
            map_to(aten.reshape.default)(lambda self, shape: self)
    finally:
        aten_functions.lowerings = original


@pytest.mark.any_runner("what registering refuses")
def test_registration_errors() -> None:
    with pytest.raises(RegistrationError, match="expects an op such as"):
        map_to(torch.add)(lambda self, other: self)  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="not 'aten'"):
        map_to("aten")(lambda self, other: self)
    with pytest.raises(RegistrationError, match="does not take"):
        map_to(aten.addmm.default)(lambda self: self)


# -- the cache -----------------------------------------------------------------------------------------------------
def test_cache_hit_corrupt_entry_and_no_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(5, 7)

    def run(folder: Path) -> int:
        report.clear()
        torch.testing.assert_close(compiled(simple, cache_dir=str(folder))(x), simple(x))
        return reports()[0].stats.hits

    assert run(tmp_path) == 0
    assert run(tmp_path) == 1
    (blob,) = tmp_path.rglob("*.mef")
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    with caplog.at_level(logging.WARNING, "torch_max_backend"):
        assert run(tmp_path) == 0
    assert "is corrupt: compiling again" in caplog.text
    assert run(tmp_path) == 1
    file = tmp_path / "a_file"
    file.write_text("")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "torch_max_backend"):
        run(file / "below")
    assert "cannot be written" in caplog.text


def test_equal_functions_share_an_entry(tmp_path: Path) -> None:
    options = resolve({"cache_dir": str(tmp_path)})

    def one(alpha: torch.Tensor) -> torch.Tensor:
        beta = alpha * 3
        return beta + 1

    def other(x: torch.Tensor) -> torch.Tensor:
        return x * 3 + 1

    for function in (one, other):
        compiled(function, cache_dir=str(tmp_path))(torch.randn(4, 4))
    assert store_for(options).usage()[0] == 1


# -- running -------------------------------------------------------------------------------------------------------
def test_module_with_buffers_and_moving_weights() -> None:
    eager, given = Block(), Block()
    given.load_state_dict(eager.state_dict())
    run = compiled(given, fallback="error")
    x = torch.randn(2, 8)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(run(x), eager(x))
        for module in (eager, given):
            module.linear.weight.mul_(2)  # in place: seen through the same memory
        torch.testing.assert_close(run(x), eager(x))
        for module in (eager, given):
            module.linear.weight.data = module.linear.weight.data * 0.5 + 1  # other memory
        torch.testing.assert_close(run(x), eager(x))
    assert given.steps == eager.steps == 4


@pytest.mark.full  # tests/frontend/test_training.py has more of the kind
def test_training_step() -> None:
    eager, given = (nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)) for _ in range(2))
    given.load_state_dict(eager.state_dict())
    report.clear()
    run = compiled(given)
    x = torch.randn(4, 8)
    for model in (eager, run):
        model(x).square().mean().backward()
    assert regions_and_islands() == [(1, []), (1, [])]  # forward and backward
    for a, b in zip(given.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_threads() -> None:
    run = compiled(simple, fallback="error", dynamic=True)
    run(torch.randn(3, 4))
    run(torch.randn(5, 6))
    wrong: list[object] = []

    def work(seed: int) -> None:
        try:
            generator = torch.Generator().manual_seed(seed)
            for _ in range(50):
                x = torch.randn(5, 6, generator=generator)
                if not torch.allclose(run(x), simple(x)):
                    wrong.append(seed)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.any_runner("classes of errors")
def test_errors_are_one_tree() -> None:
    assert issubclass(UnsupportedOpError, MaxBackendError)
    assert issubclass(OptionError, MaxBackendError)


def one_default_mode() -> None:
    compiled(simple)(torch.randn(3, 4))


def one_dynamic_graph() -> None:
    compiled(simple, fallback="error", dynamic=True)(torch.randn(3, 4))


TOGETHER = (
    one_default_mode,
    one_dynamic_graph,
    test_islands_run_in_torch_and_are_reported,
    test_torch_executed_ops,
    test_complex_tensors_are_islands,
    test_a_slice_of_a_size_that_data_decide_stays_with_torch,
    test_outputs_with_a_lazy_conjugate,
    test_a_part_of_a_number_is_specialised,
    test_a_number_that_may_be_negative_is_specialised,
    test_a_repeated_value_between_regions,
    test_random_ops_equal_eager,
    test_module_with_buffers_and_moving_weights,
)
"""Tests that find their graphs compiled, if they run after another one of this file."""


@pytest.mark.parametrize("factor", [2, 3])
def test_second_batch_size_does_not_compile_again(factor: int) -> None:
    run = compiled(simple, fallback="error", dynamic=True)
    run(torch.randn(4, 6))
    report.clear()
    x = torch.randn(4 * factor, 6)
    torch.testing.assert_close(run(x), simple(x))
    assert reports() == []
