"""What cuBLASLt computes of a product before it writes it: a bias, and then GELU by ``tanh``.

A kernel for that would read and write the widest activations of a transformer once more. cuBLASLt has the sums in
float32 then, which eager has rounded: GELU is nearer to its exact value. Its ReLU is not taken: some of its kernels
make zero of NaN (bfloat16 [1000, 512] times [512, 1001] on an H200), and eager does not.
"""

from __future__ import annotations

from torch import fx

from torch_max_backend.capture.fake_tensors import tensor_of
from torch_max_backend.capture.user_controlled_ops import is_taken
from torch_max_backend.capture.view_ops import RESHAPES
from torch_max_backend.loops.rules.registry import aten
from torch_max_backend.partition.region import Region

ACTIVATED = aten._addmm_activation.default


def activation_behind(product: fx.Node, region: Region) -> fx.Node | None:
    """The GELU of a region that alone reads a product of it, through views or not."""
    inside, leaving = set(region.nodes), {port.node for port in region.outputs}
    node = product
    while node in inside and node not in leaving and len(node.users) == 1:
        (user,) = node.users
        if user not in inside or tensor_of(user).dtype != tensor_of(product).dtype:
            return None
        if user.target is aten.gelu.default and user.kwargs.get("approximate") == "tanh":
            return None if is_taken(aten.gelu.default) else user
        if user.target not in RESHAPES:
            return None
        node = user
    return None
