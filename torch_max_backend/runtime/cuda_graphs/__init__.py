"""Capture and replay: the regions of a call on a GPU, launched as MAX's device graphs.

In: a ``CallSpec`` and models. Out: a call path that captures once per shape, copies moving arguments in and results
out. May import ``runtime``, ``options``, ``base``.
"""
