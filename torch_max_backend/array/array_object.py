"""The array: a value or a recorded expression, with the standard's operators, and its ways to other libraries."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from torch_max_backend.array import dtypes
from torch_max_backend.array.evaluate import evaluate, values_of
from torch_max_backend.array.expression import Node, Shape, leaf
from torch_max_backend.base.errors import ArrayTypeError, ArrayValueError

VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
MOST_DEPTH = 256
"""An expression of more ops after one another is computed when it is recorded, so that loops don't grow it for ever."""


class Array:
    """An array of the standard. Made by the functions of ``torch_max_backend.array``, not by its constructor."""

    __slots__ = ("__weakref__", "_node")
    __array_priority__ = 1000

    def __init__(self, node: Node) -> None:
        self._become(node)

    def _become(self, node: Node) -> None:
        self._node = node
        node.owner = weakref.ref(self)
        if node.depth > MOST_DEPTH:
            evaluate(self)

    # -- attributes --------------------------------------------------------------------------------------------
    @property
    def dtype(self) -> torch.dtype:
        """The data type, known without computing."""
        return self._node.dtype

    @property
    def device(self) -> torch.device:
        """Where the elements are or will be."""
        return self._node.device

    @property
    def shape(self) -> Shape:
        """The sizes, known without computing."""
        return self._node.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._node.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        count = 1
        for n in self._node.shape:
            count *= n
        return count

    @property
    def T(self) -> Array:
        """The transpose of a matrix.

        Raises:
            ArrayValueError: There are not two dimensions.
        """
        if self.ndim != 2:
            raise ArrayValueError(f"T is for two dimensions, and there are {self.ndim}: use mT or permute_dims")
        return _library().matrix_transpose(self)

    @property
    def mT(self) -> Array:
        """The transpose of matrices.

        Raises:
            ArrayValueError: There are fewer than two dimensions.
        """
        return _library().matrix_transpose(self)

    # -- values ------------------------------------------------------------------------------------------------
    def to_torch(self) -> torch.Tensor:
        """The value, computed now if need be. Writing into it changes this array."""
        return values_of([self._node])[0]

    def _item(self, convert: str) -> Any:
        if self.size != 1 or self.ndim:
            raise ArrayTypeError(f"{convert}() needs an array of no dimensions, and the shape is {self.shape}")
        return self.to_torch().item()

    def __bool__(self) -> bool:
        return bool(self._item("bool"))

    def __int__(self) -> int:
        if self.dtype.is_complex:
            raise ArrayTypeError("int() of a complex array")
        return int(self._item("int"))

    def __float__(self) -> float:
        if self.dtype.is_complex:
            raise ArrayTypeError("float() of a complex array")
        return float(self._item("float"))

    def __complex__(self) -> complex:
        return complex(self._item("complex"))

    def __index__(self) -> int:
        dtypes.check("operator.index", self.dtype, "integral")
        return int(self._item("index"))

    def __len__(self) -> int:
        if not self.shape:
            raise ArrayTypeError("len() of an array of no dimensions")
        return self.shape[0]

    def __iter__(self) -> Any:
        if not self.shape:
            raise ArrayTypeError("iteration over an array of no dimensions")
        return iter([self[k] for k in range(self.shape[0])])

    def __repr__(self) -> str:
        value = self.to_torch()
        text = str(value.tolist()) if not value.shape else _numbers(value)
        return f"Array({text}, dtype={dtypes.name(self.dtype)}, device={str(self.device)!r})"

    __hash__ = None  # type: ignore[assignment]  # == compares elements

    # -- other libraries ---------------------------------------------------------------------------------------
    def __array_namespace__(self, *, api_version: str | None = None) -> types.ModuleType:
        """``torch_max_backend.array``.

        Raises:
            ArrayValueError: A version of the standard that isn't followed.
        """
        if api_version is not None and api_version not in VERSIONS:
            raise ArrayValueError(f"version {api_version!r} of the standard isn't one of {', '.join(VERSIONS)}")
        return _library()

    def __dlpack__(
        self,
        *,
        stream: int | Any | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The value's memory, computed now if need be; shared unless ``copy`` or another device asks for more."""
        value = self.to_torch()
        if dl_device is not None and tuple(map(int, dl_device)) != tuple(map(int, self.__dlpack_device__())):
            if copy is False:
                raise BufferError(f"the array is on {self.device}: it can't be seen on another device without a copy")
            value, copy, dl_device = value.to("cpu" if int(dl_device[0]) == 1 else f"cuda:{dl_device[1]}"), None, None
        if copy:
            value = value.clone()
        return value.__dlpack__(stream=stream, max_version=max_version)

    def __dlpack_device__(self) -> tuple[Any, int]:
        """The device type of DLPack, and the device's number."""
        if self.device.type == "cpu":
            return torch.empty(0).__dlpack_device__()
        return torch.empty(0, device=self.device).__dlpack_device__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """The value as a NumPy array, which shares its memory if it is in the CPU's and of the same data type."""
        if self.device.type != "cpu":
            raise ArrayTypeError(f"NumPy sees no memory of {self.device}: move the array with to_device('cpu')")
        found = self.to_torch().numpy()
        changes = dtype is not None and found.dtype != dtype
        if changes and copy is False:
            raise ValueError(f"{dtypes.name(self.dtype)} as {dtype} needs a copy")
        return found.astype(dtype) if changes else (found.copy() if copy else found)

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        """This array on another device; itself if it is there."""
        target = _library().as_device(device)
        if target == self.device:
            return self
        if stream is not None:
            raise ArrayValueError("to_device takes no stream: torch's current one is used")
        return Array(leaf(self.to_torch().to(target)))

    # -- indexing ----------------------------------------------------------------------------------------------
    def __getitem__(self, key: Any, /) -> Array:
        return _indexing().get(self, key)

    def __setitem__(self, key: Any, value: Any, /) -> None:
        self._become(_indexing().updated(self, key, value))

    # -- operators that are no table ---------------------------------------------------------------------------
    def __abs__(self) -> Array:
        return _library().abs(self)

    def __neg__(self) -> Array:
        return _library().negative(self)

    def __pos__(self) -> Array:
        return _library().positive(self)

    def __invert__(self) -> Array:
        return _library().bitwise_invert(self)


def _numbers(value: torch.Tensor) -> str:
    """The elements, as torch prints them."""
    text = str(value.cpu())
    return text[len("tensor(") :].rsplit("]", 1)[0] + "]" if "]" in text else text


def _library() -> Any:
    from torch_max_backend import array

    return array


def _indexing() -> Any:
    from torch_max_backend.array import indexing

    return indexing


BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "matmul": "matmul",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}
"""Operators, which have a reflected and an in-place form, and the functions they call."""
COMPARISONS = {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}


def _takes(value: object) -> bool:
    return isinstance(value, Array | bool | int | float | complex)


def _forward(name: str) -> Callable[[Array, Any], Any]:
    def method(self: Array, other: Any, /) -> Any:
        return getattr(_library(), name)(self, other) if _takes(other) else NotImplemented

    return method


def _reflected(name: str) -> Callable[[Array, Any], Any]:
    def method(self: Array, other: Any, /) -> Any:
        return getattr(_library(), name)(other, self) if _takes(other) else NotImplemented

    return method


def _in_place(name: str) -> Callable[[Array, Any], Any]:
    def method(self: Array, other: Any, /) -> Any:
        if not _takes(other):
            return NotImplemented
        result = getattr(_library(), name)(self, other)
        if result.dtype != self.dtype:
            raise ArrayTypeError(f"{name} in place would make {dtypes.name(self.dtype)} {dtypes.name(result.dtype)}")
        if result.shape != self.shape:
            raise ArrayValueError(f"{name} in place would make the shape {self.shape} {result.shape}")
        self._become(result._node)
        return self

    return method


for _name, _function in BINARY.items():
    setattr(Array, f"__{_name}__", _forward(_function))
    setattr(Array, f"__r{_name}__", _reflected(_function))
    setattr(Array, f"__i{_name}__", _in_place(_function))
for _name, _function in COMPARISONS.items():
    setattr(Array, f"__{_name}__", _forward(_function))
