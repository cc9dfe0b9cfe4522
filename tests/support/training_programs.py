"""Small training programs: each runs once in eager and once compiled, and gives what must agree.

A program receives ``compile``, which it applies to what is to be compiled, and starts from the same seed both times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Compile = Callable[[Any], Any]


@dataclass(frozen=True)
class Training:
    """A program, by name, and its relative and absolute tolerance where it needs another than float32's."""

    name: str
    run: Callable[[Compile], Any]
    rtol: float | None = None
    atol: float | None = None


class Perceptron(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.apart, self.groups = nn.Conv2d(8, 8, 3, stride=2, groups=8), nn.GroupNorm(2, 8)
        self.last = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        x = F.silu(self.groups(self.apart(x)))
        return self.last(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Transformer(nn.Module):
    """Embedding, causal attention, layer norm, and an output product that shares the embedding's weight."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(23, 16), nn.Embedding(9, 16)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.end = nn.RMSNorm(16)
        self.head = nn.Linear(16, 23, bias=False)
        self.head.weight = self.tokens.weight
        self.dropout = dropout

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, length = tokens.shape
        x = self.tokens(tokens) + self.places(torch.arange(length))
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, 16)), self.dropout, self.training)
        return self.head(self.end(x))


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, buffers and gradients of ``model`` by name."""
    values = {name: value.detach().clone() for name, value in model.state_dict(keep_vars=True).items()}
    grads = {f"{name}.grad": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return values | grads


def tokens(batch: int = 3) -> torch.Tensor:
    return torch.randint(0, 23, (batch, 9))


def token_loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())


# -- gradients -----------------------------------------------------------------------------------------------------
def accumulates(compile: Compile) -> Any:
    model = Perceptron()
    run = compile(model)
    for _ in range(2):
        run(torch.randn(5, 12)).square().mean().backward()
    return state(model)


def retains_the_graph(compile: Compile) -> Any:
    model, x = Perceptron(), torch.randn(5, 12, requires_grad=True)
    loss = compile(model)(x).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    return state(model), x.grad


def gradient_of_input(compile: Compile) -> Any:
    x = torch.randn(4, 6).t().requires_grad_()  # a gradient has its tensor's strides
    y = torch.randn(6, 1, requires_grad=True)
    run = compile(lambda a, b: ((a * b).tanh() @ a.t()).cos())
    return torch.autograd.grad(run(x, y).sum(), (x, y))


def gradient_of_sign(compile: Compile) -> Any:
    """Torch's gradient of ``sgn`` is a tensor of zeros without memory."""
    x, y = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    compile(lambda a, b: (a.sgn() * b + b.sgn()).tanh())(x, y).sum().backward()
    return x.grad, y.grad


def frozen(compile: Compile) -> Any:
    model = Perceptron()
    model.layers[0].requires_grad_(False)
    compile(model)(torch.randn(5, 12)).sum().backward()
    assert model.layers[0].weight.grad is None
    return state(model)


def partly_without_gradients(compile: Compile) -> Any:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = x.abs().amax() + weight.sum()
        return (x * weight).sin() / scale

    x, weight = torch.randn(5, 6, requires_grad=True), torch.randn(6, requires_grad=True)
    compile(function)(x, weight).sum().backward()
    return x.grad, weight.grad


def inference_between_steps(compile: Compile) -> Any:
    model, x = Perceptron(), torch.randn(5, 12)
    run = compile(model)
    run(x).sum().backward()
    with torch.inference_mode():
        seen = run(x)
    assert not seen.requires_grad
    run(x).square().sum().backward()
    return seen.clone(), state(model)


def detached_and_aliased(compile: Compile) -> Any:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.exp()
        return y, y.detach(), y.t(), (y * x).sum(0)

    x = torch.randn(4, 5, requires_grad=True)
    y, apart, view, total = compile(function)(x)
    assert not apart.requires_grad
    (y.sum() + view.square().sum() + total.sin().sum()).backward()
    return x.grad


def writes_its_input(compile: Compile) -> Any:
    def function(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        buffer.mul_(0.9).add_(x.detach().sum(0))
        return x * buffer

    x, buffer = torch.randn(4, 5, requires_grad=True), torch.ones(5)
    run = compile(function)
    for _ in range(2):
        run(x, buffer).sum().backward()
    return x.grad, buffer


# -- models --------------------------------------------------------------------------------------------------------
def perceptron(compile: Compile) -> Any:
    model = Perceptron()
    F.mse_loss(compile(model)(torch.randn(6, 12)), torch.randn(6, 4)).backward()
    return state(model)


def convolutions(compile: Compile) -> Any:
    model = Convolutions()
    run = compile(model)
    for _ in range(2):  # the running statistics
        F.cross_entropy(run(torch.randn(4, 3, 12, 12)), torch.tensor([0, 2, 4, 2])).backward()
    model.eval()
    return state(model), run(torch.randn(4, 3, 12, 12)).detach()


def many_buffers(compile: Compile) -> Any:
    """More small writes than MAX compiles in reasonable time, so that torch does them."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(6)))
    run = compile(model)
    for _ in range(2):
        run(torch.randn(5, 4)).square().sum().backward()
    return state(model)


def convolutions_channels_last(compile: Compile) -> Any:
    model = Convolutions().to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 12, 12).to(memory_format=torch.channels_last).requires_grad_()
    compile(model)(x).square().sum().backward()
    return state(model), x.grad


def transformer(compile: Compile) -> Any:
    model = Transformer()
    given = tokens()
    token_loss(compile(model)(given), given.roll(-1, 1)).backward()
    return state(model)


def embedding_with_padding(compile: Compile) -> Any:
    table = nn.Embedding(7, 5, padding_idx=2)
    picked = torch.tensor([[0, 2, 2, 6], [6, 6, 1, 2]])
    F.nll_loss(compile(table)(picked).log_softmax(-1).flatten(0, 1), picked.flatten() % 5, ignore_index=1).backward()
    return state(table)


# -- random numbers ------------------------------------------------------------------------------------------------
def dropout(compile: Compile) -> Any:
    model = Perceptron(dropout=0.4)
    run = compile(model)
    for _ in range(2):
        run(torch.randn(5, 12)).square().mean().backward()
    return state(model), torch.rand(3)  # the generator is where eager leaves it


def dropout_layouts(compile: Compile) -> Any:
    """Masks are drawn in the order of memory, and by channels."""

    def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        a = F.dropout(a.exp(), 0.3).sum() + F.dropout(b, 0.6).cos().sum() + F.dropout2d(b, 0.5).sin().mean()
        return a + F.dropout(c * 2, 0.25).square().sum() + F.alpha_dropout(c, 0.5, training=True).sum()

    tensors = torch.randn(6, 7).t(), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(3, 1, 4)
    tensors = tuple(t.requires_grad_() for t in tensors)
    run = compile(function)
    run(*tensors).backward()
    run(tensors[0][1:, ::2], *tensors[1:]).backward()  # with gaps: the mask is dense
    return [t.grad for t in tensors], torch.rand(3)


def dropout_in_fork(compile: Compile) -> Any:
    model, x = Perceptron(dropout=0.4), torch.randn(5, 12)
    run = compile(model)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        inside = run(x).detach()
    return inside, run(x).detach(), torch.rand(3)


def checkpointed(compile: Compile) -> Any:
    model, head = Perceptron(dropout=0.4), nn.Linear(4, 12)

    def function(x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(lambda t: head(model(t)).tanh(), x, use_reentrant=False)
        return checkpoint(model, x, use_reentrant=False)

    x = torch.randn(5, 12, requires_grad=True)
    compile(function)(x).square().sum().backward()
    return state(model), state(head), x.grad, torch.rand(3)


# -- lower precision -----------------------------------------------------------------------------------------------
def autocast(compile: Compile) -> Any:
    model = Transformer()
    run, given = compile(model), tokens()
    with torch.autocast("cpu", torch.bfloat16):
        loss = token_loss(run(given), given.roll(-1, 1))
    loss.backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in model.parameters())
    return loss.detach(), state(model)


def scaled(compile: Compile) -> Any:
    model = Perceptron()
    run, optimizer = compile(model), torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(run(torch.randn(5, 12)).square().mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return state(model), scaler.get_scale()


# -- optimizers ----------------------------------------------------------------------------------------------------
def steps(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> Callable[[Compile], Any]:
    """Three compiled steps of an optimizer; every parameter stays in its memory."""

    def run(compile: Compile) -> Any:
        parameters = [nn.Parameter(torch.randn(shape)) for shape in [(4, 5), (7,), ()]]
        places = [p.data_ptr() for p in parameters]
        optimizer = make(parameters)
        step = compile(optimizer.step)
        for _ in range(3):
            for p in parameters:
                p.grad = torch.randn_like(p)
            step()
        assert [p.data_ptr() for p in parameters] == places
        return [p.detach() for p in parameters], [optimizer.state[p] for p in parameters]

    return run


def lion(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer that torch does not have."""

    class Lion(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure: None = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    p.mul_(1 - group["lr"] * 0.01)
                    p.add_(momentum.lerp(p.grad, 0.1).sign_(), alpha=-group["lr"])
                    momentum.lerp_(p.grad, 0.01)

    return Lion(parameters, {"lr": 0.05})


def whole_step(compile: Compile) -> Any:
    """Forward, loss, backward and step in one compiled function."""
    model = Perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)

    def step(x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), wanted)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = compile(step)
    losses = [run(torch.randn(6, 12), torch.randn(6, 4)) for _ in range(4)]
    return losses, state(model)


optim = torch.optim
OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "sgd_fused": lambda p: optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "adam_loop": lambda p: optim.Adam(p, 0.1, amsgrad=True, foreach=False),
    "adam_foreach": lambda p: optim.Adam(p, 0.1, weight_decay=0.01, foreach=True),
    "adamw_fused": lambda p: optim.AdamW(p, 0.1, fused=True),
    "adamw_capturable": lambda p: optim.AdamW(p, torch.tensor(0.1), foreach=False, capturable=False),
    "adagrad": lambda p: optim.Adagrad(p, 0.1, foreach=True),
    "rmsprop": lambda p: optim.RMSprop(p, 0.1, centered=True, momentum=0.5, foreach=True),
    "adamax": lambda p: optim.Adamax(p, 0.1),
    "nadam": lambda p: optim.NAdam(p, 0.1, foreach=True),
    "radam": lambda p: optim.RAdam(p, 0.1),
    "lion": lion,
}

CORE = [
    *(Training(run.__name__, run) for run in [writes_its_input, dropout, dropout_layouts, checkpointed, whole_step]),
    Training("adam_foreach", steps(OPTIMIZERS["adam_foreach"])),
]
"""What the ordinary test run has."""

REST = [
    *(
        Training(run.__name__, run)
        for run in [
            accumulates,
            retains_the_graph,
            gradient_of_input,
            gradient_of_sign,
            frozen,
            partly_without_gradients,
            inference_between_steps,
            detached_and_aliased,
            perceptron,
            convolutions,
            many_buffers,
            transformer,
            convolutions_channels_last,
            embedding_with_padding,
            dropout_in_fork,
            scaled,
        ]
    ),
    # Products are rounded to bfloat16, whose resolution is 2**-8, at every step; eager's order of additions is another.
    Training("autocast", autocast, 1.6e-2, 2e-3),
    *(Training(name, steps(make)) for name, make in OPTIMIZERS.items() if name != "adam_foreach"),
]
