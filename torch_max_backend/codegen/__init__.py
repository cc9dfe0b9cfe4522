"""The call path of a compiled graph, written as Python text.

In: a ``Plan`` and the FX graph that it is of. Out: a ``CallSpec``, which needs neither. May import ``partition``,
``capture``, ``runtime``, ``base``; compiles and loads nothing.
"""
