"""The op suites: each op a plain function of tensors, its inputs, and how its result is checked piece by piece."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.suites import Case, SuiteError
from benchmarks.work import Function, Piece, Work, listed, size_of

PIECE = 2**27
"""Elements of float64 that a piece of the exact result may take, roughly."""
MOST_SETS = 256
CACHE_ON_CPU = 64 * 2**20
"""Bytes of input sets after which a small processor's caches start again."""

Tensors = tuple[torch.Tensor, ...]


@dataclass
class Op:
    """An op with its parameters.

    Attributes:
        function: Of tensors; works in any floating-point type.
        inputs: Makes one set of inputs.
        split: For each input the dimension along which it may be cut without changing other parts of the result; None
            for inputs that every part needs.
        join: For each output the dimension in which parts lie.
        cost: Elements that a part of size 1 takes.
        weights: Numbers of the inputs that are a layer's parameters, where weights are fixed.
    """

    function: Function
    inputs: Callable[[], Tensors]
    split: tuple[int | None, ...]
    join: tuple[int, ...] = (0,)
    cost: int = 1
    flops: float = 0.0
    weights: tuple[int, ...] = ()


class New:
    """Makes random tensors of one dtype on one device."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self.where = {"device": device, "dtype": dtype}

    def __call__(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Normal numbers with a deviation of ``scale``."""
        return torch.randn(shape, **self.where).mul_(scale)

    def indices(self, shape: tuple[int, ...], below: int) -> torch.Tensor:
        """Integers from 0."""
        return torch.randint(0, below, shape, device=self.where["device"])


def _matrix(p: dict[str, Any]) -> tuple[int, int]:
    """Rows and columns; rows are halved until the matrix has at most ``most_elements``."""
    rows, n = p["rows"], p["n"]
    while rows * n > p.get("most_elements", rows * n):
        rows //= 2
    return rows, n


# -- ops that move more than they compute --------------------------------------------------------------------------
def gelu_chain(p: dict[str, Any], new: New) -> Op:
    """A scale, a shift and an exact GELU."""
    rows, n = _matrix(p)
    return Op(lambda x: F.gelu(x * 1.5 + 0.5), lambda: (new(rows, n),), (0,), cost=n)


def softmax(p: dict[str, Any], new: New) -> Op:
    """Softmax of each row."""
    rows, n = _matrix(p)
    return Op(lambda x: torch.softmax(x, -1), lambda: (new(rows, n),), (0,), cost=n)


def layer_norm(p: dict[str, Any], new: New) -> Op:
    """Layer norm with weight and bias."""
    rows, n = _matrix(p)
    return Op(
        lambda x, w, b: F.layer_norm(x, (n,), w, b), lambda: (new(rows, n), new(n), new(n)), (0, None, None), cost=n
    )


def rms_norm(p: dict[str, Any], new: New) -> Op:
    """RMS norm with weight."""
    rows, n = _matrix(p)
    return Op(lambda x, w: F.rms_norm(x, (n,), w, 1e-6), lambda: (new(rows, n), new(n)), (0, None), cost=n)


def add_layer_norm(p: dict[str, Any], new: New) -> Op:
    """A residual sum, and its layer norm; both are results."""
    rows, n = _matrix(p)

    def run(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Tensors:
        total = x + r
        return F.layer_norm(total, (n,), w, b), total

    return Op(run, lambda: (new(rows, n), new(rows, n), new(n), new(n)), (0, 0, None, None), (0, 0), cost=n)


def add_rms_norm(p: dict[str, Any], new: New) -> Op:
    """A residual sum, and its RMS norm; both are results."""
    rows, n = _matrix(p)

    def run(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Tensors:
        total = x + r
        return F.rms_norm(total, (n,), w, 1e-6), total

    return Op(run, lambda: (new(rows, n), new(rows, n), new(n)), (0, 0, None), (0, 0), cost=n)


def swiglu(p: dict[str, Any], new: New) -> Op:
    """The gated activation of Llama."""
    rows, n = _matrix(p)
    return Op(lambda gate, up: F.silu(gate) * up, lambda: (new(rows, n), new(rows, n)), (0, 0), cost=n)


def row_sum(p: dict[str, Any], new: New) -> Op:
    """Sum of each row."""
    rows, n = _matrix(p)
    return Op(lambda x: x.sum(-1), lambda: (new(rows, n),), (0,), cost=n)


def transpose(p: dict[str, Any], new: New) -> Op:
    """The transposed matrix, written out."""
    rows, n = _matrix(p)
    return Op(lambda x: x.t().contiguous(), lambda: (new(rows, n),), (0,), (1,), cost=n)


def cross_entropy(p: dict[str, Any], new: New) -> Op:
    """The loss of each row; not their mean, which would hide a wrong row."""
    rows, n = _matrix(p)
    return Op(
        lambda x, t: F.cross_entropy(x, t, reduction="none"),
        lambda: (new(rows, n), new.indices((rows,), n)),
        (0, 0),
        cost=n,
    )


# -- products ------------------------------------------------------------------------------------------------------
def linear(p: dict[str, Any], new: New) -> Op:
    """[M, K] times a weight that lies as [N, K] (``nk``, as in nn.Linear) or [K, N] (``kn``, as in GPT-2)."""
    m, k, n, nk = p["m"], p["k"], p["n"], p["layout"] == "nk"
    shape = (n, k) if nk else (k, n)
    bias = bool(p.get("bias"))
    if nk:
        function: Function = (lambda x, w, b: F.linear(x, w, b)) if bias else (lambda x, w: F.linear(x, w))
    else:
        function = (lambda x, w, b: torch.addmm(b, x, w)) if bias else (lambda x, w: x @ w)

    def inputs() -> Tensors:
        return (new(m, k), new(*shape, scale=k**-0.5), *((new(n),) if bias else ()))

    weights = (1, 2)[: 1 + bias] if p.get("weights", "rotated") == "fixed" else ()
    return Op(function, inputs, (0, *(None,) * (1 + bias)), cost=n, flops=2.0 * m * k * n, weights=weights)


def batched(p: dict[str, Any], new: New) -> Op:
    """[B, M, K] times [B, K, N], the second one as it is (``kn``) or a transposed view of [B, N, K] (``nk``)."""
    b, m, k, n = p["b"], p["m"], p["k"], p["n"]
    if p["layout"] == "nk":
        return Op(
            lambda x, y: torch.bmm(x, y.transpose(1, 2)),
            lambda: (new(b, m, k), new(b, n, k, scale=k**-0.5)),
            (0, 0),
            cost=m * n,
            flops=2.0 * b * m * k * n,
        )
    return Op(
        lambda x, y: torch.bmm(x, y),
        lambda: (new(b, m, k), new(b, k, n, scale=k**-0.5)),
        (0, 0),
        cost=m * n,
        flops=2.0 * b * m * k * n,
    )


# -- attention and convolution -------------------------------------------------------------------------------------
def attention(p: dict[str, Any], new: New) -> Op:
    """scaled_dot_product_attention on [B, H, S, D] with B = tokens / S."""
    h, s, d, causal = p["h"], p["s"], p["d"], p["causal"]
    b = max(1, p["tokens"] // s)
    if causal:
        function: Function = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
    else:
        function = lambda q, k, v: F.scaled_dot_product_attention(q, k, v)  # noqa: E731
    return Op(
        function,
        lambda: (new(b, h, s, d), new(b, h, s, d), new(b, h, s, d)),
        (1, 1, 1),
        (1,),
        cost=b * s * s,
        flops=4.0 * b * h * s * s * d * (0.5 if causal else 1.0),
    )


def conv2d(p: dict[str, Any], new: New) -> Op:
    """A convolution without bias, channels last, padded by half its filter; the filter is a parameter."""
    batch, i, o, k, stride, size = p["batch"], p["i"], p["o"], p["k"], p["stride"], p["size"]
    out = (size + 2 * (k // 2) - k) // stride + 1

    def inputs() -> Tensors:
        made = new(batch, i, size, size), new(o, i, k, k, scale=(i * k * k) ** -0.5)
        return tuple(t.contiguous(memory_format=torch.channels_last) for t in made)

    return Op(
        lambda x, w: F.conv2d(x, w, stride=stride, padding=k // 2),
        inputs,
        (0, None),
        cost=max(i * size * size, o * out * out) * k,
        flops=2.0 * batch * o * out * out * i * k * k,
        weights=(1,),
    )


OPS: dict[str, Callable[[dict[str, Any], New], Op]] = {
    f.__name__: f
    for f in (
        gelu_chain,
        softmax,
        layer_norm,
        rms_norm,
        add_layer_norm,
        add_rms_norm,
        swiglu,
        row_sum,
        transpose,
        cross_entropy,
        linear,
        batched,
        attention,
        conv2d,
    )
}


# -- the work ------------------------------------------------------------------------------------------------------
class Layer(nn.Module):
    """An op some of whose inputs are parameters."""

    def __init__(self, op: Op, weights: Tensors) -> None:
        super().__init__()
        self.function = op.function
        self.weights = nn.ParameterList(nn.Parameter(w, requires_grad=False) for w in weights)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs, *[self.weights[i] for i in range(len(self.weights))])  # as Dynamo can follow


def sets_for(size: int, device: str) -> int:
    """How many sets of inputs of ``size`` bytes take turns, so that none is in the cache when its turn comes."""
    cache = CACHE_ON_CPU
    if device.startswith("cuda"):
        cache = torch.cuda.get_device_properties(device).L2_cache_size
    return max(2, min(MOST_SETS, -(-3 * cache // size)))


def build(case: Case, to_time: bool = True) -> Work:
    """The work of an op's case."""
    if case.what not in OPS:
        raise SuiteError(f"no op is called {case.what!r}; there are {', '.join(OPS)}")
    op = OPS[case.what](case.parameters, New(case.device, getattr(torch, case.dtype)))
    first = op.inputs()
    rotating = [i for i in range(len(first)) if i not in op.weights]
    count = sets_for(sum(size_of(first[i]) for i in rotating), case.device) if to_time else 1
    made = itertools.chain([first], (op.inputs() for _ in range(count - 1)))  # one after the other: weights are dropped
    sets = [tuple(s[i] for i in rotating) for s in made]
    weights = tuple(first[i] for i in op.weights)
    function: Function = op.function
    if weights:
        layer = Layer(op, weights)
        function = lambda *inputs: layer(*inputs)  # noqa: E731

    outputs = op.function(*(x.to("meta") for x in first))
    return Work(
        function,
        caller=lambda compiled: lambda i: compiled(*sets[i % count]),
        answers=lambda call: listed(call(0)),
        exact=lambda: exact(op, first),
        sets=count,
        bytes_moved=size_of(first) + size_of(outputs),
        flops=op.flops,
    )


def exact(op: Op, inputs: Tensors) -> Iterator[Piece]:
    """The result in float64, in pieces along the dimension that the op may be cut in."""

    def double(x: torch.Tensor) -> torch.Tensor:
        return x.double() if x.is_floating_point() else x

    whole = [double(x) if dim is None else x for x, dim in zip(inputs, op.split, strict=True)]
    length = next(x.shape[dim] for x, dim in zip(inputs, op.split, strict=True) if dim is not None)
    step = max(1, PIECE // op.cost)
    for start in range(0, length, step):
        stop = min(length, start + step)
        part = [
            x if dim is None else double(x.narrow(dim, start, stop - start))
            for x, dim in zip(whole, op.split, strict=True)
        ]
        outputs = op.function(*part)
        for number, output in enumerate((outputs,) if isinstance(outputs, torch.Tensor) else outputs):
            yield number, (*(slice(None),) * op.join[number], slice(start, stop)), output
