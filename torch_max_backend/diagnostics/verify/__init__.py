"""The option ``verify``: every region's results against torch's, and what to do about a wrong one.

In: a region, and the tensors of a call. Out: nothing, or a ``VerifyError`` with a file that shows the difference. It
may import what the rest of ``diagnostics`` may, and compiles parts of a region by ``torch.compile``, as the file does.
``region_graph`` makes an FX graph of a region, ``references`` runs one in torch, ``judgement`` says what is wrong,
``smallest`` looks for the smallest part that is, ``fault`` for the stage that made it so, ``shrink`` for the smallest
inputs, and ``repro`` writes the file. A call path has a ``region_check``. ``whole_function`` compares a model, with
``collect`` for what is found of its regions and ``stages`` for what is wrong outside of them.
"""
