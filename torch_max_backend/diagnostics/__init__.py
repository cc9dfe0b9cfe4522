"""What happened, for people: reports of compiled graphs, logs, generated documentation.

In: facts that the compile stages give. Out: ``reports()``, log lines, Markdown. May import ``compile`` (its
statistics), ``partition``, ``aten_functions``, ``options``, ``base``; nothing below depends on it.
"""
