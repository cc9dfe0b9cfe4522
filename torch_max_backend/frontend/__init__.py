"""What one call of ``torch.compile`` does: the pipeline, warm start, background tracing, prebuild, saved functions.

In: an ATen graph from AOTAutograd and options. Out: a ``CompiledGraph``, which AOTAutograd calls and keeps. May import
every other folder. A warm start imports ``warm_start`` and ``compiled_graph``, and not ``pipeline``.
"""
