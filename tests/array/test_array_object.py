"""Operators, indices and conversions of arrays, against NumPy."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_max_backend.array as xp
from torch_max_backend.array.array_object import Array

pytestmark = [
    pytest.mark.any_runner("short expressions are PyTorch's: what is tested is their meaning"),
    pytest.mark.sampled,
]

GRID = np.arange(60.0).reshape(3, 4, 5)


def same(x: Array, y: Any) -> bool:
    return x.shape == np.shape(y) and np.array_equal(np.asarray(x), y)


def keys(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    def one(n: int) -> st.SearchStrategy[Any]:
        bound = st.none() | st.integers(-n - 2, n + 2)
        slices = st.builds(slice, bound, bound, st.none() | st.integers(1, 3) | st.integers(-3, -1))
        return slices | st.integers(-n, n - 1)

    whole = st.tuples(*map(one, shape))
    part = st.integers(0, len(shape)).flatmap(lambda k: st.tuples(*map(one, shape[:k])))
    dotted = st.tuples(one(shape[0]), st.just(...), one(shape[-1]))
    new = st.tuples(one(shape[0]), st.none(), one(shape[1]))
    return whole | part | dotted | new | st.just(...) | one(shape[0])


@settings(max_examples=40, deadline=None)
@given(keys(GRID.shape))
def test_elements_by_index(key: Any) -> None:
    assert same(xp.asarray(GRID)[key], GRID[key])


@settings(max_examples=40, deadline=None)
@given(keys(GRID.shape), st.booleans())
def test_elements_written_by_index(key: Any, is_scalar: bool) -> None:
    expected = GRID.copy()
    value = -1.0 if is_scalar else -np.arange(float(expected[key].size)).reshape(expected[key].shape)
    expected[key] = value
    x = xp.asarray(GRID)
    x[key] = value if is_scalar else xp.asarray(value)
    assert same(x, expected)


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@settings(max_examples=40, deadline=None)
@given(shapes, shapes, st.sampled_from(["int8", "uint16", "int64", "float32", "bool"]))
def test_shapes_broadcast_or_are_refused(a: tuple[int, ...], b: tuple[int, ...], dtype: str) -> None:
    x, y = np.ones(a, dtype), np.ones(b, dtype)
    try:
        expected = np.equal(x, y)
    except ValueError:
        with pytest.raises(ValueError, match="broadcast"):
            xp.equal(xp.asarray(x), xp.asarray(y))
        return
    assert same(xp.equal(xp.asarray(x), xp.asarray(y)), expected)


@pytest.mark.parametrize("dtype", ["int8", "uint32", "uint64", "float64", "bool"])
def test_integer_and_boolean_arrays_are_indices(dtype: str) -> None:
    n = (GRID % 7).astype(dtype)
    x = xp.asarray(n)
    i, j, k = np.array([0, -1, 1]), np.array([[3], [0]]), np.array([1, 1, 4])
    a, b, c = map(xp.asarray, (i, j, k))
    assert same(x[a], n[i])
    assert same(x[a, b, c], n[i, j, k])
    assert same(x[a, 2, c], n[i, 2, k])
    assert same(x[:, b], n[:, j])
    mask = n[:, :, 0] > 0
    assert same(x[xp.asarray(mask)], n[mask])
    one = True if dtype == "bool" else 1
    x[xp.asarray(mask)] = one
    n[mask] = 1
    x[a, b, c] = one
    n[i, j, k] = 1
    assert same(x, n)
    values = n[mask][::-1].copy()
    x[xp.asarray(mask)] = xp.asarray(values)
    n[mask] = values
    assert same(x, n)


def test_keys_that_do_not_fit_are_refused() -> None:
    x = xp.asarray(GRID)
    for key in (3, (0, 0, 0, 0), (..., ...), "a", 1.0, (0, -5), (xp.asarray([True]), 0)):
        with pytest.raises(IndexError):
            x[key]
    with pytest.raises(ValueError, match="broadcast"):
        x[0] = xp.ones((3, 3), dtype=xp.float64)
    with pytest.raises(TypeError):
        xp.asarray([1, 2])[0] = 1.5


OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge", "eq", "ne"]


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    f = getattr(operator, name)
    a, b = np.array([1.5, 2.0, 3.0]), np.array([2.0, 0.5, 3.0])
    x, y = xp.asarray(a), xp.asarray(b)
    assert same(f(x, y), f(a, b))
    assert same(f(x, 2.0), f(a, 2.0))
    assert same(f(2.0, y), f(2.0, b))
    with pytest.raises(TypeError):
        f(x, "text") if name not in ("eq", "ne") else f(x, xp.asarray(["text"]))


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "and", "or", "xor", "lshift", "rshift", "floordiv", "mod", "pow"]
)
def test_operators_in_place(name: str) -> None:
    a, b = np.array([7, 2, 5]), np.array([1, 2, 3])
    x, y = xp.asarray(a.copy()), xp.asarray(b)
    old = x
    f = getattr(operator, f"i{name}")
    x = f(x, y)
    assert x is old and same(x, f(a, b))
    with pytest.raises(TypeError):
        f(xp.asarray([1, 2], dtype=xp.int8), xp.asarray([1, 2], dtype=xp.int16))
    with pytest.raises(ValueError, match="in place"):
        f(xp.asarray([1]), y)


def test_python_numbers() -> None:
    assert float(xp.asarray(1.5)) == 1.5 and int(xp.asarray(3)) == 3 and bool(xp.asarray(True))
    assert complex(xp.asarray(1.5)) == 1.5 and operator.index(xp.asarray(3)) == 3
    assert [1, 2, 3][xp.asarray(1)] == 2
    with pytest.raises(TypeError):
        float(xp.asarray([1.0]))
    with pytest.raises(TypeError):
        operator.index(xp.asarray(1.0))
    with pytest.raises(OverflowError):
        xp.asarray([1], dtype=xp.int8) + 300


def test_attributes_are_known_before_anything_is_computed() -> None:
    x = xp.asarray(GRID)
    y = xp.sum(x.mT @ x, axis=0) + 1
    assert (y.shape, y.dtype, y.ndim, y.size) == ((5, 5), xp.float64, 2, 25)
    assert y._node.value is None
    assert "float64" in repr(y) and y._node.value is not None
    assert same(x[0].T, GRID[0].T)
    with pytest.raises(ValueError, match="two dimensions"):
        _ = x.T
