"""Tests of Mojo kernels by themselves; those for GPUs are compiled for a GPU that need not be attached."""
