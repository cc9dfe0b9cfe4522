"""A region as a MAX graph: the walk over its nodes, the check of each result, kernel fusion.

In: a ``Region`` and the settings that change code. Out: a ``max.graph.Graph`` in a module, or ``NodeRefused``. May
import ``partition``, ``capture``, ``aten_functions``, ``base``; knows nothing of the compiler or the cache.
"""
