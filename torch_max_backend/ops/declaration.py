"""What a public op is: one record, which ``define.py`` makes.

The schema decides names, types and defaults; everything else about an op is derived from the record: the op of
``torch.library`` with its fake function, kernel, gradient, autocast and vmap (``registration.py``), its
decomposition in graphs of this backend, the documentation's table, the tests' rows and the benchmark's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch._ops import OpOverload

from torch_max_backend.base.errors import RegistrationError
from torch_max_backend.ops.arguments import Pattern, Sizes, bind, check_devices, check_dtypes

NAMESPACE = "torch_max_backend"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32)

Autocast = Literal["float32", "lower", "widest"]
"""What autocast does to floating-point arguments: float32 for 16-bit ones, autocast's own dtype, or the widest that is
among them."""


@dataclass(frozen=True)
class Tolerance:
    """How far a result may be from the reference in float64, in roundings of the result's dtype.

    A rounding is ``eps`` of the dtype times the largest element of the result. ``reason`` says where they come from.
    With ``of_arguments`` it is the first argument's dtype that counts, in which values are rounded on the way.
    """

    float32: float
    bfloat16: float
    float16: float
    float64: float
    reason: str
    of_arguments: bool = False

    def of(self, dtype: torch.dtype) -> float:
        """Roundings that are allowed for a dtype, as a share of the largest element."""
        return getattr(self, str(dtype).removeprefix("torch.")) * torch.finfo(dtype).eps


ROUNDED_ONCE = Tolerance(
    8, 1, 1, 8, "16-bit floats are computed in float32 and rounded once; float32 and float64 have a few roundings"
)


@dataclass(frozen=True)
class Maker:
    """Makes arguments of a benchmark, in a dtype and on a device; most are matrices of so many rows and columns."""

    dtype: torch.dtype
    device: str
    rows: int = 1024
    columns: int = 4096

    def __call__(self, *shape: int) -> torch.Tensor:
        """Random numbers."""
        return torch.randn(shape, device=self.device).to(self.dtype)

    def integers(self, below: int, *shape: int) -> torch.Tensor:
        """Random integers from 0."""
        return torch.randint(0, below, shape, device=self.device)


@dataclass(frozen=True)
class BenchmarkCase:
    """Arguments that a benchmark calls an op with, and what a program without the op writes."""

    name: str
    arguments: Callable[[Maker], tuple[Any, ...]]
    plain: Callable[..., Any]


Results = Sequence[str] | Callable[..., Sequence[tuple[Any, ...]]]


@dataclass(frozen=True)
class Declaration:
    """A public op.

    ``patterns`` are the shapes of tensor arguments and ``results`` those of results, or a function of all arguments
    that gives the results' shapes. ``dtypes`` are the dtypes of arguments that need not have the first one's, and
    ``result_dtypes`` those of results, ``None`` for the first argument's; float32 stands for float64 there if the first
    argument has that. ``requires`` is a check of the sizes and all arguments, which raises. ``flops`` are arithmetic
    operations as a function of the sizes. Without ``merges_batch`` leading dimensions stay apart, since a number among
    the arguments names one of them.
    """

    name: str
    overload: OpOverload
    reference: Callable[..., Any]
    patterns: Mapping[str, Pattern]
    results: Results
    tolerance: Tolerance
    flops: Callable[[Sizes], Any]
    cases: tuple[BenchmarkCase, ...] = ()
    dtypes: Mapping[str, Sequence[torch.dtype]] = field(default_factory=dict)
    result_dtypes: tuple[torch.dtype | None, ...] = ()
    requires: Callable[..., None] | None = None
    differentiable: tuple[str, ...] = ()
    autocast: Autocast = "widest"
    merges_batch: bool = True
    kernel: Callable[..., Any] | None = None
    """Python of our own in place of a program of the reference: for what a program cannot say."""
    gradient_of: str = ""
    """The op whose gradient this is."""
    same_gradient: Mapping[str, str] = field(default_factory=dict)
    """Arguments whose gradient is that of another argument, or an argument of the backward such as ``grad``."""
    constant_results: tuple[str, ...] = ()
    """Results that have no gradient."""
    dim_names: Callable[..., Mapping[str, Sequence[str]]] | None = None
    """For patterns ``*``: a name for each dimension of each tensor, from all arguments."""

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The arguments' names."""
        return tuple(a.name for a in self.overload._schema.arguments)

    @functools.cached_property
    def tensors(self) -> tuple[int, ...]:
        """The positions of arguments that are tensors, or may be."""
        return tuple(k for k, name in enumerate(self.names) if name in self.patterns)

    @functools.cached_property
    def returns_list(self) -> bool:
        """Whether the schema returns a list of tensors."""
        return str(self.overload._schema.returns[0].type) == "List[Tensor]"

    @property
    def returns_one(self) -> bool:
        """Whether the schema returns one tensor."""
        return not self.returns_list and len(self.overload._schema.returns) == 1

    def filled(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """All arguments, with the schema's defaults for those that are missing."""
        return (*args, *(a.default_value for a in self.overload._schema.arguments[len(args) :]))

    def given(self, args: Sequence[Any]) -> dict[str, torch.Tensor]:
        """The tensors among all arguments."""
        return {self.names[k]: args[k] for k in self.tensors if args[k] is not None}

    def check(self, args: Sequence[Any]) -> Sizes:
        """Check all arguments; the sizes of a call.

        Raises:
            ArgumentError: With the argument, the limit and the value received.
        """
        given = self.given(args)
        check_devices(self.name, given)
        check_dtypes(self.name, {next(iter(given)): FLOATS, **self.dtypes}, given)
        sizes = bind(self.name, self.patterns, given)
        if self.requires is not None:
            self.requires(sizes, *args)
        return sizes

    def result_shapes(self, sizes: Sizes, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The shapes of results."""
        if callable(self.results):
            return [tuple(s) for s in self.results(sizes, *args)]
        return [Pattern.of(text).shape(sizes) for text in self.results]

    def dtypes_of_results(self, args: Sequence[Any], count: int) -> list[torch.dtype]:
        """The dtypes of so many results; those of a gradient are its arguments'."""
        if self.gradient_of:
            names = [n for n, is_wanted in zip(self.differentiable, args[-1]) if is_wanted]
            first = args[0].dtype
            given = self.given(args)
            return [given[n].dtype if n in given else first for n in names]
        wide = {torch.float32: torch.float64} if args[0].dtype == torch.float64 else {}
        return [args[0].dtype if d is None else wide.get(d, d) for d in self.result_dtypes or [None] * count]

    def dense_reference(self, *args: Any) -> Any:
        """The reference with results in memory of their own, dense, as the op promises."""
        results = self.reference(*args)
        if isinstance(results, torch.Tensor):
            return _dense(results)
        return type(results)(map(_dense, results))

    def bytes(self, args: Sequence[Any]) -> Any:
        """Bytes that a call must move: every argument read once and every result written once."""
        args = self.filled(args)
        shapes = self.result_shapes(self.check(args), args)
        dtypes = self.dtypes_of_results(args, len(shapes))
        written = sum(math.prod(s) * d.itemsize for s, d in zip(shapes, dtypes, strict=True))
        return written + sum(t.numel() * t.element_size() for t in self.given(args).values())


def _dense(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


_declarations: dict[str, Declaration] = {}


def define(schema: str) -> OpOverload:
    """The op of a schema, whose name no other has.

    Raises:
        RegistrationError: The name is taken.
    """
    name = schema.partition("(")[0]
    if name in _declarations:
        raise RegistrationError(f"{name} is a public op already")
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def keep(declaration: Declaration) -> None:
    """Keep a declaration."""
    _declarations[declaration.name] = declaration


def declarations() -> list[Declaration]:
    """All public ops that are registered, and their gradients, by name."""
    return [d for _, d in sorted(_declarations.items())]


def declaration_of(name: str) -> Declaration:
    """The declaration of a name."""
    return _declarations[name]


def gradient(declaration: Declaration) -> Declaration | None:
    """The gradient of an op, if it has one."""
    return _declarations.get(f"{declaration.name}_backward")
