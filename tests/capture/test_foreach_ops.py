"""Each ``aten._foreach_*`` op gives what it gives as one op on each tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._ops import OpOverload

from torch_max_backend.capture.foreach_ops import foreach_decompositions

pytestmark = pytest.mark.any_runner("decompositions, which come before the partition")

RULES = dict(foreach_decompositions())
SHAPES = [(2, 2), (3, 3), (1, 1)]


def argument(kind: str, name: str, generator: torch.Generator) -> Any:
    """A value for an argument of the schema, within the domain of every op."""

    def tensor(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.rand(shape, generator=generator) * 0.8 + 0.1

    values = {
        "List[Tensor]": [tensor(shape) for shape in SHAPES],
        "List[number]": [0.25, 2, 0.5],
        "Tensor": torch.tensor([0.5, 2.0, -1.0]) if name == "scalars" else torch.tensor(0.5),
        "number": 2 if name == "ord" else 0.5,
        "bool": False,
    }
    return values[kind]


@pytest.mark.parametrize("op", sorted(RULES, key=str), ids=str)
def test_foreach(op: OpOverload) -> None:
    generator = torch.Generator().manual_seed(0)
    for given in (op._schema.arguments, [a for a in op._schema.arguments if not a.has_default_value()]):
        known = [a for a in given if not str(a.type).startswith("Optional")]
        args = [argument(str(a.type), a.name, generator) for a in known if not a.kwarg_only]
        kwargs = {a.name: argument(str(a.type), a.name, generator) for a in known if a.kwarg_only}
        torch.testing.assert_close(RULES[op](*args, **kwargs), op(*args, **kwargs))


def test_every_overload_is_known() -> None:
    names = {str(op).split(".")[1] for op in RULES}
    assert {"_foreach_add", "_foreach_addcdiv", "_foreach_lerp", "_foreach_norm", "_foreach_pow"} <= names
    assert len(RULES) >= 60
