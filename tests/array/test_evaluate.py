"""Compiled expressions: right, compiled once for a form whatever the sizes, kept, and left to torch where asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_max_backend.array as xp
from torch_max_backend import wait_for_compiles
from torch_max_backend.array.array_object import MOST_DEPTH, Array
from torch_max_backend.array.evaluate import _programs
from torch_max_backend.array.expression import in_order
from torch_max_backend.array.form import Form
from torch_max_backend.array.form import by_torch as compute
from torch_max_backend.base.errors import OptionError

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """An expression that can't be compiled is an error."""
    xp.configure(executor="auto", fallback="error", min_block_size=1)
    yield
    xp.configure()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Form]:
    """The forms that are compiled or loaded from here on."""
    found: list[Form] = []
    make = Form.program

    def noted(self: Form, *args: Any) -> Any:
        found.append(self)
        return make(self, *args)

    monkeypatch.setattr(Form, "program", noted)
    return found


def array(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape), dtype=dtype)


def standardised(x: Array) -> Array:
    return (x - xp.mean(x, axis=0)) / xp.std(x, axis=0)


def distances(x: Array) -> Array:
    squares = xp.sum(x * x, axis=1)
    products = x @ x.mT
    return xp.sqrt(xp.clip(squares[:, None] + squares[None, :] - 2 * products, min=0.0))


def log_sum(x: Array) -> Array:
    product = x @ x.mT
    high = xp.max(product, axis=1, keepdims=True)
    return xp.log(xp.sum(xp.exp(product - high), axis=1)) + high[:, 0]


def written(x: Array) -> Array:
    y = x * 2
    y[1:-1, ::2] = xp.zeros((), dtype=x.dtype)
    y[0, :] += 1
    return y


def reshaped(x: Array) -> Array:
    flat = xp.reshape(x, (-1,))
    joined = xp.concat([flat, xp.flip(flat), xp.ones(5, dtype=x.dtype)])
    return xp.reshape(xp.roll(joined, 3)[:-5], (2, x.shape[0], x.shape[1])) * 0.37


EXPRESSIONS = [standardised, distances, log_sum, written, reshaped]


def by_torch(x: Array) -> torch.Tensor:
    """The value of an expression, by torch."""
    order = in_order([x._node])
    return compute([*order], [len(order) - 1])[0]


@pytest.mark.parametrize("f", EXPRESSIONS, ids=lambda f: f.__name__)
def test_a_form_is_compiled_once(f: Callable[[Array], Array], compiled: list[Form]) -> None:
    for shape in [(40, 64), (50, 72), (333, 130)]:
        got = f(xp.asarray(array(*shape, dtype="float64")))
        expected = by_torch(got)
        torch.testing.assert_close(got.to_torch(), expected, rtol=1e-6, atol=1e-6)
    assert len(compiled) == 1


def test_another_number_is_the_same_form(compiled: list[Form]) -> None:
    x = xp.asarray(array(50, 40))
    for number in (0.371, 17.5, -400.25):
        got = xp.exp(x * number / 1000.0) + number
        torch.testing.assert_close(got.to_torch(), torch.exp(x.to_torch() * number / 1000.0) + number)
    assert len(compiled) == 1


def test_arrays_in_use_are_computed_along(compiled: list[Form]) -> None:
    x = xp.asarray(array(64, 33))
    y = xp.exp(x) + 1
    total = xp.sum(y * y)
    assert float(total) == pytest.approx(float((y.to_torch() * y.to_torch()).sum()), rel=1e-5)
    assert len(compiled) == 1 and y._node.value is not None


def test_an_iteration_does_not_grow(compiled: list[Form]) -> None:
    x = xp.asarray(array(50, 40))
    for _ in range(6):
        new = x * 0.75 + xp.sin(x) * 0.125
        assert float(xp.max(xp.abs(new - x))) >= 0
        x = new
    assert len(compiled) == 1


def test_a_long_expression_is_computed_on_the_way() -> None:
    xp.configure(min_block_size=10**6)
    x = start = xp.zeros(3)
    for _ in range(MOST_DEPTH * 3):
        x = x + 1
    assert x._node.depth <= MOST_DEPTH
    assert np.asarray(x)[0] == MOST_DEPTH * 3 and start.shape == (3,)


def test_several_results_are_one_program(compiled: list[Form]) -> None:
    x = xp.asarray(array(70, 40))
    results = [xp.mean(x, axis=0), xp.var(x, axis=0, correction=1), xp.argmax(x, axis=1), xp.sort(x, axis=0)[:3, :]]
    expected = [by_torch(y) for y in results]
    xp.evaluate(*results)
    for y, e in zip(results, expected, strict=True):
        torch.testing.assert_close(y.to_torch(), e, rtol=1e-5, atol=1e-5)
    assert len(compiled) == 1


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int16", "bool"])
def test_integers(dtype: str) -> None:
    n = np.asarray(np.random.default_rng(1).integers(0, 2 if dtype == "bool" else 200, (40, 33)), dtype=dtype)
    x = xp.asarray(n)
    if dtype == "bool":
        results = [xp.any(x, axis=0), x & ~x, xp.astype(x, xp.int32) * 3, xp.count_nonzero(x, axis=1)]
    else:
        results = [x * x + 1, xp.sum(x, axis=0), x // 3 % 5, xp.max(x, axis=1), x > 100, xp.bitwise_xor(x, x >> 1)]
    expected = [by_torch(y) for y in results]
    xp.evaluate(*results)
    for y, e in zip(results, expected, strict=True):
        assert y.to_torch().dtype == e.dtype and np.array_equal(np.asarray(y), e.numpy())


@pytest.mark.any_runner("PyTorch computes meanwhile, whoever runs the ops later")
def test_torch_computes_while_a_form_is_compiled() -> None:
    xp.configure(executor="auto", compile="background", min_block_size=1)
    x = xp.asarray(array(90, 41))
    first = xp.tanh(x * 3 - 1) * xp.cos(x)
    expected = by_torch(first)
    assert torch.equal(first.to_torch(), expected)
    assert wait_for_compiles(60)
    again = xp.tanh(x * 3 - 1) * xp.cos(x)
    torch.testing.assert_close(again.to_torch(), expected)
    assert len(_programs.programs) == 1


@pytest.mark.any_runner("options are read before anything runs")
def test_options_have_the_names_of_torch_compile() -> None:
    with pytest.raises(OptionError, match="unknown option"):
        xp.configure(fall_back="error")


def test_empty_arrays_are_left_to_torch(compiled: list[Form]) -> None:
    x = xp.asarray(array(0, 5))
    assert np.asarray(xp.sum(x * 2 + 1, axis=0)).tolist() == [0.0] * 5
    assert not compiled


@pytest.mark.any_runner("the example asks for no runner")
def test_the_example_of_the_documentation_runs() -> None:
    text = (Path(__file__).parents[2] / "docs/arrays.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    xp.configure(executor="auto", fallback="error")
    exec(compile(example, "docs/arrays.md", "exec"), {})
