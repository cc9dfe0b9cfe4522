"""Which nodes MAX runs, and in which regions: classification, levels, backward stages, in-place updates.

In: a rewritten FX graph, and the nodes that lowerings refused. Out: a ``Plan`` of regions and torch nodes in running
order; a region has its boundary, its symbolic sizes and its canonical text. May import ``capture``,
``aten_functions``, ``base``; of MAX only its dims.
"""
