"""Whether somebody else has a tensor's memory: what a backward gets of its forward, among others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from torch_max_backend.runtime.sole_owner import of_one_variable, references

pytestmark = pytest.mark.any_runner("no op runs")


def is_sole(make: Callable[[], tuple[torch.Tensor, Any]]) -> bool:
    x, other = make()
    return references(x) == of_one_variable() and other is not x


def seen_as(view: Callable[[torch.Tensor], Any]) -> Callable[[], tuple[torch.Tensor, Any]]:
    def make() -> tuple[torch.Tensor, Any]:
        x = torch.randn(4)
        return x, view(x)

    return make


def test_a_tensor_of_one_variable() -> None:
    assert is_sole(seen_as(lambda x: None))


@pytest.mark.parametrize("view", [lambda x: [x], lambda x: x[1:], lambda x: x.detach(), lambda x: x.untyped_storage()])
def test_somebody_else_has_it(view: Callable[[torch.Tensor], Any]) -> None:
    assert not is_sole(seen_as(view))


def test_counts_are_of_the_moment() -> None:
    """Dynamo, which compiles here, has every call of Python hold its arguments once more."""
    found: list[bool] = []

    def compiler(gm: Any, _: Any) -> Any:
        found.append(is_sole(seen_as(lambda x: None)))
        return gm

    torch._dynamo.reset()
    torch.compile(lambda x: x + 1, backend=compiler)(torch.ones(2))
    found.append(is_sole(seen_as(lambda x: None)))
    found.append(is_sole(seen_as(lambda x: [x])))
    assert found == [True, True, False]


def test_autograd_has_it() -> None:
    def make() -> tuple[torch.Tensor, Any]:
        x = torch.randn(4, requires_grad=True).exp()  # whose gradient reads it
        return x, x.grad_fn

    assert not is_sole(make)


@pytest.mark.parametrize("retained", [False, True])
def test_what_is_saved_is_the_backwards_unless_the_graph_is_retained(retained: bool) -> None:
    found: list[bool] = []

    def backward(gm: Any, _: Any) -> Any:
        def call(args: list[Any]) -> Any:
            results = gm(*args)
            saved = args[0]
            args.clear()
            found.append(references(saved) == of_one_variable())
            return results

        call._boxed_call = True
        return call

    backend = aot_autograd(fw_compiler=lambda gm, _: gm, bw_compiler=backward)
    torch._dynamo.reset()
    with torch._functorch.config.patch(donated_buffer=False):
        y = torch.compile(lambda x: x.sin().exp(), backend=backend)(torch.randn(4, requires_grad=True) * 2)
        y.sum().backward(retain_graph=retained)
    assert found == [not retained]
