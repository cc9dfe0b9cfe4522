"""From a loop program to kernels: what is computed in place, which loops share a kernel, in which order they run.

Enters: a ``Program``. Leaves: a ``Schedule`` of kernels and library calls with the layout of every tensor in memory.
May import ``loops`` and ``base``. It decides from sizes and layouts, never from an op's name.
"""
