"""Library calls of a loop program: where in memory a library reads its arguments, and how its results lie."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._prims_common import suggest_memory_format
from torch.utils._pytree import tree_leaves

from torch_max_backend.aten_functions.torch_executed.collectives import COLLECTIVES, STARTS, WAITS
from torch_max_backend.base.errors import Unsupported
from torch_max_backend.capture import onednn_products
from torch_max_backend.capture.fake_tensors import symbols_of, tensor_of, tensors_of, value_of
from torch_max_backend.loops import convolution_loops, pointwise_convolution, products_in_parts, small_products
from torch_max_backend.loops.convolution_layout import A_CHAIN, CHANNELS_LAST, Convolution
from torch_max_backend.loops.expr import SHORT, Load
from torch_max_backend.loops.index import Index, Var
from torch_max_backend.loops.libraries import (
    AS_TRACED,
    DENSE_PRODUCTS,
    OF_DENSE_ROWS,
    PACKED_CONVOLUTIONS,
    PACKED_LINEARS,
    SORTS,
    library_of,
)
from torch_max_backend.loops.narrow_products import product_as_loops
from torch_max_backend.loops.program import Call, Called, Definition, Ref, dense_strides
from torch_max_backend.loops.rules import views
from torch_max_backend.loops.tensor import Builder, Shape, Tensor, define, named, sized
from torch_max_backend.loops.transposed_convolution import as_plain
from torch_max_backend.partition.region import Region
from torch_max_backend.runtime.packed_products import MM_OF_PACKED

CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)


CONTIGUOUS = STARTS | {torch.ops.aten._weight_int8pack_mm.default, MM_OF_PACKED}
"""What takes tensors without gaps and in their own order alone."""


class LibraryCalls:
    """Calls of libraries on a CPU, and what lies in memory for them."""

    channels_last: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
    """Dtypes of convolutions for which channels may be put last."""
    row_bytes = 1
    """At multiples of how many bytes rows begin in a tensor that may lie in any way."""
    has_onednn = True
    """Whether oneDNN may compute products."""
    adds_bias = False
    """Whether the bias of the convolution at work is a loop's."""

    def __init__(self, region: Region, builder: Builder) -> None:
        self.region, self.builder, self.symbols = region, builder, builder.symbols
        self.env: dict[fx.Node, Any] = {}
        self.memory: dict[str, tuple[Shape, Shape]] = {}
        """Sizes and strides of what lies in memory, by name: inputs, results of library calls, what these read."""
        self.at_work: dict[str, tuple[str, ...]] = {}
        """What collectives read, by the names of their results."""
        self.defined: dict[Any, Tensor] = {}
        """What was computed for libraries to read, by shape, dtype and the scalar at an index."""
        self.sources: dict[fx.Node, str] = {}
        """What nodes' values are loaded from, as far as that was asked for."""
        self.results: dict[str, Definition | Called] = {}
        """What the first ``seen`` steps give, by name."""
        self.seen = 0
        self.node = next(iter(region.nodes), None)
        """The node at work."""
        self.convolutions = sum(n.target is torch.ops.aten.convolution.default for n in region.nodes)

    def _is_for_library(self, target: Any, args: Sequence[Any]) -> bool:
        """Whether a library computes what a rule could."""
        return target in SORTS

    def _library(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], promise: Any) -> Any:
        if target is torch.ops.aten.convolution.default:
            args = as_plain(args, self.symbols.shape(promise.shape)) or args
            if pointwise_convolution.is_of_one_tap(args):
                found = self._convolution_of_one_tap(args, promise)
                if found is not None:
                    return found
            if self.has_onednn and self._is_better_as_loops(args, promise):
                return convolution_loops.convolved(args)
        if target is torch.ops.aten.convolution_backward.default:
            return self._gradients(args, promise)
        return self._call(target, args, kwargs, promise)

    # convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride,
    #     SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups,
    #     bool[3] output_mask) -> (Tensor, Tensor, Tensor)
    def _gradients(self, args: Sequence[Any], promise: Sequence[Any]) -> Any:
        """Gradients of a convolution. ATen gives those of image and weight channels last if one of these has them."""
        target = torch.ops.aten.convolution_backward.default
        gradient, x, weight, *rest = args
        if x.rank != 4:
            return self._call(target, args, {}, promise)
        convolution = self._convolution_of(args)
        image, kernel = self._image_for_gradients(x, convolution), self._image(weight)
        order = _order_of_results(image, kernel)
        if order is not None:
            gradient = self._ordered(gradient)
            if convolution is not None and convolution.orders_weight_for_gradients:
                kernel = self._ordered(weight)
        strides = [dense_strides(self.symbols.shape(g.shape), order) if g is not None else None for g in promise[:2]]
        return self._call(target, [gradient, image, kernel, *rest], {}, promise, strides)

    def _convolution_of(self, args: Sequence[Any]) -> Convolution | None:
        """The convolution of images that gradients are of, if all sizes are known and channels may be put last."""
        gradient, x, weight, is_transposed, groups = *args[:3], args[7], args[9]
        is_known = all(n.is_constant for t in (gradient, x, weight) for n in t.shape)
        if x.rank != 4 or not is_known or x.dtype not in self.channels_last:
            return None
        sizes = ([int(n.constant) for n in t.shape] for t in (x, weight, gradient))
        return self._kind(*sizes, is_transposed, groups, x.dtype)

    def _image_for_gradients(self, x: Tensor, convolution: Convolution | None) -> Ref:
        """The image as gradients of a convolution read it: where it lies, or with channels last if that pays."""
        is_placed = source_of(x) in self.memory
        if convolution is None or (is_placed and self._last(x, self._in_place(x)) is not None):
            return self._image(x)
        return self._ordered(x) if convolution.gains_gradients(copies=is_placed) else self._image(x)

    def _is_better_as_loops(self, args: Sequence[Any], promise: torch.Tensor) -> bool:
        """Whether a convolution is small, or a depthwise one whose image lies well, which it is told to if it may."""
        x, weight, is_transposed = args[0], args[1], args[6]
        sizes = [Index.of(n) for of in (x.shape, weight.shape, self.symbols.shape(promise.shape)) for n in of]
        if is_transposed or not all(n.is_constant for n in sizes):
            return False
        result = [int(n.constant) for n in sizes[-promise.dim() :]]
        if convolution_loops.is_small(args, result):
            return True
        if not convolution_loops.is_depthwise(args, result):
            return False
        has_few_taps = math.prod(int(n.constant) for n in weight.shape[2:]) <= convolution_loops.FEW_TAPS
        if has_few_taps and self.convolutions < A_CHAIN:
            return True
        return self._last(x, self._in_place(x, CHANNELS_LAST)) is not None or has_few_taps

    def _convolution_of_one_tap(self, args: Sequence[Any], promise: torch.Tensor) -> Tensor | None:
        """A convolution of one tap as products or loops, if these are better."""
        is_picked = any(step != 1 for step in args[3])
        args = pointwise_convolution.of_stride_1(args)
        places = math.prod(args[0].shape[2:], start=Index.of(1))
        is_for_each = places != 1 and self.convolutions < A_CHAIN and self._has_contiguous_images(promise)
        if args[8] != 1:
            is_for_each = is_for_each and pointwise_convolution.has_small_groups(args)
            return self._pointwise_for_each_image(args, promise) if is_for_each else None
        if small_products.is_pointwise(*args[:2]):
            return self._pointwise_as_loops(args, promise)
        if is_for_each:
            if args[0].dtype is torch.bfloat16:
                return self._pointwise_for_each_image(args, promise)
            if pointwise_convolution.has_few_channels(args):
                return self._pointwise_as_loops(args, promise)
        is_product = pointwise_convolution.is_product(args, is_picked)
        if is_product and (places == 1 or not self._leaves() or promise.stride(1) == 1):
            return self._pointwise(args, promise)
        return None

    def _has_contiguous_images(self, promise: torch.Tensor) -> bool:
        """Whether the image and the result of the convolution at work are contiguous in eager."""
        return self.node is not None and all(x.is_contiguous() for x in (tensor_of(self.node.args[0]), promise))

    def _pointwise(self, args: Sequence[Any], promise: torch.Tensor) -> Tensor:
        """A convolution of one tap, by a product. Its result has channels last."""
        rows, weight = pointwise_convolution.operands(args[0], args[1])
        like = promise.movedim(1, -1).flatten(0, -2).contiguous()
        given = (rows, weight) if args[2] is None else (args[2], rows, weight)
        op = torch.ops.aten.mm.default if args[2] is None else torch.ops.aten.addmm.default
        shape = self.symbols.shape(promise.shape)
        return pointwise_convolution.image_of(self._call(op, given, {}, like), shape)

    def _pointwise_for_each_image(self, args: Sequence[Any], promise: torch.Tensor) -> Tensor:
        """A convolution of one tap of contiguous images. A bias is added before numbers are rounded."""
        x, weight, bias, groups = *args[:3], args[8]
        matrices, images = pointwise_convolution.operands_for_each_image(x, weight, groups)
        like = promise.flatten(2).unflatten(1, (groups, -1)).flatten(0, 1).contiguous()
        given: tuple[Tensor, ...] = (matrices, images)
        target = torch.ops.aten.bmm.default
        if bias is not None:
            features = weight.shape[0] // groups
            shape = self.symbols.shape(like.shape)
            each = Tensor(shape[:2], x.dtype, lambda index: bias.at((index[0] % groups * features + index[1],)))
            each = each if groups == 1 else self._defined(each)
            given = (Tensor(shape, x.dtype, lambda index: each.at(index[:2])), *given)
            target = torch.ops.aten.baddbmm.default
        is_small = groups != 1 and small_products.is_product(given)
        found = product_as_loops(given, {}) if is_small else self._call(target, given, {}, like)
        return views.reshaped(found, self.symbols.shape(promise.shape))

    def _pointwise_as_loops(self, args: Sequence[Any], promise: torch.Tensor) -> Tensor:
        """A convolution of one tap, by a product that is a loop."""
        rows, weight = pointwise_convolution.operands(args[0], args[1])
        given = (rows, weight) if args[2] is None else (args[2], rows, weight)
        return pointwise_convolution.image_of(product_as_loops(given, {}), self.symbols.shape(promise.shape))

    def _reference(self, target: Any, x: Tensor) -> Ref:
        """How a library reads an argument."""
        if target in CONTIGUOUS:
            return self._contiguous(x)
        return self._image(x) if target in CONVOLUTIONS else self._ref(x)

    def _call(
        self,
        target: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        promise: object,
        strides: Sequence[Shape | None] = (),
    ) -> Any:
        """Add a call of a library; ``strides`` are those of results, where they are others than torch promises."""
        product = products_in_parts.product_of(target, args, kwargs) if self.has_onednn else None
        if product is not None:
            return self._product_in_parts(product, promise)

        def as_ref(x: Any) -> Any:
            if isinstance(x, Tensor):
                return self._reference(target, x)
            return type(x)(as_ref(v) for v in x) if isinstance(x, list | tuple) else x

        args, kwargs = self._as_read(target, args, kwargs)
        if target in DENSE_PRODUCTS and self.node is not None and self.node.target is target:
            for x, origin in zip(args, self.node.args, strict=False):
                self._lie_as_in_eager(x, origin)
        many = isinstance(promise, list | tuple)
        image = self._laid_out(args, promise) if target is torch.ops.aten.convolution.default else None
        if target in COLLECTIVES:
            strides = [dense_strides(self.symbols.shape(value.shape)) for value in tensors_of(promise)]
        placed = dict(enumerate(image[:2])) if image is not None else {}
        if target in PACKED_CONVOLUTIONS:  # oneDNN would copy any other image
            placed = {0: self._ordered(args[0])}
        elif target in PACKED_LINEARS:
            placed = {0: self._contiguous(args[0])}
        refs = [placed[k] if k in placed else as_ref(a) for k, a in enumerate(args)]
        known = dict(enumerate(strides if image is None else [image[2]]))
        values = promise if isinstance(promise, list | tuple) else [promise]
        results = [self._called(value, known.get(k)) for k, value in enumerate(values)]
        given = tuple(refs), {k: as_ref(v) for k, v in kwargs.items()}
        self.builder.program.steps.append(
            Call(
                library_of(target) or "ATen",
                target,
                *given,
                tuple(results),
                self.builder.where,
                self.node.name if self.node else "",
                self._held_by(target, given, results),
            )
        )
        tensors = [named(r.name, r.sizes, r.dtype) if r else None for r in results]
        return tuple(tensors) if many else tensors[0]

    def _lie_as_in_eager(self, x: object, origin: object) -> None:
        """Have a factor that is computed lie as in eager if that is turned, as of a weight that is read turned."""
        value = value_of(origin) if isinstance(origin, fx.Node) else None
        if not isinstance(x, Tensor) or not isinstance(value, torch.Tensor) or symbols_of(value):
            return
        shape, strides = tuple(map(Index.of, value.shape)), value.stride()
        order = tuple(sorted(range(value.dim()), key=lambda d: -strides[d]))
        is_turned = order != tuple(range(value.dim())) and tuple(map(Index.of, strides)) == dense_strides(shape, order)
        if not is_turned or x.shape != shape or strides[order[-2]] * x.dtype.itemsize % self.row_bytes:
            return
        if self._in_place(x, order) is None:
            self._in_place(self._defined(x), order)

    def _as_read(
        self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Arguments that kernels of ATen read without a look at all strides, as such kernels need them.

        A program reads what ``contiguous`` copies where the original lies, so that these would find the original.
        """
        if target in OF_DENSE_ROWS:
            return [self._with_dense_rows(x) if isinstance(x, Tensor) else x for x in args], kwargs
        if target not in AS_TRACED or self.node is None or self.node.target is not target:
            return args, kwargs

        def as_traced(x: Any, origin: Any) -> Any:
            is_dense = isinstance(x, Tensor) and isinstance(origin, fx.Node) and tensor_of(origin).is_contiguous()
            return self._dense(x) if is_dense else x

        named_args = {key: as_traced(x, self.node.kwargs.get(key)) for key, x in kwargs.items()}
        return [as_traced(x, origin) for x, origin in zip(args, self.node.args, strict=False)], named_args

    # mkldnn::_linear_pointwise(Tensor X, Tensor W, Tensor? B, str attr, Scalar?[] scalars, str? algorithm) -> Tensor Y
    # mkldnn::_linear_pointwise.binary(Tensor X, Tensor other, Tensor W, Tensor? B, str attr) -> Tensor Y
    def _product_in_parts(self, product: products_in_parts.Product, promise: object) -> Tensor:
        """A product by oneDNN, each part of its sums added to those before, and the bias with the last one.

        The parts of the second matrix are copied one by one, each where the one before was.
        """
        rows, columns, part = product.rows, product.columns, product.part
        is_turned = products_in_parts.lies_turned(self._in_place(columns))
        if part == product.depth:
            return self._linear(rows, columns if is_turned else self._dense(columns), product.bias, None, promise)
        sums = None
        for k, x in enumerate(self._row_parts(rows, part)):
            weight = views.slice_(columns, 1, k * part, (k + 1) * part)
            bias = product.bias if (k + 1) * part >= product.depth else None
            sums = self._linear(x, weight if is_turned else self._cloned(weight), bias, sums, promise)
        assert sums is not None
        return sums

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, sums: Tensor | None, promise: object) -> Tensor:
        """A call of oneDNN's linear, whose result is added to ``sums``, if there are any."""
        linear = onednn_products.LINEAR
        if sums is None:
            return self._call(linear.default, (x, weight, bias, "none", [], ""), {}, promise)
        return self._call(linear.binary, (x, sums, weight, bias, "add"), {}, promise)

    def _row_parts(self, x: Tensor, part: int) -> list[Tensor]:
        """Parts of the rows of a matrix, each a matrix without gaps. What computes them writes them so."""
        whole, rest = products_in_parts.in_parts(x, part)
        found = views.unbind(self._defined(whole))
        return found if rest is None else [*found, self._defined(rest)]

    # clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor
    def _cloned(self, x: Tensor) -> Tensor:
        """A copy of ``x`` without gaps, once. Of what lies in memory it is ATen's: each part's would be a kernel."""
        if self._in_place(x) is None:
            return self._defined(x)
        key = x.shape, x.dtype, x.at(tuple(map(Index.of, variables_of(x))))
        if key not in self.defined:
            like = torch.empty([int(n.constant) for n in x.shape], dtype=x.dtype, device="meta")
            without_gaps = {"memory_format": torch.contiguous_format}
            self.defined[key] = self._call(torch.ops.aten.clone.default, (x,), without_gaps, like)
        return self.defined[key]

    def _dense(self, x: Tensor) -> Tensor:
        """``x`` if it lies without gaps and in its own order, else a copy."""
        is_dense = _lie_alike(x.shape, self._ref(x).strides, dense_strides(x.shape))
        return x if is_dense else define(x.shape, x.dtype, x.at)

    def _with_dense_rows(self, x: Tensor) -> Tensor:
        """``x`` if elements of its rows are neighbours, else a copy without gaps."""
        is_dense = x.rank == 0 or x.shape[-1] == 1 or self._ref(x).strides[-1] == 1
        return x if is_dense else self._defined(x)

    def _called(self, promise: object, strides: Shape | None) -> Called | None:
        """A result of a call, in these strides or those that torch promises; none where torch promises no tensor."""
        if not isinstance(promise, torch.Tensor):
            return None
        planned = strides or self.symbols.shape(promise.stride())
        found = Called(self.builder.name(), dtype_of(promise), self.symbols.shape(promise.shape), planned)
        self.builder.program.modules[found.name] = self.builder.module
        self.memory[found.name] = found.sizes, found.strides
        return found

    def _held_by(self, target: Any, given: tuple[Any, Any], results: Sequence[Called | None]) -> tuple[str, ...]:
        """What a wait holds: all that the collectives read whose results it waits for."""
        names = [r.name for r in tree_leaves(given) if isinstance(r, Ref)]
        if target in STARTS:
            self.at_work.update((r.name, tuple(dict.fromkeys(names))) for r in results if r)
        return tuple(dict.fromkeys(x for n in names for x in self.at_work.get(n, ()))) if target in WAITS else ()

    def _contiguous(self, x: Tensor) -> Ref:
        """``x`` without gaps and in its own order, copied unless it lies so."""
        ref = self._ref(x)
        if _lie_alike(x.shape, ref.strides, dense_strides(x.shape)):
            return ref
        return self._ref(define(x.shape, x.dtype, x.at))

    def _ref(self, x: Tensor) -> Ref:
        """How a library reads ``x``: where it is, if it is a view of memory, else from a copy."""
        return self._in_place(x) or self._in_place(self._defined(x))  # type: ignore[return-value]

    def _defined(self, x: Tensor) -> Tensor:
        """``x`` in memory of its own; the same as before, if it has been asked for already."""
        key = x.shape, x.dtype, x.at(tuple(map(Index.of, variables_of(x))))
        if key not in self.defined:
            self.defined[key] = define(x.shape, x.dtype, x.at)
        return self.defined[key]

    def _laid_out(self, args: Sequence[Any], promise: torch.Tensor) -> tuple[Ref, Ref, Shape] | None:
        """An image and a weight as a convolution reads them, and the strides of its result; ``None`` if these are read
        where they lie, and the result lies as torch promises."""
        found = self._convolution(args, promise)
        if found is not None or not self.has_onednn or args[0].rank != 4:
            return found
        image, kernel = self._image(args[0]), self._image(args[1])  # not as promised: of an image that is computed
        return image, kernel, dense_strides(self.symbols.shape(promise.shape), _order_of_results(image, kernel))

    # convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation,
    #     bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor
    def _convolution(self, args: Sequence[Any], promise: torch.Tensor) -> tuple[Ref, Ref, Shape] | None:
        """An image and a weight as a convolution shall read them, and the strides of its result.

        ``None`` if they are read where they lie. What is to leave with other strides is copied again.
        """
        x, weight, groups = args[0], args[1], args[8]
        shape = self.symbols.shape(promise.shape)
        sizes = [[Index.of(s) for s in of] for of in (x.shape, weight.shape, shape)]
        if x.rank != 4 or x.dtype not in self.channels_last or not all(s.is_constant for of in sizes for s in of):
            return None
        image, kernel, result = ([int(s.constant) for s in of] for of in sizes)
        convolution = self._kind(image, kernel, result, args[6], groups, x.dtype)
        if self._leaves() and not self.adds_bias and not convolution.is_worth_copies:
            return None
        is_ordered = convolution.orders_weight and self._last(weight, self._in_place(weight)) is not None
        if convolution.is_heavy and not is_ordered:
            ref = self._ref(x)
            if not _lie_alike(x.shape, ref.strides, dense_strides(x.shape)):
                ref = self._ref(define(x.shape, x.dtype, x.at))
            return ref, self._image(weight), dense_strides(shape)
        ordered = self._with_channels_last(x, convolution)
        if ordered is None:
            return None
        placed = self._ordered(weight) if convolution.orders_weight else self._image(weight)
        return ordered, placed, dense_strides(shape, CHANNELS_LAST)

    def _kind(self, *sizes: Any) -> Convolution:
        """What decides about the layout of a convolution; ``sizes`` are its fields and the dtype."""
        return Convolution(*sizes[:-1])

    def _leaves(self) -> bool:
        """Whether the result of the node at work leaves the region."""
        return any(port.node is self.node and not port.free for port in self.region.outputs)

    def _with_channels_last(self, x: Tensor, convolution: Convolution) -> Ref | None:
        """``x`` with channels last: as it lies, as it may lie, or copied if that pays."""
        is_placed = source_of(x) in self.memory
        found = self._last(x, self._in_place(x)) if is_placed else None
        if found is not None:
            return found
        if not is_placed and convolution.gains(self.convolutions, copies=False):
            found = self._last(x, self._in_place(x, CHANNELS_LAST))
        if found is None and convolution.gains(self.convolutions, copies=True):
            found = self._in_place(define(x.shape, x.dtype, x.at), CHANNELS_LAST)
        return found

    def _ordered(self, x: Tensor) -> Ref:
        """``x`` with channels last, copied unless it lies so."""
        ref = self._last(x, self._in_place(x, CHANNELS_LAST))
        ref = ref or self._in_place(define(x.shape, x.dtype, x.at), CHANNELS_LAST)
        assert ref is not None
        return ref

    def _image(self, x: Tensor) -> Ref:
        """``x`` contiguous, or as it is with channels last; else copied, as ATen's kernels would do, and slower."""
        ref = self._ref(x)
        if x.rank >= 4 and ref.strides[1] == 1:  # dense or not, that makes ATen give a result with channels last
            return ref
        return self._contiguous(x)

    def _last(self, x: Tensor, ref: Ref | None) -> Ref | None:
        """The reference, if it is one to channels last."""
        last = dense_strides(x.shape, CHANNELS_LAST)
        return ref if ref is not None and _lie_alike(x.shape, ref.strides, last) else None

    def _in_place(
        self, x: Tensor, order: tuple[int, ...] | None = None, multiple: int = 1, shortest: int = 8
    ) -> Ref | None:
        """``x`` where it is.

        A definition that may still lie in any way will lie in ``order``, or its rows begin at a multiple of elements,
        if they are at least ``shortest`` such multiples long.
        """
        variables = variables_of(x)
        load = x.at(tuple(map(Index.of, variables)))
        if not isinstance(load, Load):
            return None
        if load.source not in self.memory:
            step = self._result_named(load.source)
            assert isinstance(step, Definition)
            leaving = self._leaving_strides(step)
            if leaving is None and order is not None and self._is_whole(x, load.source):
                self.builder.program.orders[load.source] = order
                leaving = dense_strides(step.sizes, order)
            elif leaving is None and (rows := self._spread(step, multiple, shortest)) is not None:
                leaving = dense_strides(step.sizes, rows=rows)
            self.memory[load.source] = step.sizes, leaving or dense_strides(step.sizes)
        sizes, strides = self.memory[load.source]
        if x.shape == sizes and load.index == tuple(map(Index.of, variables)):
            return Ref(load.source, sizes, strides, Index.of(0))
        address = Index.of(0)
        for i, stride in zip(load.index, strides, strict=True):
            address = address + i * stride
        steps = [address.stride(v) for v in variables]
        offset = address.substitute({v: Index.of(0) for v in variables})
        own = tuple(s for s in steps if s is not None and s.is_fixed)
        if len(own) != len(steps) or not offset.is_fixed or min(i.bounds[0] for i in (offset, *own)) < 0:
            return None  # torch has no tensors with negative strides
        return Ref(load.source, x.shape, own, offset)

    def _spread(self, d: Definition, multiple: int, shortest: int = 8) -> tuple[int, int] | None:
        """Put the rows of a definition so far apart that they begin at multiples of elements, if they are uneven."""
        if multiple < 2 or not _is_uneven(d, multiple, shortest):
            return None
        length = int(d.sizes[-1].constant)
        rows = self.builder.program.rows[d.name] = length, -(-length // multiple) * multiple
        return rows

    def _stored_strides(self, target: fx.Node, source: fx.Node) -> Shape:
        """The strides of what is written into an input: the input's, if the sizes are the same."""
        given, x = self.builder.program.inputs[source_of(self.env[target])], self.env[source]
        return given.strides if given.sizes == x.shape else dense_strides(x.shape)

    def _leaving_strides(self, d: Definition) -> Shape | None:
        """The strides with which a definition will leave, if it will, as far as is known when a library reads it."""
        for port in self.region.outputs:
            if not port.free and self._is_result(port.node, d):
                return dense_strides(d.sizes, port.order)
        for target, source in self.region.stores:
            if self._is_result(source, d):
                return self._stored_strides(target, source)
        return None

    def _is_result(self, node: fx.Node, d: Definition) -> bool:
        """Whether a node's value is known, and is a definition as it is."""
        x = self.env.get(node)
        if node not in self.sources and x is not None:
            self.sources[node] = source_of(x) if isinstance(x, Tensor) else ""
        return isinstance(x, Tensor) and self.sources.get(node) == d.name and self._is_whole(x, d.name)

    def _is_whole(self, x: Tensor, name: str) -> bool:
        found = self._result_named(name)
        index = tuple(map(Index.of, variables_of(x)))
        return found is not None and x.at(index) == Load(name, index, x.dtype) and found.sizes == x.shape

    def _result_named(self, name: str) -> Definition | Called | None:
        """The definition of that name, or the result of a call."""
        steps = self.builder.program.steps
        for step in steps[self.seen :]:
            self.results.update((r.name, r) for r in (step.results if isinstance(step, Call) else (step,)) if r)
        self.seen = len(steps)
        return self.results.get(name)


def _lie_alike(sizes: Shape, a: Shape, b: Shape) -> bool:
    return all(x == y for n, x, y in zip(sizes, a, b, strict=True) if n != 1)


def _order_of_results(image: Ref, weight: Ref) -> tuple[int, ...] | None:
    """In which order ATen gives what a convolution results in, on a CPU: with channels last if one of the two has them.
    A tensor that lies in both ways counts as contiguous."""
    for ref in (image, weight):
        sizes, strides = ([n.typical for n in of] for of in (ref.sizes, ref.strides))
        if suggest_memory_format(torch.empty_strided(sizes, strides, device="meta")) is torch.channels_last:
            return CHANNELS_LAST
    return None


def _is_uneven(d: Definition, multiple: int, shortest: int) -> bool:
    """Whether rows are no multiple of so many elements, and long enough for a gap behind them."""
    length = d.sizes[-1].constant if len(d.sizes) > 1 and all(n.is_constant for n in d.sizes) else 0
    return length >= shortest * multiple and length % multiple != 0


def source_of(x: Tensor) -> str:
    """The name that ``x`` is loaded from; empty if it is computed."""
    scalar = x.at(tuple(map(Index.of, variables_of(x))))
    return scalar.source if isinstance(scalar, Load) else ""


def variables_of(x: Tensor) -> list[Var]:
    """A variable for each dimension."""
    return [sized(f"d{k}", size) for k, size in enumerate(x.shape)]


def dtype_of(value: torch.Tensor) -> torch.dtype:
    if value.dtype not in SHORT:
        raise Unsupported(f"programs have no dtype for {value.dtype}")
    return value.dtype
