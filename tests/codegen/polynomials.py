"""The coefficients of kernel/math_*.mojo: near-minimax polynomials by Remez's exchange, in 40 digits.

``python -m tests.codegen.polynomials`` prints them, lowest power first, with the largest error before rounding.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import mpmath as mp

mp.mp.dps = 40
Function = Callable[[mp.mpf], mp.mpf]


def remez(f: Function, low: float, high: float, degree: int, scale: Function) -> tuple[list[mp.mpf], mp.mpf]:
    """The polynomial ``p`` with the smallest largest ``abs(p - f) * scale``, and that error."""
    a, b = mp.mpf(low), mp.mpf(high)
    count = degree + 2
    points = [(a + b) / 2 - (b - a) / 2 * mp.cos(mp.pi * k / (count - 1)) for k in range(count)]
    grid = [(a + b) / 2 - (b - a) / 2 * mp.cos(mp.pi * k / 600) for k in range(601)]
    values, scales = [f(x) for x in grid], [scale(x) for x in grid]
    coefficients: list[mp.mpf] = []
    for _ in range(12):
        rows = [[x**k for k in range(degree + 1)] + [(-1) ** i / scale(x)] for i, x in enumerate(points)]
        solved = mp.lu_solve(mp.matrix(rows), mp.matrix([f(x) for x in points]))
        coefficients = list(solved)[:-1]
        errors = [(mp.polyval(coefficients[::-1], x) - v) * s for x, v, s in zip(grid, values, scales, strict=True)]
        peaks = [
            k
            for k in range(601)
            if (k == 0 or abs(errors[k]) >= abs(errors[k - 1]) or errors[k] * errors[k - 1] < 0)
            and (k == 600 or abs(errors[k]) >= abs(errors[k + 1]) or errors[k] * errors[k + 1] < 0)
        ]
        kept: list[int] = []
        for k in peaks:  # the largest of neighbours of one sign
            if kept and errors[kept[-1]] * errors[k] > 0:
                if abs(errors[k]) > abs(errors[kept[-1]]):
                    kept[-1] = k
            else:
                kept.append(k)
        while len(kept) > count:
            kept.pop(0 if abs(errors[kept[0]]) < abs(errors[kept[-1]]) else -1)
        if len(kept) < count:
            break
        points = [grid[k] for k in kept]
    return coefficients, max(abs(e) for e in errors)


def _even(f: Function, limit: mp.mpf) -> Function:
    """``f`` of a square root, with its limit at 0."""
    return lambda z: f(mp.sqrt(z)) if z > mp.mpf(10) ** -15 else limit


def _tail(f: Function, first: int) -> Function:
    """``f`` without the first terms of its Taylor series, divided by the power that is left."""
    terms = mp.taylor(f, 0, first + 12)

    def tail(x: mp.mpf) -> mp.mpf:
        if abs(x) < mp.mpf("0.005"):
            return mp.polyval(terms[first:][::-1], x)
        return (f(x) - mp.polyval(terms[:first][::-1], x)) / x**first

    return tail


def _one(_: mp.mpf) -> mp.mpf:
    return mp.mpf(1)


LN2_2 = float(mp.log(2) / 2) * 1.001
PI_4 = float(mp.pi / 4) * 1.001
SQRT = float(mp.sqrt(2))

_AT_ZERO = 2 / mp.sqrt(mp.pi) / mp.mpf("0.45")

# name: function, from, to, degree, weight of the error
FITS: dict[str, tuple[Function, float, float, int, Function]] = {
    "exp32: (e^r - 1 - r) / r^2": (_tail(mp.exp, 2), -LN2_2, LN2_2, 4, lambda r: r**2 + mp.mpf(10) ** -6),
    "expm132: (e^r - 1 - r) / r^2": (_tail(mp.exp, 2), -LN2_2, LN2_2, 5, lambda r: abs(r) + mp.mpf(10) ** -3),
    "exp232: (2^r - 1) / r": (_tail(lambda r: mp.mpf(2) ** r, 1), -0.5005, 0.5005, 5, lambda r: abs(r) + 0.001),
    "log32: (log(1+f) - f + f^2/2) / f^3": (
        _tail(mp.log1p, 3), 1 / SQRT - 1.0001, SQRT - 0.9999, 8, lambda f: f**2 + 0.0005,
    ),
    "log32, by a quotient: (log((1+s)/(1-s)) - 2s) / s^3 by s^2": (
        _even(lambda s: (mp.log((1 + s) / (1 - s)) - 2 * s) / s**3, mp.mpf(2) / 3), 0, 0.0295, 2, lambda z: z + 1e-5,
    ),
    "log1p32, nearly: log(1 + x) / x": (_tail(mp.log1p, 1), -0.1255, 0.1255, 4, _one),
    "sin: (sin r - r) / r^3 by r^2": (
        _even(lambda r: (mp.sin(r) - r) / r**3, -mp.mpf(1) / 6), 0, PI_4**2, 3, lambda z: z + 0.0005,
    ),
    "cos: (cos r - 1 + r^2/2) / r^4 by r^2": (
        _even(lambda r: (mp.cos(r) - 1 + r**2 / 2) / r**4, mp.mpf(1) / 24), 0, PI_4**2, 3, lambda z: z**2 + 0.0005,
    ),
    "atan: (atan t - t) / t^3 by t^2": (
        _even(lambda t: (mp.atan(t) - t) / t**3, -mp.mpf(1) / 3), 0, 1, 8, lambda z: z + 0.0005,
    ),
    "asin: (asin t - t) / t^3 by t^2": (
        _even(lambda t: (mp.asin(t) - t) / t**3, mp.mpf(1) / 6), 0, 0.3601, 6, lambda z: z + 0.0005,
    ),
    "sinh: (sinh t - t) / t^3 by t^2": (
        _even(lambda t: (mp.sinh(t) - t) / t**3, mp.mpf(1) / 6), 0, 1.001, 3, lambda z: z + 0.0005,
    ),
    "tanh: (tanh t - t) / t^3 by t^2": (
        _even(lambda t: (mp.tanh(t) - t) / t**3, -mp.mpf(1) / 3), 0, 0.3026, 4, lambda z: z + 0.0005,
    ),
    "erf, below 1: erf(t)/t - 1 by t^2": (
        _even(lambda t: mp.erf(t) / t - 1, 2 / mp.sqrt(mp.pi) - 1), 0, 1.001, 6, _one,
    ),
    "erf, above 1: log(erfc t)": (lambda t: mp.log(mp.erfc(t)), 0.999, 4.0, 7, lambda t: mp.erfc(t)),
    "erf32_nearly: erfc(a) e^(a^2) / t by t = 1 / (1 + p a), p = 0.467837125": (
        lambda t: mp.erfc(_from_t(t)) * mp.exp(_from_t(t) ** 2) / t,
        0.3, 1.0, 4, lambda t: t * mp.exp(-_from_t(t) ** 2),
    ),
    "one_plus_erf32: (erfc(a) e^(a^2) - 1) / s by s = 1 / (1 + 0.45 a) - 1": (
        lambda s: (mp.erfc(_from_s(s)) * mp.exp(_from_s(s) ** 2) - 1) / s if s < -1e-12 else _AT_ZERO,
        1 / 3.25 - 1, 0, 4, lambda s: (abs(s) + mp.mpf("0.001")) * mp.exp(mp.mpf("-0.6") * _from_s(s) ** 2),
    ),
    "one_plus_erf32: (2^r - 1) / r": (
        _tail(lambda r: mp.mpf(2) ** r, 1), -0.5005, 0.5005, 4, lambda r: abs(r) + 0.001,
    ),
    "exp64: (e^r - 1 - r) / r^2": (_tail(mp.exp, 2), -LN2_2, LN2_2, 9, lambda r: r**2 + mp.mpf(10) ** -6),
    "log64: (log((1+s)/(1-s)) - 2s) / s^3 by s^2": (
        _even(lambda s: (mp.log((1 + s) / (1 - s)) - 2 * s) / s**3, mp.mpf(2) / 3), 0, 0.0295, 6, lambda z: z + 1e-5,
    ),
    "erfinv64, w < 5: erfinv(x)/x by w - 2.5, w = -log(1 - x^2)": (
        lambda t: _erfinv_over_x(t + mp.mpf("2.5")), -2.5, 2.5, 9, _one,
    ),
    "erfinv64, w >= 5: erfinv(x)/x by sqrt(w) - 3": (
        lambda t: _erfinv_over_x((t + 3) ** 2), 5**0.5 - 3, 17.5**0.5 - 3, 10, lambda t: 1 / (t + 3),
    ),
    "erfinv64, w >= 16, to be refined: erfinv(x)/x by sqrt(w) - 5": (
        lambda t: _erfinv_over_x((t + 5) ** 2), -1.01, 37.0**0.5 - 5, 5, lambda t: 1 / (t + 5),
    ),
}  # fmt: skip


def _from_t(t: mp.mpf) -> mp.mpf:
    return (1 / t - 1) / mp.mpf(0.467837125)


def _from_s(s: mp.mpf) -> mp.mpf:
    return (1 / (1 + s) - 1) / mp.mpf("0.45")


def _erfinv_over_x(w: mp.mpf) -> mp.mpf:
    if w < mp.mpf(10) ** -15:
        return mp.sqrt(mp.pi) / 2
    q = mp.exp(-w)
    x = mp.sqrt(1 - q)
    one_minus = q / (1 + x)
    y = mp.sqrt(w) * mp.mpf("0.88")
    for _ in range(12):  # Newton on log(erfc), which is nearly a parabola
        y -= (mp.log(mp.erfc(y)) - mp.log(one_minus)) / (-2 / mp.sqrt(mp.pi) * mp.exp(-(y**2)) / mp.erfc(y))
    return y / x


def main() -> None:
    for name, (f, low, high, degree, scale) in FITS.items():
        coefficients, error = remez(f, low, high, degree, scale)
        print(f"{name}   error {mp.nstr(error, 3)}")
        if "64" in name:
            print("  ", ", ".join(repr(float(c)) for c in coefficients))
        else:
            rounded = [struct.unpack("f", struct.pack("f", float(c)))[0] for c in coefficients]
            print("  ", ", ".join(f"{c:.9g}" for c in rounded))


if __name__ == "__main__":
    main()
