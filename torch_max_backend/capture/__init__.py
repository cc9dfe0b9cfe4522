"""Graph passes on what PyTorch captured: decompositions, constant folding, the joint graph, specialisation.

In: an FX graph of ATen ops with fake tensors in ``meta["val"]``. Out: an FX graph of the same meaning. May import
``aten_functions`` (its registry), ``base``; knows nothing of MAX, regions or the compiler.
"""
