"""Max, average, adaptive and fractional pooling, and their gradients.

In: an ATen node's arguments as MAX values. Out: its results. May import ``support``, ``registry``, ``base`` and other
families.
"""
