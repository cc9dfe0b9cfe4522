"""Convolutions and their gradients on an NVIDIA GPU, by its own library."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext

from .cudnn import FILTER_GRADIENT, IMAGE_GRADIENT, Geometry, convolve


@extensibility.register("tmb_library_convolution")
struct LibraryConvolution[
    kind: Int,
    images_last: Bool,
    filter_last: Bool,
    s0: Int, s1: Int, s2: Int,
    p0: Int, p1: Int, p2: Int,
    q0: Int, q1: Int, q2: Int,
    d0: Int, d1: Int, d2: Int,
    allow_tf32: Bool,
    deterministic: Bool,
]:  # fmt: skip
    """The result of a convolution, or a gradient of it, of two or three spatial sizes.

    Of kind 0, `first` is the image and `second` the filter. Of kind 1 the result is the image's gradient, `first` that of
    the convolution's result, `second` the filter. Of kind 2 the result is the filter's gradient, `first` that of the
    convolution's result, `second` the image.

    Images are `[N, C, *S]` or `[N, *S, C]`, filters `[F, C / groups, *K]` or `[F, *K, C / groups]`. Strides `s`, padding
    in front `p` and behind `q` and dilations `d` are of depth, height, width; with two sizes the first of each is not read.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        result: OutputTensor,
        first: InputTensor[dtype=result.dtype, rank=result.rank, ...],
        second: InputTensor[dtype=result.dtype, rank=result.rank, ...],
        ctx: DeviceContext,
    ) raises:
        comptime rank = result.rank
        comptime start = 5 - rank
        var of_result = List[Int]()
        var of_first = List[Int]()
        var of_second = List[Int]()
        comptime for i in range(rank):
            of_result.append(result.dim_size(i))
            of_first.append(first.dim_size(i))
            of_second.append(second.dim_size(i))
        var stride: List[Int] = [Self.s0, Self.s1, Self.s2]
        var before: List[Int] = [Self.p0, Self.p1, Self.p2]
        var after: List[Int] = [Self.q0, Self.q1, Self.q2]
        var dilation: List[Int] = [Self.d0, Self.d1, Self.d2]
        enqueue(
            Self.kind,
            result.dtype,
            of_result,
            of_first,
            of_second,
            Int(result.unsafe_ptr()),
            Int(first.unsafe_ptr()),
            Int(second.unsafe_ptr()),
            Self.images_last,
            Self.filter_last,
            List[Int](stride[start:]),
            List[Int](before[start:]),
            List[Int](after[start:]),
            List[Int](dilation[start:]),
            Self.allow_tf32,
            Self.deterministic,
            ctx,
        )


def in_torch_order(sizes: List[Int], last: Bool) -> List[Int]:
    """Sizes with the channels second."""
    if not last:
        return sizes.copy()
    var found: List[Int] = [sizes[0], sizes[len(sizes) - 1]]
    for i in range(1, len(sizes) - 1):
        found.append(sizes[i])
    return found^


def strides_of(sizes: List[Int], last: Bool) -> List[Int]:
    """Strides in torch's order, of a dense tensor that has `sizes` in its own order."""
    var strides = List[Int](length=len(sizes), fill=1)
    for i in reversed(range(len(sizes) - 1)):
        strides[i] = strides[i + 1] * sizes[i + 1]
    return in_torch_order(strides, last)


@no_inline
def enqueue(
    kind: Int,
    type: DType,
    of_result: List[Int],
    of_first: List[Int],
    of_second: List[Int],
    result: Int,
    first: Int,
    second: Int,
    images_last: Bool,
    filter_last: Bool,
    stride: List[Int],
    before: List[Int],
    after: List[Int],
    dilation: List[Int],
    allow_tf32: Bool,
    deterministic: Bool,
    ctx: DeviceContext,
) raises:
    """Tell image, filter and result apart. Not part of the kernel, which is compiled for every geometry."""
    # In the order image, filter, result of the convolution itself.
    var sizes: List[List[Int]] = [of_first.copy(), of_second.copy(), of_result.copy()]
    var places: List[Int] = [first, second, result]
    if kind == IMAGE_GRADIENT:
        sizes = [of_result.copy(), of_second.copy(), of_first.copy()]
        places = [result, second, first]
    elif kind == FILTER_GRADIENT:
        sizes = [of_second.copy(), of_result.copy(), of_first.copy()]
        places = [second, result, first]
    var geometry = Geometry(
        kind,
        type,
        in_torch_order(sizes[0], images_last),
        strides_of(sizes[0], images_last),
        in_torch_order(sizes[1], filter_last),
        strides_of(sizes[1], filter_last),
        in_torch_order(sizes[2], images_last),
        strides_of(sizes[2], images_last),
        stride.copy(),
        before.copy(),
        after.copy(),
        dilation.copy(),
        allow_tf32,
        deterministic,
    )
    convolve(geometry, places[0], places[1], places[2], ctx)
