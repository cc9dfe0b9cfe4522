"""Interpolation, antialiased interpolation, grid sampling, and images as columns (unfold and fold).

In: an ATen node's arguments as MAX values. Out: its results. May import ``support``, ``registry``, ``base`` and other
families.
"""
