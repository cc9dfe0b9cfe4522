"""Norms, likelihoods and transposes on a GPU, over sizes that take every path of their kernels, against float64.

A row is kept by 32 to 1024 threads in 1 to 8 vectors each, by those of up to 8 blocks, or read twice; accesses are as
wide as a row's length allows, and one element wide where a tensor starts between multiples of 16 bytes.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.gpu.checks import Call, check_calls, rounding
from tests.support.cases import ints, rand, randn
from tests.support.harness import STRICT

pytestmark = pytest.mark.gpu

F = torch.nn.functional
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
INF, NAN = torch.inf, torch.nan
SPECIAL = [
    [0.0, 1.0, 2.0],
    [-INF, 0.0, 1.0],
    [-INF, -INF, -INF],
    [INF, 0.0, 1.0],
    [NAN, 0.0, 1.0],
    [INF, INF, -INF],
    [1e30, 1e30, 1e30],
]
LONG = [16640, 20001, 40000, 65536, 131072, 262144, 300000]
LENGTHS = [1, 5, 24, 256, 1000, 1026, 4096, 8191, 8192, 20000, 32768, 50257, 131072]


def unaligned(rows: int, columns: int, dtype: torch.dtype) -> Callable[[torch.Generator], torch.Tensor]:
    """A contiguous matrix that starts one element after a multiple of 16 bytes."""

    def make(generator: torch.Generator) -> torch.Tensor:
        memory = torch.randn(rows * columns + 8, generator=generator).to(dtype)
        return memory[1 : 1 + rows * columns].view(rows, columns)

    return make


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.ops.aten.native_layer_norm(x, w.shape, w, b, 1e-5)


def rms_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    return F.rms_norm(x, w.shape, w, 1e-6), F.rms_norm(x + b, w.shape)


def written_rms_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    wide = x if x.dtype == torch.float64 else x.float()
    return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def norms_of_sums(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    y = x + x.flip(0)
    return F.layer_norm(y, w.shape, w, b), y


NORMS = [layer_norm, rms_norm, written_rms_norm, norms_of_sums]


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_norms_of_all_lengths(dtype: torch.dtype) -> None:
    shapes = [(7, n) for n in LENGTHS] + [(130, 64), (0, 64)]
    calls = []
    for i, (rows, n) in enumerate(shapes):
        function = NORMS[i % len(NORMS)]
        vectors = [randn(n, dtype=dtype), randn(n, dtype=dtype)]
        calls.append(Call(f"{function.__name__} {rows}x{n}", function, (randn(rows, n, dtype=dtype), *vectors)))
    check_calls(calls)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_norms_of_long_rows(dtype: torch.dtype) -> None:
    """Rows of several blocks, whose shares differ, and rows that do not fit into these; also far from zero."""
    calls = []
    for n in LONG:
        for function in (layer_norm, rms_norm, norms_of_sums):
            inputs = (randn(16, n, dtype=dtype), randn(n, dtype=dtype), randn(n, dtype=dtype))
            calls.append(Call(f"{function.__name__} {n}", function, inputs))
    vectors = (randn(65536, dtype=dtype), randn(65536, dtype=dtype))

    def far(generator: torch.Generator) -> torch.Tensor:
        return (torch.randn(16, 65536, generator=generator) + 100).to(dtype)

    calls.append(Call("far from 0", layer_norm, (far, *vectors)))
    calls.append(Call("unaligned", layer_norm, (unaligned(16, 65536, dtype), *vectors)))
    check_calls(calls)


def test_norms_of_every_kind() -> None:
    calls = []
    for function in NORMS:
        for x in (randn(3, 5, 768, dtype=BF16), unaligned(9, 768, BF16)):
            inputs = (x, randn(768, dtype=BF16), randn(768, dtype=BF16))
            calls.append(Call(f"{function.__name__} {len(calls)}", function, inputs))
    vectors = (randn(768), randn(768))
    calls.append(Call("far from 0", layer_norm, (lambda g: torch.randn(5, 768, generator=g) + 1e4, *vectors)))
    calls.append(Call("rows", layer_norm, (randn(9, 768), *vectors), dynamic=True))
    check_calls(calls)


def mixed_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    """A float32 sum with 16-bit addends, whose norm is only read in 16 bits. (In float64 nothing is rounded.)"""
    y = x + r
    normed = F.layer_norm(y, w.shape, w, b)
    return y, normed if x.dtype == torch.float64 else normed.to(r.dtype)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_norms_of_mixed_sums(dtype: torch.dtype) -> None:
    calls = []
    for n in LENGTHS:
        inputs = (randn(7, n), randn(7, n, dtype=dtype), randn(n), randn(n))
        calls.append(Call(f"{n}", mixed_norm, inputs))
    check_calls(calls)


def norm_gradients(g: torch.Tensor, x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
    """As under autocast: the gradient comes in 16 bits, and is added to what is there, which is wanted in both."""
    aten, wide = torch.ops.aten, x.dtype if x.dtype == torch.float64 else F32
    _, mean, rstd = aten.native_layer_norm(x, w.shape, w, w, 1e-5)
    gradients = aten.native_layer_norm_backward(g.to(x.dtype), x, w.shape, mean, rstd, w, w, [True] * 3)
    alone = aten.native_layer_norm_backward(g.to(x.dtype), x, w.shape, mean, rstd, None, None, [True, False, False])
    total = r + gradients[0]
    return total, total if wide == torch.float64 else total.to(g.dtype), *gradients[1:], alone[0]


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_gradients_of_norms(dtype: torch.dtype) -> None:
    """Rows that threads keep and rows that they do not, by few blocks and many, and one that is not full."""
    calls = []
    for rows, n in [*((33, n) for n in LENGTHS[2:]), (1, 768), (16, 768), (3000, 64), (1100, 768)]:
        grad = BF16 if dtype == F32 else dtype
        inputs = (randn(rows, n, dtype=grad), randn(rows, n, dtype=dtype), randn(rows, n, dtype=dtype))
        calls.append(Call(f"{rows} x {n}", norm_gradients, (*inputs, randn(n, dtype=dtype))))
    check_calls(calls)


def softmaxes(x: torch.Tensor) -> Any:
    return x.softmax(-1), x.log_softmax(-1)


def softmax_error(inputs: list[Any], exact: Any) -> Any:
    """In units in float32's last place 3 for an exponential, as the kernel interface has it, and 1 for a sum, in which
    errors of terms cancel; a quotient is one rounding. So is the difference from the greatest element, of which half a
    unit changes the exponential by as many half units as it is. Of a logarithm's terms, below 32, one unit each."""
    shares, logarithms = exact
    unit = torch.finfo(F32).eps
    below = (inputs[0].amax(-1, keepdim=True) - inputs[0]).to(shares)
    allowed = (4 + below / 2) * unit * shares
    return rounding(shares, F32) + allowed, rounding(logarithms, F32) + unit * (logarithms.abs() + 32)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_softmaxes(dtype: torch.dtype) -> None:
    calls = [Call(f"{n}", softmaxes, (randn(7, n, dtype=dtype, scale=3.0),)) for n in LENGTHS]
    calls.append(Call("unaligned", softmaxes, (unaligned(9, 768, dtype),)))
    calls.append(Call("rows", softmaxes, (randn(2, 3, 40, dtype=dtype),), dynamic=True))
    check_calls(calls)


def test_shares_of_a_softmax_add_up_to_one() -> None:
    """On average over rows to 28 bits: gradients add up what is between that and one, which is nothing in eager."""

    def lost(x: torch.Tensor) -> torch.Tensor:
        return (x.softmax(-1).double().sum(-1) - 1).mean()

    inputs = ((100_000, 45), (20_000, 256))
    calls = [Call(f"{shape}", lost, (randn(*shape),), allowed=lambda _, exact: 4e-9 + 0 * exact) for shape in inputs]
    check_calls(calls)


def test_softmaxes_of_special_rows() -> None:
    x = torch.tensor(SPECIAL)
    check_calls([Call(f"{k}", softmaxes, (x.repeat(1, k),)) for k in (1, 40, 20000)])


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_softmaxes_of_long_rows(dtype: torch.dtype) -> None:
    """Rows of several blocks: of random numbers, and ones in which some blocks have nothing but one value."""
    near = softmax_error if dtype == F32 else None  # numbers of 16 bits are computed with fewer digits
    calls = [Call(f"{n}", softmaxes, (randn(3, n, dtype=dtype, scale=3.0),), allowed=near) for n in LONG]
    for n in (20000, 131072):
        x = torch.randn(6, n, generator=torch.Generator().manual_seed(n)).mul(2).to(dtype)
        x[0, : n // 2] = -INF
        x[1, 7:] = -INF
        x[2] = -INF
        x[3, -1] = NAN
        x[4, n // 3] = INF
        x[5, : n - 9] = -1000
        calls.append(Call(f"special {n}", softmaxes, (x,)))
    check_calls(calls)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_sums(dtype: torch.dtype) -> None:
    def sums(x: torch.Tensor) -> Any:
        return x.sum(-1), x.view(100, 3, -1).sum(-1, keepdim=True), (x * 2).sum(-1)

    calls = [Call(f"{n}", sums, (randn(300, n, dtype=dtype),)) for n in LENGTHS]
    check_calls([*calls, Call("unaligned", sums, (unaligned(300, 768, dtype),))])


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_sums_of_columns(dtype: torch.dtype) -> None:
    """By one pass, two and three, of columns that fill vectors and do not, beside each other and in planes."""

    def sums(x: torch.Tensor) -> Any:
        return x.sum(0), x.mean(0, keepdim=True), (x * x).sum(0), x.view(5, -1, x.shape[1]).sum(1)

    shapes = [(65, 24), (130, 7), (1000, 768), (4100, 50), (20000, 33), (300000, 8), (16385 * 5, 2)]
    calls = [Call(f"{m} x {n}", sums, (randn(m // 5 * 5, n, dtype=dtype),)) for m, n in shapes]
    calls.append(Call("70000 matrices", lambda x: x.sum(1), (randn(70000, 65, 2, dtype=dtype),)))
    images = (randn(32, 20, 14, 15, dtype=dtype),)
    calls.append(Call("channels", lambda x: x.sum((0, 2, 3)), images))
    calls.append(Call("channels last", lambda x: (x * 2).to(memory_format=torch.channels_last).sum((0, 2, 3)), images))
    check_calls(calls)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_moments_of_columns(dtype: torch.dtype) -> None:
    """Also of columns that lie far from zero, whose squares would hide what they differ by."""

    def moments(x: torch.Tensor) -> Any:
        return torch.var_mean(x, 0), x.var(0, correction=0)

    def far(m: int, n: int) -> Callable[[torch.Generator], torch.Tensor]:
        return lambda generator: (torch.randn(m, n, generator=generator) * 0.1 + 30).to(dtype)

    calls = []
    for m, n in [(65, 24), (130, 7), (1000, 768), (4100, 50), (20000, 33), (300000, 8)]:
        calls.append(Call(f"{m} x {n}", moments, (randn(m, n, dtype=dtype),)))
        calls.append(Call(f"{m} x {n}, far", moments, (far(m, n),)))

    def last(*shape: int) -> Callable[[torch.Generator], torch.Tensor]:
        def make(generator: torch.Generator) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(dtype, memory_format=torch.channels_last)

        return make

    def gradients(x: torch.Tensor, g: torch.Tensor, v: torch.Tensor) -> Any:
        return torch.ops.aten.native_batch_norm_backward(g.relu(), x, v, v, v, v, v, True, 1e-5, [True] * 3)

    for shape in ((32, 20, 14, 15), (5, 64, 4, 4), (128, 7, 28, 28)):
        images = [last(*shape)] * 2
        calls.append(Call(f"images {shape}", gradients, (*images, randn(shape[1]))))
    check_calls(calls)


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_batch_norms_in_training(dtype: torch.dtype) -> None:
    """Of images that have their channels last, with what follows them, and their gradients."""

    def last(*shape: int) -> Callable[[torch.Generator], torch.Tensor]:
        def make(generator: torch.Generator) -> torch.Tensor:
            return (torch.randn(*shape, generator=generator) + 3).to(dtype, memory_format=torch.channels_last)

        return make

    def forward(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        y, *saved = torch.ops.aten._native_batch_norm_legit_functional(x, w, b, b, w, True, 0.2, 1e-3)
        return (y + r).relu(), *saved

    def plain(x: torch.Tensor) -> Any:
        return torch.ops.aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)

    def backward(g: torch.Tensor, r: torch.Tensor, x: torch.Tensor, w: torch.Tensor, m: torch.Tensor) -> Any:
        masked = torch.ops.aten.threshold_backward(g, r - 3, 0)
        gradients = torch.ops.aten.native_batch_norm_backward
        both = gradients(masked, x, w, m, w, m, w, True, 1e-5, [True] * 3)
        return *both, masked, gradients(g, x, None, m, w, m, w, True, 1e-5, [True, False, False])[0]

    calls = []
    for shape in ((5, 64, 4, 4), (32, 96, 14, 15), (3, 256, 33, 7), (64, 20, 9, 9), (130, 7, 5, 5), (256, 64, 56, 57)):
        images = [last(*shape)] * 3
        vectors = [rand(shape[1]), randn(shape[1])]
        calls.append(Call(f"forward {shape}", forward, (*images[:2], *vectors)))
        calls.append(Call(f"plain {shape}", plain, images[:1]))
        calls.append(Call(f"backward {shape}", backward, (*images, *vectors)))
    check_calls(calls)


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_reductions_of_many_rows(dtype: torch.dtype) -> None:
    """More than 256 for each multiprocessor: then MAX has had a kernel that took neighbouring rows for one."""

    def reductions(x: torch.Tensor) -> Any:
        return x.amax(-1), x.amin(-1), x.mean(-1), x.var(-1), x.argmax(-1), (x > 1).any(-1), x.logsumexp(-1), x.prod(-1)

    sizes = ((40000, 64), (70000, 3), (200000, 33))
    check_calls([Call(f"{m} x {n}", reductions, (randn(m, n, dtype=dtype, scale=0.5),)) for m, n in sizes])


def extremes(x: torch.Tensor) -> Any:
    return x.argmax(-1), x.argmin(-1, keepdim=True), *x.max(-1), *x.min(-1), x.argmax(), x.view(1, -1).max(1)[0]


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_extremes_of_long_rows(dtype: torch.dtype) -> None:
    """Equal elements, of which the first counts, in few rows and many, at every width of access."""
    shapes = [(1, 1024), (1, 50257), (3, 128256), (70, 1500), (130, 4097), (600, 8192)]
    calls = [Call(f"{m} x {n}", extremes, (randn(m, n, dtype=dtype),)) for m, n in shapes]
    calls += [Call(f"{m} x {n}, equal", extremes, (ints(m, n, low=-2, high=3, dtype=dtype),)) for m, n in shapes]
    calls.append(Call("unaligned", extremes, (unaligned(9, 1536, dtype),)))
    calls.append(Call("zeros", extremes, (torch.tensor([0.0, -0.0]).to(dtype).repeat(3, 2000),)))
    calls.append(Call("a part", lambda x: x[0, -1].argmax(-1), (randn(1, 3, 50257, dtype=dtype),)))
    check_calls(calls)


def test_extremes_of_special_rows() -> None:
    x = torch.tensor(SPECIAL)
    late = torch.cat([torch.full((7, 3000), -INF), x], 1)
    check_calls([Call("repeated", extremes, (x.repeat(1, 700),)), Call("at the end", extremes, (late,))])


def loss(x: torch.Tensor, t: torch.Tensor) -> Any:
    return F.cross_entropy(x, t), F.cross_entropy(x, t, reduction="none", ignore_index=0)


def loss_error(inputs: list[torch.Tensor], exact: Any) -> list[torch.Tensor]:
    """What float32 may be off by in :func:`loss`.

    A likelihood is ``log(sum(exp(x - m))) + m - x[t]``. An exponential's argument is off by ``|x - m|`` units, the
    exponential and the sum's terms one each, a sum of n terms kept in parallel ``log2(n)``; a relative error of the sum
    is an absolute one of its logarithm, which is rounded, as the two differences are.
    """
    x, _ = inputs
    spread = x.amax(-1) - x.amin(-1)
    units = 2 * spread + math.log2(x.shape[1]) + 4
    each = torch.finfo(torch.float32).eps / 2 * (units + 2 * exact[1].abs())
    return [each.mean() + torch.finfo(torch.float32).eps * 2 * exact[0].abs(), each]


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_likelihoods(dtype: torch.dtype) -> None:
    allowed = loss_error if dtype == F32 else None
    calls = [
        Call(f"{n} classes", loss, (randn(7, n, dtype=dtype, scale=3.0), ints(7, low=0, high=n)), allowed)
        for n in LENGTHS[1:]
    ]
    calls.append(Call("unaligned", loss, (unaligned(9, 768, dtype), ints(9, low=0, high=768)), allowed))
    check_calls(calls)


def test_likelihoods_of_special_logits() -> None:
    x = torch.tensor(SPECIAL)
    calls = [
        Call(f"class {c} of {3 * k}", loss, (torch.cat([x, x], 1).repeat(1, k), torch.full((7,), c)))
        for c in (0, 1, 2)
        for k in (1, 40)
    ]
    check_calls(calls)


OUTSIDE = """
import sys, torch, torch_max_backend
logits, target = torch.zeros(4, 5, device="cuda"), torch.tensor([0, 1, int(sys.argv[1]), 2], device="cuda")
loss = torch.compile(torch.nn.functional.cross_entropy, backend="max_backend", fullgraph=True)
loss(logits, target.clamp(0, 4)).item()
print("fine", flush=True)
if "raise" in sys.argv[2:]:
    loss(logits, target).item()
    torch_max_backend.synchronize()
else:  # the GPU gets there after the call has returned
    torch.cuda._sleep(10**9)
    loss(logits, target)
    torch.cuda.synchronize()
print("computed", flush=True)
"""


@pytest.mark.parametrize(("target", "outside"), [(-100, False), (5, True), (-1, True)])
@pytest.mark.parametrize("how", ["raise", "end"])
def test_classes_that_there_are_not(target: int, outside: bool, how: str) -> None:
    """They are raised where the program asks, and else in its log when it ends; a class that is ignored is neither."""
    command = [sys.executable, "-c", OUTSIDE, str(target), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    raised = outside and how == "raise"
    assert done.stdout.split() == ["fine"] + ["computed"] * (not raised), done.stderr
    assert (done.returncode != 0) == raised
    assert (f"Target {target} is out of bounds" in done.stderr) == outside


def mean_loss(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x.float() if x.dtype != torch.float64 else x, t, ignore_index=3)


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("classes", [5, 1000, 50257])
def test_gradient_of_a_likelihood(dtype: torch.dtype, classes: int) -> None:
    """Logits that lie far from zero: the loss within :func:`loss_error`, the gradient beside eager's errors."""
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(33, classes, generator=generator) * 3 + 100).to("cuda", dtype)
    target = torch.randint(0, classes, (33,), generator=generator).cuda()

    def both(function: Callable[..., torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
        x = x.clone().requires_grad_()
        loss = function(x, target)
        loss.backward()
        assert x.grad is not None
        return [loss.detach().double(), x.grad.double()]

    torch._dynamo.reset()
    compiled = torch.compile(mean_loss, backend="max_backend", fullgraph=True, options=STRICT)
    exact, eager, found = both(mean_loss, logits.double()), both(mean_loss, logits), both(compiled, logits)
    each = F.cross_entropy(logits.double(), target, reduction="none", ignore_index=3)
    allowed = loss_error([logits.double(), target], (exact[0], each))[0]
    assert (found[0] - exact[0]).abs() <= allowed + torch.finfo(F32).eps / 2 * exact[0].abs()
    rounding = torch.finfo(dtype).eps / 2 * exact[1].abs().max()
    assert (found[1] - exact[1]).abs().max() <= 2 * (eager[1] - exact[1]).abs().max() + rounding


def head(h: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    logits = F.linear(h, w)
    return F.cross_entropy(logits if h.dtype == torch.float64 else logits.float(), t, ignore_index=3)


@pytest.mark.parametrize("classes", [1000, 1003])
def test_gradient_behind_a_product(classes: int) -> None:
    """Two products read the logits' gradient, whose rows are padded for them where their length is odd."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, classes, (100,), generator=generator).cuda()
    h, w = ((torch.randn(n, 64, generator=generator) / 4).to("cuda", BF16) for n in (100, classes))

    def gradients(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
        inputs = [x.to(dtype).clone().requires_grad_() for x in (h, w)]
        function(*inputs, target).backward()
        return [x.grad.double() for x in inputs if x.grad is not None]

    torch._dynamo.reset()
    compiled = torch.compile(head, backend="max_backend", fullgraph=True, options=STRICT)
    for exact, eager, found in zip(
        gradients(head, torch.float64), gradients(head, BF16), gradients(compiled, BF16), strict=True
    ):
        rounding = torch.finfo(BF16).eps / 2 * exact.abs().max()
        assert (found - exact).abs().max() <= 2 * (eager - exact).abs().max() + rounding


def transposes(x: torch.Tensor) -> Any:
    """``x`` is [batch, rows, columns]."""
    return (
        x.transpose(1, 2).contiguous(),
        x.permute(1, 2, 0).contiguous(),
        x.flatten(0, 1).t().contiguous(),
        torch.cat([x.transpose(1, 2), x.transpose(1, 2)], 0),
    )


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, BF16, F32, torch.float64, torch.int64])
def test_transposes(dtype: torch.dtype) -> None:
    shapes = [
        (1, 8, 8),
        (3, 64, 128),
        (2, 65, 129),
        (5, 1000, 24),
        (2, 24, 1000),
        (1, 4096, 512),
        (9, 33, 31),
        (2, 1504, 720),
        (2, 1501, 300),
        (0, 16, 16),
    ]

    def made(shape: tuple[int, ...]) -> Callable[[torch.Generator], torch.Tensor]:
        return lambda g: torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=g).to(dtype)

    calls = [Call(f"{shape}", transposes, (made(shape),)) for shape in shapes]
    calls.append(Call("unaligned", transposes, (lambda g: made((2 * 64 * 48 + 1,))(g)[1:].view(2, 64, 48),)))
    calls.append(Call("dynamic", transposes, (made((3, 70, 90)),), dynamic=True))
    check_calls(calls)


def test_images_in_both_orders() -> None:
    def orders(x: torch.Tensor) -> Any:
        return x.to(memory_format=torch.channels_last), x.permute(0, 2, 3, 1).contiguous(), x.relu()

    image = torch.randn(3, 32, 13, 14)
    last = image.to(memory_format=torch.channels_last)
    check_calls([Call("first", orders, (image,)), Call("last", orders, (last,))])
