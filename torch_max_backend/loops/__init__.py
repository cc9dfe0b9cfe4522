"""The loop IR: a tensor is a function from an index to a scalar expression.

Enters: a region of ATen nodes. Leaves: a loop program, plain data with a printed form. May import: ``partition``,
``capture``, ``base`` and torch. Knows no device, no schedule and no generated code.
"""
