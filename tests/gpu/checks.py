"""Holding results of a GPU against float64: what is compared, and where the tolerances come from.

A *call* is a function and its inputs. Calls are compiled together, since a compile has a large fixed cost, and then
each runs as a user would run it. The reference is the same function of the same inputs (already rounded to their
dtype) in float64. A result may differ from it by

* what the call's own bound says, element by element: see ``rounding``, ``sum_error``, ``product_error`` and
  ``bilinear_error``; or else
* ``factor`` times the largest error that eager makes, and one rounding to the dtype of the result.

Use::

    check_calls([Call("softmax", lambda x: x.softmax(-1), (randn(8, 1000, dtype=torch.bfloat16),))])

    def allowed(inputs, exact):                      # float64 inputs, float64 results -> what each may be off by
        return product_error(*inputs, torch.bfloat16)

    check_calls([Call("mm", torch.mm, (randn(5, 7), randn(7, 9)), allowed=allowed)])
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.support.cases import on_device
from tests.support.harness import STRICT
from torch_max_backend import compile_together
from torch_max_backend.options import resolve

Allowed = Callable[[list[Any], Any], Any]

TF32_UNIT = 2.0**-10
"""A tensor core takes 10 bits of a float32's fraction, and may cut the rest off instead of rounding."""


@dataclass(frozen=True)
class Call:
    """``function(*inputs)``, compiled in strict mode, must be close to the same call in float64.

    Args:
        name: What a failure is reported under.
        function: Of tensors and numbers; gives a tensor or a (nested) tuple of them. It may write into its inputs:
            they are compared as well, after the results.
        inputs: Tensors, numbers, or makers of ``tests/support/cases.py``; tensors are moved to ``device``, with
            their strides.
        allowed: From the float64 inputs and the float64 results: what each element of each result may be off by.
            Without it the largest error of eager is the measure.
        factor: How many times eager's largest error is allowed.
        reference: The function in float64, where ``function`` itself names a dtype.
        dynamic: As for ``torch.compile``.
        precision: ``torch.set_float32_matmul_precision`` for compile and call; the reference is in float64 anyway.
        options: Of the backend, beside strict mode.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    allowed: Allowed | None = None
    factor: float = 2.0
    reference: Callable[..., Any] | None = None
    dynamic: bool = False
    precision: str = "highest"
    options: tuple[tuple[str, Any], ...] = ()
    device: str = "cuda"

    def make(self) -> list[Any]:
        """Fresh inputs on the device, the same at every call."""
        generator = torch.Generator().manual_seed(0)
        drawn = [x(generator) if callable(x) else x for x in self.inputs]
        return [on_device(x, self.device) if isinstance(x, torch.Tensor) else x for x in drawn]

    def compiled(self) -> Callable[..., Any]:
        """A fresh compiled form of the function."""
        torch._dynamo.reset()
        torch.set_float32_matmul_precision(self.precision)
        options = {**STRICT, **dict(self.options)}
        return torch.compile(
            self.function, backend="max_backend", fullgraph=True, dynamic=self.dynamic, options=options
        )


# -- running -------------------------------------------------------------------------------------------------------
def check_calls(calls: Sequence[Call], graphs_per_module: int = 24) -> None:
    """Compile all calls together, run each twice, and report all that are wrong in one error."""
    failures = prepare(calls, graphs_per_module)
    for call in calls:
        if call.name not in failures:
            try:
                check(call)
            except Exception as error:
                text = str(error) if isinstance(error, AssertionError) else traceback.format_exc(limit=-3)
                failures[call.name] = text.strip()[-1500:]
        torch.cuda.empty_cache()
    report = "\n\n".join(f"{name}: {text}" for name, text in failures.items())
    assert not failures, f"{len(failures)} of {len(calls)} calls are wrong\n\n{report}"


def prepare(calls: Sequence[Call], graphs_per_module: int = 24) -> dict[str, str]:
    """Compile all calls together; gives the error texts of those that could not be lowered, by name."""
    failures: dict[str, str] = {}
    assert len({c.name for c in calls}) == len(calls), "two calls of one name"
    with compile_together(resolve(STRICT), graphs_per_module), torch.no_grad():
        for call in calls:
            try:
                call.compiled()(*call.make())
            except Exception:
                failures[call.name] = "not lowered: " + traceback.format_exc(limit=-2).strip()[-1500:]
    return failures


@torch.no_grad()
def check(call: Call) -> None:
    """Run one call twice, each time compared with float64."""
    function = call.compiled()
    wide_inputs = [in_float64(x) for x in call.make()]
    exact = (call.reference or call.function)(*wide_inputs)
    wide = pytree.tree_leaves((exact, wide_inputs))
    if call.allowed is None:
        bounds = _errors_of_eager(call, wide)
    else:
        bounds = pytree.tree_leaves(call.allowed([in_float64(x) for x in call.make()], exact))
        bounds += [0.0] * (len(wide) - len(bounds))  # inputs, which keep their values
    for which in ("first call", "second call"):
        inputs = call.make()
        given = pytree.tree_leaves((function(*inputs), inputs))
        assert len(given) == len(wide), f"{which}: {len(given)} values, the reference has {len(wide)}"
        for i, (value, wanted, bound) in enumerate(zip(given, wide, bounds, strict=True)):
            if isinstance(wanted, torch.Tensor):
                assert_within(value, wanted, bound, f"{which}, value {i}")


def _errors_of_eager(call: Call, wide: list[Any]) -> list[Any]:
    inputs = call.make()
    torch.set_float32_matmul_precision(call.precision)
    eager = pytree.tree_leaves((call.function(*inputs), inputs))
    bounds: list[Any] = []
    for value, exact in zip(eager, wide, strict=True):
        if isinstance(exact, torch.Tensor) and exact.dtype.is_floating_point:
            error = (value.to(torch.float64) - exact).abs()
            error = error[error.isfinite()]
            largest = error.max().item() if error.numel() else 0.0
            bounds.append(call.factor * largest + rounding(exact, value.dtype))
        else:
            bounds.append(0.0)
    return bounds


def in_float64(value: Any) -> Any:
    """A floating-point tensor in float64, anything else as it is."""
    if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
        return value.to(torch.float64)
    return value


def assert_within(given: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor | float, what: str = "") -> None:
    """Assert ``|given - exact| <= bound``, element by element; NaN and infinities stand where they should.

    A value beyond the largest of its dtype may be infinite.
    """
    assert given.shape == exact.shape, f"{what}: shape {tuple(given.shape)}, expected {tuple(exact.shape)}"
    if not given.dtype.is_floating_point:
        assert torch.equal(given, exact.to(given.dtype)), f"{what}: other values"
        return
    value = given.to(torch.float64)
    error = (value - exact).abs()
    same = (value == exact) | (value.isnan() & exact.isnan())
    overflow = value.isinf() & (value.sign() == exact.sign()) & (exact.abs() >= torch.finfo(given.dtype).max)
    wrong = ~(same | overflow | (error <= bound))
    count = int(wrong.sum())
    if count:
        limit = torch.as_tensor(bound, dtype=torch.float64, device=error.device).expand_as(error)
        excess = torch.where(wrong, error.nan_to_num(float("inf")) / limit.clamp_min(1e-300), 0.0)
        worst = int(excess.argmax())
        place = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), error.shape))
        raise AssertionError(
            f"{what}: {count} of {error.numel()} elements are wrong; the worst, at {place}, is "
            f"{value.flatten()[worst].item():.9g}, exact {exact.flatten()[worst].item():.9g}, "
            f"allowed to be off by {limit.reshape(-1)[worst].item():.3g}"
        )


# -- bounds --------------------------------------------------------------------------------------------------------
def unit(dtype: torch.dtype) -> float:
    """The largest relative error of rounding to ``dtype``."""
    return torch.finfo(dtype).eps / 2


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """What sums of ``dtype`` are kept in: float32 for 16-bit floats."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def rounding(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What one rounding to ``dtype`` may change; results below the normal range may be flushed to zero."""
    return exact.abs() * unit(dtype) * 1.001 + torch.finfo(dtype).tiny


def sum_error(magnitude: torch.Tensor, terms: int, dtype: torch.dtype, factor: float = 4.0) -> torch.Tensor:
    """What a sum kept in ``dtype`` may be off by: no partial sum exceeds ``magnitude``, the sum of the absolute terms.

    Each of the ``terms`` additions is off by a rounding of a partial sum, and the roundings are independent: they add
    up like a random walk, to the square root of their number. ``factor`` covers the tail of many elements.
    """
    return magnitude * (factor * max(terms, 1) ** 0.5 * unit(dtype))


def product_error(
    a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, tf32: bool = False, into: torch.dtype | None = None
) -> torch.Tensor:
    """What ``a @ b`` may be off by, for operands of ``dtype`` given in float64; 16-bit floats are summed in float32.

    With ``tf32`` each operand has lost up to ``TF32_UNIT`` of itself. If it was cut, all terms have shrunk alike, which
    is a part of the result; what varies from term to term adds up like a random walk, of which 8 steps are allowed.
    """
    exact, magnitude = a @ b, a.abs() @ b.abs()
    allowed = sum_error(magnitude, a.shape[-1], accumulator(dtype)) + rounding(exact, into or dtype)
    if tf32:
        allowed += TF32_UNIT * (2 * exact.abs() + 8 * ((a * a) @ (b * b)).sqrt())
    return allowed


def bilinear_error(
    function: Callable[..., Any], inputs: list[Any], dtype: torch.dtype, tf32: bool = False
) -> list[torch.Tensor]:
    """What each result of a sum of products, as a convolution is, may be off by; ``inputs`` are in float64.

    As :func:`product_error`; the function itself says how large terms are, and how many. A reference in float64 is no
    better than the result, and may be off as much.
    """

    def of(change: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        return pytree.tree_leaves(function(*(change(x) for x in inputs)))

    bounds = []
    for exact, magnitude, terms, squares in zip(
        of(torch.clone), of(torch.abs), of(torch.ones_like), of(torch.square), strict=True
    ):
        allowed = magnitude * (4 * terms.clamp_min(1).sqrt() * unit(accumulator(dtype))) + rounding(exact, dtype)
        if tf32:
            allowed += TF32_UNIT * (2 * exact.abs() + 8 * squares.sqrt())
        bounds.append(2 * allowed if dtype == torch.float64 else allowed)
    return bounds
