"""What a call does: load artifacts, bind tensors, run regions, order streams.

In: a ``CallSpec``, artifacts, tensors. Out: tensors. May import ``options`` and ``base`` alone, and of MAX its driver
and engine: a warm process loads this and no compile stage, no FX, no lowering.
"""
