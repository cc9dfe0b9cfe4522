"""Calls of each function of the standard, as data: NumPy arrays stand for arrays of either library.

The calls of a function cover the data types it takes and those it doesn't, promotion, broadcasting, special values,
arrays without elements or dimensions, axes, and errors.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
INTEGERS = SIGNED + UNSIGNED
FLOATS = ["float32", "float64"]
REAL = INTEGERS + FLOATS
EVERY = ["bool", *REAL]
SHAPES: list[tuple[int, ...]] = [(), (0,), (5,), (3, 4), (2, 0, 3), (1, 3, 2)]


@dataclass
class Call:
    """A call; a :class:`DType` in it is a data type of the library, by name."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DType:
    """A data type by name."""

    name: str


def call(*args: Any, **kwargs: Any) -> Call:
    return Call(args, kwargs)


def values(dtype: str, shape: tuple[int, ...], seed: int = 0, least: int | None = None) -> np.ndarray:
    """Random elements; integers may be anything their data type holds, unless ``least`` asks for small ones."""
    random = np.random.default_rng(seed + 17 * len(shape))
    if dtype == "bool":
        return np.asarray(random.integers(0, 2, shape), dtype=bool)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        low, high = (info.min, info.max) if least is None else (max(least, info.min), 7)
        return np.asarray(random.integers(low, high, shape, dtype=dtype, endpoint=True), dtype=dtype)
    return np.asarray(random.standard_normal(shape) * 3, dtype=dtype)


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 3.0, 7.25, -7.25, 1e-3, 30.0]


def special(dtype: str) -> np.ndarray:
    return np.array(SPECIAL, dtype=dtype)


def kinds(kind: str) -> list[str]:
    found = {
        "numeric": REAL,
        "real numeric": REAL,
        "floating": FLOATS,
        "real floating": FLOATS,
        "bool or integral": ["bool", *INTEGERS],
        "integral": INTEGERS,
        "bool": ["bool"],
        "all": EVERY,
    }
    return found[kind]


def unary(kind: str) -> list[Call]:
    """Every data type, those that are refused among them."""
    calls = [call(values(d, s)) for d in EVERY for s in SHAPES]
    return calls + [call(special(d)) for d in FLOATS if d in kinds(kind)]


SMALL_OPERANDS = {"pow", "bitwise_left_shift", "bitwise_right_shift"}
NONZERO = {"floor_divide", "remainder"}


def binary(name: str, kind: str) -> list[Call]:
    """Every pair of data types, broadcasting, special values with each other, and Python numbers on both sides."""
    least = 0 if name in SMALL_OPERANDS else None

    def one(d: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
        x = values(d, shape, seed, least if seed else None)
        if name == "pow" and d in INTEGERS:
            x = values(d, shape, seed, 0)
        if name == "bitwise_left_shift" and d in INTEGERS and seed:
            x = np.minimum(x, 6)
        return np.where(x == 0, np.ones_like(x), x) if name in NONZERO and seed and d != "bool" else x

    calls = [call(one(a, (3, 4), 0), one(b, (3, 4), 1)) for a, b in itertools.product(EVERY, EVERY)]
    shapes = [((), ()), ((), (3,)), ((3, 1), (4,)), ((2, 0), (1, 1)), ((2, 1, 3), (4, 1)), ((3,), (4,))]
    for d in kinds(kind):
        calls += [call(one(d, a, 0), one(d, b, 1)) for a, b in shapes]
        for number in (1, 2, 1.5, True, 300, -1):
            calls += [call(one(d, (4,), 0), number)]
            if not (name in SMALL_OPERANDS and number == -1):
                calls += [call(number, one(d, (4,), 1))]
    for d in FLOATS:
        if d in kinds(kind):
            calls.append(call(special(d)[:, None], special(d)[None, :]))
    if name in SMALL_OPERANDS:
        calls = [c for c in calls if not _has_bad_shift(c, name)]
    return calls


def _has_bad_shift(c: Call, name: str) -> bool:
    """Shifts below zero or beyond the number of bits, and integers to negative powers, are not defined."""
    a, b = c.args
    if name == "pow":
        whole = not (isinstance(a, float) or isinstance(b, float)) and not any(
            isinstance(x, np.ndarray) and x.dtype.kind == "f" for x in (a, b)
        )
        return whole and not isinstance(b, np.ndarray) and (b < 0 or b == 300)
    return not isinstance(b, np.ndarray) and (b < 0 or b == 300)


AXES: list[Any] = [None, 0, -1, 1, (0, 1), (0, -1), 5]


def reductions(dtypes: list[str] = EVERY, **more: list[Any]) -> list[Call]:
    """Every data type and shape, axes, ``keepdims``, and other arguments one at a time."""
    calls = [call(values(d, s, least=-3)) for d in EVERY for s in SHAPES]
    for d in (dtypes[0], dtypes[-1]):
        for axis in AXES:
            for keepdims in (False, True):
                calls += [
                    call(values(d, s, least=-3), axis=axis, keepdims=keepdims) for s in SHAPES if s or axis in (None, 5)
                ]
    for name, options in more.items():
        calls += [call(values(dtypes[-1], (3, 4), least=-3), **{name: o}) for o in options]
        calls += [call(values(dtypes[-1], (3, 4), least=-3), axis=1, **{name: o}) for o in options]
    calls += [call(special(d)) for d in FLOATS if d in dtypes]
    return calls


def sums() -> list[Call]:
    narrow = [DType("int32"), DType("float64"), DType("uint64"), DType("int8")]
    calls = reductions(REAL)
    for d in INTEGERS + FLOATS:
        calls += [call(values(d, (3, 4), least=0), dtype=t) for t in narrow if not (d in FLOATS and "int" in t.name)]
    return calls


def scans() -> list[Call]:
    calls = [call(values(d, s, least=-3), axis=0) for d in REAL for s in SHAPES[1:]]
    calls += [
        call(values("float64", (3, 4)), axis=a, include_initial=i) for a in (None, 0, 1, -1, 4) for i in (False, True)
    ]
    calls += [call(values("int32", (5,)), include_initial=True), call(values("float32", (5,)), dtype=DType("float64"))]
    return [*calls, call(values("int8", (5,), least=0), dtype=DType("int16")), call(values("bool", (4,)))]


def shapes_of(*keyed: dict[str, Any]) -> list[Call]:
    return [call(values(d, s, least=-3), **k) for d in ("int32", "float32", "uint64") for s in SHAPES for k in keyed]


def matrices(d: str = "float64", n: int = 3) -> list[np.ndarray]:
    return [values(d, s, 3) for s in [(n, n), (2, n, n), (4, 2), (2, 4), (2, 5, 3)]]


def square(d: str = "float64") -> list[np.ndarray]:
    return [values(d, s, 3) + 4 * np.eye(s[-1], dtype=d) for s in [(3, 3), (2, 3, 3), (1, 1), (5, 5)]]


def symmetric(d: str = "float64") -> list[np.ndarray]:
    return [m @ m.swapaxes(-1, -2) + np.eye(m.shape[-1], dtype=d) for m in square(d)]


def both(make: Any) -> list[np.ndarray]:
    return [m for d in FLOATS for m in make(d)]


KEPT = {"dtype": [None, *map(DType, EVERY)]}


def created() -> list[Call]:
    return [call(s, dtype=t) for s in [*SHAPES, 4] for t in KEPT["dtype"]]


def likes(*fill: Any) -> list[Call]:
    return [call(values(d, s), *fill, dtype=t) for d in EVERY for s in SHAPES for t in (None, DType("float32"))]


VECTOR = np.arange(6.0)
GRID = values("float64", (3, 4))


def rows() -> dict[str, list[Call]]:
    """The calls of every function that is no table of its own in :mod:`tests.array.test_standard`."""
    floats = [values(d, s) for d in FLOATS for s in [(5,), (3, 4), (2, 3, 4)]]
    table: dict[str, list[Call]] = {
        # creation
        "arange": [
            call(*a, dtype=t)
            for a in [(5,), (2, 7), (2, 9, 3), (9, 2, -2), (0,), (3, 1), (1.5,), (0, 1, 0.25), (5, -1, -1.5), (0, 4, 2)]
            for t in (None, DType("float32"), DType("float64"))
        ]
        + [call(2, 9, dtype=DType(d)) for d in INTEGERS],
        "asarray": [call(x) for x in (1, 1.5, True, [1, 2], [[1.0, 2.0]], [], [True, False], ((1, 2), (3, 4)))]
        + [call(values(d, s), copy=c) for d in EVERY for s in SHAPES for c in (None, True)]
        + [call([1, 2, 3], dtype=DType(d)) for d in EVERY]
        + [call(values("int32", (3,)), dtype=DType("float64")), call(2**63 + 5, dtype=DType("uint64"))],
        "empty": created(),
        "empty_like": likes(),
        "eye": [
            call(*a, k=k, dtype=DType(d)) for a in [(3,), (3, 4), (0, 2), (4, 2)] for k in (0, 1, -1, 9) for d in EVERY
        ],
        "full": [call(s, f) for s in [*SHAPES, 3] for f in (3, 2.5, True, np.inf, -0.0)]
        + [call((2, 3), 7, dtype=DType(d)) for d in REAL]
        + [call((2,), True, dtype=DType("bool")), call(2, 2**64 - 1, dtype=DType("uint64"))],
        "full_like": [call(values(d, s), 5 if d != "bool" else True) for d in EVERY for s in SHAPES],
        "linspace": [
            call(a, b, n, endpoint=e, dtype=t)
            for a, b in [(0, 1), (-2.5, 7), (3, 3), (5, -5)]
            for n in (0, 1, 2, 7)
            for e in (True, False)
            for t in (DType("float32"), DType("float64"))
        ],
        "meshgrid": [
            call(*(values("int64", (n,), n) for n in sizes), indexing=i)
            for sizes in [(3,), (2, 3), (2, 3, 4), (0, 2)]
            for i in ("xy", "ij")
        ],
        "ones": created(),
        "ones_like": likes(),
        "zeros": created(),
        "zeros_like": likes(),
        "tril": [call(values(d, s), k=k) for d in EVERY for s in SHAPES for k in (0, 1, -1, 5, -5)],
        "triu": [call(values(d, s), k=k) for d in EVERY for s in SHAPES for k in (0, 1, -1, 5, -5)],
        # data types
        "astype": [
            call(values(a, (3, 2), least=0), DType(b), copy=c) for a in EVERY for b in EVERY for c in (True, False)
        ],
        "broadcast_arrays": [
            call(GRID, values("int32", (4,))),
            call(GRID, values("int32", (3,))),
            call(GRID),
            call(values("bool", ()), values("float32", (0, 2))),
        ],
        "broadcast_to": [call(values(d, (3, 1)), s) for d in EVERY for s in [(3, 4), (2, 3, 1), (3, 0), (4, 4), (3,)]],
        "can_cast": [call(DType(a), DType(b)) for a in EVERY for b in EVERY if ("u" in a) == ("u" in b) or a == b],
        "isdtype": [
            call(DType(d), k)
            for d in EVERY
            for k in (
                "bool",
                "signed integer",
                "unsigned integer",
                "integral",
                "real floating",
                "complex floating",
                "numeric",
                DType("int8"),
                ("bool", "integral"),
                ("numeric", DType("bool")),
                "float",
            )
        ],
        "result_type": [call(DType(a), DType(b)) for a in EVERY for b in EVERY]
        + [call(values("int8", (2,)), DType("int32")), call(GRID, 1.5), call(values("int8", (2,)), 1)],
        # indexing
        "take": [
            call(values(d, (4, 5)), np.array(i, dtype=t), axis=a)
            for d in EVERY
            for i in ([0, 2, 1], [3], [])
            for t in ("int64", "uint8", "int32")
            for a in (0, 1, -1)
        ]
        + [call(VECTOR, np.array([1, 1])), call(GRID, np.array([1, 1])), call(GRID, np.array([1]), axis=2)],
        "take_along_axis": [
            call(values(d, (3, 4)), values("int64", s, least=0) % 3, axis=a)
            for d in EVERY
            for s, a in [((3, 2), 1), ((2, 4), 0), ((1, 4), 0), ((3, 4), -1), ((2, 1), 0)]
        ],
        # linear algebra
        "matmul": [
            call(values(d, a, 1, -3), values(e, b, 2, -3))
            for d, e in [*((d, d) for d in EVERY), ("int8", "int32"), ("float32", "float64")]
            for a, b in [
                ((3, 4), (4, 2)),
                ((4,), (4,)),
                ((4,), (2, 4, 3)),
                ((2, 3, 4), (4,)),
                ((2, 1, 3, 4), (5, 4, 2)),
                ((0, 3), (3, 2)),
                ((2, 0), (0, 3)),
                ((), (3,)),
                ((3, 4), (3, 4)),
            ]
        ],
        "matrix_transpose": [call(values(d, s)) for d in EVERY for s in SHAPES],
        "tensordot": [
            call(values(d, a, 1, -3), values(d, b, 2, -3), axes=x)
            for d in REAL
            for a, b, x in [
                ((3, 4), (4, 2), 1),
                ((2, 3, 4), (3, 4, 5), 2),
                ((3,), (2,), 0),
                ((2, 3, 4), (4, 2), ((0, 2), (1, 0))),
                ((3, 4), (3, 4), 1),
            ]
        ],
        "vecdot": [
            call(values(d, a, 1, -3), values(d, b, 2, -3), axis=x)
            for d in EVERY
            for a, b, x in [
                ((4,), (4,), -1),
                ((3, 4), (4,), -1),
                ((3, 4), (3, 4), -2),
                ((2, 1, 3), (4, 3), -1),
                ((3,), (4,), -1),
                ((2, 0), (2, 0), -1),
            ]
        ],
        # manipulation
        "concat": [
            call([values(d, s), values(e, s, 2)], axis=a)
            for d, e in [
                ("int8", "int32"),
                ("float32", "float64"),
                ("uint16", "uint16"),
                ("bool", "bool"),
                ("int8", "bool"),
            ]
            for s in SHAPES
            for a in (0, -1, None)
        ]
        + [call([GRID, values("float64", (3, 2))], axis=1), call([GRID, VECTOR]), call([GRID, GRID], axis=2)],
        "expand_dims": shapes_of(*({"axis": a} for a in (0, -1, 1, 9))),
        "flip": shapes_of(*({"axis": a} for a in (None, 0, -1, (0, 1), 7))),
        "moveaxis": [call(values("int32", (2, 3, 4)), s, t) for s, t in [(0, 2), (-1, 0), ((0, 1), (2, 0)), (3, 0)]],
        "permute_dims": [
            call(values("int32", (2, 3, 4)), p) for p in [(0, 1, 2), (2, 0, 1), (1, 0), (0, 0, 1), (0, 1, 3)]
        ],
        "repeat": shapes_of({"axis": None})
        and [
            call(values(d, s), r, axis=a)
            for d in EVERY
            for s in [(5,), (3, 4)]
            for r in (0, 1, 3)
            for a in (None, 0, -1)
        ]
        + [call(VECTOR, np.array([1, 0, 2, 0, 1, 3])), call(GRID, np.array([2, 0, 1]), axis=0)],
        "reshape": [
            call(values(d, a), b)
            for d in EVERY
            for a, b in [
                ((6,), (2, 3)),
                ((2, 3), (-1,)),
                ((), (1, 1)),
                ((0,), (2, 0)),
                ((2, 3, 4), (4, -1)),
                ((6,), (4, 2)),
                ((2, 6), (4, 3)),
                ((2, 3), (-1, -1)),
                ((4, 6), (24,)),
            ]
        ],
        "roll": [
            call(values(d, s), n, axis=a)
            for d in ("int32", "uint16", "float64")
            for s in [(5,), (3, 4), (0,), (2, 0, 3)]
            for n, a in [(2, None), (-1, 0), (7, -1), (0, 0)]
        ]
        + [call(GRID, (1, -2), axis=(0, 1)), call(GRID, 1, axis=(0, 1)), call(GRID, 1, axis=4)],
        "squeeze": [call(values("int8", (1, 3, 1)), a) for a in (0, 2, (0, 2), 1, -1, 4)],
        "stack": [call([values(d, s), values(d, s, 2)], axis=a) for d in EVERY for s in SHAPES for a in (0, -1, 1)]
        + [call([GRID, VECTOR])],
        "tile": [call(values(d, s), r) for d in EVERY for s in SHAPES for r in [(2,), (2, 3), (1, 1, 2), (0,), ()]],
        "unstack": shapes_of(*({"axis": a} for a in (0, -1, 1))),
        # searching, sorting, sets
        "nonzero": [call(values(d, s, least=-1)) for d in EVERY for s in SHAPES],
        "searchsorted": [
            call(np.sort(values(d, (6,))), values(d, s, 5), side=side)
            for d in REAL
            for s in [(4,), (2, 3), (), (0,)]
            for side in ("left", "right")
        ]
        + [call(values("float64", (6,)), VECTOR, sorter=np.argsort(values("float64", (6,)))), call(GRID, VECTOR)],
        "where": [
            call(values("bool", a), values(d, b), values(e, c, 2))
            for d, e in [*((d, d) for d in EVERY), ("int8", "int16"), ("uint8", "int8"), ("int32", "float32")]
            for a, b, c in [
                ((3, 4), (3, 4), (4,)),
                ((), (2,), ()),
                ((3, 1), (1, 4), ()),
                ((3,), (4,), ()),
                ((0,), (1,), ()),
            ]
        ]
        + [call(values("bool", (3,)), VECTOR[:3], 1.5), call(values("bool", (3,)), 2, values("int8", (3,)))]
        + [call(values("int8", (3,)), VECTOR[:3], VECTOR[:3])],
        "unique_all": [call(values(d, s, least=-2)) for d in EVERY for s in SHAPES] + [call(special("float32"))],
        "unique_counts": [call(values(d, s, least=-2)) for d in EVERY for s in SHAPES] + [call(special("float32"))],
        "unique_inverse": [call(values(d, s, least=-2)) for d in EVERY for s in SHAPES] + [call(special("float32"))],
        "unique_values": [call(values(d, s, least=-2)) for d in EVERY for s in SHAPES] + [call(special("float32"))],
        # statistics and utilities
        "cumulative_sum": scans(),
        "cumulative_prod": scans(),
        "max": reductions(REAL),
        "min": reductions(REAL),
        "mean": reductions(FLOATS),
        "prod": sums(),
        "sum": sums(),
        "std": reductions(FLOATS, correction=[0, 1, 0.5, 1.0, 20]),
        "var": reductions(FLOATS, correction=[0, 1, 0.5, 1.0, 20]),
        "all": reductions(),
        "any": reductions(),
        "count_nonzero": reductions(),
        "diff": [
            *shapes_of(*({"axis": a, "n": n} for a in (0, -1, 1) for n in (1, 2))),
            call(GRID, prepend=values("float64", (3, 1)), append=GRID),
            call(values("bool", (3,))),
        ],
        "clip": [
            call(values(d, s), *b)
            for d in REAL
            for s in SHAPES
            for b in [(2, 5), (None, 3), (1, None), (None, None), (values(d, (), 1), None)]
        ]
        + [call(special(d), -1.5, 2.0) for d in FLOATS]
        + [
            call(GRID, min=values("float64", (4,)) - 2),
            call(values("int8", (3,)), 0.5, 2),
            call(values("bool", (3,)), 0, 1),
        ],
        # linalg
        "linalg.cholesky": [call(m, upper=u) for m in both(symmetric) for u in (False, True)] + [call(VECTOR)],
        "linalg.cross": [
            call(values(d, a, 1, -3), values(d, b, 2, -3), axis=x)
            for d in REAL
            for a, b, x in [
                ((3,), (3,), -1),
                ((4, 3), (4, 3), -1),
                ((3, 4), (3, 4), -2),
                ((2, 3), (1, 3), -1),
                ((2,), (2,), -1),
            ]
        ],
        "linalg.det": [call(m) for m in both(square)] + [call(GRID), call(np.eye(3, dtype=int))],
        "linalg.diagonal": [call(values(d, s), offset=o) for d in EVERY for s in SHAPES for o in (0, 1, -1)],
        "linalg.eigh": [call(m) for m in both(symmetric)],
        "linalg.eigvalsh": [call(m) for m in both(symmetric)],
        "linalg.inv": [call(m) for m in both(square)] + [call(GRID)],
        "linalg.matrix_norm": [
            call(m, ord=o, keepdims=k)
            for m in both(matrices)
            for o in ("fro", "nuc", 1, 2, np.inf, -1, -2, -np.inf)
            for k in (False, True)
        ],
        "linalg.matrix_power": [call(m, n) for m in both(square) for n in (0, 1, 3, -1)] + [call(GRID, 2)],
        "linalg.matrix_rank": [call(m) for m in both(matrices)] + [call(np.ones((3, 3))), call(np.zeros((3, 2)))],
        "linalg.outer": [call(values(d, (3,), 1, -3), values(d, (n,), 2, -3)) for d in REAL for n in (4, 0)]
        + [call(GRID, VECTOR)],
        "linalg.pinv": [call(m) for m in both(matrices)],
        "linalg.qr": [call(m, mode=q) for m in both(matrices) for q in ("reduced", "complete")],
        "linalg.slogdet": [call(m) for m in both(square)],
        "linalg.solve": [call(m, values(str(m.dtype), m.shape[-1:], 7)) for m in both(square)]
        + [call(m, values(str(m.dtype), (*m.shape[:-1], 2), 7)) for m in both(square)]
        + [call(square()[1], values("float64", (3, 2)))],
        "linalg.svd": [call(m, full_matrices=f) for m in both(matrices) for f in (True, False)],
        "linalg.svdvals": [call(m) for m in both(matrices)],
        "linalg.trace": [call(values(d, s, 1, -3), offset=o) for d in EVERY for s in SHAPES for o in (0, 1, -1)],
        "linalg.vector_norm": [
            call(x, axis=a, ord=o, keepdims=k)
            for x in floats
            for a in (None, 0, -1)
            for o in (2, 1, 0, 3, np.inf, -np.inf, -1, 0.5)
            for k in (False, True)
        ]
        + [call(values("float64", (2, 3, 4)), axis=(0, 2)), call(values("int32", (3,)))],
        # fft
        "fft.fftfreq": [call(n, d=d) for n in (1, 4, 5) for d in (1.0, 0.5)],
        "fft.rfftfreq": [call(n, d=d) for n in (1, 4, 5) for d in (1.0, 0.5)],
        "fft.fftshift": [call(x, axes=a) for x in floats for a in (None, 0, -1)],
        "fft.ifftshift": [call(x, axes=a) for x in floats for a in (None, 0, -1)],
    }
    table["linalg.matmul"] = table["matmul"]
    table["linalg.matrix_transpose"] = table["matrix_transpose"]
    table["linalg.tensordot"] = table["tensordot"]
    table["linalg.vecdot"] = table["vecdot"]
    for name in ("argmax", "argmin"):
        table[name] = (
            [call(values(d, s)) for d in EVERY for s in SHAPES]
            + [
                call(values("float32", s), axis=a, keepdims=k)
                for s in SHAPES[1:]
                for a in (None, 0, -1, 4)
                for k in (False, True)
            ]
            + [call(special("float64")), call(np.array([1, 3, 3, 1]))]
        )
    for name in ("sort", "argsort"):
        table[name] = [
            call(values(d, s, least=-3), axis=a, descending=r)
            for d in EVERY
            for s in SHAPES[1:]
            for a in (-1, 0, 4)
            for r in (False, True)
        ] + [call(values(d, (20,))) for d in REAL]
    complexes = [(x + 1j * x[..., ::-1]).astype("complex64" if x.dtype == np.float32 else "complex128") for x in floats]
    norms = [{"norm": m} for m in ("backward", "ortho", "forward")]
    for name in ("fft", "ifft", "irfft", "hfft"):
        table[f"fft.{name}"] = [
            call(x, **k) for x in complexes for k in [*norms, {"n": 3}, {"n": 8}, {"axis": 0}, {"axis": 5}]
        ] + [call(values("int32", (4,)))]
    for name in ("rfft", "ihfft"):
        table[f"fft.{name}"] = [call(x, **k) for x in floats for k in [*norms, {"n": 3}, {"n": 8}, {"axis": 0}]]
    several = [{}, {"axes": (0,)}, {"axes": (-1,), "s": (4,)}, *norms]
    for name in ("fftn", "ifftn", "irfftn"):
        table[f"fft.{name}"] = [call(x, **k) for x in complexes for k in several]
    table["fft.rfftn"] = [call(x, **k) for x in floats for k in several]
    return table
