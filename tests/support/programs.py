"""Small programs that exercise the compiler rather than an op: views, aliasing, mutation, strides, symbolic sizes."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.support.cases import Case, ints, randn


def transposed(*shape: int):  # type: ignore[no-untyped-def]
    """A dense tensor whose last two dimensions are swapped in memory."""
    return lambda g: torch.randn((*shape[:-2], shape[-1], shape[-2]), generator=g).mT


def channels_last(*shape: int):  # type: ignore[no-untyped-def]
    """A channels_last tensor."""
    return lambda g: torch.randn(shape, generator=g).to(memory_format=torch.channels_last)


def sliced(rows: int, columns: int):  # type: ignore[no-untyped-def]
    """A tensor with gaps in memory."""
    return lambda g: torch.randn(rows, 2 * columns, generator=g)[:, ::2]


def expanded(rows: int, columns: int):  # type: ignore[no-untyped-def]
    """A tensor with stride 0."""
    return lambda g: torch.randn(1, columns, generator=g).expand(rows, columns)


def offset(*shape: int):  # type: ignore[no-untyped-def]
    """A tensor that starts in the middle of its storage."""
    return lambda g: torch.randn((shape[0] + 2, *shape[1:]), generator=g)[2:]


def in_place_chain(x, y):
    x.add_(1)
    x.mul_(y)
    return x.sum(), x


def writes_slice(x, y):
    x[1:3] = y
    return x * 2


def writes_column(x):
    x[:, 0].add_(5)
    return x.sum(1)


def writes_two(x, y):
    x.copy_(y * 2)
    y.add_(x)
    return (x + y,)


def reads_then_writes(x):
    before = x * 3
    x.zero_()
    return before, x + 1


def swaps(x, y):
    keep = x.clone()
    x.copy_(y)
    y.copy_(keep)


def writes_and_returns_view(x):
    x.mul_(2)
    return x[1:], x.t(), x.view(-1)


def views_of_result(x):
    y = x * 2
    return y, y.t(), y[1:], y.view(-1), y[:, ::2], y.unsqueeze(0).expand(3, -1, -1)


def partial_view_only(x):
    return (x + 1)[1:, 1:]


def views_of_input(x):
    return x.t(), x[1:], x.view(-1), x


def copies_of_input(x):
    return x.clone(), x.contiguous().clone(), x.to(torch.float32).clone(), torch.cat([x]), x.repeat(1, 1)


def same_value_twice(x):
    y = x + 1
    return y, y, y.clone(), x + 1


def equal_values_apart(x):
    return x.view(-1) + 1, x.reshape(2, -1) + 1, x + 1


def expanded_constants(x):
    return torch.meshgrid(torch.arange(3), torch.arange(2), indexing="ij"), torch.full((2, 0), 1.0), x * 2


def reinterpreted(x):
    return x.bfloat16().view(torch.int16), (x * 2).sum()


def numbers_and_none(x):
    return x + 1, 3, None, "text", x.shape[0], 2.5, (x * 2, [x - 1])


def constants_only(x):
    return torch.ones(3), torch.arange(4), torch.full((2, 2), 7.0), x.new_zeros(2)


def pairs_beside_what_they_are_of(x: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Elements that are indexed by computed numbers, behind others: what is in front has no such numbers."""
    all_of_them = torch.cat([x.unsqueeze(1), others], 1)
    first, second = torch.tril_indices(5, 5, -1)
    products = all_of_them @ all_of_them.transpose(1, 2)
    return torch.cat([x, products[:, first, second]], 1).sum(1)


def pairs_of_vectors(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Indices that are computed for whole vectors, and returned: those behind the last one are out of range."""
    first, second = torch.tril_indices(5, 5, -1)
    return x[:, first, second], first, second


def empty_tensors(x, y):
    return x + 1, torch.cat([x, y]), x.sum(), x.sum(0), y * 2


def scalars_0d(x, y):
    return x + y, x * 2, (x > 0), x.expand(3), torch.stack([x, y])


def sizes_in_arithmetic(x):
    n, m = x.shape
    return x * n, x.view(m, n), x.reshape(-1), x.sum() / (n * m), torch.arange(n) * m, x.new_full((n, 2), m)


def halves(x):
    n = x.shape[0]
    return x[: n // 2], x[n // 2 :] * 2, x[-1], x[1:-1]


def concat_and_split(x, y):
    z = torch.cat([x, y], 0)
    a, b = z.split([x.shape[0], y.shape[0]])
    return z, a + 1, b * 2, torch.cat([z, z], 1)


def flatten_heads(x):
    b, s, _ = x.shape
    q = x.view(b, s, 4, -1).transpose(1, 2)
    return q, q.transpose(1, 2).reshape(b, s, -1) + 1, q.flatten(1)


def largest_of_sizes(x, y):
    n = max(x.shape[0], y.shape[0])
    return torch.zeros(n) + x.sum(), x.new_ones(min(x.shape[0], y.shape[0]), 2)


def channels_last_net(x, w):
    y = F.relu(F.conv2d(x, w, padding=1))
    return y, y.mean((2, 3))


def masked_attention(q, k, v):
    n = q.shape[2]
    mask = torch.ones(n, n, dtype=torch.bool).tril()[None, None].expand(q.shape[0], 1, n, n)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask), F.scaled_dot_product_attention(q, k, v)


def float_of_config(x, f):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2.0 / f) * (x + 0.044715 * torch.pow(x, 3.0))))


def image_sizes(x, w):
    y = F.max_pool2d(F.relu(F.conv2d(x, w, stride=2, padding=1)), 3, 2, 1)
    return y, y.flatten(2).mean(2)


class Block(nn.Module):
    """A linear layer, a norm and an activation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps.add_(1)
        return F.gelu(self.norm(self.linear(x))) + self.steps


PROGRAMS = [
    Case("in_place_chain", in_place_chain, (randn(3, 4), randn(3, 4))),
    Case("in_place_on_transposed", in_place_chain, (transposed(3, 4), randn(3, 4))),
    Case("in_place_with_gaps", in_place_chain, (sliced(3, 4), randn(3, 4))),
    Case("in_place_with_offset", in_place_chain, (offset(3, 4), randn(3, 4))),
    Case("writes_slice", writes_slice, (randn(4, 4), randn(2, 4))),
    Case("writes_column", writes_column, (randn(4, 4),)),
    Case("writes_two", writes_two, (randn(4, 4), randn(4, 4))),
    Case("reads_then_writes", reads_then_writes, (randn(4, 4),)),
    Case("swaps", swaps, (randn(4, 4), randn(4, 4))),
    Case("writes_and_returns_view", writes_and_returns_view, (randn(4, 4),)),
    Case("views_of_result", views_of_result, (randn(4, 6),)),
    Case("views_of_transposed_result", views_of_result, (randn(4, 6),)),
    Case("partial_view_only", partial_view_only, (randn(4, 6),)),
    Case("views_of_input", views_of_input, (randn(4, 6),)),
    Case("copies_of_input", copies_of_input, (randn(4, 6),)),
    Case("same_value_twice", same_value_twice, (randn(4, 6),)),
    Case("equal_values_apart", equal_values_apart, (randn(4, 6),)),
    Case("expanded_constants", expanded_constants, (randn(4, 6),)),
    Case("reinterpreted", reinterpreted, (randn(4, 6),)),
    Case("numbers_and_none", numbers_and_none, (randn(4, 6),)),
    Case("pairs_beside_what_they_are_of", pairs_beside_what_they_are_of, (randn(3, 8), randn(3, 4, 8))),
    Case("pairs_of_vectors", pairs_of_vectors, (randn(2, 5, 5),)),
    Case("constants_only", constants_only, (randn(4, 6),)),
    Case("empty_tensors", empty_tensors, (randn(0, 4), randn(0, 4))),
    Case("scalars_0d", scalars_0d, (randn(), randn())),
    Case("transposed_in", lambda x, y: (x + y, x.t() + y.t(), x @ y.t()), (transposed(4, 6), randn(4, 6))),
    Case("gaps_in", lambda x, y: (x + y, x * 2), (sliced(4, 6), expanded(4, 6))),
    Case("offset_in", lambda x: (x * 2, x[1:]), (offset(4, 6),)),
    Case("channels_last", lambda x: (x * 2, x.sum(1), x.permute(0, 2, 3, 1)), (channels_last(2, 3, 4, 5),)),
    Case("channels_last_net", channels_last_net, (channels_last(2, 3, 8, 8), randn(4, 3, 3, 3))),
    Case("int_inputs", lambda x, n: (x * n, x + n // 2), (randn(3, 4), 5)),
    Case("lists_and_dicts", lambda d, s: {"a": d["x"] + s[0], "b": [s[1]]}, ({"x": torch.ones(3)}, [torch.ones(3), 2])),
    Case("dynamic_sizes", sizes_in_arithmetic, (randn(4, 6),), dynamic=True, second=(randn(5, 3),)),
    Case("dynamic_halves", halves, (randn(6, 4),), dynamic=True, second=(randn(9, 4),)),
    Case(
        "dynamic_concat", concat_and_split, (randn(4, 3), randn(2, 3)), dynamic=True, second=(randn(3, 3), randn(5, 3))
    ),
    Case("dynamic_heads", flatten_heads, (randn(2, 3, 16),), dynamic=True, second=(randn(3, 5, 16),)),
    Case(
        "dynamic_maximum", largest_of_sizes, (randn(4, 3), randn(2, 3)), dynamic=True, second=(randn(6, 3), randn(5, 3))
    ),
    Case(
        "dynamic_in_place", in_place_chain, (randn(4, 3), randn(4, 3)), dynamic=True, second=(randn(6, 3), randn(6, 3))
    ),
    Case("dynamic_views", views_of_result, (randn(4, 6),), dynamic=True, second=(randn(6, 8),)),
    Case(
        "dynamic_transposed",
        lambda x: (x + 1, x.t() * 2),
        (transposed(4, 6),),
        dynamic=True,
        second=(transposed(5, 7),),
    ),
    Case(
        "dynamic_index",
        lambda x, i: (x[i], x.index_select(0, i)),
        (randn(6, 4), ints(3, low=0, high=6)),
        dynamic=True,
        second=(randn(7, 4), ints(5, low=0, high=7)),
    ),
    Case(
        "dynamic_masked_attention",
        masked_attention,
        (randn(2, 4, 5, 16), randn(2, 4, 5, 16), randn(2, 4, 5, 16)),
        dynamic=True,
        second=(randn(3, 4, 7, 16), randn(3, 4, 7, 16), randn(3, 4, 7, 16)),
    ),
    Case("dynamic_float", float_of_config, (randn(2, 24), math.pi), dynamic=True, second=(randn(3, 24), math.pi)),
    Case(
        "dynamic_image",
        image_sizes,
        (randn(2, 3, 17, 19), randn(4, 3, 3, 3)),
        dynamic=True,
        second=(randn(5, 3, 21, 23), randn(4, 3, 3, 3)),  # torch 2.11 guards the parity of pooled sizes
    ),
]
