"""Convolutions of one tap are products of matrices, with eager's results, wherever their images lie."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from torch_max_backend import reports
from torch_max_backend.loops import convolution_loops, small_products
from torch_max_backend.loops.index import Index
from torch_max_backend.loops.tensor import building, named
from torch_max_backend.loops.transposed_convolution import as_plain

pytestmark = pytest.mark.sampled

OPTIONS = {"fallback": "error", "executor": "auto"}
TOLERANCE = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2}}


def calls_of(layer: nn.Module, x: torch.Tensor, dynamic: bool = False) -> dict[str, int]:
    """The library calls of ``layer`` and a ReLU behind it, which give eager's results in eager's strides."""
    torch._dynamo.reset()
    run = torch.compile(lambda x: layer(x).relu(), backend="max_backend", options=OPTIONS, dynamic=dynamic)
    with torch.no_grad():
        given, wanted = run(x), layer(x).relu()
    torch.testing.assert_close(given, wanted, **TOLERANCE[x.dtype])
    assert given.stride() == wanted.stride()
    return reports()[-1].library_calls


IMAGES = {
    "line": lambda: torch.randn(2, 6, 7),
    "image": lambda: torch.randn(1, 6, 5, 7),
    "images": lambda: torch.randn(3, 6, 5, 7),
    "one place": lambda: torch.randn(3, 6, 1, 1),
    "channels last": lambda: torch.randn(3, 6, 5, 7).to(memory_format=torch.channels_last),
    "with gaps": lambda: torch.randn(3, 9, 5, 8)[:, 2:8, :, 1:],
    "volumes": lambda: torch.randn(2, 6, 3, 4, 5),
}


ONE_PRODUCT: dict[str, int] = {"ATen aten.addmm.default": 1}
ALONE: dict[torch.dtype, dict[str, int]] = {torch.float32: {}, torch.bfloat16: {"ATen aten.baddbmm.default": 1}}
"""Of a contiguous image with few channels: loops, or a product for each image."""
WITHOUT_BIAS = {
    torch.float32: {"ATen aten.mm.default": 1},
    torch.bfloat16: {"ATen aten.bmm.default": 1},
}


def is_alone(kind: str, x: torch.Tensor) -> bool:
    return x.is_contiguous() and kind != "one place"


def large(kind: str) -> torch.Tensor:
    """Images with more channels than loops are good for."""
    x = torch.randn(3, 60, 5, 7)
    return x.to(memory_format=torch.channels_last) if kind == "channels last" else x


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", IMAGES)
def test_results(kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_products, "SMALL", 0)
    x = IMAGES[kind]().to(dtype)
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[x.dim() - 3](6, 10, 1).to(dtype)
    assert calls_of(layer, x) == (ALONE[dtype] if is_alone(kind, x) else ONE_PRODUCT)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", ["images", "channels last"])
def test_without_a_bias(kind: str, dtype: torch.dtype) -> None:
    calls = {"ATen aten.mm.default": 1} if kind == "channels last" else WITHOUT_BIAS[dtype]
    assert calls_of(nn.Conv2d(60, 100, 1, bias=False).to(dtype), large(kind).to(dtype)) == calls


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("channels", [6, 40])
def test_transposed(channels: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_products, "SMALL", 0)
    layer, x = nn.ConvTranspose2d(channels, 50, 1).to(dtype), torch.randn(3, channels, 5, 7).to(dtype)
    assert calls_of(layer, x) == (ONE_PRODUCT if channels == 40 and dtype is torch.float32 else ALONE[dtype])


def test_many_channels_of_float32_are_a_convolution() -> None:
    assert calls_of(nn.Conv2d(60, 100, 1), torch.randn(2, 60, 40, 40)) == {"ATen aten.convolution.default": 1}


def test_a_chain_has_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_products, "SMALL", 0)
    layers = [nn.Conv2d(6, 10, 1), nn.ReLU(), nn.Conv2d(10, 10, 1), nn.ReLU(), nn.Conv2d(10, 4, 1)]
    assert calls_of(nn.Sequential(*layers), IMAGES["images"]()) == {"ATen aten.addmm.default": 3}


@pytest.mark.parametrize("kind", ["line", "image", "images", "volumes"])
def test_symbolic_sizes(kind: str) -> None:
    x = IMAGES[kind]()
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[x.dim() - 3](6, 10, 1)
    assert calls_of(layer, x, dynamic=True) == {}


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(6, 10, 3),
        nn.Conv2d(6, 10, 1, padding=1),
        nn.Conv2d(80, 10, 1, groups=2),
        nn.ConvTranspose2d(6, 10, 1, stride=2),
    ],
    ids=lambda layer: str(layer).replace(", ", " "),
)
def test_others_are_convolutions(layer: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_loops, "DTYPES", ())
    x = torch.randn(3, layer.in_channels, 5, 7)
    assert calls_of(layer, x) == {"ATen aten.convolution.default": 1}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", ["line", "images", "channels last", "with gaps", "volumes"])
def test_of_some_places(kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stride, the places that are read are picked first; sizes that it does not divide included."""
    monkeypatch.setattr(small_products, "SMALL", 0)
    x = IMAGES[kind]().to(dtype)
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[x.dim() - 3](6, 10, 1, stride=(2, 3, 2)[: x.dim() - 2]).to(dtype)
    assert calls_of(layer, x) == (ALONE[dtype] if is_alone(kind, x) else ONE_PRODUCT)
    if kind == "images":
        assert calls_of(layer, x, dynamic=True) == ALONE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_many_places_with_channels_last_are_not_picked(dtype: torch.dtype) -> None:
    layer, x = nn.Conv2d(16, 40, 1, stride=2).to(dtype), torch.randn(2, 16, 130, 130).to(dtype)
    x = x.to(memory_format=torch.channels_last)
    assert calls_of(layer, x) == {"ATen aten.convolution.default": 1}


@pytest.mark.parametrize(("kind", "stride"), [(nn.Conv2d, 1), (nn.Conv2d, 2), (nn.ConvTranspose2d, 1)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_groups_of_contiguous_images(
    kind: type[nn.Module], stride: int, bias: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = kind(12, 20, 1, stride, groups=4, bias=bias).to(dtype), torch.randn(3, 12, 9, 7).to(dtype)
    assert calls_of(layer, x) == {}
    monkeypatch.setattr(small_products, "SMALL", 0)
    assert calls_of(layer, x) == {f"ATen aten.{'badd' * bias}bmm.default": 1}


TRANSPOSED = [
    (nn.ConvTranspose1d(6, 10, 3), (2, 6, 20)),
    (nn.ConvTranspose2d(6, 10, 3, padding=1, bias=False), (2, 6, 8, 9)),
    (nn.ConvTranspose2d(6, 12, (3, 2), groups=3), (2, 6, 8, 9)),
    (nn.ConvTranspose2d(6, 6, 3, groups=6, dilation=2, padding=(4, 1)), (2, 6, 8, 9)),
    (nn.ConvTranspose3d(4, 6, 2), (1, 4, 5, 6, 7)),
]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("k", range(len(TRANSPOSED)))
def test_transposed_of_stride_1_are_plain(k: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones are loops then."""
    layer, shape = TRANSPOSED[k]
    monkeypatch.setattr(convolution_loops, "SMALL", 10**5)
    assert calls_of(copy.deepcopy(layer).to(dtype), torch.randn(shape).to(dtype)) == {}
    monkeypatch.setattr(convolution_loops, "DTYPES", ())
    assert calls_of(copy.deepcopy(layer).to(dtype), torch.randn(shape).to(dtype)) == {
        "ATen aten.convolution.default": 1
    }


@pytest.mark.parametrize("k", range(len(TRANSPOSED)))
def test_the_plain_convolution_has_the_weight_in_reverse(k: int) -> None:
    layer, shape = TRANSPOSED[k]
    with building():
        sizes = {"x": shape, "w": layer.weight.shape}
        x, w = (named(name, tuple(map(Index.of, s)), torch.float32) for name, s in sizes.items())
        geometry = layer.stride, layer.padding, layer.dilation, True, layer.output_padding, layer.groups
        found = as_plain([x, w, None, *geometry], tuple(map(Index.of, layer(torch.zeros(shape)).shape)))
        kept = as_plain([x, w, None, [2] * (x.rank - 2), *geometry[1:]], x.shape)
    assert found is not None and found[6] is False and kept is None
    features, inside, *taps = (int(n.constant) for n in found[1].shape)
    assert (features, inside) == (layer.out_channels, layer.in_channels // layer.groups)
    assert taps == list(layer.kernel_size)


@pytest.mark.parametrize(
    ("layer", "is_plain"),
    [
        (nn.ConvTranspose3d(128, 8, 5, groups=4), False),
        (nn.ConvTranspose3d(8, 4, 5, groups=4), False),
        (nn.ConvTranspose3d(8, 32, 5, groups=4), True),
        (nn.ConvTranspose2d(128, 16, 3, groups=4), False),
        (nn.ConvTranspose2d(8, 4, 3, groups=4), True),
        (nn.ConvTranspose2d(32, 1, 3), True),
    ],
    ids=str,
)
def test_groups_of_few_features_stay_transposed(
    layer: nn.Module, is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution_loops, "DTYPES", ())
    x = torch.randn(1, layer.in_channels, *[20] * (layer.weight.dim() - 2))  # type: ignore[arg-type, operator]
    with building():
        image, w = (named(n, tuple(map(Index.of, t.shape)), t.dtype) for n, t in (("x", x), ("w", layer.weight)))  # type: ignore[union-attr]
        geometry = layer.stride, layer.padding, layer.dilation, True, layer.output_padding, layer.groups
        found = as_plain([image, w, None, *geometry], tuple(map(Index.of, layer(x).shape)))
    assert (found is not None) is is_plain
    assert calls_of(layer, x)


def test_what_leaves_contiguous_is_a_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its result would be turned."""
    monkeypatch.setattr(small_products, "SMALL", 0)
    layer, x = nn.Conv2d(40, 50, 1), torch.randn(3, 40, 5, 7)
    with torch.no_grad():
        run = torch.compile(layer, backend="max_backend", options=OPTIONS)
        torch.testing.assert_close(run(x), layer(x))
        assert reports()[-1].library_calls == {"ATen aten.convolution.default": 1}
        torch._dynamo.reset()
        torch.testing.assert_close(run(x[..., :1, :1]), layer(x[..., :1, :1]))
        assert reports()[-1].library_calls == {"ATen aten.addmm.default": 1}


def test_gradients() -> None:
    model = nn.Sequential(nn.Conv2d(6, 10, 1), nn.ReLU(), nn.Conv2d(10, 4, 1), nn.Tanh())
    x = torch.randn(3, 6, 5, 7, requires_grad=True)
    wanted = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    run = torch.compile(model, backend="max_backend", options=OPTIONS)
    given = torch.autograd.grad(run(x).square().sum(), [x, *model.parameters()])
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-4)
