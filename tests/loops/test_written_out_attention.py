"""Attention without a fused kernel gives what torch's gives, and is two products on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.loops.test_calls_on_a_gpu import calls, half, program_of, single  # noqa: F401
from torch_max_backend.loops.interpreter import Interpreter
from torch_max_backend.loops.program import Program
from torch_max_backend.loops.written_out_attention import written_out

pytestmark = pytest.mark.any_runner("loop programs, of which nothing is run")

F = torch.nn.functional
HIDDEN = torch.ones(7, 5, dtype=torch.bool).tril().index_fill(0, torch.tensor([3]), False)
ARGUMENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "added": {"attn_mask": torch.linspace(-2, 2, 35).reshape(7, 5).double()},
    "hidden, one query whole": {"attn_mask": HIDDEN},
}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("groups", [6, 2, 1])
def test_results(groups: int, name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 6, 7, 8, generator=generator).double()
    key, value = torch.randn(2, groups, 5, 8).double(), torch.randn(2, groups, 5, 4).double()
    kwargs = {**ARGUMENTS[name], "enable_gqa": groups != 6}
    want = F.scaled_dot_product_attention(query, key, value, **kwargs)
    torch.testing.assert_close(written_out(query, key, value, **kwargs), want)


def attention(**kwargs: Any) -> Callable[..., torch.Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **kwargs)


def double(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.empty(shape, dtype=torch.float64, device="cuda")


@pytest.mark.parametrize(("make", "heads"), [(single, 2), (double, 4)], ids=["float32 with groups", "float64"])
def test_it_is_two_products(make: Any, heads: int, program_of: Callable[..., Program]) -> None:  # noqa: F811
    program = program_of(
        attention(is_causal=True, enable_gqa=heads != 4),
        make(2, 4, 16, 8),
        make(2, heads, 24, 8),
        make(2, heads, 24, 8),
    )
    assert [str(call.target) for call in calls(program)] == ["aten.bmm.default"] * 2


def test_float32_without_groups_has_a_kernel(program_of: Callable[..., Program]) -> None:  # noqa: F811
    (call,) = calls(program_of(attention(), single(2, 4, 16, 8), single(2, 4, 24, 8), single(2, 4, 24, 8)))
    assert str(call.target) == "aten.scaled_dot_product_attention.default"


@pytest.mark.parametrize(("scale", "given"), [(-0.5, 0.5), (0.0, 1.0), (0.5, 0.5), (None, None)])
def test_no_kernel_gets_a_scale_that_is_not_positive(
    scale: float | None,
    given: float | None,
    program_of: Callable[..., Program],  # noqa: F811
) -> None:
    """It would give NaN."""
    program = program_of(attention(scale=scale), *(single(2, 4, n, 8) for n in (16, 24, 24)))
    (call,) = calls(program)
    assert call.kwargs.get("scale") == given
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, n, 8, generator=generator) for n in (16, 24, 24))
    (got,) = Interpreter(program).run([q, k, v])
    torch.testing.assert_close(got, attention(scale=scale)(q, k, v))


def packed(x: torch.Tensor) -> torch.Tensor:
    """Attention within each of several parts, whose queries, keys and values were one product."""
    q, k, v = x.reshape(2, 3, 16, 3, 4, 8).permute(3, 0, 4, 1, 2, 5).unbind(0)
    return F.scaled_dot_product_attention(q, k, v).permute(0, 2, 3, 4, 1)


def test_five_dimensions_are_four(program_of: Callable[..., Program]) -> None:  # noqa: F811
    """For which torch has a fused kernel, that reads them where they are."""
    program = program_of(packed, half(2, 3, 16, 96))
    (call,) = calls(program)
    assert str(call.target) == "aten.scaled_dot_product_attention.default"
    assert [[int(n.constant) for n in ref.sizes] for ref in call.args[:3]] == [[6, 4, 16, 8]] * 3
    assert {ref.name for ref in call.args[:3]} == {"x0"}
    assert [[int(n.constant) for n in ref.strides] for ref in call.args[:3]] == [[16 * 96, 8, 96, 1]] * 3
    assert [int(ref.offset.constant) for ref in call.args[:3]] == [0, 32, 64]


def test_three_dimensions_are_four(program_of: Callable[..., Program]) -> None:  # noqa: F811
    (call,) = calls(program_of(attention(is_causal=True), half(5, 16, 8), half(5, 24, 8), half(5, 24, 8)))
    assert [[int(n.constant) for n in ref.sizes] for ref in call.args[:3]] == [
        [1, 5, 16, 8],
        [1, 5, 24, 8],
        [1, 5, 24, 8],
    ]


@pytest.mark.parametrize(
    "function", [lambda x: packed(x) + 1, lambda x: attention()(*x.reshape(3, 6, 16, 32).unbind(0)) + 1]
)
def test_what_is_called_gives_the_result(function: Any, program_of: Callable[..., Program]) -> None:  # noqa: F811
    """As interpreted on a CPU."""
    program = program_of(function, single(2, 3, 16, 96))
    x = torch.randn(2, 3, 16, 96, generator=torch.Generator().manual_seed(0))
    (got,) = Interpreter(program).run([x])
    torch.testing.assert_close(got, function(x))


@pytest.mark.parametrize("groups", [4, 2, 1])
def test_two_products_give_the_result(groups: int, program_of: Callable[..., Program]) -> None:  # noqa: F811
    function = attention(is_causal=True, enable_gqa=groups != 4)
    keys = double(2, groups, 24, 8)
    program = program_of(function, double(2, 4, 16, 8), keys, keys)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, m, 8, generator=generator).double() for n, m in ((4, 16), (groups, 24), (groups, 24)))
    (got,) = Interpreter(program).run([q, k, v])
    torch.testing.assert_close(got, function(q, k, v))
