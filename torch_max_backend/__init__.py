"""torch.compile on Modular's MAX: ``torch.compile(model, backend="max_backend")``."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# `import torch` imports this module, for the names in base/torch_logs.py. So it does little.


def _wants_beartype() -> bool:
    if not os.environ.get("TORCH_MAX_BACKEND_BEARTYPE"):
        return False
    from torch_max_backend.options import flag

    return flag("BEARTYPE")


if _wants_beartype():
    import warnings

    from beartype import BeartypeConf
    from beartype.claw import beartype_this_package
    from beartype.roar import BeartypeDecorHintPep613DeprecationWarning

    # typing.TypeAlias is deprecated in favour of a statement that Python 3.11 does not have.
    warnings.filterwarnings("ignore", category=BeartypeDecorHintPep613DeprecationWarning)
    beartype_this_package(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, as for a type checker

if TYPE_CHECKING:
    from torch_max_backend.admission_control.asking import admission
    from torch_max_backend.admission_control.decision import Admit, NotAdmittedError, Reject
    from torch_max_backend.admission_control.loaded import loaded
    from torch_max_backend.aten_functions.registry import map_to
    from torch_max_backend.backend import max_backend
    from torch_max_backend.base.errors import MaxBackendError, Unsupported
    from torch_max_backend.compile.compiler import compile_together
    from torch_max_backend.compile.pending import wait_for_compiles
    from torch_max_backend.diagnostics.kernel_times import kernel_times
    from torch_max_backend.diagnostics.report import reports
    from torch_max_backend.evidence.study import study
    from torch_max_backend.ops.mojo_op import mojo_op
    from torch_max_backend.patching.patch import patch
    from torch_max_backend.runtime.index_reports import synchronize
    from torch_max_backend.runtime.session import get_accelerators

# Loaded on first use: a compile worker imports this package, and must not pay for torch.
_WHERE = {
    "Admit": "admission_control.decision",
    "MaxBackendError": "base.errors",
    "NotAdmittedError": "admission_control.decision",
    "Reject": "admission_control.decision",
    "Unsupported": "base.errors",
    "admission": "admission_control.asking",
    "compile_together": "compile.compiler",
    "get_accelerators": "runtime.session",
    "kernel_times": "diagnostics.kernel_times",
    "loaded": "admission_control.loaded",
    "map_to": "aten_functions.registry",
    "max_backend": "backend",
    "mojo_op": "ops.mojo_op",
    "patch": "patching.patch",
    "reports": "diagnostics.report",
    "study": "evidence.study",
    "synchronize": "runtime.index_reports",
    "wait_for_compiles": "compile.pending",
}

__all__ = [
    "Admit",
    "MaxBackendError",
    "NotAdmittedError",
    "Reject",
    "Unsupported",
    "admission",
    "compile_together",
    "get_accelerators",
    "kernel_times",
    "loaded",
    "map_to",
    "max_backend",
    "mojo_op",
    "patch",
    "reports",
    "study",
    "synchronize",
    "wait_for_compiles",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torch_max_backend.base.versions import check_this_environment

    check_this_environment()
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
