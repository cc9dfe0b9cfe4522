"""Whether a tensor's memory is one variable's alone, so that it may be written over behind its last use.

A backward gets what its forward saved. Autograd has given that up, unless the graph is retained; a hook on saved
tensors, a result of the forward or another view may hold it all the same. So its owners are counted when it is to be
written over.
"""

from __future__ import annotations

import sys

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily


def references(x: torch.Tensor) -> tuple[int, ...]:
    """How many hold a tensor and its memory, in Python and in C++: for one variable's, :func:`of_one_variable`."""
    memory = x.untyped_storage()
    in_python = sys.getrefcount(x), sys.getrefcount(memory)
    return *in_python, x._use_count(), torch._C._storage_Use_Count(memory._cdata)


def of_one_variable() -> tuple[int, ...]:
    """What :func:`references` gives for a tensor that is held by a variable of its caller, and by nothing else.

    It is asked for each time: while Dynamo has its hand on calls, Python counts one reference more in each.
    """
    with unset_fake_temporarily():
        x = torch.empty(1)
        return references(x)
