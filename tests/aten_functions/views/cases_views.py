"""Cases of views.py, joining.py, padding.py and strides.py."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.support.cases import Case, bools, ints, randn, special

aten = torch.ops.aten
bf16, f16, f64, i64, i32, u8 = (
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
)


def reshapes(x):
    return (
        x.view(6, 4).add(1),
        x.reshape(-1, 2, 3).add(1),
        x.flatten().add(1),
        x.unsqueeze(0).add(1),
        x.unsqueeze(-1).add(1),
        x.unsqueeze(-2).squeeze(-2).add(1),
        x.unsqueeze(1).unsqueeze(3).squeeze().add(1),
        x.squeeze(0).add(1),
        x.unsqueeze(0).unsqueeze(0).squeeze((0, 1)).add(1),
        aten._unsafe_view(x, [24]).add(1),
        x.view(x.dtype).add(1),
        x.view(i32) + 1,
        x[0, 0, 0].view(i32) + 1,
        x.bfloat16().view(torch.int16) + 1,
    )


def transposes(x):
    matrix = x[:, 0]
    return (
        x.transpose(1, 2).contiguous(),
        x.permute(1, 2, 0).contiguous().view(-1, x.shape[0]),
        matrix.t().bfloat16().contiguous(),
        matrix.bfloat16().t().contiguous(),
        (matrix > 0).t().contiguous(),
        matrix.to(torch.int64).t().contiguous(),
        matrix[:, : len(matrix)] + matrix[:, : len(matrix)].t(),
        torch.cat([matrix.t(), matrix.t() * 2]),
        (matrix.t() * 2).relu(),
        matrix.t().sum(1),
        x.permute(2, 1, 0).contiguous(),
    )


def permutations(x):
    return (
        x.permute(2, 0, -2).add(1),
        x.transpose(0, 2).add(1),
        x.transpose(-1, -2).contiguous(),
        x[0].t().add(1),
        x[0, 0].t().add(1),
        x.movedim(0, -1).add(1),
        x.swapaxes(0, 1).clone(),
        x.transpose(0, 1).reshape(6, 4),
        x.mT + 1,
    )


def expansions(x):
    return (
        x.expand(3, 2, 4) + 1,
        x.expand(2, -1, 2, 4) + 1,
        x[:, :1].expand(-1, 5, -1) + 1,
        x[0, 0, 0].expand(2, 3) + 1,
        x.broadcast_to(2, 3, 2, 4).sum(0),
    )


def slices(x):
    return (
        x[1:3] + 1,
        x[:, -3:] + 1,
        x[:, :-2] + 1,
        x[-100:100, :2] + 1,
        x[:, 1:100:2] + 1,
        x[::3, ::2] + 1,
        x[1:1000:4] + 1,
        x[5:2].sum() + 1,
        x.narrow(1, 1, 2) + 1,
        x[..., None, 0] + 1,
        x[-1] + 1,
        x[2, -2] + 1,
        x.select(1, -1) + 1,
        aten.narrow_copy(x, 0, 1, 3),
    )


def dynamic_slices(x):
    n = x.shape[0]
    return (
        x[1:] * 2,
        x[:-1] * 2,
        x[-2:] * 2,
        x[::2] * 2,
        x[1::3] * 2,
        x[n // 2 :] * 2,
        x[: n // 2] * 2,
        x[-3:-1] * 2,
        x[-(n // 2) :] * 2,
        x[n - 3 : n - 1] * 2,
        x[-1] * 2,
        x[n // 2] * 2,
        x[-2] * 2,
        x[1:3] * 2,
    )


def splits(x):
    a, b, c = x.split(2, dim=0)
    d, e = x.split([1, 3], dim=-1)
    f = x.chunk(3, dim=1)
    g = x.unbind(1)
    h = x.tensor_split((1, 3), dim=0)
    return a + 1, b + 1, c + 1, d + 1, e + 1, f[1] + f[0][:, :1], g[0] + g[2], g[1] * 2, h[1] + 1, h[2] * 2


def joins(x, y, b, n):
    empty = torch.empty(0)
    return (
        torch.cat([x, x * 2, x]),
        torch.cat([x, y], -1),
        torch.cat([x, n], 0),
        torch.cat([b, n]),
        torch.cat([empty, x]),
        torch.cat([x[:0], x]),
        torch.cat([empty, empty]),
        torch.cat([y.half(), n]),
        torch.stack([x, x + 1], 0),
        torch.stack([x, y], -1),
        torch.stack([x[0, 0], x[1, 1]]),
        torch.hstack([x, y]),
        torch.vstack([x, y]),
        torch.cat([x[0], x[1, :1]]),
    )


def dynamic_joins(x, y):
    return torch.cat([x, y, x]), torch.stack([x[:2], y[:2]], 1), torch.cat([x, x * 2], 1), torch.cat([x, x.long()], 0)


def repeats(x):
    return (
        x.repeat(2, 3) + 1,
        x.repeat(2, 1, 3) + 1,
        x.repeat(0, 2).sum() + 1,
        x.repeat(1, 1) + 1,
        x.tile(2) + 1,
        x.repeat_interleave(2, dim=1),
        x[0, 0].repeat(3),
        x[0, 0].repeat(2, 2),
    )


def orders(x):
    return (
        x.flip(0),
        x.flip(-1, 0),
        x.flip(()),
        x.fliplr(),
        x.roll(1, 0),
        x.roll((1, -2), (0, 1)),
        x.roll(3),
        x.roll(-7, 1),
        x.roll(0, 0),
        x[:0].roll(1, 0).sum(),
        x[0, 0].flip(()),
        x.rot90(),
        x[0, 0].roll(1),
    )


def dynamic_orders(x):
    return (
        x.flip(0),
        x.roll(1, 0),
        x.roll(-2, 1),
        x.roll(x.shape[0] + 1, 0),
        x.repeat(2, 1),
        x.repeat(1, 2, 1),
        x.roll(3),
    )


def triangles(x):
    return (
        x.tril(),
        x.triu(),
        x.tril(1),
        x.tril(-2),
        x.triu(2),
        x.triu(-1),
        x.tril(100),
        x.triu(100),
        x[0].tril(-1),
        (x > 0).tril(),
        x[:, :0].tril().sum(),
    )


def diagonals(x):
    return (
        x.diagonal() + 1,
        x.diagonal(1) + 1,
        x.diagonal(-1, 1, 2) + 1,
        x.diagonal(2, -1, 0) + 1,
        x.diagonal(5, 1, 2).sum() + 1,
        x[0].diag() + 1,
        x[0, 0].diag(),
        torch.diag_embed(x[0], 1),
        x[0].trace(),
        torch.block_diag(x[0], x[1, :1]),
    )


def windows(x):
    return (
        x.unfold(1, 3, 1) + 1,
        x.unfold(0, 2, 2) + 1,
        x.unfold(-1, 4, 3) + 1,
        x.unfold(1, 1, 5) + 1,
        x[0, 0].unfold(0, 1, 1) + 1,
    )


def strided(x):
    return (
        x.as_strided((2, 3), (1, 2)) + 1,
        x.as_strided((2, 4, 4), (4, 4, 1), 4) + 1,
        x.as_strided((2, 8), (8, 1), 8) + 1,
        x.as_strided((), (), 5) + 1,
        x.as_strided((0, 3), (3, 1)).sum(),
        x.as_strided((2, 3), (0, 1), 1) + 1,
        x.as_strided((4, 6), (6, 1)) + 1,
        x[0].as_strided((2, 2), (1, 1)) + 1,
    )


def strided_scatter(x, y):
    return (
        torch.as_strided_scatter(x, y[:2, :3], (2, 3), (12, 2), 1),
        torch.as_strided_scatter(x, y[:3], (3, 4), (4, 1), 4),
        torch.as_strided_scatter(x, y[0, 0], (), (), 5),
    )


def constant_pads(x):
    return (
        F.pad(x, (1, 2)),
        F.pad(x, (1, 0, 0, 2), value=2.0),
        F.pad(x, (-1, 2), value=-1.0),
        F.pad(x, (-1, -1, 1, -2)),
        F.pad(x, (0, 0)),
        F.pad(x[:0], (1, 1, 2, 1), value=1.0),
        F.pad(x > 0, (1, 1), value=True),
        F.pad(x.long(), (1, 1, 1, 1), value=7),
        F.pad(x, (1, 1), value=float("-inf")),
        F.pad(x[0], (3, 1)),
    )


def reflections(x):
    return (
        F.pad(x, (2, 1), mode="reflect"),
        F.pad(x, (2, 1, 3, 0), mode="reflect"),
        F.pad(x[0], (1, 1), mode="reflect"),
        F.pad(x, (2, -1, 1, 1), mode="reflect"),
        F.pad(x[:, None], (1, 1, 2, 0, 0, 0), mode="reflect"),
        F.pad(x, (2, 1), mode="replicate"),
        F.pad(x, (2, 1, 7, 5), mode="replicate"),
        F.pad(x[:, None], (1, 1, 2, 0, 1, 1), mode="replicate"),
        F.pad(x, (1, 2, 2, 1), mode="circular"),
    )


def dynamic_pads(x):
    return (
        F.pad(x, (1, 2)),
        F.pad(x, (0, x.shape[1] // 2)),
        F.pad(x, (-1, 1, 0, x.shape[0]), value=3.0),
        F.pad(x[None], (2, 1), mode="reflect"),
        F.pad(x[None], (2, 1, 3, 0), mode="replicate"),
        x.unfold(0, 2, 1) + 1,
        x.diagonal() + 1,
        x.diagonal(1) + 1,
        x.tril(-1),
        x.triu(1),
        x.expand(3, -1, -1) + 1,
        x.unsqueeze(1).expand(-1, 2, -1).reshape(-1, x.shape[1]) + 1,
        x.view(-1) + 1,
        x.t().reshape(-1) + 3,
        x.reshape(x.shape[0], 2, -1) + 2,
    )


def pad_gradients(g1, g2, g3, x):
    return (
        aten.replication_pad1d_backward(g1, x[0], [2, 1]),
        aten.replication_pad2d_backward(g2, x, [2, 1, 0, 3]),
        aten.replication_pad3d_backward(g3, x[:, None], [1, 1, 0, 1, 1, 0]),
        aten.reflection_pad1d_backward(g1, x[0], [2, 1]),
        aten.reflection_pad2d_backward(g2[:, :5], x, [2, 1, 0, 2]),
        aten.reflection_pad3d_backward(g3[:, :1], x[:, None], [1, 1, 0, 1, 0, 0]),
    )


def copies(x, y):
    return (
        x.clone(),
        x.detach() + 1,
        x.to(f64),
        x.to(bf16),
        x.to(f16),
        x.to(i64),
        x.to(torch.bool),
        (x * float("nan")).to(torch.bool),
        x.to(i32).to(u8),
        x.to(u8),
        x.to(torch.int8),
        x.contiguous(),
        aten.copy(x, y),
        aten.alias_copy(x),
        aten.lift_fresh_copy(x),
        torch.empty_like(x).copy_(y),
        x.to(memory_format=torch.contiguous_format, dtype=f64),
    )


def shuffles(x):
    return (
        F.pixel_shuffle(x, 2),
        F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2),
        F.channel_shuffle(x, 2),
        x.to(memory_format=torch.channels_last) + 1,
    )


def on_dtypes(x):
    return (
        x.flip(0),
        x.roll(1, 1),
        torch.cat([x, x[:, :1]], 1),
        x.tril(),
        F.pad(x, (1, 2)),
        x.diagonal().clone(),
        x.unfold(1, 2, 1).clone(),
        x[::2, 1:].clone(),
        x.repeat(2, 2),
        torch.stack([x, x], 2),
        x.t().contiguous(),
        x.as_strided((2, 3), (1, 2)).clone(),
    )


def copied_views(x):
    """Views as copies, which functionalization makes of them for some backends."""
    return (
        aten.view_copy(x, [4, 6]),
        aten.view_copy(x[1:], x.dtype),
        aten._reshape_copy(x, [24]),
        aten._reshape_alias_copy(x, [24], [1]),
        aten._reshape_alias(x, [6, 4], [4, 1]).clone(),
        aten.squeeze_copy(x[:, None]),
        aten.squeeze_copy(x[:, None], 1),
        aten.squeeze_copy(x[:, None], [0, 1]),
        aten.unsqueeze_copy(x, -1),
        aten.expand_copy(x[:1], [5, 3, 4]),
        aten.permute_copy(x, [2, 0, 1]),
        aten.transpose_copy(x, 0, -1),
        aten.t_copy(x[0]),
        aten.detach_copy(x),
        aten.select_copy(x, 1, -2),
        aten.slice_copy(x, 2, 1, None, 2),
        aten.as_strided_copy(x, [2, 3], [1, 4], 2),
        aten.unfold_copy(x, 1, 2, 1),
        *aten.split_copy(x, 3, 2),
        *aten.split_with_sizes_copy(x, [1, 2], 1),
        *aten.unbind_copy(x, 1),
        *aten.unsafe_split(x, 3, 2),
        *aten.unsafe_split_with_sizes(x, [1, 2], 1),
    )


CASES = [
    Case("reshapes", reshapes, (randn(2, 3, 4),)),
    Case("transposes", transposes, (randn(9, 2, 11),)),
    Case("transposes_dynamic", transposes, (randn(9, 2, 11),), dynamic=True, second=(randn(10, 3, 13),)),
    Case("permutations", permutations, (randn(2, 3, 4),)),
    Case("expansions", expansions, (randn(1, 2, 4),)),
    *(
        Case(f"copied_views_{str(d)[6:]}", copied_views, (ints(2, 3, 4, dtype=d),), exact=True)
        for d in (f64, i64, bf16)
    ),
    Case("copied_views_special", copied_views, (special().repeat(3)[:24].view(2, 3, 4),), exact=True),
    Case(
        "copied_bits",
        lambda x: (aten.view_copy(x, i32), aten.view_copy(x[0], i32)),
        (special().view(4, 4),),
        exact=True,
    ),
    Case("slices", slices, (randn(5, 6),)),
    Case("dynamic_slices", dynamic_slices, (randn(7, 3),), dynamic=True, second=(randn(10, 3),)),
    Case("splits", splits, (randn(5, 4),)),
    Case("splits_dynamic", lambda x: [p * 2 for p in x.split([1, 3], 1)], (randn(5, 4),), True, (randn(6, 4),)),
    Case("joins", joins, (randn(3, 4), randn(3, 4), bools(3, 4), ints(3, 4))),
    Case("dynamic_joins", dynamic_joins, (randn(3, 4), randn(5, 4)), dynamic=True, second=(randn(6, 4), randn(2, 4))),
    Case("repeats", repeats, (randn(2, 3),)),
    Case("orders", orders, (randn(3, 4),)),
    Case("dynamic_orders", dynamic_orders, (randn(3, 4),), dynamic=True, second=(randn(5, 6),)),
    Case("triangles", triangles, (randn(2, 4, 5),)),
    Case("triangles_special", lambda x: (x.tril(), x.triu()), (special().view(4, 4),), exact=True),
    Case("diagonals", diagonals, (randn(3, 4, 5),)),
    Case("windows", windows, (randn(4, 7, 6),)),
    Case("strided", strided, (randn(6, 4),)),
    Case("strided_scatter", strided_scatter, (randn(6, 4), randn(3, 4))),
    Case("constant_pads", constant_pads, (randn(3, 4),)),
    Case("reflections", reflections, (randn(2, 4, 5),)),
    Case("dynamic_pads", dynamic_pads, (randn(6, 4),), dynamic=True, second=(randn(8, 10),)),
    Case("pad_gradients", pad_gradients, (randn(3, 8), randn(2, 6, 8), randn(2, 2, 4, 7), randn(2, 3, 5))),
    Case("copies", copies, (randn(3, 4), randn(4)), exact=True),
    Case(
        "casts_special",
        lambda x: (x.to(i32), x.to(i64), x.to(u8), x.half()),
        (special(),),
        exact=True,
    ),
    Case("shuffles", shuffles, (randn(1, 8, 3, 4),)),
    *(
        Case(f"moves_{str(d)[6:]}", on_dtypes, (ints(4, 4, dtype=d, low=0, high=9),), exact=True)
        for d in (bf16, i64, u8, torch.bool)
    ),
]
