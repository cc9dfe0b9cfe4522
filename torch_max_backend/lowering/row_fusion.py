"""Chains of nodes that one kernel of rows computes on a GPU: norms, and likelihoods without log-probabilities.

MAX would compute an RMS norm that is written out in a model, or a log-softmax of which one class a row is read, with
kernels that read and write every row several times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torch_max_backend.aten_functions.support.dtypes import max_dtype
from torch_max_backend.aten_functions.support.row_kernels import keeps_gradient
from torch_max_backend.capture.cross_entropy import GRADIENT, LOG_PROBABILITIES, Step, read, readers_of
from torch_max_backend.capture.fake_tensors import sizes_of, tensor_of, value_of
from torch_max_backend.capture.fx_nodes import is_getitem
from torch_max_backend.capture.view_ops import PERMUTES, RESHAPES, VIEWS_OF_SIZES
from torch_max_backend.lowering.convolution_epilogues import OnGpu, is_own
from torch_max_backend.partition.region import Region

aten = torch.ops.aten
FLOATS = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class NormChain:
    """``x * rsqrt(mean(x * x) + eps) * weight`` written out, along the last dimension.

    ``inside`` are its nodes but the last, which gives the result. ``is_rounded`` tells that the normalized rows are
    rounded to the dtype of ``source`` before the weight is applied.
    """

    inside: tuple[fx.Node, ...]
    last: fx.Node
    source: fx.Node
    weight: fx.Node | None
    eps: float
    is_rounded: bool


@dataclass(frozen=True)
class AddedNorm:
    """A norm of a sum: one kernel gives both, where the sum is."""

    add: fx.Node
    norm: fx.Node
    """``native_layer_norm`` or ``_fused_rms_norm``, or the last node of ``chain``."""
    chain: NormChain | None = None


@dataclass(frozen=True)
class NormGradient:
    """The gradient of a layer norm, what it is added to, and conversions of that sum to one shorter dtype.

    One kernel computes all. Without ``add`` the conversions are of the gradient itself.
    """

    norm: fx.Node
    add: fx.Node | None
    addend: fx.Node | None
    copies: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Likelihood:
    """``nll_loss_forward(log_softmax(x))`` of a matrix, nothing else reading the log-probabilities.

    ``source`` has the elements of the matrix, perhaps in another shape and in a shorter dtype. ``largest`` and
    ``logarithm`` are the nodes that compute a row's maximum, and the logarithm of the sum of the exponentials of what
    is less it, where the graph has them. On a GPU a kernel computes all, without ``inside``.
    """

    inside: tuple[fx.Node, ...]
    last: fx.Node
    source: fx.Node
    largest: fx.Node | None
    logarithm: fx.Node | None
    has_kernel: bool


@dataclass(frozen=True)
class LikelihoodGradient:
    """The gradient of the logits that a likelihood is computed from, as `capture/cross_entropy.py` spells it.

    It is that of the log-probabilities, ``first``, less ``exp(x + opposite - logarithm)`` times its sum in a row.
    ``opposite`` is a row's maximum with the opposite sign; ``source`` has the elements of ``x``, perhaps in another
    shape and in a shorter dtype. What follows may see the result in another shape and convert it, up to ``last``.
    ``pads`` tells that only products read that.
    """

    inside: tuple[fx.Node, ...]
    last: fx.Node
    first: fx.Node
    source: fx.Node
    opposite: fx.Node
    logarithm: fx.Node
    has_kernel: bool
    pads: bool


class _Reader:
    """A region with what is read outside of it."""

    def __init__(self, region: Region, on_gpu: OnGpu) -> None:
        self.region, self.on_gpu = region, on_gpu
        self.order = {node: i for i, node in enumerate(region.nodes)}
        self.outside = {p.node for p in region.outputs} | {source for _, source in region.stores}

    def only_user(self, node: fx.Node) -> fx.Node | None:
        """The one node of the region that reads ``node``, if there is no other reader."""
        if node in self.outside or len(node.users) != 1:
            return None
        (user,) = node.users
        return user if user in self.order and is_own(user) else None

    def serves(self, node: fx.Node) -> bool:
        """Whether the kernels take the rows of this tensor."""
        value = value_of(node)
        return (
            isinstance(value, torch.Tensor)
            and self.on_gpu(value.device)
            and value.dtype in FLOATS
            and value.dim() > 0
            and isinstance(value.shape[-1], int)
            and value.shape[-1] > 0
        )


# -- norms -----------------------------------------------------------------------------------------------------------
def norm_chains(region: Region, on_gpu: OnGpu) -> list[NormChain]:
    """All RMS norms that are written out."""
    reader = _Reader(region, on_gpu)
    found = (_norm_chain(reader, node) for node in region.nodes if node.target is aten.rsqrt.default)
    return [chain for chain in found if chain is not None]


def _norm_chain(reader: _Reader, rsqrt: fx.Node) -> NormChain | None:
    """The chain around ``rsqrt``, read backwards to its source and forwards to its result."""
    plus = rsqrt.args[0]
    if not _is(reader, plus, aten.add.Tensor, aten.add.Scalar) or plus.kwargs or not isinstance(plus.args[1], float):
        return None
    mean = plus.args[0]
    if not _is(reader, mean, aten.mean.dim) or mean.kwargs or len(mean.args) != 3 or mean.args[2] is not True:
        return None
    square = mean.args[0]
    if not _is(reader, square, aten.pow.Tensor_Scalar, aten.mul.Tensor):
        return None
    wide = square.args[0]
    rank = tensor_of(square).dim()
    is_square = square.args[1] in (2, 2.0) if square.target is aten.pow.Tensor_Scalar else square.args[1] is wide
    if not is_square or [d % rank for d in mean.args[1]] != [rank - 1] or not reader.serves(wide):
        return None
    normal = reader.only_user(rsqrt)
    if tensor_of(wide).dtype != torch.float32 or normal is None or not _multiplies(normal, wide, rsqrt):
        return None
    source = _narrow(wide)
    inside = [square, mean, plus, rsqrt]
    if source is not wide and wide in reader.order and set(wide.users) == {square, normal}:
        inside += [] if wide in reader.outside else [wide]
    return _scaled(reader, NormChain(tuple(inside), normal, source, None, plus.args[1], is_rounded=False))


def _is(reader: _Reader, node: Any, *targets: Any) -> bool:
    """Whether the node is one of these ops, in the region and read once."""
    return isinstance(node, fx.Node) and node.target in targets and reader.only_user(node) is not None


def _multiplies(node: fx.Node, a: fx.Node, b: fx.Node) -> bool:
    return node.target is aten.mul.Tensor and set(node.args) == {a, b}


def _narrow(node: fx.Node) -> fx.Node:
    """What ``node`` was converted to float32 from, if it was a 16-bit float."""
    if node.target is not aten._to_copy.default or set(node.kwargs) - {"dtype", "layout", "device"}:
        return node
    source = node.args[0]
    value, wide = tensor_of(source), tensor_of(node)
    is_same = wide.dtype == torch.float32 and value.device == wide.device
    return source if is_same and value.dtype in (torch.bfloat16, torch.float16) else node


def _scaled(reader: _Reader, chain: NormChain) -> NormChain | None:
    """The chain with the weight and the conversion back, in either order; it must end in the dtype of its source."""
    dtype = tensor_of(chain.source).dtype
    rounded = tensor_of(chain.last).dtype == dtype
    while True:
        user = reader.only_user(chain.last)
        if user is None:
            break
        grown = (*chain.inside, chain.last)
        is_back = user.target is aten._to_copy.default and user.kwargs.get("dtype") == dtype
        if is_back and not rounded and tensor_of(user).device == tensor_of(chain.last).device:
            rounded = True
            chain = NormChain(grown, user, chain.source, chain.weight, chain.eps, chain.is_rounded)
            continue
        weight = _weight(user, chain) if chain.weight is None else None
        if weight is None or (rounded and tensor_of(user).dtype != dtype):
            break
        is_rounded = rounded and dtype != torch.float32
        chain = NormChain(grown, user, chain.source, weight, chain.eps, is_rounded)
    return chain if rounded and tensor_of(chain.last).dtype == dtype else None


def _weight(node: fx.Node, chain: NormChain) -> fx.Node | None:
    """What the normalized rows are multiplied by, if that is one number a column."""
    if node.target is not aten.mul.Tensor or node.kwargs or set(map(type, node.args)) != {fx.Node}:
        return None
    other = next((a for a in node.args if a is not chain.last), None)
    value, product = None if other is None else value_of(other), tensor_of(node)
    if not isinstance(value, torch.Tensor) or value.dtype not in FLOATS or value.device != product.device:
        return None
    return other if sizes_of(value) == sizes_of(product)[-1:] else None


def added_norms(region: Region, chains: list[NormChain], on_gpu: OnGpu, products_add: bool) -> list[AddedNorm]:
    """Norms of a sum of two tensors of one shape, all but sums that are computed with what is added.

    MAX adds to the result of an elementwise op as it computes it, and to a product as it writes it, if it is MAX that
    multiplies (``products_add``).
    """
    reader = _Reader(region, on_gpu)
    found: dict[fx.Node, AddedNorm] = {}
    norms: list[tuple[fx.Node, fx.Node, list[Any], NormChain | None]] = [
        (c.source, c.last, [c.weight], c) for c in chains
    ]
    for node in region.nodes:
        is_norm = node.target in (aten.native_layer_norm.default, aten._fused_rms_norm.default) and is_own(node)
        if is_norm and len(node.args[1]) == 1:
            norms.append((node.args[0], node, list(node.args[2:-1]), None))
    for source, norm, others, chain in norms:
        ready = all(
            n not in reader.order or reader.order[n] < reader.order.get(source, -1) for n in others if n is not None
        )
        if source not in found and ready and _is_sum(reader, source, products_add):
            found[source] = AddedNorm(source, norm, chain)
    return list(found.values())


def _is_sum(reader: _Reader, node: fx.Node, products_add: bool) -> bool:
    if node not in reader.order or node.target is not aten.add.Tensor or node.kwargs or not reader.serves(node):
        return False
    mine = tensor_of(node)
    dtypes = FLOATS if mine.dtype == torch.float32 else (mine.dtype,)
    for operand in node.args:
        value = value_of(operand) if isinstance(operand, fx.Node) else None
        if not isinstance(value, torch.Tensor) or value.dtype not in dtypes or value.device != mine.device:
            return False
        if sizes_of(value) != sizes_of(mine) or (products_add and _is_product(operand)):
            return False
        if torch.Tag.pointwise in getattr(operand.target, "tags", ()) and reader.only_user(operand) is node:
            return False
    return is_own(node)


def rounded_norms(region: Region, on_gpu: OnGpu) -> dict[fx.Node, torch.dtype]:
    """Layer norms in float32 whose rows are only read in one shorter dtype, which the kernel can give."""
    reader = _Reader(region, on_gpu)
    found = {}
    for node in region.nodes:
        is_norm = node.target is aten.native_layer_norm.default and is_own(node) and len(node.args[1]) == 1
        picks = [n for n in node.users if is_norm and is_getitem(n) and n.args[1] == 0]
        if picks and reader.serves(node.args[0]) and tensor_of(node.args[0]).dtype == torch.float32:
            dtypes = {dtype for pick in picks for dtype in _read_as(reader, pick)}
            if len(dtypes) == 1 and torch.float32 not in dtypes:
                found[node] = dtypes.pop()
    return found


def _read_as(reader: _Reader, node: fx.Node) -> set[torch.dtype]:
    """The dtypes in which ``node`` is read, directly and through views: its own, where it is not converted."""
    if node in reader.outside:
        return {tensor_of(node).dtype}
    found: set[torch.dtype] = set()
    for user in node.users:
        if user in reader.order and is_own(user) and user.target in VIEWS_OF_SIZES:
            found |= _read_as(reader, user)
        else:
            is_short = user in reader.order and is_own(user) and _narrow_to(user)
            found.add(tensor_of(user if is_short else node).dtype)
    return found


def norm_gradients(region: Region, on_gpu: OnGpu) -> list[NormGradient]:
    """Gradients of layer norms that are added to something, or converted, as they are."""
    reader = _Reader(region, on_gpu)
    found = []
    for node in region.nodes:
        if node.target is not aten.native_layer_norm_backward.default or not is_own(node) or not node.args[-1][0]:
            continue
        picks = [n for n in node.users if is_getitem(n) and n.args[1] == 0]
        if len(picks) != 1 or not reader.serves(node.args[1]) or not _is_kept(node):
            continue
        add, addend = _added(reader, node, picks[0])
        total = picks[0] if add is None else add
        copies = [n for n in total.users if n in reader.order and is_own(n) and _narrow_to(n)]
        copies = [n for n in copies if tensor_of(n).dtype == tensor_of(copies[0]).dtype != tensor_of(total).dtype]
        if add is not None or copies:
            found.append(NormGradient(node, add, addend, tuple(copies)))
    return found


def _is_kept(node: fx.Node) -> bool:
    """Whether the kernel takes what the gradient of a norm is of."""
    sizes = tensor_of(node.args[1]).shape
    columns = math.prod(s if isinstance(s, int) else 0 for s in sizes[len(sizes) - len(node.args[2]) :])
    rows = math.prod(s if isinstance(s, int) else 0 for s in sizes[: len(sizes) - len(node.args[2])])
    dtypes = [tensor_of(n).dtype for n in (_narrow(node.args[1]), node.args[1])]
    return all(keeps_gradient(rows, columns, max_dtype(dtype)) for dtype in dtypes)


def _added(reader: _Reader, norm: fx.Node, pick: fx.Node) -> tuple[fx.Node | None, fx.Node | None]:
    """The sum of the gradient and what is there already, and that."""
    add = reader.only_user(pick)
    if add is None or add.target is not aten.add.Tensor or add.kwargs:
        return None, None
    addend = next((a for a in add.args if a is not pick), None)
    value, mine = None if not isinstance(addend, fx.Node) else value_of(addend), tensor_of(pick)
    if not isinstance(value, torch.Tensor) or (value.dtype, value.device) != (mine.dtype, mine.device):
        return None, None
    is_ready = reader.order.get(addend, -1) < reader.order[norm]
    return (add, addend) if is_ready and sizes_of(value) == sizes_of(mine) else (None, None)


def _is_product(node: fx.Node) -> bool:
    while node.target in RESHAPES:
        node = node.args[0]
    return node.target in (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)


# -- likelihoods -----------------------------------------------------------------------------------------------------
def likelihoods(region: Region, on_gpu: OnGpu) -> list[Likelihood]:
    """All losses whose log-probabilities nobody else reads: on a CPU those where a row's two numbers are known."""
    reader = _Reader(region, on_gpu)
    found = []
    for loss in region.nodes:
        node = loss.args[0] if loss.target is aten.nll_loss_forward.default and is_own(loss) else None
        if node is None or node not in reader.order or reader.only_user(node) is not loss or not is_own(node):
            continue
        written = _written_out(reader, node, loss)
        if written is not None:
            x, largest, *between, logarithm = written
        elif node.target is aten._log_softmax.default and tensor_of(node).dim() == 2 and node.args[1] % 2 == 1:
            x, largest, between, logarithm = node.args[0], None, [], None
        else:
            continue
        if reader.serves(x):
            before, source = _made_of(reader, x, {node, largest, *between[:1]})
            found.append(Likelihood((node, *between, *before), loss, source, largest, logarithm, has_kernel=True))
        elif logarithm is not None:
            found.append(Likelihood((node,), loss, x, largest, logarithm, has_kernel=False))
    return found


def _written_out(reader: _Reader, node: fx.Node, loss: fx.Node) -> tuple[fx.Node, ...] | None:
    """``x``, and the nodes that a log-softmax of its rows is made of, if ``node`` is one that is written out.

    They go from the maximum to the logarithm of the sum of the exponentials, and come behind the loss's arguments.
    """
    found = read(node, LOG_PROBABILITIES)
    if not found or not _is_read_inside(reader, ("distance", "exponentials", "total"), LOG_PROBABILITIES, found):
        return None
    chain = [found[step.name] for step in LOG_PROBABILITIES[:-1]]
    ready = max((reader.order.get(n, -1) for n in loss.all_input_nodes[1:]), default=-1)
    return (found["x"], *chain) if all(is_own(n) and reader.order.get(n, -1) > ready for n in chain) else None


def _is_read_inside(reader: _Reader, names: Sequence[str], steps: tuple[Step, ...], found: dict[str, fx.Node]) -> bool:
    """Whether nothing but the steps reads the nodes of these names."""
    return all(
        found[name] not in reader.outside and set(found[name].users) == readers_of(name, steps, found) for name in names
    )


def likelihood_gradients(region: Region, on_gpu: OnGpu) -> list[LikelihoodGradient]:
    """All gradients of likelihoods whose parts nobody else reads."""
    reader = _Reader(region, on_gpu)
    found = (_likelihood_gradient(reader, n) for n in region.nodes if n.target is aten.nll_loss_backward.default)
    return [gradient for gradient in found if gradient is not None]


def _likelihood_gradient(reader: _Reader, first: fx.Node) -> LikelihoodGradient | None:
    rest = next((n for n in first.users if n.target is aten.sub.Tensor), first)
    found = read(rest, GRADIENT)
    if not found or found["first"] is not first or first.args[3] is not None:
        return None
    inside = ["first", *(step.name for step in GRADIENT[:-1])]
    if not _is_read_inside(reader, inside, GRADIENT, found):
        return None
    chain = tuple(found[name] for name in inside)
    x, opposite, logarithm = (found[name] for name in ("x", "opposite", "logarithm"))
    rows = sizes_of(tensor_of(x))[0]
    is_a_row = all(sizes_of(tensor_of(n)) == (rows, 1) for n in (opposite, logarithm))
    if not is_a_row or not all(n in reader.order and is_own(n) for n in (*chain, rest)):
        return None
    if not reader.serves(x):
        return LikelihoodGradient(chain, rest, first, x, opposite, logarithm, has_kernel=False, pads=False)
    before, source = _made_of(reader, x, {found["distance"]})
    after = _converted(reader, rest)
    pads = after[-1] not in reader.outside and all(_is_multiplied(n) for n in after[-1].users)
    return LikelihoodGradient(
        (*chain, *before, *after[:-1]), after[-1], first, source, opposite, logarithm, has_kernel=True, pads=pads
    )


def _converted(reader: _Reader, node: fx.Node) -> list[fx.Node]:
    """``node`` and what sees it in another shape, and converts it to a shorter dtype, while nobody else reads it."""
    chain = [node]
    while (user := reader.only_user(chain[-1])) is not None:
        is_short = tensor_of(chain[-1]).dtype == torch.float32 and _narrow_to(user)
        if user.target not in VIEWS_OF_SIZES and not is_short:
            break
        chain.append(user)
    return chain


def _narrow_to(node: fx.Node) -> bool:
    """Whether the node does nothing but round to a 16-bit float."""
    if node.target is not aten._to_copy.default or set(node.kwargs) - {"dtype", "layout", "device"}:
        return False
    value, source = tensor_of(node), tensor_of(node.args[0])
    return value.dtype in (torch.bfloat16, torch.float16) and value.device == source.device


def _is_multiplied(node: fx.Node) -> bool:
    """Whether the node is a product, or a transpose that only products read."""
    if node.target in PERMUTES:
        return all(_is_multiplied(n) for n in node.users)
    return _is_product(node)


def _made_of(reader: _Reader, x: fx.Node, readers: set[fx.Node | None]) -> tuple[list[fx.Node], fx.Node]:
    """The nodes that make ``x`` of a shorter dtype or another shape, for nobody but ``readers``, and of what."""
    inside, source = [], x
    while source in reader.order and source not in reader.outside and set(source.users) <= readers and is_own(source):
        before = _narrow(source)
        if source.target in VIEWS_OF_SIZES:
            before = source.args[0]
        if before is source:
            break
        inside.append(source)
        source, readers = before, {source}
    return inside, source
