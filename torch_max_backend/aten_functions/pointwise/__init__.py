"""Elementwise ops: arithmetic, activations, comparisons, bits, powers and integer division.

In: an ATen node's arguments as MAX values. Out: its results. May import ``support``, ``registry``, ``base`` and other
families.
"""
