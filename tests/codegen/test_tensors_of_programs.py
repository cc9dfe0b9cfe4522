"""Tensors between kernels and library calls: which are written over others, and in which order they lie."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from torch_max_backend.codegen.program_writer import WrittenProgram
from torch_max_backend.loops import small_products


@pytest.fixture(autouse=True)
def _by_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_products, "SMALL", 0)  # products are a library's


def agrees(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    options = {"fallback": "error", "executor": "auto", "cache": False}
    compiled = torch.compile(function, backend="max_backend", options=options, dynamic=False)
    wanted = function(*inputs)
    for _ in range(2):
        given = compiled(*inputs)
        torch.testing.assert_close(given, wanted)
        for a, b in zip(*map(torch.utils._pytree.tree_leaves, (given, wanted)), strict=True):
            assert a.stride() == b.stride()


def written_over(source: str) -> int:
    return len(re.findall(r"^ +t\d+ = t\d+$", source, re.MULTILINE))


X, W = torch.randn(6, 6), torch.randn(6, 6)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        pytest.param(lambda x, w: torch.relu(x @ w) @ w, 1, id="a product's result"),
        pytest.param(lambda x, w: torch.relu(torch.tanh(x @ w) @ w) @ w, 2, id="twice"),
        pytest.param(lambda x, w: torch.softmax(x @ w, -1) @ w, 0, id="rows that are read again"),
        pytest.param(lambda x, w: torch.relu(y := x @ w) @ w + y, 1, id="what is read later; the later one is"),
        pytest.param(lambda x, w: (torch.relu(y := x @ w) @ w, y), 0, id="what is returned"),
        pytest.param(lambda x, w: torch.relu(x @ w).flip(0) @ w, 0, id="elements that lie elsewhere"),
        pytest.param(lambda x, w: (x @ w).to(torch.bfloat16) @ w.bfloat16(), 0, id="another dtype"),
        pytest.param(lambda x, w: torch.relu(x @ w), 1, id="what is returned is written over it"),
        pytest.param(lambda x, w: torch.relu(x) @ w, 0, id="an argument"),
        pytest.param(lambda x, w: (torch.relu(y := x @ w) @ w, torch.tanh(y) @ w), 1, id="one of two"),
    ],
)
def test_what_is_read_last_is_written_over(
    function: Callable[..., Any], count: int, written: list[WrittenProgram]
) -> None:
    agrees(function, X, W)
    assert [written_over(made.spec.source) for made in written] == [count], written


def test_what_is_written_into_an_input_is_not_read_in_its_kernel() -> None:
    """Both read ``b``; the sum is first, and is written into ``a``, which the product reads as it was."""

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        total = b + 1
        product = a * b
        a.copy_(total)
        return product

    compiled = torch.compile(function, backend="max_backend", options={"fallback": "error", "executor": "auto"})
    (mine, b), theirs = (torch.randn(50, 40) for _ in range(2)), torch.empty(50, 40)
    theirs.copy_(mine)
    torch.testing.assert_close(compiled(mine, b), function(theirs, b), rtol=0, atol=0)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def convolved(*filters: torch.Tensor, groups: int = 1) -> Callable[[torch.Tensor], torch.Tensor]:
    def net(x: torch.Tensor) -> torch.Tensor:
        for w in filters:
            x = torch.relu(F.conv2d(x, w, padding=w.shape[-1] // 2, groups=groups) + 1)
        return x

    return net


def layouts(source: str) -> list[bool]:
    """For each convolution, whether its result's channels are in the last place of memory."""
    found = re.findall(r"\.stride\(\) != \((\d+), (\d+), (\d+), (\d+)\)", source)
    return [strides[1] == "1" for strides in found]


def weights(*shape: int) -> torch.Tensor:
    """Filters that keep the size of numbers."""
    return torch.randn(shape) / math.sqrt(math.prod(shape[1:]))


WIDE, LARGE = weights(32, 32, 3, 3), weights(512, 256, 3, 3)
HEAVY = weights(512, 64, 1, 1)
IMAGE = torch.randn(1, 256, 4, 4).to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("net", "image", "expected"),
    [
        (convolved(weights(16, 4, 3, 3)), torch.randn(2, 4, 40, 40), [True]),
        (convolved(weights(16, 1, 3, 3), groups=16), torch.randn(2, 16, 40, 40), []),  # a loop
        (convolved(weights(16, 4, 3, 3)), torch.randn(2, 4, 8, 8), [False]),
        (convolved(WIDE), torch.randn(2, 32, 40, 40), [True]),
        (convolved(WIDE, WIDE, WIDE), torch.randn(2, 32, 40, 40), [True] * 3),
        (convolved(WIDE), torch.randn(2, 32, 8, 8).to(memory_format=torch.channels_last), [True]),
        (convolved(LARGE), IMAGE, [False]),
        (convolved(LARGE.to(memory_format=torch.channels_last)), IMAGE, [True]),
        (lambda x: F.conv2d(x, HEAVY, stride=4, padding=1).relu(), IMAGE[:, :64], [False]),
        (lambda x: F.conv_transpose2d(x, WIDE, stride=2).relu(), torch.randn(2, 32, 8, 8), [True]),
        (lambda x: F.conv_transpose2d(x, WIDE, groups=2).relu(), torch.randn(2, 32, 8, 8), [False]),
        (convolved(weights(16, 4, 3, 3).double()), torch.randn(2, 4, 40, 40).double(), [False]),
    ],
    ids=[
        "few channels",
        "depthwise",
        "small",
        "alone",
        "a chain",
        "lies so",
        "heavy weights",
        "heavy weights that lie so",
        "a heavy product",
        "transposed",
        "transposed in groups",
        "float64",
    ],
)
def test_images_of_convolutions(
    net: Callable[..., Any], image: torch.Tensor, expected: list[bool], written: list[WrittenProgram]
) -> None:
    with torch.no_grad():
        agrees(net, image)
    assert [layouts(made.spec.source) for made in written] == [expected], written


@pytest.mark.parametrize(
    ("net", "copied"),
    [
        (convolved(WIDE, WIDE, WIDE), [True] * 3),
        (convolved(*[WIDE.to(memory_format=torch.channels_last)] * 3), [False] * 3),
        (convolved(*[weights(32, 32, 1, 1)] * 3), [False] * 3),
        (lambda x: F.conv2d(x, WIDE.transpose(0, 1)).relu(), [True]),
        (lambda x: F.conv2d(x, WIDE[::2]).relu(), [True]),
        (lambda x: F.conv1d(x[:, :, 0], WIDE[..., 0].transpose(0, 1)).relu(), [True]),
        (lambda x: F.conv2d(x, WIDE).relu(), [True]),
    ],
    ids=["taps", "channels last", "one tap", "a view", "every second", "in one dimension", "alone"],
)
def test_weights_of_convolutions(net: Callable[..., Any], copied: list[bool], written: list[WrittenProgram]) -> None:
    """Weights are copied by loops where a library would copy them: never as they are in a view."""
    with torch.no_grad():
        agrees(net, torch.randn(2, 32, 40, 40))
    second = r"op\d+\((?:read_as\()?\w+(?:, [^a-z]*\))?, (?:read_as\()?(\w)\d+"
    found = [re.findall(second, made.spec.source) for made in written]
    assert [[name == "t" for name in names] for names in found] == [copied], written


@pytest.mark.parametrize(
    ("net", "image"),
    [
        (lambda x: F.conv2d(x[:, ::2], WIDE[:, :16]).relu(), torch.randn(2, 32, 20, 20)),
        (lambda x: F.conv2d(x[:, :16], WIDE[:, :16]).relu(), torch.randn(2, 32, 20, 20)),
        (lambda x: F.conv3d(x.unsqueeze(2), WIDE.unsqueeze(2)).relu(), torch.randn(2, 32, 20, 20)),
    ],
    ids=["every second channel", "some channels", "of volumes"],
)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_results_lie_as_eagers(net: Callable[..., Any], image: torch.Tensor, order: torch.memory_format) -> None:
    """Images that are views, which libraries read where they lie or from a copy."""
    with torch.no_grad():
        agrees(net, image.to(memory_format=order))


def test_an_image_that_leaves_lies_as_torch_promises(written: list[WrittenProgram]) -> None:
    filters = weights(16, 4, 3, 3)

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.conv2d(x * 2, filters)
        return y, torch.relu(y)

    agrees(both, torch.randn(2, 4, 40, 40))
    agrees(lambda x: torch.relu(F.conv2d(x * 2, WIDE)), torch.randn(1, 32, 40, 40))  # what is computed for it alone
    assert [layouts(made.spec.source) for made in written] == [[True]] * 2, written  # and copied back
