"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import torch_max_backend.loops
import torch_max_backend.schedule

PACKAGES = (torch_max_backend.loops, torch_max_backend.schedule)
MODULES = [m.name for p in PACKAGES for m in pkgutil.walk_packages(p.__path__, f"{p.__name__}.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    with_examples = [name for name in MODULES if any(t.examples for t in finder.find(importlib.import_module(name)))]
    assert {"torch_max_backend.loops.index", "torch_max_backend.loops.expr"} <= set(with_examples)
