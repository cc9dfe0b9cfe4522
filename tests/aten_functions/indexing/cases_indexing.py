"""Cases of indexing.py and view_writes.py."""

from __future__ import annotations

import torch

from tests.support.cases import Case, bools, ints, randn

aten = torch.ops.aten
bf16, f16, f64, i64, i32, u8 = torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8


def reads(x, i, j):
    return (
        x[i],
        x[:, i],
        x[..., j],
        x[i, i],
        x[i, :, j],
        x[:, i, j],
        aten.index(x, [i[0, 0]]),
        aten.index(x, [i[0, 0], None, j]),
        aten.index(x, [i[0, 0], None, j[0]]),
        x[i[:, :1], i[0]],
        x[None, i],
        x[i[:0]].sum(),
        x[:0][:, i].sum(),
        x[i.to(i32)],
        aten._unsafe_index(x, [None, i, j]),
        x.index_select(1, i[0].abs()),
        x[0, 0, 0].index_select(0, torch.tensor([0])),
        x.take(i),
        x.take(i[0, 0]),
        x[torch.arange(3)[:, None], torch.arange(2)],
    )


def gathers(x, i):
    return (
        x.gather(0, i[:, :2]),
        x.gather(1, i),
        x.gather(-1, i[:1]),
        x[0].gather(0, i[0]),
        x[0, 0].gather(0, torch.tensor(0)),
        x.gather(1, i[:, :0]).sum(),
        x.take_along_dim(i, 1),
        (x > 0).gather(1, i),
        x.half().gather(1, i),
    )


def dynamic_reads(x, i):
    return x[i], x[:, i], x[i, i], x[i[:, None], i], x.gather(0, i[:, None].expand(-1, 2)), x.index_select(0, i)


def puts(x, i, j, v):
    return (
        x.index_put((i,), v),
        x.index_put((i,), torch.tensor(2.0)),
        x.index_put((i, j), v[0], accumulate=True),
        aten.index_put(x, [None, j], v[0, :1, :1]),
        aten.index_put(x, [i, None, j], v[:, 0]),
        aten.index_put(x, [None, j, j], v[0, 0], True),
        aten._unsafe_index_put(x, [i], v, True),
        aten.index_put(x, [i[:0]], v[:0]),
        x.index_put((x > 0.5,), torch.tensor(0.0)),
        x.index_put((x[:, 0, 0] > 0,), torch.tensor(-1.0)),
        aten.index_put(x, [None, x[0, :, 0] > 0], v[0, 0, 0], True),
        x.masked_fill(x > 0, 3.0),
        x.put(j, v[0, 0, : j.shape[0]]),
        x.put(j.clamp(min=0) * 0, v[0, 0, : j.shape[0]], accumulate=True),
    )


def assignments(x, y, i):
    x[i] = 1.0
    x[:, 0] = y[0, 0]
    x[1:3, ::2] = 5.0
    x[-1] += 1
    y[y > 0] = 0
    y[..., -1] = 2
    return x * 2, y * 2


def scatters(x, i, s):
    return (
        x.scatter(0, i, s),
        x.scatter(1, i[:2, :2], s),
        x.scatter(0, i, 2.5),
        x.scatter_add(0, i, s),
        x.scatter_add(1, i, s),
        x.scatter(0, i, s, reduce="add"),
        x.scatter(0, i, s, reduce="multiply"),
        x.scatter(0, i, 2.0, reduce="multiply"),
        x.scatter(0, i[:0], s[:0]),
        x[0, 0].scatter(0, torch.tensor(0), 3.0),
        x[0].scatter(0, i[0, :1], s[0]),
        torch.zeros(3, 5).scatter(1, i[:, :1], -1.0),
    )


def reductions(x, i, s):
    out = []
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        for include_self in (True, False):
            out.append(x.scatter_reduce(0, i, s, reduce, include_self=include_self))
            if reduce != "sum":
                out.append(x.index_reduce(1, i[0], s, reduce, include_self=include_self))
    return out


def along(x, i, s):
    return (
        x.index_add(0, i, s),
        x.index_add(0, i, s, alpha=2),
        x.index_add(1, i, s.transpose(0, 1)),
        x.index_copy(0, torch.tensor([2, 0]), s[:2]),
        x.index_fill(1, i - 3, 1.5),
        x.index_fill(0, i, torch.tensor(2.0)),
        x[0, 0].index_add(0, i, s[:, 0, 0]),
        x[0, 0, 0].index_add(0, torch.tensor([0]), s[0, 0, 0]),
    )


def caches(x, turned, line, flags, i, s):
    """Slices that are written where the input is; what reads the input before or beside it sees what it was."""
    x.index_copy_(2, i, s[..., :4].transpose(1, 2) * 2)
    turned.permute(2, 0, 1).index_copy_(1, i, turned[:2].permute(2, 0, 1) + 1)
    line.index_copy_(0, i, s[0, 0, :2, 0])
    flags.index_copy_(1, i, s[0, 0, :, :2] > 0)
    return x.sum(2), x[:, :, 1:3], line + 1, flags.any()


def caches_alike(k, v, w, i, a, b):
    """Two that are written alike and one that is not; the last one reads what was written into the first."""
    key, value = a * 2, b.transpose(1, 2) + 1
    k.index_copy_(2, i, key)
    v.index_copy_(2, i, value)
    w.index_copy_(2, i + 1, value + k.sum())
    return k * v, w - 1


def cache_in_another_order(x, i, s):
    """The input's memory has its third dimension first."""
    x.index_copy_(1, i, s)
    return x.sum(2)


def dynamic_writes(x, i, s):
    return (
        x.index_add(0, i, s),
        x.index_put((i,), s),
        x.scatter(0, i[:, None].expand(-1, 3), s),
        x.scatter_add(0, i[:, None].expand(-1, 3), s),
        torch.select_scatter(x, s[0], 0, 1),
        torch.slice_scatter(x, s[:2], 0, 1, 3),
        torch.slice_scatter(x, s[:2], 0, -2),
        torch.slice_scatter(x, s[:2], 0, 0, 4, 2),
        aten.slice_backward(s[:2], [x.shape[0], 3], 0, 1, 3, 1),
        aten.select_backward(s[0], [x.shape[0], 3], 0, -1),
        torch.diagonal_scatter(x[:3], s[0]),
    )


def view_writes(x, s):
    return (
        torch.select_scatter(x, s[0], 0, 1),
        torch.select_scatter(x, s[:, 0], 1, -1),
        torch.slice_scatter(x, s[:, :2], 1, 1, 3),
        torch.slice_scatter(x, s[:, :2], 1, -2, 100),
        torch.slice_scatter(x, s[:, :2], 1, 1, 4, 2),
        torch.slice_scatter(x, s[:, :2], 1, 0, 3, 2),
        torch.slice_scatter(x, s),
        torch.slice_scatter(x, s[:0], 0, 3),
        torch.slice_scatter(x[:, :3], s[:, 1:].half(), 1),
        torch.diagonal_scatter(x, s[0, :3]),
        torch.diagonal_scatter(x, s[0, :3], 1),
        torch.diagonal_scatter(x, s[0, :2], -1),
        torch.diagonal_scatter(x, s[0, :3], 0, 1, 0),
        aten.select_backward(s[0], [3, 4], 0, 1),
        aten.select_backward(s[:, 0], [3, 5], 1, -2),
        aten.slice_backward(s[:, :2], [3, 6], 1, 1, 3, 1),
        aten.slice_backward(s[:, :2], [3, 6], 1, 1, 5, 2),
        aten.slice_backward(s[:, :3], [3, 5], 1, 0, 9223372036854775807, 2),
        aten.diagonal_backward(s[0], [4, 6], 1, 0, 1),
    )


def masked(x, m, s):
    return (
        x.masked_scatter(m, s),
        x.masked_scatter(m[0], s),
        x.masked_scatter(m[:, :1], s.flatten()),
        x.masked_scatter(torch.zeros(3, 4, dtype=torch.bool), s),
        aten.masked_scatter_backward(x, m, [3, 4]),
        torch.nonzero_static(m, size=5),
        torch.nonzero_static(x * m, size=20, fill_value=7),
    )


def nan_reductions(x, i):
    s = x.flip(0)
    return [x.scatter_reduce(0, i, s, r, include_self=w) for r in ("amax", "amin", "sum") for w in (True, False)]


def on_dtypes(x, i, s):
    out = [
        x.index_put((i,), s),
        x.scatter(0, i[:, None], s[:, :1]),
        x[i],
        x.gather(0, i[:, None]),
        x.index_copy(0, i, s),
    ]
    if x.dtype != torch.bool:
        out += [x.index_add(0, i // 2, s), x.scatter_reduce(0, i[:, None] // 2, s, "amax"), x.index_fill(1, i[:1], 3)]
        out += [x.scatter_reduce(0, i[:, None] // 2, s, "mean"), x.scatter_reduce(0, i[:, None] // 2, s, "prod")]
    return out


SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0, -2.0, 0.5, 3.0, float("nan")])
PERMUTED = torch.tensor([3, 0, 2])


def _turned(generator):
    return randn(6, 3, 4)(generator).permute(1, 2, 0)


CASES = [
    Case(
        "caches",
        caches,
        (randn(2, 3, 5, 4), randn(4, 2, 4), randn(5), bools(3, 4), PERMUTED[[0, 2]], randn(2, 2, 3, 7)),
    ),
    Case(
        "caches_alike",
        caches_alike,
        (*[randn(2, 3, 5, 8)] * 3, PERMUTED[[0, 2]], randn(2, 3, 2, 8), randn(2, 2, 3, 8)),
    ),
    Case("cache_in_another_order", cache_in_another_order, (_turned, PERMUTED[[2, 0]], randn(3, 2, 6))),
    Case("reads", reads, (randn(3, 3, 4), ints(2, 3, low=-3, high=3), ints(3, low=-3, high=3))),
    Case("gathers", gathers, (randn(3, 3), ints(3, 3, low=0, high=3))),
    Case(
        "dynamic_reads",
        dynamic_reads,
        (randn(5, 5), ints(4, low=0, high=5)),
        True,
        (randn(7, 7), ints(3, low=0, high=7)),
    ),
    Case("puts", puts, (randn(4, 3, 3), torch.tensor([3, 0, -2]), torch.tensor([0, -1, 1]), randn(3, 3, 3))),
    Case("assignments", assignments, (randn(4, 3), randn(4, 3), torch.tensor([3, 0]))),
    Case("scatters", scatters, (randn(3, 3), torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1]]), randn(3, 3))),
    Case(
        "scatter_duplicates",
        lambda x, i, s: (x.scatter_add(0, i, s), x.index_add(1, i[0], s)),
        (randn(3, 5), ints(3, 5, low=0, high=3), randn(3, 5)),
    ),
    Case("reductions", reductions, (randn(4, 5), ints(3, 5, low=0, high=4), randn(4, 5))),
    Case("nan_reductions", nan_reductions, (SPECIAL, ints(8, low=0, high=8)), exact=True),
    Case("along", along, (randn(3, 3, 3), torch.tensor([2, 0, 2]), randn(3, 3, 3))),
    Case(
        "dynamic_writes",
        dynamic_writes,
        (randn(5, 3), torch.tensor([4, 0, 2, 1]), randn(4, 3)),
        True,
        (randn(7, 3), torch.tensor([6, 0, 2]), randn(3, 3)),
    ),
    Case("view_writes", view_writes, (randn(3, 4), randn(3, 4))),
    Case("masked", masked, (randn(3, 4), bools(3, 4), randn(3, 4))),
    *(
        Case(
            f"writes_{str(d)[6:]}",
            on_dtypes,
            (ints(4, 4, dtype=d, low=0, high=5), PERMUTED, ints(3, 4, dtype=d, low=0, high=5)),
        )
        for d in (bf16, i64, torch.int8, torch.bool)
    ),
]
