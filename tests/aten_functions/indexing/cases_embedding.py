"""Cases of embedding.py and embedding_bag.py."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.support.cases import Case, ints, rand, randn

aten = torch.ops.aten
bf16, i32 = torch.bfloat16, torch.int32


def lookups(w, i):
    return (
        F.embedding(i, w),
        F.embedding(i.to(i32), w, padding_idx=2),
        F.embedding(i[0, 0], w),
        F.embedding(i[:0], w),
        F.embedding(i[0], w.bfloat16()),
    )


def renormed(w, i):
    """The table changes too, and a row that occurs twice is scaled once."""
    a, b, c, d = (w.clone() for _ in range(4))
    return (
        F.embedding(i, a, max_norm=1.0),
        F.embedding(i[0], b, max_norm=0.8, norm_type=1.0),
        F.embedding(i[0, 0], c, max_norm=0.5, norm_type=float("inf")),
        F.embedding_bag(i[0], d, torch.tensor([0, 2]), max_norm=1.5, norm_type=3.0),
        F.embedding(i[:0], d, max_norm=0.1),
        *(a, b, c, d),
    )


def gradients(g, i):
    back = aten.embedding_dense_backward
    return (
        back(g, i, 7, -1, False),
        back(g, i, 7, 2, False),
        back(g, i, 7, -1, True),
        back(g, i.to(i32), 9, 0, True),
        back(g[:0], i[:0], 7, -1, False),
        back(g[0, 0], i[0, 0], 7, -1, False),
    )


def tied(g, x, i, u):
    """The gradient of a table that is also the weight of the last layer; the second product has another reader."""
    table = aten.embedding_dense_backward(u, i, 83, -1, False)
    product, other = g.t() @ x, g.t() @ (x * 2)
    return product + table, table.mul(2) + other, other, table + (g.t() @ x[:, :7]).sum()


def bags(w, i, s):
    offsets, last = torch.tensor([0, 2, 2, 5]), torch.tensor([0, 3, 8])
    return (
        F.embedding_bag(i, w, offsets),
        F.embedding_bag(i, w, offsets, mode="sum"),
        F.embedding_bag(i, w, offsets, mode="sum", per_sample_weights=s),
        F.embedding_bag(i, w, offsets, mode="max"),
        F.embedding_bag(i, w, offsets, padding_idx=1),
        F.embedding_bag(i, w, last, include_last_offset=True, mode="sum"),
        F.embedding_bag(i.view(2, 4), w, mode="mean"),
        *aten._embedding_bag.default(w, i, offsets, False, 1, False, None, False, 1)[:3],  # which bag, of how many
    )


def bag_gradients(g, i, s):
    offsets, e = torch.tensor([0, 2, 2, 5]), torch.empty(0, dtype=torch.int64)
    sizes = torch.tensor([2, 0, 3, 3])
    which = torch.tensor([0, 0, 2, 2, 2, 3, 3, 3])
    back = aten._embedding_bag_backward
    return (
        back(g, i, offsets, which, sizes, e, 7, False, 0, False, None),
        back(g, i, offsets, which, sizes, e, 7, False, 1, False, None),
        back(g, i, offsets, which, sizes, e, 7, False, 0, False, s),
    )


def bag_maxima(w, i):
    """Of equal maxima the first one counts, and as in torch NaN is kept only where it comes first."""
    offsets, last = torch.tensor([0, 2, 2, 5]), torch.tensor([0, 3, 3, 8])
    bag, back = aten._embedding_bag.default, aten._embedding_bag_backward
    g, found = torch.cos(torch.arange(20.0)).view(4, 5), []
    for at, options in (
        (offsets, (False, 2)),
        (offsets, (False, 2, False, None, False, 1)),
        (last, (False, 2, False, None, True)),
        (torch.tensor([0, 0, 8]), (False, 2)),
    ):
        y, which, sizes, maxima = bag(w, i, at, *options)
        of = g[: len(y)].to(w.dtype)
        found += [y, maxima, back(of, i, at, which, sizes, maxima, len(w), False, 2, False, None, (*options, -1)[-1])]
    return tuple(found)


def bag_weight_gradients(g, w, i):
    """With the end of the last bag among the offsets, and without."""
    offsets, last = torch.tensor([0, 2, 2, 5]), torch.tensor([0, 2, 2, 5, 8])
    which = torch.tensor([0, 0, 2, 2, 2, 3, 3, 3])
    back = aten._embedding_bag_per_sample_weights_backward
    return (
        back(g, w, i, offsets, which, 0),
        back(g, w, i, offsets, which, 0, 1),
        back(g, w, i.to(i32), last.to(i32), which.to(i32), 0),
        back(g.bfloat16(), w.bfloat16(), i, offsets, which, 0),
        back(g[:0], w, i[:0], offsets[:0], which[:0], 0),
    )


def bag_maxima_dynamic(w, i):
    offsets = torch.tensor([0, 2, 2, 5])
    y, which, sizes, maxima = aten._embedding_bag.default(w, i, offsets, False, 2)
    return y, maxima, aten._embedding_bag_backward(y, i, offsets, which, sizes, maxima, len(w), False, 2, False, None)


INF, NAN = float("inf"), float("nan")
SPECIAL_ROWS = torch.tensor(
    [[NAN, 0.0, -INF, -0.0, 1.0], [1.0, -0.0, NAN, 0.0, INF], [INF, NAN, NAN, 2.0, NAN], [-INF] * 5]
)

CASES = [
    Case("lookups", lookups, (randn(7, 5), ints(2, 3, low=0, high=7))),
    Case("renormed", renormed, (randn(7, 5), ints(2, 3, low=0, high=7))),
    Case(
        "renormed_bf16",
        renormed,
        (randn(7, 5, dtype=bf16), ints(2, 3, low=0, high=7)),
        atol=1e-2,
        why="one rounding step of norms of 5 elements",
    ),
    Case(
        "lookups_dynamic",
        lambda w, i: F.embedding(i, w) * 2,
        (randn(7, 5), ints(2, 3, low=0, high=7)),
        True,
        (randn(7, 5), ints(4, 6, low=0, high=7)),
    ),
    Case("gradients", gradients, (randn(2, 6, 5), ints(2, 6, low=0, high=7))),
    Case(
        "gradients_bf16",
        lambda g, i: aten.embedding_dense_backward(g, i, 7, 1, False),
        (randn(2, 6, 5, dtype=bf16), ints(2, 6, low=0, high=7)),
    ),
    Case(
        "gradients_dynamic",
        lambda g, i: aten.embedding_dense_backward(g, i, 7, 1, False),
        (randn(2, 6, 5), ints(2, 6, low=0, high=7)),
        True,
        (randn(3, 4, 5), ints(3, 4, low=0, high=7)),
    ),
    Case(
        "gradients_wide",
        lambda g, i: aten.embedding_dense_backward(g, i, 9, -1, False),
        (randn(40, 321), ints(40, low=0, high=9)),
    ),
    Case("tied", tied, (randn(19, 83), randn(19, 37), ints(2, 6, low=0, high=83), randn(2, 6, 37))),
    Case(
        "tied_f64",
        tied,
        (
            *(randn(*shape, dtype=torch.float64) for shape in ((19, 83), (19, 37))),
            *(ints(2, 6, low=0, high=83), randn(2, 6, 37, dtype=torch.float64)),
        ),
    ),
    Case("bags", bags, (randn(7, 5), ints(8, low=0, high=7), rand(8))),
    Case("bag_maxima", bag_maxima, (randn(7, 5), ints(8, low=0, high=7))),
    Case("bag_maxima_ties", bag_maxima, (ints(7, 5, low=0, high=2, dtype=torch.float32), ints(8, low=0, high=7))),
    Case("bag_maxima_special", bag_maxima, (SPECIAL_ROWS, torch.tensor([0, 1, 2, 1, 3, 3, 0, 2]))),
    Case("bag_maxima_bf16", bag_maxima, (randn(7, 5, dtype=bf16), ints(8, low=0, high=7, dtype=i32))),
    Case(
        "bag_maxima_dynamic",
        bag_maxima_dynamic,
        (randn(7, 5), ints(8, low=0, high=7)),
        True,
        (randn(9, 5), ints(6, low=0, high=9)),
    ),
    Case("bag_weight_gradients", bag_weight_gradients, (randn(4, 5), randn(7, 5), ints(8, low=0, high=7))),
    Case("bag_gradients", bag_gradients, (randn(4, 5), ints(8, low=0, high=7), rand(8))),
]
