"""Every function of the standard, a row each, against ``array_api_strict``, which is NumPy held to the standard."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
import torch

import torch_max_backend.array as xp
from tests.array.rows import Call, DType, binary, call, rows, unary
from torch_max_backend.array.array_object import Array
from torch_max_backend.array.declaration import declared
from torch_max_backend.array.elementwise import BINARY, UNARY

pytestmark = pytest.mark.any_runner("one op is PyTorch's: what is tested is the meaning that the declarations give it")

ROWS: dict[str, list[Call]] = rows()
for _name, (_, _kind) in UNARY.items():
    if _name not in ("conj", "imag", "real"):
        ROWS[_name] = unary(_kind)
for _name, (_, _kind) in BINARY.items():
    ROWS[_name] = binary(_name, _kind)
ROWS["positive"] = unary("numeric")
ROWS["conj"] = ROWS["real"] = ROWS["imag"] = [
    call(x) for x in (np.array([1 + 2j, -3j]), np.array([1 + 2j], dtype="complex64"), np.array([True]))
]

TESTED_APART = {
    "finfo": "test_the_numbers_of_data_types",
    "iinfo": "test_the_numbers_of_data_types",
    "from_dlpack": "tests/array/test_interchange.py",
    "__array_namespace_info__": "test_the_library_says_what_it_can_do",
}


@pytest.fixture(autouse=True, scope="module")
def by_torch() -> Iterator[None]:
    """Nothing is compiled: compiled expressions are tested in ``test_evaluate.py``."""
    xp.configure(min_block_size=1000)
    yield
    xp.configure()


def of_library(library: Any, value: Any) -> Any:
    """A value of the table for a library."""
    if isinstance(value, np.ndarray):
        return library.asarray(value)
    if isinstance(value, DType):
        return getattr(library, value.name)
    if isinstance(value, list | tuple):
        return type(value)(of_library(library, v) for v in value)
    return value


def found_in(library: Any, name: str) -> Any:
    for part in name.split("."):
        library = getattr(library, part)
    return library


class Refused(Exception):
    """A call raised; which exception is up to the library."""


def result_of(library: Any, name: str, c: Call) -> Any:
    args = [of_library(library, a) for a in c.args]
    kwargs = {k: of_library(library, v) for k, v in c.kwargs.items()}
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            result = found_in(library, name)(*args, **kwargs)
            if isinstance(result, Array):
                result.to_torch()
            return result
    except Exception as error:
        raise Refused(repr(error)) from error


def as_numpy(x: Any) -> np.ndarray:
    if isinstance(x, Array):
        return x.to_torch().numpy()
    return np.asarray(x._array if hasattr(x, "_array") else x)


def differs(name: str, got: Any, expected: Any, c: Call) -> str:
    """What is wrong with a result; empty if nothing is."""
    if isinstance(expected, list | tuple):
        if len(got) != len(expected):
            return f"{len(got)} results for {len(expected)}"
        return next((d for a, b in zip(got, expected, strict=True) if (d := differs(name, a, b, c))), "")
    if isinstance(expected, bool):
        return "" if got is expected else f"{got} for {expected}"
    if not hasattr(expected, "dtype"):
        return "" if str(got).removeprefix("torch.") == str(expected).rsplit(".", 1)[-1] else f"{got} for {expected}"
    a, b = as_numpy(got), as_numpy(expected)
    if a.shape != b.shape or tuple(got.shape) != b.shape:
        return f"shape {a.shape} for {b.shape}"
    if a.dtype != b.dtype:
        is_default = {str(a.dtype), str(b.dtype)} in ({"float32", "float64"}, {"complex64", "complex128"})
        if not (is_default and name in TAKES_DEFAULT):
            return f"{a.dtype} for {b.dtype}"
    if str(got.dtype).removeprefix("torch.") != str(a.dtype):
        return f"said {got.dtype}, and is {a.dtype}"
    if "empty" in name:
        return ""
    return "" if _same(name, a, b.astype(a.dtype), c) else f"{a} for {b}"


TAKES_DEFAULT = {"arange", "asarray", "full", "ones", "zeros", "empty", "fft.fftfreq", "fft.rfftfreq", "ones_like"}
"""The default floating-point data type is torch's, ``float32``; NumPy's is ``float64``."""


def _same(name: str, a: np.ndarray, b: np.ndarray, c: Call) -> bool:
    if a.dtype.kind in "biu":
        return bool(np.array_equal(a, b))
    if name in SIGNS_MAY_DIFFER:
        a, b = np.abs(a), np.abs(b)
    loose = 100 if name.startswith(("linalg", "fft")) else 8
    eps = float(np.finfo(a.dtype).eps)
    scale = float(np.max(np.abs(b[np.isfinite(b)]), initial=0)) if loose == 100 or name in SUMS else 0.0
    if name in PRODUCTS:
        scale = float(np.prod([np.max(np.abs(x), initial=0) for x in c.args]))
    if not np.allclose(a, b, rtol=loose * eps, atol=loose * eps * scale + np.finfo(a.dtype).tiny, equal_nan=True):
        return False
    if a.dtype.kind == "f" and loose == 8 and name not in SUMS | EITHER_ZERO:
        zeros = (a == 0) & (b == 0)
        return bool(np.array_equal(np.signbit(a[zeros]), np.signbit(b[zeros])))
    return True


PRODUCTS = {f"{m}{n}" for m in ("", "linalg.") for n in ("matmul", "vecdot", "tensordot")}
"""Sums of products, which are as wrong as a product of the largest elements."""
SUMS = {"sum", "mean", "std", "var", *PRODUCTS, "cumulative_sum", "linspace", "arange", "diff"}
"""Sums of terms of both signs are as wrong as their largest terms."""
EITHER_ZERO = {"unique_counts", "unique_inverse", "unique_values"}
"""The standard doesn't say which of two equal zeros is the one that is kept."""
SIGNS_MAY_DIFFER = {"linalg.qr", "linalg.svd", "linalg.eigh"}

LATER = {"broadcast_shapes", "isin"}
"""Functions of a later version of the standard."""


def names() -> list[str]:
    top = [n for n in strict.__all__ if callable(getattr(strict, n)) and not n.startswith(("set_", "get_", "reset_"))]
    top = [n for n in top if n not in strict.__all__ or not isinstance(getattr(strict, n), type)]
    extra = [f"{m}.{n}" for m in ("linalg", "fft") for n in getattr(strict, m).__all__ if n[0].islower()]
    return sorted({*top, *extra} - LATER - {"linalg", "fft", "DType", "ArrayAPIStrictFlags", "Device"})


@pytest.mark.parametrize("name", names())
def test_every_function_of_the_standard_is_declared_and_tested(name: str) -> None:
    if not callable(found_in(strict, name)) or re.match("^(bool|u?int|float|complex)[0-9]*$", name):
        return
    assert callable(found_in(xp, name))
    assert name in declared
    assert name in ROWS or name in TESTED_APART


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_function_agrees_with_the_reference(name: str) -> None:
    wrong: list[str] = []
    compared = 0
    for c in ROWS[name]:
        try:
            expected = result_of(strict, name, c)
        except Refused as why:
            expected = why
        try:
            got = result_of(xp, name, c)
        except Refused as why:
            got = why
        said = _shown(c)
        if isinstance(expected, Refused) or isinstance(got, Refused):
            if isinstance(expected, Refused) != isinstance(got, Refused):
                wrong.append(f"{said}: {got!r:.200} for {expected!r:.200}")
            continue
        compared += 1
        if difference := differs(name, got, expected, c):
            wrong.append(f"{said}: {difference}")
    assert compared
    assert not wrong, f"{len(wrong)} of {len(ROWS[name])}\n" + "\n".join(wrong[:12])


def _shown(c: Call) -> str:
    def one(x: Any) -> str:
        if isinstance(x, np.ndarray):
            return f"{x.dtype}{list(x.shape)}"
        return f"[{', '.join(map(one, x))}]" if isinstance(x, list) else repr(x)

    return ", ".join([*map(one, c.args), *(f"{k}={one(v)}" for k, v in c.kwargs.items())])


def test_the_numbers_of_data_types() -> None:
    for d in ("float32", "float64"):
        mine, theirs = xp.finfo(getattr(xp, d)), np.finfo(d)
        assert (mine.bits, mine.eps, mine.max, mine.min) == (theirs.bits, theirs.eps, theirs.max, theirs.min)
        assert mine.smallest_normal == theirs.smallest_normal and mine.dtype == getattr(torch, d)
    assert xp.finfo(xp.complex64).dtype == xp.float32
    for d in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        mine, theirs = xp.iinfo(getattr(xp, d)), np.iinfo(d)
        assert (mine.bits, mine.max, mine.min) == (theirs.bits, theirs.max, theirs.min)
    with pytest.raises(TypeError):
        xp.finfo(xp.int8)
    with pytest.raises(TypeError):
        xp.iinfo(xp.float32)


def test_the_library_says_what_it_can_do() -> None:
    info = xp.__array_namespace_info__()
    assert info.capabilities()["boolean indexing"] and info.capabilities()["data-dependent shapes"]
    assert info.default_device() in info.devices()
    assert set(info.dtypes()) == set(strict.__array_namespace_info__().dtypes())
    assert set(info.dtypes(kind="integral")) == set(strict.__array_namespace_info__().dtypes(kind="integral"))
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", "float32", "float64"}
    assert info.default_dtypes()["integral"] == xp.int64
