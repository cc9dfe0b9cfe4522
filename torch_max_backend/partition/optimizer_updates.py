"""Updates in place, as optimizers make them: parts of a graph that look at each element by itself and write inputs.

MAX gives each written tensor a kernel of its own, which computes again what the others have computed, and its compile
time grows with the number of parameters. One kernel (``mojo_kernels/elementwise/optimizer_updates.mojo``) reads and
writes every tensor once, and takes tensors of any shape. What it computes is a program, a text that is written here and
explained there.
"""

from __future__ import annotations

import collections
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torch_max_backend.aten_functions.registry import aten_functions
from torch_max_backend.capture.fake_tensors import order_of, sizes_of, value_of
from torch_max_backend.capture.view_ops import ALIASES
from torch_max_backend.partition.connected_components import LARGE, connected

FEWEST_STORES = 2
"""Writes into inputs, below which MAX's own kernel does as well."""
MOST_WORDS, MOST_TENSORS = 96, 16
"""Of a program: what it computes is kept in registers."""


@dataclass(frozen=True)
class Update:
    """A program, its operands, which are inputs of the graph, and what it computes: these nodes and writes.

    ``first`` is the number of an operand that has as many elements as are updated.
    """

    program: str
    operands: tuple[fx.Node, ...]
    first: int
    nodes: tuple[fx.Node, ...]
    stores: tuple[fx.Node, ...]


def take_updates(
    nodes: list[fx.Node],
    stores: list[fx.Node],
    repeated: Callable[[Iterable[fx.Node]], list[fx.Node]],
    is_returned: Callable[[fx.Node], bool],
) -> list[list[Update]]:
    """Take the updates out of the nodes and writes of a level, by device, if they are all of it or it is large.

    Else the level stays one region, which costs less than two.

    Args:
        repeated: Gives the nodes outside ``nodes`` that are copied into every region that reads them.
        is_returned: Whether a node's value is a result of the graph.
    """
    if len(stores) < FEWEST_STORES:
        return []
    found: dict[torch.device, list[Update]] = collections.defaultdict(list)
    for part in connected(nodes, stores, repeated):
        update = update_of(*part, is_returned)
        if update is not None:
            found[_tensor(update.operands[0]).device].append(update)
    taken = {n for updates in found.values() for u in updates for n in (*u.nodes, *u.stores)}
    if len(nodes) < LARGE and not taken.issuperset(nodes):
        return []
    nodes[:], stores[:] = ([n for n in old if n not in taken] for old in (nodes, stores))
    return [sorted(updates, key=lambda u: (u.program, u.first)) for updates in found.values()]


def update_of(
    nodes: Iterable[fx.Node], stores: Iterable[fx.Node], is_returned: Callable[[fx.Node], bool]
) -> Update | None:
    """The update that a connected part of a graph is, if it is one.

    Args:
        nodes: In graph order.
        stores: The writes (``copy_``) of what they compute into inputs. They read nothing but these nodes' values.
        is_returned: Whether a node's value is a result of the graph.
    """
    try:
        return _Writer(tuple(nodes), tuple(stores), is_returned).write()
    except (_Unfit, OverflowError):  # an integer that no float64 is
        return None


class _Unfit(Exception):
    """The kernel has no word for something."""


@dataclass(frozen=True)
class _Value:
    """A word's number, and whether its value is one for all elements."""

    word: int
    is_uniform: bool


class _Writer:
    def __init__(
        self, nodes: tuple[fx.Node, ...], stores: tuple[fx.Node, ...], is_returned: Callable[[fx.Node], bool]
    ) -> None:
        self.nodes, self.stores, self.is_returned = nodes, stores, is_returned
        self.like = _largest([*nodes, *(n for node in nodes for n in node.all_input_nodes)])
        self.words: dict[str, _Value] = {}
        self.operands: dict[fx.Node, int] = {}
        self.values: dict[fx.Node, _Value] = {}

    def write(self) -> Update:
        readers = {*self.nodes, *self.stores}
        if not self.stores or any(self.is_returned(n) or not readers.issuperset(n.users) for n in self.nodes):
            raise _Unfit
        for node in self.nodes:
            self.values[node] = self._computed(node)
        position = {n: i for i, n in enumerate(self.nodes)}
        for store in sorted(self.stores, key=lambda s: position.get(s.args[1], -1)):  # however inputs are numbered
            target, source = store.args[0], self._read(store.args[1])
            is_uniform = self._is_uniform(target)
            if is_uniform and not source.is_uniform:
                raise _Unfit
            place = self._operand(target)
            self._word("w", source.word, place, is_uniform=is_uniform)
        if len(self.words) > MOST_WORDS or len(self.operands) > MOST_TENSORS:
            raise _Unfit
        first = next((k for node, k in self.operands.items() if not self._is_uniform(node)), 0)
        return Update("".join(self.words), tuple(self.operands), first, self.nodes, self.stores)

    # -- words -------------------------------------------------------------------------------------------------
    def _word(self, does: str, *numbers: int, is_uniform: bool) -> _Value:
        return self._put(f"{'u' if is_uniform else 'v'}{does}{''.join(f'{n:03}' for n in numbers):0<16}", is_uniform)

    def _constant(self, number: float) -> _Value:
        return self._put("uk" + struct.pack(">d", number).hex(), True)

    def _put(self, text: str, is_uniform: bool) -> _Value:
        return self.words.setdefault(text, _Value(len(self.words), is_uniform))

    def do(self, does: str, *values: _Value) -> _Value:
        """What a word computes."""
        return self._word(does, *(v.word for v in values), is_uniform=all(v.is_uniform for v in values))

    # -- nodes -------------------------------------------------------------------------------------------------
    def _is_uniform(self, node: fx.Node) -> bool:
        return not _tensor(node).dim()

    def _operand(self, node: fx.Node) -> int:
        if node.op != "placeholder":
            raise _Unfit
        self._refuse_shape(node)
        return self.operands.setdefault(node, len(self.operands))

    def _refuse_shape(self, node: fx.Node) -> None:
        value = _tensor(node)
        if value.dtype != torch.float32 or value.device != self.like.device:
            raise _Unfit
        if value.dim() and (sizes_of(value) != sizes_of(self.like) or order_of(value) is None):
            raise _Unfit
        if not all(s.is_number for s in sizes_of(value)):
            raise _Unfit
        if value.dim() and node.op == "placeholder" and order_of(value) != order_of(self.like):
            raise _Unfit

    def _read(self, argument: Any) -> _Value:
        """The value of an argument: a number, a node of the part, or an input."""
        if isinstance(argument, bool | int | float):
            return self._constant(float(argument))
        if not isinstance(argument, fx.Node):
            raise _Unfit
        if argument in self.values:
            return self.values[argument]
        if argument.target in ALIASES:  # a view that is in no region of its own
            self._refuse_shape(argument)
            return self._read(argument.args[0])
        place = self._operand(argument)
        return self._word("l", place, is_uniform=self._is_uniform(argument))

    def _computed(self, node: fx.Node) -> _Value:
        rule, lowering = RULES.get(str(node.target)), aten_functions.get(node.target)
        if rule is None or lowering is None or not lowering.is_own:
            raise _Unfit
        self._refuse_shape(node)
        arguments = {a.name: a for a in node.target._schema.arguments}
        given = dict(zip(arguments, node.args, strict=False)) | node.kwargs
        value = rule(self, {k: given.get(k, a.default_value) for k, a in arguments.items()})
        if value.is_uniform and not self._is_uniform(node):
            raise _Unfit
        return value

    def read(self, given: Mapping[str, Any], *names: str) -> list[_Value]:
        """The values of arguments."""
        return [self._read(given[name]) for name in names]


def _tensor(node: fx.Node) -> torch.Tensor:
    value = value_of(node)
    if not isinstance(value, torch.Tensor):
        raise _Unfit
    return value


def _largest(nodes: Iterable[fx.Node]) -> torch.Tensor:
    """The first input that has dimensions; if there is none, any value."""
    values = [(n, v) for n in nodes if isinstance(v := value_of(n), torch.Tensor)]
    if not values:
        raise _Unfit
    return next((v for n, v in values if n.op == "placeholder" and v.dim()), values[0][1])


Rule = Callable[[_Writer, Mapping[str, Any]], _Value]


def _plain(does: str, *names: str) -> Rule:
    return lambda writer, given: writer.do(does, *writer.read(given, *names))


def _same(name: str) -> Rule:
    return lambda writer, given: writer.read(given, name)[0]


def _add(writer: _Writer, given: Mapping[str, Any]) -> _Value:
    a, b = writer.read(given, "self", "other")
    return writer.do("+", a, b) if given["alpha"] == 1 else writer.do("f", b, *writer.read(given, "alpha"), a)


def _sub(writer: _Writer, given: Mapping[str, Any]) -> _Value:
    a, b = writer.read(given, "self", "other")
    return writer.do("-", a, b) if given["alpha"] == 1 else writer.do("f", b, _minus_alpha(writer, given), a)


def _rsub(writer: _Writer, given: Mapping[str, Any]) -> _Value:
    a, b = writer.read(given, "self", "other")
    return writer.do("-", b, a) if given["alpha"] == 1 else writer.do("f", a, _minus_alpha(writer, given), b)


def _minus_alpha(writer: _Writer, given: Mapping[str, Any]) -> _Value:
    alpha = given["alpha"]
    if not isinstance(alpha, int | float):
        raise _Unfit
    return writer._constant(-float(alpha))


def _lerp(writer: _Writer, given: Mapping[str, Any]) -> _Value:
    """Torch goes from the nearer end."""
    weight = given["weight"]
    if not isinstance(weight, int | float):
        raise _Unfit
    start, end = writer.read(given, "self", "end")
    way = writer.do("-", end, start)
    if abs(weight) < 0.5:
        return writer.do("f", way, writer._constant(weight), start)
    return writer.do("f", way, writer._constant(weight - 1), end)


def _addcmul(writer: _Writer, given: Mapping[str, Any]) -> _Value:
    start, a, b = writer.read(given, "self", "tensor1", "tensor2")
    return writer.do("f", _scaled(writer, given, a), b, start)


def _addcdiv(writer: _Writer, given: Mapping[str, Any]) -> _Value:
    start, a, b = writer.read(given, "self", "tensor1", "tensor2")
    return writer.do("+", start, writer.do("/", _scaled(writer, given, a), b))


def _scaled(writer: _Writer, given: Mapping[str, Any], value: _Value) -> _Value:
    return value if given["value"] == 1 else writer.do("*", value, *writer.read(given, "value"))


def _copy(writer: _Writer, given: Mapping[str, Any]) -> _Value:
    """The value of ``src``, which may be a number for all elements."""
    (value,) = writer.read(given, "src")
    if value.is_uniform and _tensor(given["self"]).dim():
        raise _Unfit
    return value


def _power(writer: _Writer, given: Mapping[str, Any]) -> _Value:
    """Powers of a number above zero, as of Adam's decay by the number of the step."""
    base, exponent = given["self"], writer.read(given, "exponent")[0]
    if not isinstance(base, int | float) or not 0 < base < math.inf or not exponent.is_uniform:
        raise _Unfit
    return writer.do("p", writer._constant(base), exponent)


def _power_by_number(writer: _Writer, given: Mapping[str, Any]) -> _Value:
    """Squares and roots."""
    (base,) = writer.read(given, "self")
    if given["exponent"] == 2:
        return writer.do("*", base, base)
    if given["exponent"] == 1:
        return base
    raise _Unfit


RULES: dict[str, Rule] = {
    "aten.add.Tensor": _add,
    "aten.sub.Tensor": _sub,
    "aten.rsub.Scalar": _rsub,
    "aten.rsub.Tensor": _rsub,
    "aten.mul.Tensor": _plain("*", "self", "other"),
    "aten.div.Tensor": _plain("/", "self", "other"),
    "aten.maximum.default": _plain("x", "self", "other"),
    "aten.minimum.default": _plain("m", "self", "other"),
    "aten.neg.default": _plain("n", "self"),
    "aten.reciprocal.default": _plain("r", "self"),
    "aten.sqrt.default": _plain("q", "self"),
    "aten.abs.default": _plain("a", "self"),
    "aten.lerp.Scalar": _lerp,
    "aten.addcmul.default": _addcmul,
    "aten.addcdiv.default": _addcdiv,
    "aten.pow.Scalar": _power,
    "aten.pow.Tensor_Scalar": _power_by_number,
    "aten.copy.default": _copy,
    "aten.clone.default": _same("self"),
    "aten.detach.default": _same("self"),
    "aten.alias.default": _same("self"),
    "prims.fma.default": _plain("f", "a", "b", "c"),
}
"""What each op is in words. Not every PyTorch has them all."""
