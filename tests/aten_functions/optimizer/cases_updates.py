"""Updates in place of several tensors, as optimizers make them: one kernel computes each."""

from __future__ import annotations

import torch

from tests.support.cases import Case, rand, randn, special

Tensors = tuple[torch.Tensor, ...]


def every(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, step: torch.Tensor, rate: torch.Tensor) -> None:
    """Every op that the kernel has a word for, of tensors and of numbers that are tensors."""
    step += 1
    near, far = x.lerp(z, 0.3), x.lerp(z, 0.7)
    a = y.addcmul(near, far, value=0.5).addcmul(z, z)
    b = y.addcdiv(near, z.abs() + 1.5, value=-2.0)
    c = torch.maximum(a, z) - torch.minimum(b, x)
    d = (c.square() + 1).sqrt().reciprocal().neg().detach()
    e = torch.sub(d, z, alpha=3) + torch.add(z, y, alpha=0.25) + torch.rsub(d, z, alpha=2) + torch.rsub(d, 1.5)
    down = 1 - 0.9**step
    y.copy_(e / down.sqrt()).addcdiv_(c, a.abs() + 1e-2)
    x.mul_(1 - rate * 0.1).sub_(rate / down * e)


def adam(x: torch.Tensor, m: torch.Tensor, v: torch.Tensor, step: torch.Tensor, grad: torch.Tensor) -> None:
    step.add_(1)
    m.lerp_(grad, 0.1)
    v.mul_(0.999).addcmul_(grad, grad, value=0.001)
    root = v.sqrt() / (1 - 0.999**step).sqrt() + 1e-8
    x.addcdiv_(m, root / (-1e-3 / (1 - 0.9**step)))


def momentum(x: torch.Tensor, m: torch.Tensor, grad: torch.Tensor) -> None:
    m.mul_(0.9).add_(grad)
    x.add_(m, alpha=-0.1)


def numbers(x: torch.Tensor, y: torch.Tensor) -> None:
    """Tensors that are numbers; powers of other exponents than whole ones."""
    y.add_(0.7**x)
    x.sub_(1.5).mul_(0.25**y)


def largest(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> None:
    x.copy_(torch.maximum(x, z))
    y.copy_(torch.minimum(z, y))


def exchange(x: torch.Tensor, y: torch.Tensor) -> None:
    """Each becomes what is computed from the other's old value."""
    old = x.clone()
    x.copy_(y * 2)
    y.copy_(old * 3)


def together(sizes: list[int], *tensors: torch.Tensor) -> None:
    """Updates of several parameters by two programs."""
    for i in range(len(sizes)):
        (adam if i % 3 else momentum)(*tensors[5 * i : 5 * i + (5 if i % 3 else 3)])


def turned(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).t()


def several(*sizes: int) -> tuple[object, ...]:
    return sizes, *(t for n in sizes for t in (randn(n), randn(n), rand(n), torch.tensor(3.0), randn(n)))


STEP = torch.tensor(4.0)

CASES = [
    Case("every", every, (randn(5, 7), randn(5, 7), randn(5, 7), STEP, torch.tensor(0.3))),
    Case("large", adam, (randn(300, 1001), randn(300, 1001), rand(300, 1001), STEP, randn(300, 1001))),
    Case("several", together, several(1, 40, 200_003, 16, 33, 0, 150_000)),
    Case("turned", adam, (turned(3, 5), turned(3, 5), turned(3, 5).abs(), STEP, turned(3, 5))),
    Case("special", momentum, (special(), special().flip(0), special().roll(3))),
    Case("largest", largest, (special(), special().flip(0), special().roll(3)), exact=True),
    Case("numbers", numbers, (torch.tensor(2.5), torch.tensor(-3.0))),
    Case("no_numbers", numbers, (torch.tensor(torch.nan), torch.tensor(torch.inf))),
    Case("exchange", exchange, (randn(2, 9), randn(2, 9)), exact=True),
    Case("first_steps", adam, (randn(9), torch.zeros(9), torch.zeros(9), torch.tensor(0.0), randn(9))),
]
