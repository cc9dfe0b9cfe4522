"""Which ops are calls of a library, and of which.

A program has these where a kernel that others have written is better than loops, or where an op is no loop. Beside
products, convolutions and attention that is whatever orders elements, walks tables of ragged rows, samples images, or
is a long function that eager computes by steps of its own. "ATen" is torch's own kernel: results are equal to eager's,
and so is the speed. It takes no part in fusion, so an op belongs here only as long as no rule is as good.

What is listed here returns new tensors and writes into none of its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._ops import OpOverload

from torch_max_backend.aten_functions.torch_executed.collectives import COLLECTIVES
from torch_max_backend.loops.index import Index, product

aten = torch.ops.aten


def _known(namespace: str, *names: str) -> list[OpOverload]:
    """The default overloads of those ops that this build of torch has."""
    ops = getattr(torch.ops, namespace)
    return [getattr(ops, name).default for name in names if hasattr(ops, name)]


DENSE_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)
"""Products whose libraries read factors as they lie or turned, and can be given what they write their result into."""

_PRODUCTS = [
    *DENSE_PRODUCTS,
    aten._addmm_activation.default,
    aten.addbmm.default,
    aten._int_mm.default,
    aten._trilinear.default,
    aten.mv.default,
    aten.dot.default,
    aten.addmv.default,
    aten._grouped_mm.default,
    aten.convolution.default,
    aten.convolution_backward.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
]
"""On a CPU these are MKL's and oneDNN's."""

_PACKED = """_scaled_mm _scaled_mm_v2 _scaled_grouped_mm _scaled_grouped_mm_v2 _weight_int8pack_mm _weight_int4pack_mm
    _weight_int4pack_mm_for_cpu _weight_int4pack_mm_with_scales_and_zeros _convert_weight_to_int4pack
    _convert_weight_to_int4pack_for_cpu _dyn_quant_matmul_4bit _dyn_quant_pack_4bit_weight _cslt_sparse_mm"""
_QUANTISED = [getattr(aten, name).default for name in _PACKED.split() if hasattr(aten, name)]
"""Products of packed weights or of floats of 8 bits: on a GPU ``_scaled_mm`` is cuBLASLt's. A product that a machine
lacks is torch's own error."""

_ATTENTION_ON_A_GPU = [
    getattr(aten, name).default
    for name in (
        "scaled_dot_product_attention",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_cudnn_attention_backward",
        "_scaled_dot_product_fused_attention_overrideable",
        "_scaled_dot_product_fused_attention_overrideable_backward",
    )
    if hasattr(aten, name)
]

_ORDER = [
    aten.sort.default,
    aten.sort.stable,
    aten.topk.default,
    aten.kthvalue.default,
    aten.median.default,
    aten.median.dim,
    aten.nanmedian.default,
    aten.nanmedian.dim,
    aten.mode.default,
    aten.searchsorted.Tensor,
    aten.searchsorted.Scalar,
    aten.bucketize.Scalar,
    aten.bucketize.Tensor,
]
"""Sorts, what is found by rank, and binary search. Which of equal elements ``topk``, ``kthvalue`` and ``median`` take
is defined by ATen's algorithms alone. Some have a rule, which leaves what it does not cover: long rows, places of what
is found by rank, searches with a sorter."""

_COUNTS = [
    aten.histc.default,
    aten.histogram.bin_ct,
    aten.histogram.bins_tensor,
    aten._histogramdd_bin_edges.default,
    aten._histogramdd_from_bin_cts.default,
    aten._histogramdd_from_bin_tensors.default,
    aten.hash_tensor.default,
    aten.nonzero_static.default,
]

_RAGGED = [
    aten.masked_scatter.default,
    aten.masked_scatter_backward.default,
    aten.segment_reduce.default,
    aten._segment_reduce_backward.default,
    aten._embedding_bag.default,
    aten._embedding_bag_forward_only.default,
    aten._embedding_bag_backward.default,
    aten._embedding_bag_per_sample_weights_backward.default,
    aten.embedding_renorm.default,
]
"""Rows of lengths that data gives, and the places behind each other that a mask has."""

_IMAGES = [
    aten.grid_sampler_2d.default,
    aten.grid_sampler_2d_backward.default,
    aten.grid_sampler_3d.default,
    aten.grid_sampler_3d_backward.default,
    aten.cudnn_grid_sampler.default,
    aten.cudnn_grid_sampler_backward.default,
    aten.fractional_max_pool2d.default,
    aten.fractional_max_pool2d_backward.default,
    aten.fractional_max_pool3d.default,
    aten.fractional_max_pool3d_backward.default,
    *(
        getattr(aten, f"_upsample_{how}2d_aa{backward}").default
        for how in ("bilinear", "bicubic", "lanczos")
        for backward in ("", "_backward")
        if hasattr(aten, f"_upsample_{how}2d_aa{backward}")
    ),
]

_DISTANCES = [aten._pdist_forward.default, aten._pdist_backward.default]

_POLYNOMIALS = """chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w
    shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v
    shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l
    legendre_polynomial_p"""
_SPECIAL = """airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 erfcx i0e i1 i1e log_ndtr modified_bessel_i0
    modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 ndtri scaled_modified_bessel_k0 scaled_modified_bessel_k1
    spherical_bessel_j0"""
_FUNCTIONS = [
    aten.i0.default,
    aten.igamma.default,
    aten.igammac.default,
    aten.polygamma.default,
    aten.special_zeta.default,
    aten.special_zeta.self_scalar,
    aten.special_zeta.other_scalar,
    aten.gcd.default,
    aten.lcm.default,
    *(getattr(aten, f"special_{name}").default for name in _SPECIAL.split()),
    *(
        getattr(getattr(aten, f"special_{name}"), overload)
        for name in _POLYNOMIALS.split()
        for overload in ("default", "x_scalar", "n_scalar")
    ),
]
"""Elementwise functions of many steps, some of them loops that end where the series has converged."""

_LEFT_BY_RULES = """acos acosh asin asinh atan atanh cos cosh digamma erf erfc erfinv exp exp2 expm1 lgamma log log10
    log1p log2 sigmoid sin sinh special_entr tan tanh upsample_bilinear2d upsample_bicubic2d"""
OF_INTEGERS = [getattr(aten, name).default for name in _LEFT_BY_RULES.split()]
"""Rules compute these, and leave those of integers, which users compare to the bit: the last one is ATen's. Images of
bytes are resized with weights of 16 bits, and rounded between rows and columns."""

OF_FLOAT64 = [aten._softmax.default, aten._log_softmax.default]
"""Rules compute these of other dtypes."""

_ATEN = [
    *_PRODUCTS,
    *_QUANTISED,
    *_ATTENTION_ON_A_GPU,
    *_ORDER,
    *_COUNTS,
    *_RAGGED,
    *_IMAGES,
    *_DISTANCES,
    *_FUNCTIONS,
    *OF_INTEGERS,
    *OF_FLOAT64,
]

AS_TRACED = frozenset(
    [
        *_QUANTISED,
        *_RAGGED,
        *_DISTANCES,
        aten._grouped_mm.default,
        aten.fractional_max_pool2d_backward.default,
        aten.fractional_max_pool3d_backward.default,
    ]
)
"""Their kernels read some tensors as if these had no gaps, or refuse others: the ops that call them in eager copy such
tensors before, and what a traced graph says of them is what these kernels need."""

_CPU_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
OF_DENSE_ROWS = frozenset(getattr(aten, _CPU_ATTENTION + of).default for of in ("", "_backward"))
"""Their kernels take elements of a row for neighbours."""

ATTENTION = frozenset(op for op in (*_PRODUCTS, *_ATTENTION_ON_A_GPU) if "scaled_dot_product" in str(op))
SORTS = (aten.sort.default, aten.sort.stable, aten.topk.default, aten.kthvalue.default, aten.median.dim)
"""Those that a GPU's kernels do if rows are short; on a CPU they are ATen's."""
PREFIXES = frozenset(getattr(aten, name).default for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"))
IN_PARTS = (aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default)
"""Those of which a schedule cuts long rows in parts, if sizes are known."""
LONGEST_PREFIX, FEWEST_ROWS = 1 << 13, 256
"""On a GPU the others are ATen's where rows are longer or fewer than that: many blocks share a row there."""

PACKED_CONVOLUTIONS = _known("mkldnn", "_convolution_pointwise")
PACKED_LINEARS = [*_known("mkldnn", "_linear_pointwise"), *_known("mkl", "_mkl_linear")]
"""On a CPU, with weights that :mod:`torch_max_backend.capture.packed_weights` has packed."""
ADDED_LINEARS = [op.overloadpacket.binary for op in _known("mkldnn", "_linear_pointwise")]
"""The same, and what is added to: for parts of long sums (:mod:`torch_max_backend.loops.products_in_parts`)."""

LIBRARY: dict[object, str] = {
    **dict.fromkeys(_ATEN, "ATen"),
    **dict.fromkeys(COLLECTIVES, "torch.distributed"),
    **dict.fromkeys([*PACKED_CONVOLUTIONS, *_known("mkldnn", "_linear_pointwise"), *ADDED_LINEARS], "oneDNN"),
    **dict.fromkeys(_known("mkl", "_mkl_linear"), "MKL"),
}
"""The library that computes an op, by overload. It computes what no loop rule does, or what a rule leaves to it."""

_OTHERS = {
    "transformers.grouped_mm_fallback.default": "transformers",
    "transformers.grouped_mm_fallback_backward.default": "transformers",
}
"""Ops of libraries that are imported later or never, by name."""


def add_library(op: OpOverload, library: str) -> None:
    """Have programs call an op that returns new tensors and writes into no argument."""
    LIBRARY[op] = library


def scans_on_a_gpu(target: object, shape: Sequence[Index], dim: object) -> bool:
    """Whether a library computes prefixes on a GPU, of a tensor of this shape along ``dim``."""
    if target not in PREFIXES or not shape or not isinstance(dim, int):
        return False
    if target in IN_PARTS and all(n.is_constant for n in shape):
        return False
    rows = product(n for k, n in enumerate(shape) if k != dim % len(shape))
    return shape[dim].typical > LONGEST_PREFIX or rows.typical < FEWEST_ROWS


def library_of(target: object) -> str:
    """The library that computes an op; empty if none does."""
    if not isinstance(target, OpOverload):
        return ""
    return LIBRARY.get(target) or _OTHERS.get(str(target), "")
