"""From regions to loaded models: look-up, worker processes, speculative compilation of backwards, progress.

In: regions and options. Out: MAX models in the regions' order, and what compiling took. May import ``cache``,
``lowering``, ``partition``, ``capture``, ``aten_functions``, ``runtime``, ``options``, ``base``. This file imports
nothing: a worker process imports the folder and must not pay for torch.
"""
