"""Logging: one logger, ``torch_max_backend``; ``verbose`` sends its information to standard error.

A logger that the user has set to ``DEBUG`` stays so, and prints loops, schedules and kernels as well.
"""

from __future__ import annotations

import logging
import sys

from torch_max_backend.diagnostics import recompiles
from torch_max_backend.options import Options

_handler: logging.Handler | None = None


def configure(options: Options) -> None:
    """Apply ``verbose``, and listen to what torch says of the function that it compiles."""
    global _handler
    recompiles.watch()
    logger = logging.getLogger("torch_max_backend")
    if options.verbose and _handler is None:
        _handler = logging.StreamHandler(sys.stderr)
        _handler.setFormatter(logging.Formatter("[max_backend] %(message)s"))
        logger.addHandler(_handler)
        if logger.level == logging.NOTSET or logger.level > logging.INFO:
            logger.setLevel(logging.INFO)
