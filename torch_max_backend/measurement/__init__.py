"""Times of calls, what they say, and what a machine reaches.

In: calls, a device. Out: samples, spreads, intervals, facts about the machine, ``Roofs``. May import ``compile.cache``
(where roofs are kept), ``options``, ``base``. What it has to compile itself it hands to ``torch.compile`` by the
backend's name.
"""
