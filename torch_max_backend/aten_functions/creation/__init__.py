"""Tensors made from numbers: factories, ranges, and the ``prims`` that Dynamo puts into graphs.

In: an ATen node's arguments as MAX values. Out: its results. May import ``support``, ``registry``, ``base`` and other
families.
"""
