"""Where the op cases are: ``tests/aten_functions/<family>/cases_<name>.py``, found by name."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType

from tests import aten_functions
from tests.support.cases import Case


@functools.cache
def case_modules() -> dict[str, ModuleType]:
    """Every module of cases by the name behind ``cases_``."""
    found = [m.name for m in pkgutil.walk_packages(aten_functions.__path__, f"{aten_functions.__name__}.")]
    names = {n.rpartition(".cases_")[2]: n for n in found if ".cases_" in n}
    return {name: importlib.import_module(names[name]) for name in sorted(names)}


def case_tables() -> dict[str, list[Case]]:
    """The cases of every table, by its name."""
    return {name: module.CASES for name, module in case_modules().items()}
