"""Ops that PyTorch runs: those that serve the calling program, and islands by decision with the reason.

In: nothing. Out: entries of the registry. May import ``registry``.
"""
