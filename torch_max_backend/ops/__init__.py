"""Public ops: each is one declaration, and works in eager, in ``torch.compile`` with any backend, and under autograd.

In: tensors. Out: new tensors. A declaration has an op's schema, its reference in plain PyTorch, its gradient,
tolerances and figures; the kernel is generated from the reference. In a graph of this backend the op is its reference's
ATen ops, which fuse with their neighbours. May import ``frontend`` and what is below it; importing it registers the ops
with ``torch.library`` and imports no compiler.
"""

from __future__ import annotations

from torch_max_backend.ops.activations import bias_gelu, geglu, gelu, swiglu
from torch_max_backend.ops.arguments import ArgumentError
from torch_max_backend.ops.copies import copy_transpose
from torch_max_backend.ops.linear import fused_linear_bias_residual, fused_linear_gelu
from torch_max_backend.ops.linear_losses import linear_cross_entropy
from torch_max_backend.ops.losses import cross_entropy
from torch_max_backend.ops.norms import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from torch_max_backend.ops.reductions import reduce, softmax_online
from torch_max_backend.ops.rotary import rope, rope_at
from torch_max_backend.ops.structures import contact_map, contact_map_packed, pairwise_distance, rmsd, rmsd_aligned

__all__ = [
    "ArgumentError",
    "add_layer_norm",
    "add_rms_norm",
    "bias_gelu",
    "contact_map",
    "contact_map_packed",
    "copy_transpose",
    "cross_entropy",
    "fused_linear_bias_residual",
    "fused_linear_gelu",
    "geglu",
    "gelu",
    "layer_norm",
    "linear_cross_entropy",
    "pairwise_distance",
    "reduce",
    "rms_norm",
    "rmsd",
    "rmsd_aligned",
    "rope",
    "rope_at",
    "softmax_online",
    "swiglu",
]
