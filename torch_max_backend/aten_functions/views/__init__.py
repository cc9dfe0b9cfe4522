"""Views as values: reshapes, slices, permutes, joins, padding, and writes into views.

In: an ATen node's arguments as MAX values. Out: its results. May import ``support``, ``registry``, ``base`` and other
families.
"""
