"""Options, modes and environment variables: what is accepted, what is refused, and what the refusal says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_max_backend
from torch_max_backend.backend import max_backend
from torch_max_backend.base import versions
from torch_max_backend.base.errors import EnvironmentUnsupportedError, MaxBackendError, OptionError
from torch_max_backend.base.versions import check_versions, found
from torch_max_backend.options import (
    ENVIRONMENT_ONLY,
    FIELDS,
    GRAPH_MODES,
    MODES,
    PREFIX,
    Options,
    flag,
    resolve,
    table,
)

pytestmark = pytest.mark.any_runner("options are read before there is a graph")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the package's variables is set, whatever the caller's shell has."""
    for name in [*FIELDS, *ENVIRONMENT_ONLY]:
        monkeypatch.delenv(PREFIX + name.upper(), raising=False)


# -- values --------------------------------------------------------------------------------------------------------
def test_defaults() -> None:
    assert resolve() == resolve({}) == resolve(None, None) == Options()
    assert Options().fallback == "eager"
    assert Options().torch_executed_ops == ()
    assert Options().cache is True


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("fallback", "error", "error"),
        ("min_block_size", 7, 7),
        ("torch_executed_ops", ["aten.add", "aten.mul.Tensor"], ("aten.add", "aten.mul.Tensor")),
        ("torch_executed_ops", (), ()),
        ("cache", False, False),
        ("cache_dir", "some/folder", "some/folder"),
        ("cache_dir", Path("some/folder"), "some/folder"),
        ("compile_workers", 0, 0),
        ("compile_workers", 3, 3),
        ("profile", True, True),
        ("verbose", True, True),
        ("memory_budget", "4GiB", "4GiB"),
        ("memory_budget", " 60 % ", " 60 % "),
        ("memory_budget", "", ""),
    ],
)
def test_given_values(name: str, value: Any, expected: Any) -> None:
    assert getattr(resolve({name: value}), name) == expected


def test_ops_may_be_given_as_objects() -> None:
    import torch

    ops = [torch.ops.aten.add, torch.ops.aten.mul.Tensor]
    assert resolve({"torch_executed_ops": ops}).torch_executed_ops == ("aten.add", "aten.mul.Tensor")


def test_options_are_hashable_and_frozen() -> None:
    options = resolve({"torch_executed_ops": ["aten.add"]})
    assert hash(options) == hash(resolve({"torch_executed_ops": ["aten.add"]}))
    with pytest.raises(AttributeError):
        options.cache = False  # type: ignore[misc]


@pytest.mark.parametrize("mode", [None, *MODES])
def test_known_modes(mode: str | None) -> None:
    assert resolve({}, mode) == Options(device_graphs=mode in GRAPH_MODES)


def test_device_graphs_that_are_switched_off_stay_off_in_every_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_MAX_BACKEND_DEVICE_GRAPHS", "0")
    assert not resolve({}, "reduce-overhead").device_graphs


# -- refusals ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("falback", "fallback"),
        ("cachedir", "cache_dir"),
        ("Verbose", "verbose"),
        ("min_blocksize", "min_block_size"),
        ("worker", "compile_workers"),
    ],
)
def test_unknown_option_names_the_nearest(key: str, nearest: str) -> None:
    with pytest.raises(OptionError, match=f"unknown option '{key}'.*did you mean '{nearest}'"):
        resolve({key: 1})


def test_an_option_like_no_other_gets_the_list_and_no_guess() -> None:
    with pytest.raises(OptionError) as caught:
        resolve({"zzzzqqq": 1})
    assert "did you mean" not in str(caught.value)
    assert all(name in str(caught.value) for name in FIELDS)


@pytest.mark.parametrize(("mode", "nearest"), [("reduce_overhead", "reduce-overhead"), ("Default", "default")])
def test_unknown_mode_names_the_nearest(mode: str, nearest: str) -> None:
    with pytest.raises(OptionError, match=f"unknown mode '{mode}'.*did you mean '{nearest}'"):
        resolve(None, mode)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("fallback", "errors", "use one of eager, error.*did you mean 'error'"),
        ("fallback", None, "use one of eager, error"),
        ("fallback", True, "use one of eager, error"),
        ("min_block_size", "3", "expected int"),
        ("min_block_size", 3.0, "expected int"),
        ("min_block_size", True, "expected int"),
        ("min_block_size", 0, "must be at least 1"),
        ("min_block_size", -1, "must be at least 1"),
        ("compile_workers", -1, "must be at least 0"),
        ("compile_workers", None, "expected int"),
        ("cache", 1, "expected bool"),
        ("cache", "yes", "expected bool"),
        ("cache_dir", 3, "expected str"),
        ("cache_dir", None, "expected str"),
        ("profile", 0, "expected bool"),
        ("verbose", "true", "expected bool"),
        ("torch_executed_ops", "aten.add", "expected a list of op names"),
        ("torch_executed_ops", 5, "expected a list of op names"),
        ("torch_executed_ops", None, "expected a list of op names"),
        ("memory_budget", 4096, "expected str"),
        ("memory_budget", "lots", 'expected "4GiB", "512MB", a number of bytes, or a share of the device as "60%"'),
        ("memory_budget", "4 GX", 'expected "4GiB"'),
        ("memory_budget", "-1GiB", 'expected "4GiB"'),
        ("memory_budget", "0", "must be at least 1 byte"),
        ("memory_budget", "0%", "a share must be above 0% and at most 100%"),
        ("memory_budget", "120%", "a share must be above 0% and at most 100%"),
    ],
)
def test_wrong_values_are_named(name: str, value: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text) as caught:
        resolve({name: value})
    assert f"option {name!r} is {value!r}" in str(caught.value)


def test_option_errors_are_package_and_value_errors() -> None:
    assert issubclass(OptionError, MaxBackendError)
    assert issubclass(OptionError, ValueError)


# -- the environment -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("FALLBACK", "error", "error"),
        ("MIN_BLOCK_SIZE", "12", 12),
        ("MIN_BLOCK_SIZE", " 12 ", 12),
        ("TORCH_EXECUTED_OPS", "aten.add, aten.mul.Tensor,", ("aten.add", "aten.mul.Tensor")),
        ("TORCH_EXECUTED_OPS", "", ()),
        ("CACHE_DIR", "some/folder", "some/folder"),
        ("COMPILE_WORKERS", "2", 2),
    ],
)
def test_variables(monkeypatch: pytest.MonkeyPatch, name: str, text: str, expected: Any) -> None:
    monkeypatch.setenv(PREFIX + name, text)
    assert getattr(resolve(), name.lower()) == expected


TRUE = ["1", "true", "yes", "on", "TRUE", "Yes", "oN", " true "]
FALSE = ["0", "false", "no", "off", "FALSE", "No", "OFF", ""]


@pytest.mark.parametrize("name", ["CACHE", "PROFILE", "VERBOSE"])
@pytest.mark.parametrize(("text", "expected"), [*((t, True) for t in TRUE), *((t, False) for t in FALSE)])
def test_switches_in_any_case(monkeypatch: pytest.MonkeyPatch, name: str, text: str, expected: bool) -> None:
    monkeypatch.setenv(PREFIX + name, text)
    assert getattr(resolve(), name.lower()) is expected


@pytest.mark.parametrize(("text", "expected"), [*((t, True) for t in TRUE), *((t, False) for t in FALSE)])
def test_environment_only_switches(monkeypatch: pytest.MonkeyPatch, text: str, expected: bool) -> None:
    monkeypatch.setenv(PREFIX + "BEARTYPE", text)
    assert flag("BEARTYPE") is expected


def test_unset_switch_is_off() -> None:
    assert flag("BEARTYPE") is False


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("PROFILE", "maybe", "expected 1, true, yes, on or 0, false, no, off"),
        ("BEARTYPE", "2", "expected 1, true, yes, on or 0, false, no, off"),
        ("MIN_BLOCK_SIZE", "three", "expected an integer"),
        ("MIN_BLOCK_SIZE", "", "expected an integer"),
        ("MIN_BLOCK_SIZE", "0", "must be at least 1"),
        ("FALLBACK", "Error", "use one of eager, error.*did you mean 'error'"),
        ("MEMORY_BUDGET", "much", 'expected "4GiB"'),
    ],
)
def test_wrong_variables_are_named(monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str) -> None:
    monkeypatch.setenv(PREFIX + name, text)
    with pytest.raises(OptionError, match=message) as caught:
        flag(name) if name in ENVIRONMENT_ONLY else resolve()
    assert PREFIX + name in str(caught.value)


def test_an_option_wins_over_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "FALLBACK", "error")
    monkeypatch.setenv(PREFIX + "MIN_BLOCK_SIZE", "nonsense")  # not looked at, since the call gives the value
    chosen = resolve({"fallback": "eager", "min_block_size": 2})
    assert (chosen.fallback, chosen.min_block_size) == ("eager", 2)


@pytest.mark.parametrize(("text", "expected"), [("1", "True"), ("YES", "True"), ("0", "False"), ("", "False")])
def test_beartype_is_switched_by_its_variable(text: str, expected: str) -> None:
    code = (
        "import sys, torch_max_backend; from torch_max_backend import options;"
        "print(hasattr(options.resolve, '__wrapped__') or 'beartype.claw' in sys.modules)"
    )
    environment = {**os.environ, PREFIX + "BEARTYPE": text}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


# -- the table -----------------------------------------------------------------------------------------------------
def test_the_table_lists_every_option_with_a_meaning() -> None:
    rows = {row[0]: row for row in table()}
    assert list(rows) == list(FIELDS)
    for name, variable, kind, default, meaning in rows.values():
        assert variable == PREFIX + name.upper()
        assert kind
        assert default
        assert meaning.endswith(".")


def test_a_misspelt_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "FALBACK", "error")
    with pytest.warns(UserWarning, match="TORCH_MAX_BACKEND_FALBACK is not an option; did you mean .*_FALLBACK"):
        resolve()


# -- versions ------------------------------------------------------------------------------------------------------
def test_this_environment_is_supported() -> None:
    check_versions()
    assert set(found()) == {"python", "torch", "max"}


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("python", "3.10.4", r"python 3\.10\.4, but needs python >=3\.11"),
        ("torch", "2.10.1+cpu", r"torch 2\.10\.1\+cpu, but needs torch >=2\.11"),
        ("max", "26.8.0", r"max 26\.8\.0, but needs max"),
        ("max", "", r"max \(missing\), but needs max"),
    ],
)
def test_other_versions_are_refused(name: str, version: str, message: str) -> None:
    with pytest.raises(EnvironmentUnsupportedError, match=message):
        check_versions({**found(), name: version})


def test_they_are_refused_when_the_backend_is_first_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when the package is imported, which `import torch` does."""
    monkeypatch.setattr(versions, "found", lambda: {"max": "26.8.0"})
    versions.check_this_environment.cache_clear()
    with pytest.raises(EnvironmentUnsupportedError, match=r"max 26\.8\.0"):
        torch_max_backend.max_backend  # noqa: B018
    with pytest.raises(EnvironmentUnsupportedError, match=r"max 26\.8\.0"):
        max_backend(torch.fx.symbolic_trace(torch.nn.Identity()), [torch.ones(2)])
