"""Kernels that MAX does not have. Each is registered as ``tmb_<name>`` and runs on CPUs and GPUs."""
