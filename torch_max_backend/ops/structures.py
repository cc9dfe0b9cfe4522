"""Distances between points in space: pairs, contacts, and root-mean-square deviations of structures."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from torch_max_backend.ops.arguments import ArgumentError, Sizes
from torch_max_backend.ops.declaration import BenchmarkCase, Tolerance
from torch_max_backend.ops.define import gradient_of, public_op
from torch_max_backend.ops.mojo_file import MojoFile
from torch_max_backend.ops.mojo_kernel import MojoKernel
from torch_max_backend.ops.precision import as_wide, rows_of

_SQUARINGS = 52
"""Of a matrix, to keep its largest eigenvalue's part: one that is smaller by a share of 2^-52 is gone after these."""
_BETWEEN_SCALINGS = 4
"""Squarings after which the trace is made 1 again. It is at least 4^-16 after so many: no element is lost."""

_TOLERANCE = Tolerance(16, 2, 2, 16, "three squares and a root, rounded once")
_OF_SUMS = Tolerance(64, 4, 4, 1024, "the mean of squares over all points; the rotation is float64's, with its error")


def _total(terms: Iterable[torch.Tensor]) -> torch.Tensor:
    return functools.reduce(operator.add, terms)


def _apart(x: torch.Tensor) -> list[torch.Tensor]:
    """Differences of all pairs in each coordinate, each [..., n, n]."""
    return [c.unsqueeze(-1) - c.unsqueeze(-2) for c in as_wide(x).unbind(-1)]


def _squares(apart: Sequence[torch.Tensor]) -> torch.Tensor:
    return _total(d.square() for d in apart)


def _root(square: torch.Tensor) -> torch.Tensor:
    """The square root, whose gradient at 0 is 0."""
    is_zero = square == 0
    return torch.where(is_zero, 0, torch.where(is_zero, 1, square).sqrt())


def _pairs(sizes: Sizes) -> Any:
    return rows_of(sizes) * sizes["n"] * sizes["n"]


def _inverse(distance: torch.Tensor) -> torch.Tensor:
    """The inverse of a distance, and 0 for a distance of 0, where it has no direction."""
    return torch.where(distance > 0, 1 / distance, 0.0)


@public_op(
    "pairwise_distance(Tensor points) -> Tensor",
    shapes={"points": "... n 3"},
    results=["... n n"],
    differentiable=("points",),
    autocast="float32",
    tolerance=_TOLERANCE,
    flops=lambda sizes: 9 * _pairs(sizes),
    cases=(BenchmarkCase("frames", lambda new: (new(2501, 254, 3),), lambda x: torch.cdist(x, x)),),
)
def pairwise_distance(points: torch.Tensor) -> torch.Tensor:
    """The distances of all pairs of points. Where two points coincide, the gradient of their distance is 0.

    Args:
        points: [..., n, 3]; leading dimensions are frames.

    Returns:
        [..., n, n], in the unit of the points.
    """
    return _root(_squares(_apart(points))).to(points.dtype)


@gradient_of("pairwise_distance")
def _pairwise_distance_backward(grad: torch.Tensor, points: torch.Tensor) -> tuple[torch.Tensor]:
    apart, slope = _apart(points), as_wide(grad)
    share = (slope + slope.transpose(-1, -2)) * _inverse(_squares(apart).sqrt())
    return (torch.stack([(share * d).sum(-1) for d in apart], -1).to(points.dtype),)


_BITS = 2 ** torch.arange(8, dtype=torch.uint8)


def _is_near(points: torch.Tensor, cutoff: float) -> torch.Tensor:
    return _squares(_apart(points)) < cutoff * cutoff


def _check_cutoff(op: str, cutoff: float) -> None:
    if not cutoff > 0:
        raise ArgumentError(f"{op}: cutoff must be above 0, got {cutoff}")


@public_op(
    "contact_map(Tensor points, float cutoff) -> Tensor",
    shapes={"points": "... n 3"},
    results=["... n n"],
    result_dtypes=(torch.bool,),
    requires=lambda sizes, points, cutoff: _check_cutoff("contact_map", cutoff),
    autocast="float32",
    tolerance=Tolerance(0, 0, 0, 0, "a comparison, of squares in float32"),
    flops=lambda sizes: 9 * _pairs(sizes),
    cases=(
        BenchmarkCase("frames", lambda new: (new(2501, 254, 3), 1.0), lambda x, cutoff: torch.cdist(x, x) < cutoff),
    ),
)
def contact_map(points: torch.Tensor, cutoff: float) -> torch.Tensor:
    """Which pairs of points are nearer than ``cutoff``; a point is in contact with itself.

    Args:
        points: [..., n, 3]; leading dimensions are frames.
        cutoff: In the unit of the points.

    Returns:
        [..., n, n] booleans.
    """
    return _is_near(points, cutoff)


def _packed_shape(sizes: Sizes, points: torch.Tensor, cutoff: float) -> list[tuple[Any, ...]]:
    return [(*sizes["..."], sizes["n"], (sizes["n"] + 7) // 8)]


def _plain_packed(points: torch.Tensor, cutoff: float) -> torch.Tensor:
    """What a program without the op writes."""
    near = F.pad(torch.cdist(points, points) < cutoff, (0, -points.shape[-2] % 8))
    return (near.unflatten(-1, (-1, 8)) * _BITS.to(points.device)).sum(-1, dtype=torch.uint8)


@public_op(
    "contact_map_packed(Tensor points, float cutoff) -> Tensor",
    shapes={"points": "... n 3"},
    results=_packed_shape,
    result_dtypes=(torch.uint8,),
    requires=lambda sizes, points, cutoff: _check_cutoff("contact_map_packed", cutoff),
    autocast="float32",
    tolerance=Tolerance(0, 0, 0, 0, "a comparison, of squares in float32"),
    flops=lambda sizes: 9 * _pairs(sizes),
    cases=(BenchmarkCase("frames", lambda new: (new(2501, 254, 3), 1.0), _plain_packed),),
)
def contact_map_packed(points: torch.Tensor, cutoff: float) -> torch.Tensor:
    """:func:`contact_map` with eight pairs in a byte, as ``numpy.packbits(..., bitorder="little")`` has them.

    Args:
        points: [..., n, 3]; leading dimensions are frames.
        cutoff: In the unit of the points.

    Returns:
        [..., n, (n + 7) // 8] bytes. Bit k of byte j is the pair with point 8j + k; what is beyond n is 0.
    """
    near = _is_near(points, cutoff).to(torch.uint8)
    count = near.shape[-1]
    whole = F.pad(near, (0, (count + 7) // 8 * 8 - count))
    bits = whole.unflatten(-1, ((count + 7) // 8, 8)) << torch.arange(8, dtype=torch.uint8, device=points.device)
    return bits.sum(-1, dtype=torch.uint8)


# -- deviations ----------------------------------------------------------------------------------------------------
@public_op(
    "rmsd(Tensor a, Tensor b) -> Tensor",
    shapes={"a": "... n 3", "b": "... n 3"},
    results=["..."],
    differentiable=("a", "b"),
    autocast="float32",
    tolerance=_OF_SUMS,
    flops=lambda sizes: 9 * rows_of(sizes) * sizes["n"],
    cases=(
        BenchmarkCase(
            "frames",
            lambda new: (new(2501, 3891, 3), new(3891, 3).expand(2501, 3891, 3)),
            lambda a, b: (a - b).square().sum(-1).mean(-1).sqrt(),
        ),
    ),
)
def rmsd(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The root of the mean squared distance of corresponding points. Where it is 0, so is the gradient.

    Args:
        a: [..., n, 3]; leading dimensions are frames.
        b: [..., n, 3]. One structure for all frames is expanded, which takes no memory.

    Returns:
        [...], in the unit of the points.
    """
    return _root(_mean_square(as_wide(a) - as_wide(b))).to(a.dtype)


def _mean_square(apart: torch.Tensor) -> torch.Tensor:
    """The mean of squared distances: a sum over all coordinates, as they lie in memory."""
    return apart.square().sum((-2, -1)) / apart.shape[-2]


@gradient_of("rmsd")
def _rmsd_backward(grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    apart = as_wide(a) - as_wide(b)
    found = apart * _share_of_points(as_wide(grad), apart)
    return found.to(a.dtype), (-found).to(b.dtype)


def _share_of_points(slope: torch.Tensor, apart: torch.Tensor) -> torch.Tensor:
    deviation = _mean_square(apart).sqrt()
    return (slope * _inverse(deviation) / apart.shape[-2]).unsqueeze(-1).unsqueeze(-1)


Columns = tuple[torch.Tensor, ...]
"""The three coordinates of points, each [..., n]."""


def _columns(x: torch.Tensor) -> Columns:
    """Coordinates in float64; of float64 relative to the first point, so that none is large against the structure.

    Others have fewer digits than are lost if they are large.
    """
    wide = x - x[..., :1, :] if x.dtype == torch.float64 else x.double()
    return wide.unbind(-1)


def _covariance(a: Columns, b: Columns) -> list[list[torch.Tensor]]:
    """The mean of ``(a_i - mean(a_i)) * (b_j - mean(b_j))``, by sums that one pass over the points gives."""
    means = [y.mean(-1) for y in b]
    return [[(x * y).mean(-1) - x.mean(-1) * mean for y, mean in zip(b, means)] for x in a]


def _matrix(rows: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
    return torch.stack([torch.stack(list(row), -1) for row in rows], -2)


_BEST_ROTATION = MojoKernel(MojoFile.read(Path(__file__).with_name("best_rotation.mojo")))


@public_op(
    _BEST_ROTATION.file.schema,
    shapes=_BEST_ROTATION.file.patterns,
    results=_BEST_ROTATION.file.results,
    requires=_BEST_ROTATION.check,
    kernel=_BEST_ROTATION,
    tolerance=Tolerance(
        64, 4, 4, 1024, "squares of squares in float64, with the error that the eigenvalues' gap leaves"
    ),
    flops=lambda sizes: rows_of(sizes) * _SQUARINGS * 70,
)
def best_rotation(covariance: torch.Tensor) -> torch.Tensor:
    """The proper rotation that moves points ``a`` closest to ``b``: ``a @ rotation`` and ``b`` differ by a translation.

    It is that of the quaternion for which Horn's symmetric 4 x 4 matrix has its largest eigenvalue (Horn 1987, "Closed-
    form solution of absolute orientation using unit quaternions"). The matrix, made positive, is squared until all but
    the part of that eigenvalue is gone. Where the eigenvalue is a multiple one, as for points on a line or for mirror
    images, the columns are in its space all the same, and each of them is a best rotation.

    Args:
        covariance: [..., 3, 3] in float64: of each coordinate of ``a`` with each of ``b``.

    Returns:
        [..., 3, 3].
    """
    w, x, y, z = _best_quaternion(_horn(covariance)).unbind(-1)
    return _matrix(
        [
            (w * w + x * x - y * y - z * z, 2 * (x * y + w * z), 2 * (x * z - w * y)),
            (2 * (x * y - w * z), w * w - x * x + y * y - z * z, 2 * (y * z + w * x)),
            (2 * (x * z + w * y), 2 * (y * z - w * x), w * w - x * x - y * y + z * z),
        ]
    )


def _horn(covariance: torch.Tensor) -> torch.Tensor:
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = (row.unbind(-1) for row in covariance.unbind(-2))
    return _matrix(
        [
            (xx + yy + zz, yz - zy, zx - xz, xy - yx),
            (yz - zy, xx - yy - zz, xy + yx, zx + xz),
            (zx - xz, xy + yx, yy - xx - zz, yz + zy),
            (xy - yx, zx + xz, yz + zy, zz - xx - yy),
        ]
    )


def _best_quaternion(matrix: torch.Tensor) -> torch.Tensor:
    """The unit eigenvector of the largest eigenvalue of a symmetric matrix with a trace of 0: [..., 4]."""
    one = torch.eye(4, dtype=matrix.dtype, device=matrix.device)
    bound = matrix.square().sum((-2, -1)).sqrt()
    is_zero = bound == 0  # all points coincide: every rotation is as good
    bound = torch.where(is_zero, 1.0, bound)
    power = (matrix / bound.unsqueeze(-1).unsqueeze(-1) + one) / 4
    for count in range(1, _SQUARINGS + 1):
        power = (power.unsqueeze(-1) * power.unsqueeze(-3)).sum(-2)
        if count % _BETWEEN_SCALINGS == 0:
            power = power / power.diagonal(dim1=-2, dim2=-1).sum(-1).unsqueeze(-1).unsqueeze(-1)
    lengths = power.square().sum(-1)
    best = (lengths == lengths.amax(-1).unsqueeze(-1)).to(power.dtype)
    first = best * (best.cumsum(-1) == 1).to(power.dtype)
    column = (power * first.unsqueeze(-1)).sum(-2)
    return column / column.square().sum(-1).sqrt().unsqueeze(-1)


def _plain_aligned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What a program without the op writes, by singular values."""
    own, other = (x.float() - x.float().mean(-2, keepdim=True) for x in (a, b))
    u, s, vt = torch.linalg.svd(own.mT @ other)
    sign = torch.linalg.det(u @ vt).sign().unsqueeze(-1)
    best = (s * torch.cat([torch.ones_like(s[..., :2]), sign], -1)).sum(-1)
    left = own.square().sum((-2, -1)) + other.square().sum((-2, -1)) - 2 * best
    return (left.clamp_min(0) / a.shape[-2]).sqrt()


@public_op(
    "rmsd_aligned(Tensor a, Tensor b) -> (Tensor rmsd, Tensor rotation)",
    shapes={"a": "... n 3", "b": "... n 3"},
    results=["...", "... 3 3"],
    result_dtypes=(None, torch.float32),
    differentiable=("a", "b"),
    constant_results=("rotation",),
    autocast="float32",
    tolerance=_OF_SUMS,
    flops=lambda sizes: rows_of(sizes) * (50 * sizes["n"] + _SQUARINGS * 132),
    cases=(
        BenchmarkCase("frames", lambda new: (new(2501, 3891, 3), new(3891, 3).expand(2501, 3891, 3)), _plain_aligned),
    ),
)
def rmsd_aligned(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`rmsd` after the translation and rotation that make it smallest (Kabsch), and that rotation.

    Mirror images are not matched: the rotation is a proper one. It has no gradient. The computation is float64's.

    Args:
        a: [..., n, 3]; leading dimensions are frames.
        b: [..., n, 3]. One structure for all frames is expanded, which takes no memory.

    Returns:
        [...], in the unit of the points, and [..., 3, 3] in float32 (float64 for float64): with both structures
        centered, ``a @ rotation`` lies on ``b``.
    """
    own, other = _columns(a), _columns(b)
    turn = best_rotation(_matrix(_covariance(own, other)).detach())  # stationary: it adds nothing to the gradient
    return _deviation(_between(own, other, turn)).to(a.dtype), turn.to(as_wide(a).dtype)


def _between(own: Columns, other: Columns, turn: torch.Tensor) -> Columns:
    """What is left between two structures, of which one is turned and moved, in coordinates."""
    left = []
    for j, y in enumerate(other):
        factors = [turn[..., i, j] for i in range(3)]
        moved = y.mean(-1) - _total(x.mean(-1) * f for x, f in zip(own, factors))
        left.append(_total(x * f.unsqueeze(-1) for x, f in zip(own, factors)) - y + moved.unsqueeze(-1))
    return tuple(left)


def _deviation(left: Columns) -> torch.Tensor:
    return _root(_squares(left).mean(-1))


@gradient_of("rmsd_aligned")
def _rmsd_aligned_backward(
    grad_rmsd: torch.Tensor, a: torch.Tensor, b: torch.Tensor, rotation: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    turn = rotation.double()
    left = _between(_columns(a), _columns(b), turn)
    share = (grad_rmsd.double() * _inverse(_deviation(left)) / a.shape[-2]).unsqueeze(-1)
    found = [d * share for d in left]
    back = [_total(d * turn[..., i, j].unsqueeze(-1) for j, d in enumerate(found)) for i in range(3)]
    return torch.stack(back, -1).to(a.dtype), -torch.stack(found, -1).to(b.dtype)
