"""Kernels that MAX does not have, or not so that they compile and run fast. Each is registered as ``tmb_<name>``."""
