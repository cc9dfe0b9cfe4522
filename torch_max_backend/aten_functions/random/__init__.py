"""Random ops, which PyTorch runs with its own generator.

In: nothing. Out: entries of the registry. May import ``registry``.
"""
