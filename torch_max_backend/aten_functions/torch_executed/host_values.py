"""Ops whose purpose is the host: a tensor's value as a Python number, and checks that raise. Torch runs them."""

from __future__ import annotations

from torch_max_backend.aten_functions.registry import aten, run_by_torch

# _local_scalar_dense(Tensor self) -> Scalar
run_by_torch(aten._local_scalar_dense.default, reason="it reads a number for the program that called")
# _assert_async(Tensor self) -> ()
# _assert_async.msg(Tensor self, str assert_msg) -> ()
# _assert_scalar(Scalar self, str assert_msg) -> ()
# _assert_tensor_metadata(Tensor a, SymInt[]? size=None, SymInt[]? stride=None, ScalarType? dtype=None, *, …) -> ()
# sym_constrain_range(Scalar size, *, int? min=None, int? max=None) -> ()
# sym_constrain_range_for_size(Scalar size, *, int? min=None, int? max=None) -> ()
run_by_torch(
    aten._assert_async.default,
    aten._assert_async.msg,
    aten._assert_scalar.default,
    aten._assert_tensor_metadata.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
    reason="it raises for values that the program must not have",
)
