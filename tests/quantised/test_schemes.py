"""torchao's schemes on a CPU: programs alone, right against torchao in eager, weights as they are packed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torchao.quantization import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8WeightOnlyConfig,
    Int4WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerAxis,
    PerGroup,
    quantize_,
)

import torch_max_backend

OPTIONS = {"fallback": "error", "executor": "auto"}
INT4 = torch.int4
SCHEMES: dict[str, Callable[[], Any]] = {
    "int8": Int8WeightOnlyConfig,
    "int4 in groups of 32": lambda: IntxWeightOnlyConfig(weight_dtype=INT4, granularity=PerGroup(32)),
    "int4 in groups of 128": lambda: IntxWeightOnlyConfig(weight_dtype=INT4, granularity=PerGroup(128)),
    "int4 by row": lambda: IntxWeightOnlyConfig(weight_dtype=INT4, granularity=PerAxis(0)),
    "float8": Float8WeightOnlyConfig,
    "int8, dynamic": Int8DynamicActivationInt8WeightConfig,
    "int4, dynamic": lambda: Int8DynamicActivationIntxWeightConfig(weight_dtype=INT4, weight_granularity=PerGroup(32)),
}


def model_of(scheme: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 64)).to(dtype).eval()
    quantize_(model, SCHEMES[scheme]())
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_right_against_torchao(scheme: str, rows: int, dtype: torch.dtype) -> None:
    """In bfloat16 as near to float32 as eager: eager rounds between its ops, and a program does not."""
    model, x = model_of(scheme, dtype), torch.randn(rows, 128).to(dtype)
    with torch.no_grad():
        wanted = model(x)
        found = torch.compile(model, backend="max_backend", fullgraph=True, options=OPTIONS)(x)
    report = torch_max_backend.reports()[-1]
    assert report.stats.regions == report.stats.programs == 1
    assert not report.islands
    calls = [name for program in report.programs for name in program.library_calls]
    by_libraries = scheme == "int8, dynamic" or (scheme == "int8" and dtype is torch.bfloat16)  # others are small
    assert len(calls) == (2 if rows > 1 and by_libraries else 0)
    assert found.dtype is wanted.dtype
    if dtype is torch.float32:
        torch.testing.assert_close(found, wanted)
    else:
        step = torch.finfo(dtype).eps * wanted.float().abs().max()
        assert (found.float() - wanted.float()).abs().max() <= 4 * step  # two linears, two roundings in each


@pytest.mark.any_runner("torchao refuses it before anything is compiled")
@pytest.mark.parametrize(
    ("config", "features"),
    [
        (lambda: Float8DynamicActivationFloat8WeightConfig(), 128),
        (lambda: Int4WeightOnlyConfig(group_size=32), 128),
        (lambda: IntxWeightOnlyConfig(weight_dtype=INT4, granularity=PerGroup(32)), 100),
        (lambda: Int8DynamicActivationIntxWeightConfig(weight_dtype=INT4, weight_granularity=PerGroup(48)), 128),
        (lambda: Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.float32), 128),
    ],
    ids=[
        "float8 products on a CPU",
        "int4 without its kernels",
        "a group that does not divide",
        "a group that does not divide, dynamic",
        "weights that are no integers",
    ],
)
def test_what_torchao_refuses(config: Callable[[], Any], features: int) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU may have these")
    with pytest.raises((AssertionError, ImportError, ValueError)):
        quantize_(nn.Sequential(nn.Linear(features, 64)), config())


def test_schemes_may_be_mixed() -> None:
    """A linear of each scheme in one model, and one that is not quantised."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(len(SCHEMES) + 1))).eval()
    for linear, config in zip(model, SCHEMES.values(), strict=False):
        quantize_(nn.Sequential(linear), config())
    x = torch.randn(1, 128)
    with torch.no_grad():
        found = torch.compile(model, backend="max_backend", fullgraph=True, options=OPTIONS)(x)
        wanted = model(x)
    torch.testing.assert_close(found, wanted)
    (program,) = torch_max_backend.reports()[-1].programs
    assert program.library_calls == ()


@pytest.mark.any_runner("torchao refuses it before anything is compiled")
def test_a_second_scheme_is_torchaos_own_error() -> None:
    model = nn.Sequential(nn.Linear(128, 64)).eval()
    quantize_(model, SCHEMES["int8"]())
    with pytest.raises(NotImplementedError, match="Int8Tensor dispatch"):
        quantize_(model, SCHEMES["float8"]())
