"""An op's kernel in eager: a compiled program of its reference, found by the arguments' shapes and strides.

On a CPU a program has symbolic sizes and strides. Two calls share one where dtypes, the order in memory and what is 1,
short or long agree, so a new batch size compiles nothing. On a GPU, where kernels for known sizes are up to several
times as fast, sizes are numbers until they are seen to vary. Leading dimensions that lie one after the other in memory
in every argument are one dimension for a program.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch

from torch_max_backend.compile.pending import is_deferring
from torch_max_backend.ops.arguments import BATCH, Size, Sizes
from torch_max_backend.ops.declaration import Declaration
from torch_max_backend.ops.kept_programs import OpProgram, kept_program, parts_of
from torch_max_backend.options import resolve

SHORT = 32
"""Sizes below this count as short: a program for them may put them in one vector, or give none to a thread."""
STRIDE = "stride "
"""What names of strides begin with that do not follow from sizes."""
SEEN_MOST = 8
"""Sets of sizes on a GPU that have programs of their own, whatever differs between them."""
MOST_KEPT = 4096
"""Shapes that an op remembers what to do for."""

Call = Callable[..., Any]


@dataclass(frozen=True)
class Layout:
    """A tensor argument of a program: its sizes as multiples of names, and how its strides follow from them.

    ``order`` are the dimensions from the innermost outwards, those of size 1 left out. A stride is a number, which is 0
    or 1 in a layout for any sizes, or ``None`` for any other; where ``follows``, it is the extent of the dimension
    before it in that order.
    """

    dtype: torch.dtype
    device: torch.device
    sizes: tuple[tuple[int, str], ...]
    order: tuple[int, ...]
    strides: tuple[int | None, ...]
    follows: tuple[bool, ...]


@dataclass(frozen=True)
class Signature:
    """What decides which program a call needs: layouts of the tensors, and the other arguments in their places."""

    layouts: tuple[Layout | None, ...]
    others: tuple[Any, ...]


def layout_of(
    x: torch.Tensor, shape: Sequence[int], strides: Sequence[int], names: Sequence[Size], values: dict[str, int]
) -> Layout:
    """The layout of a tensor that is seen with some shape and strides; what its names stand for goes to ``values``."""
    sizes: list[tuple[int, str]] = []
    for named, size in zip(names, shape, strict=True):
        value = size // named.times
        if value == 1 or not named.name:
            sizes.append((size, ""))
            continue
        key = f"{named.name} short" if value < SHORT else named.name
        sizes.append((named.times, key))
        values[key] = value
    order = sorted((d for d, n in enumerate(shape) if n != 1), key=lambda d: strides[d])
    codes: list[int | None] = [1] * len(shape)
    follows = [False] * len(shape)
    extent = 1
    for d in order:
        if strides[d] == extent and extent > 1:
            codes[d], follows[d] = None, True
        else:
            codes[d] = strides[d] if strides[d] in (0, 1) else None
        extent = strides[d] * shape[d] or 1
        if codes[d] is None and not follows[d]:
            values[f"{STRIDE}{len(values)}"] = strides[d]
    return Layout(x.dtype, x.device, tuple(sizes), tuple(order), tuple(codes), tuple(follows))


def with_fixed(signature: Signature, values: dict[str, int], varying: Set[str]) -> tuple[Signature, dict[str, int]]:
    """A signature in which all sizes and strides but those that vary are numbers, and what its names stand for."""
    free = iter([name for name in values if name.startswith(STRIDE)])

    def fixed(layout: Layout) -> Layout:
        strides = list(layout.strides)
        for d in layout.order:
            if strides[d] is None and not layout.follows[d] and (name := next(free)) not in varying:
                strides[d] = values[name]
        sizes = [(n, key) if key in varying else (n * values.get(key, 1), "") for n, key in layout.sizes]
        return replace(layout, sizes=tuple(sizes), strides=tuple(strides))

    layouts = tuple(None if layout is None else fixed(layout) for layout in signature.layouts)
    return Signature(layouts, signature.others), {name: n for name, n in values.items() if name in varying}


class SeenSizes:
    """Which sizes of one signature vary from call to call.

    A size does if two calls differ in it alone, as in their batch, unless memory runs along it: rows of other lengths
    are other layers, whose kernels should know them. After ``SEEN_MOST`` different calls all do that ever differed.
    """

    def __init__(self, signature: Signature) -> None:
        layouts = [layout for layout in signature.layouts if layout is not None]
        self.lengths = {layout.sizes[layout.order[0]][1] for layout in layouts if layout.order}
        self.calls: list[dict[str, int]] = []
        self.varying: set[str] = set()

    def note(self, values: dict[str, int]) -> None:
        """Note the sizes of a call."""
        if values in self.calls:
            return
        for other in self.calls:
            differ = {name for name, n in values.items() if other[name] != n}
            if len(self.calls) >= SEEN_MOST or (len(differ) == 1 and not differ & self.lengths):
                self.varying |= differ
        if len(self.calls) < SEEN_MOST:
            self.calls.append(values)


class EagerCall:
    """The kernel of one op."""

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.calls: dict[Any, Call] = {}
        self.programs: dict[Signature, list[OpProgram]] = {}
        self.seen: dict[Signature, SeenSizes] = {}
        self.lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        key = tuple(
            [
                (x.shape, x.stride(), x.dtype, x.device)
                if isinstance(x, torch.Tensor)
                else tuple(x)
                if isinstance(x, list)
                else x
                for x in args
            ]
        )
        call = self.calls.get(key)
        if call is None:
            call = self._prepared(args)
            if len(self.calls) >= MOST_KEPT:
                self.calls.clear()
            if not is_deferring():
                self.calls[key] = call
        return call(*args)

    def _prepared(self, args: tuple[Any, ...]) -> Call:
        """What to do for arguments of these shapes.

        Raises:
            ArgumentError: The op does not take them.
        """
        d = self.declaration
        args = d.filled(args)
        sizes = d.check(args)
        if d.kernel is not None:
            return d.kernel
        if any(t.numel() == 0 for t in d.given(args).values()):
            return _by_torch(d)
        shapes = d.result_shapes(sizes, args)
        groups = _merged(d, args, sizes)
        merges = any(len(g) > 1 for g in groups)
        values: dict[str, int] = {}
        layouts: list[Layout | None] = []
        views: list[tuple[Any, Any] | None] = []
        named = {} if d.dim_names is None else d.dim_names(*args)
        for k in d.tensors:
            if args[k] is None:
                layouts.append(None)
                continue
            shape, strides, names = _seen(d, args[k], d.names[k], groups)
            if d.names[k] in named:
                names = [Size(1, n) for n in named[d.names[k]]]
            views.append((shape, strides) if merges and shape != tuple(args[k].shape) else None)
            layouts.append(layout_of(args[k], shape, strides, names, values))
        others = tuple(_hashable(x) for k, x in enumerate(args) if k not in d.tensors)
        program = self._program(Signature(tuple(layouts), others), values, args)
        return _by_torch(d) if program is None else _call(d, program, args, views, shapes if merges else None)

    def _program(self, signature: Signature, values: dict[str, int], args: tuple[Any, ...]) -> Call | None:
        """The program of a signature, for these sizes; nothing while compiles are put off."""
        with self.lock:
            if any(layout is not None and layout.device.type != "cpu" for layout in signature.layouts):
                seen = self.seen.setdefault(signature, SeenSizes(signature))
                seen.note(values)
                signature, values = with_fixed(signature, values, seen.varying)
            known = self.programs.setdefault(signature, [])
            program = next((p for p in known if p.holds(values)), None)
            if program is None:
                program = self._new_program(signature, values, args)
                if program is None:
                    return None
                known.append(program)
        return functools.partial(program.call, *(values[name] for name in program.names))

    def _new_program(self, signature: Signature, values: dict[str, int], args: tuple[Any, ...]) -> OpProgram | None:
        options = resolve({"executor": "auto", "compile": "wait", "fallback": "error"}, None)
        kept = kept_program(parts_of(self.declaration.name, repr(signature), options), options)
        if kept is not None and kept.holds(values):
            return kept
        from torch_max_backend.ops.tracing import traced_program

        return traced_program(self.declaration, signature, values, args, options)


def _hashable(x: Any) -> Any:
    return tuple(x) if isinstance(x, list) else x


def _by_torch(d: Declaration) -> Call:
    """The reference in PyTorch: of tensors without elements, and while compiles are put off."""
    return lambda *args: d.dense_reference(*d.filled(args))


def _merged(d: Declaration, args: Sequence[Any], sizes: Sizes) -> list[list[int]]:
    """Leading dimensions in groups, each of which is one dimension for a program."""
    batch = sizes.get(BATCH, ())
    groups: list[list[int]] = []
    tensors = [args[k] for k in d.tensors if args[k] is not None and d.patterns[d.names[k]].has_batch]
    for dim in range(len(batch)):
        is_next = groups and all(_lie_behind(t, dim - 1) for t in tensors)
        if is_next and d.merges_batch:
            groups[-1].append(dim)
        else:
            groups.append([dim])
    return groups


def _lie_behind(t: torch.Tensor, dim: int) -> bool:
    """Whether a dimension and the next one are one in memory."""
    (n, m), (outer, inner) = t.shape[dim : dim + 2], t.stride()[dim : dim + 2]
    return n == 1 or m == 1 or outer == inner * m


def _seen(
    d: Declaration, x: torch.Tensor, name: str, groups: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], tuple[int, ...], list[Size]]:
    """Shape and strides of a tensor with its leading dimensions in groups, and a name for each dimension."""
    pattern = d.patterns[name]
    shape: list[int] = []
    strides: list[int] = []
    names: list[Size] = []
    if pattern.has_batch:
        for k, group in enumerate(groups):
            size = 1
            for dim in group:
                size *= x.shape[dim]
            inner = [x.stride(dim) for dim in group if x.shape[dim] != 1]
            shape.append(size)
            strides.append(inner[-1] if inner else 1)
            names.append(Size(1, f"batch{k}"))
    first = 0 if pattern.is_any else x.ndim - len(pattern.sizes)
    shape += x.shape[first:]
    strides += x.stride()[first:]
    return tuple(shape), tuple(strides), [*names, *pattern.sizes]


def _call(d: Declaration, program: Call, args: Sequence[Any], views: Sequence[Any], shapes: Any) -> Call:
    """The program as a function of all arguments, with views for it and for its results."""
    places = [k for k in d.tensors if args[k] is not None]
    pick: Callable[[Any], Any] = itemgetter(*places) if len(places) > 1 else lambda args: (args[places[0]],)

    def viewed(args: Sequence[Any]) -> list[Any]:
        return [x if v is None else x.as_strided(*v) for x, v in zip(pick(args), views)]

    given = viewed if any(v is not None for v in views) else pick
    if shapes is None and d.returns_one:
        return lambda *args: program(*given(args))[0]
    if d.returns_one:
        (shape,) = shapes
        return lambda *args: program(*given(args))[0].view(shape)
    kind: Callable[[Any], Any] = list if d.returns_list else tuple
    if shapes is None:
        return lambda *args: kind(program(*given(args)))
    return lambda *args: kind([r.view(s) for r, s in zip(program(*given(args)), shapes)])
