"""Programs of symbolic sizes: one compile, and eager's results at every size."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torch_max_backend import reports
from torch_max_backend.base.errors import OutOfRangeError
from torch_max_backend.diagnostics import report

pytestmark = pytest.mark.sampled

OPTIONS = {"fallback": "error", "executor": "auto"}
# float32 sums of some hundred terms of order 1, in another order than eager's: a few units in the last place of each
TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}


@pytest.fixture(autouse=True)
def only_own_reports() -> None:
    report.clear()


def randn(*shape: int) -> torch.Tensor:
    """The same numbers for the same shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def integers(high: int, *shape: int) -> torch.Tensor:
    """Whole numbers from 0 up, the same for the same shape."""
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(sum(shape)))


def are_programs(count: int) -> None:
    """So many graphs were compiled, to programs alone."""
    assert len(reports()) == count, [r.compile_id for r in reports()]
    for made in reports():
        assert made.stats.programs == made.stats.regions > 0


def agrees(function: Callable[..., Any], calls: Sequence[Sequence[Any]], dynamic: bool | None = True) -> None:
    """Eager's results at every call, from one compile of a program."""
    compiled = torch.compile(function, backend="max_backend", dynamic=dynamic, options=OPTIONS)
    for given in calls:
        mine, theirs = copy.deepcopy(given), copy.deepcopy(given)
        torch.testing.assert_close(compiled(*mine), function(*theirs), **TOLERANCE)
        torch.testing.assert_close(mine, theirs)
    are_programs(1)


SIZES = [(3, 5), (7, 18), (130, 257)]
MATRICES = [[randn(*s)] for s in SIZES]
ROWS_OF_64 = [[randn(*s, 64)] for s in SIZES]


def scales_and_shifts(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * y + x.shape[0]


def writes_into_its_input(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x.sum(0)


def views_of_products(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = torch.tanh(x.view(-1, 64))
    heads = x.view(x.shape[0], x.shape[1], 4, 16).transpose(1, 2) * 2
    return rows.view(x.shape), heads.flatten(2), x.flatten() + 1, heads.reshape(-1, 16).sum(0)


def slices(x: torch.Tensor, k: int) -> tuple[torch.Tensor, ...]:
    return x[:k] + 1, x[k:] * 2, x[1:-1].exp(), x[-1], x[::2].sum()


def joins(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    both = torch.cat([x, y * 2, x], 0)
    return both, both.sum(0), torch.stack([x, x + 1], 1), F.pad(x, (1, 2)) * 2, x.roll(1, 0) - x.flip(0)


def takes_numbers(x: torch.Tensor, k: int) -> tuple[torch.Tensor, ...]:
    return x * k, x // k, torch.full_like(x, k), x > k, x.to(torch.int64) % k


def takes_floats(x: torch.Tensor, k: float) -> tuple[torch.Tensor, ...]:
    return x * k + 1, x / k


def ranges(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.arange(x.shape[1]), x + torch.arange(0, 2 * x.shape[1], 2), torch.ones(x.shape[0]).cumsum(0)


def triangles(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    return torch.where(mask, x[:, :1] - x[:, :1].t(), float("-inf")).softmax(-1)


def averages(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.mean(), x.mean(0), x.var(1), x.std(0, correction=0), x.sum() / x.numel(), x.norm()


def extremes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.amax(1), x.argmax(0), x.max(1).indices, x.argmin(), x.amin(), (x > 0).any(0), (x > -9).all()


def normalises(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],)) + F.layer_norm(x, (x.shape[-1],)).sum(0)


def picks(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[i], x.index_select(0, i), torch.zeros_like(x).index_add(0, i, x[i]), x.gather(0, i[:, None])


def multiplies(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ y.t() / x.shape[1], -1) @ y


def pools(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.max_pool2d(x, 2),
        F.avg_pool2d(x, 3, 2, 1),
        F.pad(x, (2, 1, 1, 0), mode="reflect"),
        F.max_pool2d(x, 3, 1, 1),
    )


def convolves(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(F.conv2d(x, weight, stride=2, padding=1).relu(), 2).flatten(1).sum(1)


CASES: dict[str, tuple[Callable[..., Any], Sequence[Sequence[Any]]]] = {
    "pointwise": (torch.tanh, MATRICES),
    "broadcast": (scales_and_shifts, [[randn(*s), randn(s[1])] for s in SIZES]),
    "softmax of rows": (lambda x: torch.softmax(x, -1), MATRICES),
    "softmax of columns": (lambda x: torch.log_softmax(x, 0), MATRICES),
    "layer norm of batches": (lambda x: F.layer_norm(x, (64,)), ROWS_OF_64),
    "layer norm of rows": (normalises, MATRICES),
    "averages": (averages, MATRICES),
    "extremes": (extremes, MATRICES),
    "joins": (joins, [[randn(a, b), randn(a + 1, b)] for a, b in SIZES]),
    "views": (views_of_products, ROWS_OF_64),
    "slices": (slices, [[randn(a + 3, b), k] for (a, b), k in zip(SIZES, (2, 3, 70))]),
    "slices by other sizes": (
        lambda x, y: x[: y.shape[0]] + y, [[randn(a + 5, b), randn(a, b)] for a, b in SIZES],
    ),
    "numbers": (takes_numbers, [[randn(*s), k] for s, k in zip(SIZES, (2, -3, 70))]),
    "floats": (takes_floats, [[randn(*s), k] for s, k in zip(SIZES, (2.5, 3.25, 70.75))]),
    "ranges": (ranges, MATRICES),
    "triangles": (triangles, MATRICES),
    "running sums": (lambda x: x.cumsum(1) + x.cumsum(0), MATRICES),
    "pools": (pools, [[randn(a, 3, b, b + 2)] for a, b in ((2, 7), (5, 12), (3, 39))]),
    "images": (convolves, [[randn(a, 3, b, b + 2), randn(4, 3, 3, 3)] for a, b in ((2, 9), (5, 12), (3, 39))]),
    "embedding": (F.embedding, [[integers(40, *s), randn(40, 16)] for s in SIZES]),
    "indices": (picks, [[randn(*s), integers(3, s[0] + 4)] for s in SIZES]),
    "products": (multiplies, [[randn(*s, 8)[..., 0], randn(s[0] + 3, s[1])] for s in SIZES]),
    "in place": (writes_into_its_input, MATRICES),
    "threads": (lambda x: torch.softmax(x.exp(), -1), [[randn(4, 9)], [randn(700, 300)], [randn(3, 2)]]),
    "long sums": (lambda x: (x.sum(), x.sum(0), x.sum(1)), [[randn(300, 400)], [randn(17, 3)], [randn(1000, 900)]]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_program_for_all_sizes(case: str) -> None:
    agrees(*CASES[case])


def test_the_second_size_makes_a_program_for_all() -> None:
    calls = [[randn(n, 33)] for n in (3, 8, 21, 90)]
    compiled = torch.compile(averages, backend="max_backend", options=OPTIONS)
    for (x,) in calls:
        torch.testing.assert_close(compiled(x), averages(x), **TOLERANCE)
    are_programs(2)


# -- models ------------------------------------------------------------------------------------------------------------
class Layer(nn.Module):
    """A layer of a transformer; ``written`` ones compute attention by products."""

    def __init__(self, written: bool) -> None:
        super().__init__()
        self.written = written
        self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        if self.written:
            mask = torch.ones(length, length, dtype=torch.bool).tril()
            weights = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(~mask, float("-inf"))
            y = torch.softmax(weights, -1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, 32))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Images(nn.Module):
    """Convolutions, norms and pools."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(16, 5),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Words(nn.Module):
    """The mean of embeddings, and classes for it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.out = nn.Embedding(30, 16), nn.LayerNorm(16), nn.Linear(16, 7)

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.embedding(i).mean(1)))


TOKENS = [(2, 5), (3, 9), (8, 70)]
BATCHES = [4, 3, 14]  # torch itself guards that a convolution's batch stays on one side of 16

MODELS: dict[str, tuple[Callable[[], nn.Module], Sequence[torch.Tensor], Sequence[int]]] = {
    "transformer": (lambda: Layer(written=False), [randn(*s, 32) for s in TOKENS], (0, 1)),
    "transformer by products": (lambda: Layer(written=True), [randn(*s, 32) for s in TOKENS], (0, 1)),
    "images": (Images, [randn(n, 3, 12, 12) for n in BATCHES], (0,)),
    "images of any size": (Images, [randn(n, 3, 9 + n, 8 + 2 * n) for n in BATCHES], (0, 2, 3)),
    "words": (Words, [integers(30, *s) for s in TOKENS], (0, 1)),
}


def marked(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """A copy with symbolic sizes."""
    x = x.clone()
    for d in dims:
        torch._dynamo.mark_dynamic(x, d)
    return x


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    make, inputs, dims = MODELS[name]
    model = make().eval()
    compiled = torch.compile(model, backend="max_backend", options=OPTIONS)
    with torch.no_grad():
        for x in inputs:
            torch.testing.assert_close(compiled(marked(x, dims)), model(x), **TOLERANCE)
    are_programs(1)


@pytest.mark.parametrize("name", MODELS)
def test_training(name: str) -> None:
    make, inputs, dims = MODELS[name]
    mine = make().train()
    theirs = copy.deepcopy(mine)
    compiled = torch.compile(mine, backend="max_backend", options=OPTIONS)
    for x in inputs:
        losses = []
        for model, run in ((mine, compiled), (theirs, theirs)):
            model.zero_grad()
            y = run(marked(x, dims))
            loss = F.cross_entropy(y.flatten(0, -2), integers(5, y.shape[:-1].numel()))
            loss.backward()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, **TOLERANCE)
        for (key, a), b in zip(mine.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}")
        torch.testing.assert_close(list(mine.buffers()), list(theirs.buffers()), **TOLERANCE)
    are_programs(2)


# -- sizes that may be 0 or 1 ------------------------------------------------------------------------------------------
def sums_of_a_part(x: torch.Tensor, k: int) -> tuple[torch.Tensor, ...]:
    part = x[k:]
    return part * 2, part.sum(0), torch.softmax(part, 0), part.sum(1)


def test_a_part_may_become_empty() -> None:
    compiled = torch.compile(sums_of_a_part, backend="max_backend", dynamic=True, options=OPTIONS)
    for n, k in ((9, 2), (12, 5), (7, 7), (7, 6)):  # torch compiles again for 0 and 1 rows
        torch.testing.assert_close(compiled(randn(n, 5), k), sums_of_a_part(randn(n, 5), k), **TOLERANCE)


def test_sizes_that_torch_does_not_guard() -> None:
    def rows(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x * 2, 1), x.sum(0) + y, x.sum(1), y[:, None] * x[:, 0].sum()

    compiled = torch.compile(rows, backend="max_backend", options=OPTIONS)
    for n in (4, 0, 1, 700):
        x = randn(n, 5)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        torch.testing.assert_close(compiled(x, randn(5)), rows(x, randn(5)), **TOLERANCE)
    are_programs(1)


def test_sizes_that_depend_on_data() -> None:
    def positive(x: torch.Tensor) -> torch.Tensor:
        return (x.exp()[x > 0] * 2).cumsum(0) + 1

    options = {**OPTIONS, "fallback": "eager", "min_block_size": 1}
    compiled = torch.compile(positive, backend="max_backend", dynamic=True, options=options)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        with pytest.warns(UserWarning, match="torch runs 1"):
            compiled(randn(6, 5))
        for n in (4, 9, 70):
            torch.testing.assert_close(compiled(randn(n, 5)), positive(randn(n, 5)), **TOLERANCE)
    assert [(r.stats.programs, r.stats.regions) for r in reports()] == [(2, 2)]


# -- what is wrong with an index ---------------------------------------------------------------------------------------
def test_an_index_out_of_range_is_told_with_the_size() -> None:
    compiled = torch.compile(lambda x, i: x[i], backend="max_backend", dynamic=True, options=OPTIONS)
    for n in (4, 9):
        x, i = randn(n, 6), integers(4, n)
        torch.testing.assert_close(compiled(x, i), x[i])
        with pytest.raises(OutOfRangeError, match=f"index {n} is out of bounds for dimension 0 with size {n}"):
            compiled(x, torch.full_like(i, n))
    are_programs(1)
