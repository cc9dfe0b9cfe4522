"""Random ops: torch runs them, with its own generators, so that a seed gives the numbers that it gives in eager."""

from __future__ import annotations

from torch_max_backend.aten_functions.registry import aten, run_by_torch

_REASON = "torch's own generator, so that results equal eager's"

# Drawn from sizes alone: they run before the region that uses them.
run_by_torch(
    aten.rand,
    aten.randn,
    aten.randint,
    aten.randperm,
    aten.rand_like,
    aten.randn_like,
    aten.randint_like,
    aten.normal.float_float,
    reason=_REASON,
)

# Drawn from the shape of a tensor, whose values they ignore.
run_by_torch(
    aten.bernoulli.p,
    aten.uniform,
    aten.exponential,
    aten.geometric,
    aten.log_normal,
    aten.cauchy,
    aten.random,
    aten.normal_functional,
    reason=_REASON,
)

# Drawn from the values of a tensor.
run_by_torch(
    aten.bernoulli.default,
    aten.bernoulli.Tensor,
    aten.normal.Tensor_float,
    aten.normal.float_Tensor,
    aten.normal.Tensor_Tensor,
    aten.native_dropout,
    aten._fused_dropout,
    aten.multinomial,
    aten.rrelu_with_noise_functional,
    aten.poisson,
    aten.binomial,
    aten._sample_dirichlet,
    aten._standard_gamma,
    reason=_REASON,
)
