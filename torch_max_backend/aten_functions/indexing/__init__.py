"""Reads and writes by index tensors, embeddings and embedding bags.

In: an ATen node's arguments as MAX values. Out: its results. May import ``support``, ``registry``, ``base`` and other
families.
"""
