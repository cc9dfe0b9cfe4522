"""What several families share: dtypes, shapes, constants, kernel calls, the promised outputs of a node.

In: MAX values. Out: MAX values. May import ``base`` alone. Registers no op, so that a family which uses it registers no
other family's ops.
"""
