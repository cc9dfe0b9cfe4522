"""Special functions: gamma, Bessel, orthogonal polynomials and their kin.

In: an ATen node's arguments as MAX values. Out: its results. May import ``support``, ``registry``, ``base`` and other
families.
"""
