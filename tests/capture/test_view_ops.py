"""The sets of ops that move data: what each has, overload by overload, and what it must never have."""

from __future__ import annotations

import pytest
import torch
from torch._ops import OpOverload

from torch_max_backend.aten_functions.registry import aten_functions
from torch_max_backend.capture import view_ops
from torch_max_backend.capture.view_ops import (
    ALIASES,
    BITS,
    COPIES,
    CUTS,
    EXPANDS,
    FREE_VIEWS,
    MOVEMENT,
    PERMUTES,
    PIECES,
    RESHAPES,
    VIEWS_OF_SIZES,
)

aten = torch.ops.aten

SQUEEZES = {aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims}
PLAIN = {aten.view.default, aten._unsafe_view.default}
TURNS = {aten.permute.default, aten.transpose.int, aten.t.default}
PARTS = {aten.slice.Tensor, aten.select.int}
SPLITS = {
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
    aten.unbind.int,
}
FREE = {
    *(PLAIN | SQUEEZES | TURNS | PARTS),
    *(aten.expand.default, aten.unsqueeze.default, aten.alias.default, aten.detach.default, aten.view.dtype),
}
COPIED = {
    *(aten._to_copy.default, aten.cat.default, aten.clone.default, aten.contiguous.default, aten.copy.default),
    *(aten.lift_fresh_copy.default, aten.repeat.default, aten.reshape.default),
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("VIEWS_OF_SIZES", PLAIN),
        ("RESHAPES", PLAIN | SQUEEZES | {aten.reshape.default, aten.unsqueeze.default}),
        ("PERMUTES", TURNS),
        ("PIECES", PARTS),
        ("CUTS", PARTS | SPLITS),
        ("EXPANDS", {aten.expand.default}),
        ("ALIASES", {aten.alias.default, aten.detach.default}),
        ("BITS", {aten.view.dtype}),
        ("FREE_VIEWS", FREE),
        ("MOVEMENT", FREE | SPLITS | COPIED),
    ],
)
def test_what_is_in_a_set(name: str, expected: set[object]) -> None:
    """At the least: torch versions differ in overloads."""
    assert expected <= getattr(view_ops, name)


def test_sets_are_exact() -> None:
    assert set(VIEWS_OF_SIZES) == PLAIN, "they are run as a reshape, which takes sizes alone"
    assert set(BITS) == {aten.view.dtype}
    kinds = [RESHAPES, PERMUTES, CUTS, EXPANDS, ALIASES, BITS, COPIES]
    assert sum(map(len, kinds)) == len(MOVEMENT), "an op is of one kind"
    for kind in kinds:
        assert not any(op._schema.is_mutable for op in kind)


def test_lowered_views_are_of_a_kind() -> None:
    """Every view that has a lowering, but those that are no views in MAX."""
    views = {op for op in aten_functions.lowerings if isinstance(op, OpOverload) and op.is_view}
    gathered = {aten.diagonal.default, aten.unfold.default, aten.as_strided.default}
    of_no_graph = {aten._reshape_alias.default, aten.lift_fresh.default}
    assert views - gathered - of_no_graph <= FREE_VIEWS | CUTS
    assert not (FREE_VIEWS | CUTS) & gathered


def test_pieces_are_one_tensor() -> None:
    assert all(str(op._schema.returns[0].type) == "Tensor" for op in FREE_VIEWS)
    assert PIECES < CUTS
