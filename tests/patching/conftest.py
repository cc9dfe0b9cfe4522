"""A model to patch, and the library that its classes seem to come from."""

from __future__ import annotations

import itertools
import sys
import types

import pytest

from tests.patching.models import TRANSFORMERS, Model, OwnMLP, OwnOffsetRMSNorm, OwnRMSNorm


@pytest.fixture
def model() -> Model:
    return Model().double()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules that the classes say they come from, so that they can be pickled."""
    for name in itertools.accumulate(TRANSFORMERS.split("."), "{}.{}".format):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for cls in (OwnRMSNorm, OwnOffsetRMSNorm, OwnMLP):
        setattr(sys.modules[TRANSFORMERS], cls.__name__, cls)
