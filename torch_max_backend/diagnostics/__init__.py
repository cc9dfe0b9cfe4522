"""What happened, for people: reports of compiled graphs, coverage, comparison with torch, logs, documentation.

In: facts that the compile stages give, and graphs that are cut. Out: ``reports()``, ``Coverage``, a ``VerifyError``,
log lines, Markdown. May import all layers below it; nothing below depends on it. What it has to compile itself it hands
to ``torch.compile`` by the backend's name.
"""
