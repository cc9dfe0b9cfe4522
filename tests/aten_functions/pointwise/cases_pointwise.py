"""Cases of arithmetic, powers, division, rounding, selection and clamping."""

from __future__ import annotations

import torch

from tests.support.cases import Case, bools, ints, rand, randn, special

aten = torch.ops.aten
nan, inf = float("nan"), float("inf")
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
I8, U8, I16, I32, I64 = torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64
LOWEST = torch.iinfo(I64).min


def edges(dtype=F32):
    """The special values but for subnormal numbers, which MAX takes for zero on a CPU."""
    values = special(dtype)
    return torch.cat([values[:5], values[7:]])


def pairs(dtype=F32):
    """Every pair of special values."""
    values = edges(dtype)
    return values.repeat_interleave(len(values)), values.repeat(len(values))


def sums(a, b):
    """Sums, differences and products of tensors and numbers."""
    return (
        a + b, a - b, a * b, a + 2, a - 0.5, a * 3, 2 - a, torch.add(a, b, alpha=2), torch.sub(a, b, alpha=0.25),
        torch.rsub(a, b, alpha=2), a * 0.1, a / 3, a / b, 1.0 / a, -a, a.abs(), torch.addcmul(a, b, b, value=0.5),
        torch.lerp(a, b, 0.3), torch.lerp(a, b, b), a.square(), a + a[0, 0], a * b[0].sum(), a.sign(), a.sgn() - 3,
    )  # fmt: skip


def constant_divisors(x, i):
    """Quotients by numbers, which are hidden from MAX: true ones of floats, not products with a reciprocal."""
    trunc = torch.div(i, 7, rounding_mode="trunc")
    return x / 49.0, (x / 49.0).floor(), x / 0.0, i / 7, i // 7, i // -7, i % 7, trunc


def integers(a, b):
    """Arithmetic of integers: it wraps around."""
    return a + b, a - b, a * b, a * 7 + 3, 5 - a, torch.add(a, b, alpha=3), -a, a.abs(), a.sign(), a // 3, a % 3


def to_floats(a):
    """Integers where torch computes floats."""
    return a / 2, a / a.abs().clamp(min=1), a * 0.5, a + 1.5, a.sqrt(), a.exp(), a.tanh(), 1 / (a * a + 1)


def unary(x):
    """Functions of one float."""
    return (
        x.exp(), x.tanh(), x.sigmoid(), x.sin(), x.cos(), x.erf(), x.reciprocal(), x.sqrt(), x.rsqrt(), x.log(),
        x.log1p(), x.atanh(), x.neg(), x.abs(), x.ceil(), x.floor(), x.trunc(), x.round(), x.frac(), x.sign(),
        x.relu(), torch.square(x), torch.nan_to_num(x), torch.nan_to_num(x, 1.0, 2.0, -3.0),
    )  # fmt: skip


def exact_unary(x):
    """Functions whose result has one right value, to the sign of zero."""
    return x.neg(), x.abs(), x.ceil(), x.floor(), x.trunc(), x.round(), x.relu(), x.clamp(-1, 1), x.clamp(min=0.0)


def clamps(x, low, high):
    """Every form of clamp."""
    return (
        x.clamp(-0.5, 0.5), x.clamp(min=-0.5), x.clamp(max=0.5), x.clamp(1.0, -1.0), x.clamp(low, high),
        torch.clamp_min(x, 0.1), torch.clamp_max(x, 0.1), torch.clamp_min(x, low), torch.clamp_max(x, high),
        x.clamp(min=low), x.clamp(nan, 1.0), x.clamp(0, nan), torch.clip(x, 0.2, 0.7), torch.clamp(x, high, low),
    )  # fmt: skip


def powers(x):
    """Constant exponents."""
    constants = [x.pow(e) for e in (0, 1, 2, 3, 4, 5, 8, -1, -2, -3, 0.5, -0.5, 1.5, 2.5, -1.7, 13, 0.0)]
    return *constants, 2.0**x, 10000.0**x, 0.5**x, (-2.0) ** x, 1.0**x


def integer_powers(x, n):
    """Integer powers: constant, per element, of a constant."""
    return x**0, x**1, x**2, x**5, x**9, x**n, 2**n, (-1) ** n, x.pow(n)


def modes(a, b):
    """Division with rounding, and remainders."""
    return (
        torch.div(a, b, rounding_mode="floor"), torch.div(a, b, rounding_mode="trunc"), a // b, a % b,
        torch.fmod(a, b), torch.remainder(a, b), torch.div(a, b, rounding_mode=None),
    )  # fmt: skip


def modes_of_numbers(a):
    """The same by constants."""
    return tuple(f(a, d) for d in (1, 3, -3, 8, -1) for f in (
        lambda x, d: torch.div(x, d, rounding_mode="floor"), lambda x, d: torch.div(x, d, rounding_mode="trunc"),
        torch.fmod, torch.remainder, torch.floor_divide,
    ))  # fmt: skip


def small_quotients(a):
    """Constants that floats cannot hold."""
    return a % 0.1, torch.fmod(a, 0.1), a // 0.1, torch.fmod(a, -0.7), torch.remainder(a, -0.7), a // -0.7, 1.0 % a


def wheres(c, a, b):
    """Selection and masked_fill."""
    return (
        torch.where(c, a, b), torch.where(c, a, 0.5), torch.where(c, 1.0, b), torch.where(a > b, a, -inf),
        a.masked_fill(c, -inf), a.masked_fill(c, torch.tensor(2.0)), a.masked_fill(c[0], 7),
        torch.where(c, a, b[0]), torch.where(c[:, :1], a, b),
    )  # fmt: skip


def mixed(f, h, i, m):
    """Type promotion across dtypes."""
    return f + i, f * h, h + i, i * m, f * m, h * 2.5, i + 1.5, f + f.double(), i.int() + i, h / i.abs().add(1), m + m


def foldable(x, y):
    """What an optimizer may not simplify: NaN and infinities."""
    zero = torch.zeros_like(x)
    return (
        x * 0, 0.0 * x, x * zero, x - x, x - x.clone(), x / x, 0 / x, zero / x, x == x, x != x, x >= x, x <= x,
        x.abs() == x.abs(), torch.isfinite(x), torch.addcmul(x, y, y, value=0), torch.add(x, y, alpha=0),
        torch.maximum(x, x), torch.where(x == x, 1, 0), x.bfloat16() * 0, torch.isclose(x, x), torch.lerp(x, x, 0.5),
    )  # fmt: skip


EXACT_OF_INTEGERS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "lgamma"),
    *("log10", "log1p", "log2", "reciprocal", "rsqrt", "sin", "sinc", "sqrt", "tanh"),
)
EXACT_OF_BOOLEANS = (
    *("log", *EXACT_OF_INTEGERS),
    *("cos", "cosh", "digamma", "i0", "sigmoid", "sinh", "tan"),
)


def exact_of_integers(x):
    """Results that torch rounds correctly (of numbers as small as these) agree to the last bit."""
    return [*(getattr(torch, name)(x) for name in EXACT_OF_INTEGERS), torch.special.entr(x)]


def exact_of_booleans(x):
    return [getattr(torch, name)(x) for name in EXACT_OF_BOOLEANS]


def whole_powers(x, y):
    return torch.float_power(x, y), x.double() ** y, torch.float_power(x, 11), torch.float_power(3, y)


def xlogy_of_numbers(x):
    """A number on either side."""
    xlog1py = torch.special.xlog1py
    return torch.xlogy(2.5, x), torch.xlogy(x, 2.5), xlog1py(2.5, x), xlog1py(x, 2.5), torch.xlogy(0, x), xlog1py(x, -1)


def divisions_by_numbers(x):
    """Overloads that other front ends than Dynamo leave in a graph."""
    return (
        aten.div.Scalar(x, 3),
        aten.div.Scalar(x, -0.7),
        *(aten.div.Scalar_mode(x, n, rounding_mode=mode) for n in (3, -7) for mode in ("floor", "trunc")),
        aten.div.Scalar_mode(x, 3, rounding_mode=None),
        *(aten.floor_divide.Scalar(x, n) for n in (3, -7)),
    )


def converted(x):
    """Casts as decompositions make them."""
    convert = torch.ops.prims.convert_element_type
    return convert(x, torch.float64), convert(x, BF16), convert(x, torch.bool), convert(x, F32)


CASES = [
    Case("foldable", foldable, pairs()),
    Case("foldable_bf16", foldable, pairs(BF16)),
    Case("sums_f32", sums, (randn(3, 4), randn(3, 4))),
    Case("sums_broadcast", sums, (randn(2, 3, 4), rand(4, low=0.5, high=2.0))),
    Case("sums_f64", sums, (randn(3, 4, dtype=F64), randn(3, 4, dtype=F64))),
    Case("sums_bf16", sums, (randn(3, 4, dtype=BF16), randn(3, 4, dtype=BF16))),
    Case("sums_f16", sums, (randn(3, 4, dtype=F16), randn(3, 4, dtype=F16))),
    Case("sums_dynamic", sums, (randn(3, 4), randn(3, 4)), dynamic=True, second=(randn(5, 7), randn(5, 7))),
    Case("edge_sums", lambda a, b: (a + b, a - b, a * b, a / b, a + 1, b * -2.0), pairs()),
    Case("integers_i64", integers, (ints(3, 5), ints(3, 5))),
    Case("integers_i32_wrap", integers, (torch.tensor([2**31 - 1, -(2**31), 5]).int(), torch.tensor([2, 3, -7]).int())),
    Case("integers_i8_wrap", integers, (torch.tensor([127, -128, 5]).to(I8), torch.tensor([2, 3, -7]).to(I8))),
    Case("integers_u8_wrap", integers, (torch.tensor([255, 0, 5]).to(U8), torch.tensor([2, 3, 7]).to(U8))),
    Case("exact_of_integers", exact_of_integers, (ints(4, 9, low=-9, high=10),), exact=True),
    Case("exact_of_booleans", exact_of_booleans, (bools(4, 9),), exact=True),
    Case("whole_powers", whole_powers, (ints(4, 9, low=-7, high=8), ints(4, 9, low=0, high=9)), exact=True),
    Case("integers_to_floats", to_floats, (ints(3, 5),)),
    Case("uint8_to_floats", to_floats, (ints(3, 5, low=0, high=9, dtype=U8),)),
    Case("bool_sums", lambda a, b: (a + b, a * b, a + 1, a * 2.5, a / b.add(1), -(a.int())), (bools(9), bools(9))),
    Case("mixed", mixed, (randn(3, 4), randn(3, 4, dtype=BF16), ints(3, 4), bools(3, 4))),
    Case(
        "zero_dim",
        lambda a, b, i: (a + b, b * 2, i * b, i + 1, b / 3, b.exp(), a * b.double()),
        (randn(3, 4), randn(), ints()),
    ),
    Case("empty", lambda a: (a + 1, a * a, a.exp(), a.clamp(0, 1), a.pow(2.5), a % 2), (torch.ones(0, 3),)),
    Case("unary_f32", unary, (rand(4, 33, low=0.05, high=0.9),)),
    Case("unary_edges", unary, (edges(),)),
    Case("unary_edges_bf16", unary, (edges(BF16),)),
    Case("unary_edges_f16", unary, (edges(F16),)),
    Case("unary_f64", unary, (torch.cat([edges(F64), torch.linspace(-5, 5, 41, dtype=F64)]),)),
    Case(
        "unary_wide",
        lambda x: (x.exp(), x.tanh(), x.sigmoid(), x.sin(), x.cos()),
        (torch.cat([torch.linspace(-87, 90, 400), torch.tensor([88.5, 88.72, 88.73, 1e4, -1e4, 3e38])]),),
    ),
    Case("unary_f16", unary, (randn(4, 33, dtype=F16, scale=3),)),
    Case("exact_unary", exact_unary, (edges(),), exact=True),
    Case("exact_unary_f16", exact_unary, (edges(F16),), exact=True),
    Case("round_integers", lambda x: (x.ceil(), x.floor(), x.trunc(), x.round()), (ints(6),)),
    Case(
        "round_decimals",
        lambda x: (x.round(decimals=2), x.round(decimals=-1), x.round(decimals=0)),
        (randn(40, scale=20),),
    ),
    Case("clamps", clamps, (randn(5, 6), randn(5, 6), randn(6))),
    Case("clamps_edges", lambda x, y: (x.clamp(-1, 1), x.clamp(y), x.clamp(max=y), torch.clamp_min(x, y)), pairs()),
    Case(
        "clamps_integers", lambda x: (x.clamp(-2, 3), x.clamp(min=1), x.clamp(-0.5, 1.5), x.clamp(max=x[0])), (ints(7),)
    ),
    Case("clamps_bf16", lambda x: (x.clamp(-0.3, 0.7), x.clamp(min=0.1), x.clamp(max=x[:1])), (randn(7, dtype=BF16),)),
    Case("powers", powers, (rand(5, 7, low=0.1, high=4.0),)),
    Case("powers_edges", powers, (edges(),)),
    Case("powers_f64", powers, (torch.cat([edges(F64), torch.linspace(0.01, 9, 30, dtype=F64)]),)),
    Case("powers_bf16", powers, (rand(40, low=-2, high=4.0, dtype=BF16),)),
    Case("pow_pairs", lambda a, b: (a**b, a.abs() ** b, torch.float_power(a, 2.5)), pairs()),
    Case("pow_random", lambda a, b: (a**b, a.abs() ** (b * 30)), (randn(100), randn(100))),
    Case("integer_powers", integer_powers, (ints(20), ints(20, low=0, high=20))),
    Case("integer_powers_i8", integer_powers, (ints(20, dtype=I8), ints(20, low=0, high=9, dtype=I8))),
    Case("negative_integer_powers", lambda a, b: a**b, (ints(40, low=-2, high=3), ints(40, low=-3, high=4))),
    Case("modes_f32", modes, (randn(50, scale=10), randn(50))),
    Case(
        "modes_edges",
        lambda a, b: (torch.fmod(a, b), a % b, torch.div(a, b, rounding_mode="trunc")),
        pairs(),
        exact=True,
    ),
    Case("modes_edges_f64", lambda a, b: (torch.fmod(a, b), a % b, a // b), pairs(F64), exact=True),
    Case("floor_edges", lambda a, b: (torch.div(a, b, rounding_mode="floor"), a // b), pairs(), exact=True),
    Case(
        "constant_divisors", constant_divisors, (torch.cat([edges(), torch.arange(-98.0, 99, 7)]), ints(40)), exact=True
    ),
    Case("modes_f64", modes, (randn(50, scale=10, dtype=F64), randn(50, dtype=F64)), exact=True),
    Case(
        "modes_huge",
        lambda a, b: (torch.fmod(a, b), a % b),
        (torch.tensor([1e38, 1e30, -1e20, 7.0, 3e9]), torch.tensor([1e-30, 3.0, 0.7, 0.1, 0.3])),
        exact=True,
    ),
    Case("modes_bf16", modes, (randn(50, scale=10, dtype=BF16), rand(50, low=0.5, high=3, dtype=BF16))),
    Case("small_quotients", small_quotients, (torch.linspace(-2, 2, 41).add(0.013),), exact=True),
    Case("modes_i64", modes, (ints(50, low=-20, high=20), ints(50, low=1, high=6))),
    Case("modes_i32_negative", modes, (ints(50, low=-20, high=20, dtype=I32), ints(50, low=-6, high=0, dtype=I32))),
    Case("modes_lowest", modes, (torch.tensor([LOWEST, LOWEST, 7]), torch.tensor([2, 3, -1]))),
    Case("modes_u8", modes, (ints(50, low=0, high=200, dtype=U8), ints(50, low=1, high=9, dtype=U8))),
    Case("modes_of_numbers_i64", modes_of_numbers, (ints(50, low=-20, high=20),)),
    Case("modes_of_numbers_f32", modes_of_numbers, (randn(50, scale=10),)),
    Case("modes_broadcast", modes, (ints(4, 5), ints(5, low=1, high=4))),
    Case("gcd", lambda a, b: (torch.gcd(a, b), torch.lcm(a, b)), (ints(40, low=-60, high=60), ints(40))),
    Case("wheres", wheres, (bools(3, 4), randn(3, 4), randn(3, 4))),
    Case("wheres_bf16", wheres, (bools(3, 4), randn(3, 4, dtype=BF16), randn(3, 4, dtype=BF16))),
    Case(
        "where_integers",
        lambda c, a: (torch.where(c, a, 0), torch.where(c, a, 1.5), a.masked_fill(c, 3)),
        (bools(6), ints(6)),
    ),
    Case("xlogy", lambda a, b: (torch.xlogy(a, b), torch.xlogy(a, 2.0), torch.special.xlog1py(a, b)), pairs()),
    Case("xlogy_of_numbers", xlogy_of_numbers, (edges(),)),
    Case("xlogy_of_numbers_f64", xlogy_of_numbers, (rand(9, high=4, dtype=F64),)),
    Case("xlogy_of_numbers_i64", xlogy_of_numbers, (ints(9, low=0),)),
    *(
        Case(f"divisions_by_numbers_{str(d)[6:]}", divisions_by_numbers, (ints(30, low=-99, high=99, dtype=d),))
        for d in (torch.int64, I32, F32, F64)
    ),
    Case("divisions_by_numbers_edges", divisions_by_numbers, (edges(),), exact=True),
    Case("divisions_by_numbers_bf16", divisions_by_numbers, (randn(5, 7, scale=9, dtype=BF16),)),
    Case(
        "divisions_by_numbers_sizes",
        lambda a, b: (*divisions_by_numbers(a), *divisions_by_numbers(b)),
        (randn(), randn(0, 3)),
    ),
    Case("converted_edges", converted, (edges(),), exact=True),
    Case("converted_integers", converted, (ints(9, low=-300, high=300),), exact=True),
    Case("heaviside", lambda a, b: (torch.heaviside(a, b), torch.heaviside(a, b[1])), pairs(), exact=True),
    Case(
        "dynamic",
        lambda a, b: (a * 2 + b, a.exp().clamp(0, 9), a % 3, torch.where(a > b, a, b), a * a.shape[0]),
        (randn(3, 4), randn(4)),
        dynamic=True,
        second=(randn(6, 9), randn(9)),
    ),
]
