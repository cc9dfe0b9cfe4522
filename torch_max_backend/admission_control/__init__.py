"""Before memory runs out: what a call needs, what there is, and what happens where that does not suffice.

In: a ``CallMemory`` and the arguments of a call. Out: ``Admit`` or ``Reject``, and what runs instead. May import
``runtime``, ``options`` and ``base``.
"""
