"""Comparisons of speed that can be checked: studies of contenders, their records, and profiles of commands.

In: models with their arguments, or a command. Out: a ``Study``, as JSON lines, Markdown and a plot; regressions against
an earlier one; tables of kernels. May import all layers below it.
"""
