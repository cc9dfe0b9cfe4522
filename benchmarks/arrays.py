"""Expressions of arrays against NumPy, torch in eager and Inductor: ``python -m benchmarks.arrays``.

Each contender computes the same expression of a matrix, from the call to the value, in turns in one process. A repeated
expression is of a form that is compiled; "cold" is the first evaluation of the form in a process that has compiled
others, with an empty store.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import typer

import torch_max_backend.array as xp

ROUNDS = 7


def standardise(m: Any, x: Any) -> Any:
    """Columns of mean 0 and deviation 1."""
    return (x - m.mean(x, axis=0)) / m.std(x, axis=0)


def pairwise(m: Any, x: Any) -> Any:
    """Distances of rows."""
    squares = m.sum(x * x, axis=1)
    return m.sqrt(m.clip(squares[:, None] + squares[None, :] - 2 * (x @ x.T), 0.0, None))


def logsumexp(m: Any, x: Any) -> Any:
    """Logarithms of sums of exponentials of a product's rows."""
    product = x @ x.T * 0.01
    high = m.max(product, axis=1)
    return m.log(m.sum(m.exp(product - high[:, None]), axis=1)) + high


class _Torch:
    """The names that the expressions use, in torch."""

    exp, log, sqrt, sum, mean, clip = torch.exp, torch.log, torch.sqrt, torch.sum, torch.mean, torch.clip

    @staticmethod
    def std(x: torch.Tensor, axis: int) -> torch.Tensor:
        return torch.std(x, dim=axis, correction=0)

    @staticmethod
    def max(x: torch.Tensor, axis: int) -> torch.Tensor:
        return torch.amax(x, axis)


def _shape(f: Callable[..., Any], elements: int) -> tuple[int, int]:
    """A matrix of so many elements; for products of rows, the result has as many."""
    if f is standardise:
        return max(elements // 100, 10), 100
    return round(elements**0.5), 64


def main(device: str = "cpu", most: int = 10_000_000) -> None:
    """Print a row for each expression and size, in milliseconds (median of rounds)."""
    with tempfile.TemporaryDirectory() as folder:
        xp.configure(cache_dir=folder, executor="auto", fallback="error")
        warm_up = xp.asarray(torch.rand(64, 64, device=device))
        (xp.exp(warm_up) * 2 + xp.sin(warm_up) - 1).to_torch()
        print("| expression | elements | NumPy | eager | Inductor | arrays | arrays, cold | difference |")
        print("|---|---|---|---|---|---|---|---|")
        for f in (standardise, pairwise, logsumexp):
            cold = None
            inductor = torch.compile(lambda x, f=f: f(_Torch, x), dynamic=True)
            for elements in (1_000, 100_000, 10_000_000):
                if elements > most:
                    continue
                tensor = torch.from_numpy(
                    np.random.default_rng(0).standard_normal(_shape(f, elements), dtype="float32")
                )
                tensor, own = tensor.to(device), tensor.numpy()
                x = xp.asarray(tensor)
                contenders = {
                    "NumPy": lambda f=f, own=own: f(np, own),
                    "eager": lambda f=f, t=tensor: f(_Torch, t),
                    "Inductor": lambda g=inductor, t=tensor: g(t),
                    "arrays": lambda f=f, x=x: f(xp, x).to_torch(),
                }
                start = time.perf_counter()
                value = contenders["arrays"]()
                _wait(device)
                cold = cold or time.perf_counter() - start
                exact = f(_Torch, tensor.double())
                difference = float((value.double() - exact).abs().max())
                times = _times(contenders, device)
                shown = " | ".join(f"{1e3 * times[name]:.3g}" for name in contenders)
                print(f"| {f.__name__} | {elements} | {shown} | {1e3 * cold:.0f} | {difference:.1e} |", flush=True)


def _times(contenders: dict[str, Callable[[], Any]], device: str) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for round in range(ROUNDS + 2):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            _wait(device)
            if round >= 2:
                found[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in found.items()}


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


if __name__ == "__main__":
    typer.run(main)
