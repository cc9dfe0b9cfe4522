"""Distances and deviations against numpy's singular values: mirror images, points on a line, points that coincide."""

from __future__ import annotations

import numpy
import pytest
import torch

from torch_max_backend import ops
from torch_max_backend.ops.declaration import declaration_of
from torch_max_backend.ops.structures import best_rotation

POINTS = 9


def kabsch(a: torch.Tensor, b: torch.Tensor) -> float:
    """The smallest deviation over proper rotations, by singular values (Kabsch 1976)."""
    own, other = ((x - x.mean(0)).numpy() for x in (a, b))
    u, _, vt = numpy.linalg.svd(own.T @ other)
    mirrored = numpy.linalg.det(u @ vt) < 0
    turn = u @ numpy.diag([1.0, 1.0, -1.0 if mirrored else 1.0]) @ vt
    return float(numpy.sqrt(((own @ turn - other) ** 2).sum(1).mean()))


def turned(x: torch.Tensor, seed: int) -> torch.Tensor:
    """``x`` turned and moved."""
    q, _ = torch.linalg.qr(torch.randn(3, 3, dtype=x.dtype, generator=torch.Generator().manual_seed(seed)))
    return x @ (q * torch.linalg.det(q)) + 3.0


def pairs() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Structures that are easy to get wrong."""
    generator = torch.Generator().manual_seed(5)
    x, other = torch.randn(2, POINTS, 3, dtype=torch.float64, generator=generator)
    line = x[:, :1] * torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    plane = x * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    point = torch.ones_like(x)
    mirror = torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64)
    cube = torch.tensor([[i, j, k] for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)] + [[0] * 3]).double()
    return {
        "random": (x, other),
        "the same": (x, x),
        "turned": (x, turned(x, 1)),
        "mirrored": (x, x * mirror),
        "mirrored and turned": (x, turned(x * mirror, 2)),
        "on a line": (line, turned(line, 3)),
        "a line against points": (line, other),
        "a line backwards": (line, -line),
        "almost on a line": (line + 1e-7 * x, turned(line + 1e-7 * x, 8)),
        "in a plane": (plane, turned(plane, 4)),
        "a plane mirrored": (plane, turned(plane * mirror, 5)),
        "coincident": (point, point * 2),
        "coincident against points": (point, x),
        "a cube mirrored": (cube, turned(cube * mirror, 6)),
        "large": (x * 1e6, turned(x, 7) * 1e6),
        "small": (x * 1e-6, other * 1e-6),
        "half a turn": (x, x * torch.tensor([-1.0, -1.0, 1.0], dtype=torch.float64)),
    }


@pytest.mark.parametrize("dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.full)], ids=str)
def test_aligned_deviation_is_the_smallest(dtype: torch.dtype) -> None:
    a, b = (torch.stack(side).to(dtype) for side in zip(*pairs().values()))
    a.requires_grad_()
    found, rotation = ops.rmsd_aligned(a, b)
    for name, own, other, value in zip(pairs(), a.detach().double(), b.double(), found.tolist()):
        # A deviation of 0 is the root of what rounding leaves of squares; points have the digits of their dtype.
        scale = float(own.abs().max() + other.abs().max())
        digits = 1e-7 if dtype == torch.float64 else 1e-6
        assert abs(value - kabsch(own, other)) <= digits * scale, name
    one = torch.eye(3, dtype=dtype).expand_as(rotation)
    torch.testing.assert_close(rotation @ rotation.mT, one, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.linalg.det(rotation), torch.ones(len(a), dtype=dtype), rtol=0, atol=1e-6)
    (slope,) = torch.autograd.grad(found.sum(), a)
    assert torch.isfinite(slope).all()
    names = list(pairs())
    generic = slope[names.index("random")]
    left = a.detach()[0] - a.detach()[0].mean(0) - (b[0] - b[0].mean(0)) @ rotation[0].mT
    torch.testing.assert_close(generic, left / (len(left) * found[0].detach()))
    assert float(slope[names.index("coincident")].abs().max()) == 0


def test_the_kernel_of_rotations_is_its_reference() -> None:
    """Of covariances of any sign and size, those of mirror images among them."""
    generator = torch.Generator().manual_seed(4)
    covariance = torch.randn(301, 3, 3, dtype=torch.float64, generator=generator)
    covariance *= 10.0 ** torch.randint(-6, 7, (301, 1, 1), generator=generator)
    reference = declaration_of("best_rotation").reference(covariance)
    torch.testing.assert_close(best_rotation(covariance), reference, rtol=0, atol=1e-12)


@pytest.mark.full
def test_aligned_deviation_has_the_right_gradient() -> None:
    """Against central differences, in a frame that is generic and one whose best rotation has to avoid a mirror."""
    a, b = (
        torch.stack([side[k] for k in ("random", "mirrored")])
        for side in [dict(zip(pairs(), s)) for s in zip(*pairs().values())]
    )
    generator = torch.Generator().manual_seed(2)
    steps = torch.randn(2, *a.shape, dtype=torch.float64, generator=generator)
    a.requires_grad_()
    b.requires_grad_()
    slopes = torch.autograd.grad(ops.rmsd_aligned(a, b)[0].sum(), (a, b))
    with torch.no_grad():
        near = [ops.rmsd_aligned(a + h * steps[0], b + h * steps[1])[0].sum() for h in (1e-5, -1e-5)]
    along = sum(float((s * step).sum()) for s, step in zip(slopes, steps))
    assert along == pytest.approx(float(near[0] - near[1]) / 2e-5, rel=1e-6)


@pytest.mark.full
def test_deviation_has_no_gradient_where_it_is_zero() -> None:
    a = torch.randn(2, 5, 3, requires_grad=True)
    b = a.detach().clone()
    b[1] += 1
    found = ops.rmsd(a, b)
    torch.testing.assert_close(found, torch.tensor([0.0, 3.0**0.5]))
    (slope,) = torch.autograd.grad(found.sum(), a)
    assert torch.equal(slope[0], torch.zeros(5, 3))
    torch.testing.assert_close(slope[1], torch.full((5, 3), -1 / (5 * 3**0.5)))


@pytest.mark.full
@pytest.mark.parametrize("count", [1, 7, 8, 9, 33, 64])
def test_contacts_in_bits(count: int) -> None:
    points = torch.randn(2, count, 3)
    near = ops.contact_map(points, 1.2)
    bits = numpy.packbits(near.numpy(), axis=-1, bitorder="little")
    assert torch.equal(ops.contact_map_packed(points, 1.2), torch.from_numpy(bits))
    apart = torch.cdist(points.double(), points.double())
    clear = (apart - 1.2).abs() > 1e-5
    assert torch.equal(near[clear], (apart < 1.2)[clear])


@pytest.mark.full
def test_distances_of_points_that_coincide() -> None:
    points = torch.tensor([[0.0, 0, 0], [3, 4, 0], [0, 0, 0]], requires_grad=True)
    found = ops.pairwise_distance(points)
    assert torch.equal(found, torch.tensor([[0.0, 5, 0], [5, 0, 5], [0, 5, 0]]))
    (slope,) = torch.autograd.grad(found.sum(), points)
    torch.testing.assert_close(slope, torch.tensor([[-1.2, -1.6, 0], [2.4, 3.2, 0], [-1.2, -1.6, 0]]))
