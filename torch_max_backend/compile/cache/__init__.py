"""Compiled regions on disk: the key of named parts, the store, bundles for other machines.

In: regions (for keys) and artifacts. Out: artifacts, or the part of the key in which the nearest entry differs. May
import ``partition``, ``capture``, ``aten_functions``, ``options``, ``base``; ``store`` imports none of them.
"""
