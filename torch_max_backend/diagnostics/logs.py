"""Logging: one logger, ``torch_max_backend``; ``verbose`` sends its information to standard error.

Where torch is asked for it (``TORCH_LOGS``, ``torch._logging.set_logs``), its records go to torch's logger as well, at
the level that is asked for there. Torch's logger is another one, since torch takes a logger that it knows away from the
application's handlers.
"""

from __future__ import annotations

import logging
import sys

from torch_max_backend.base.torch_logs import TORCH_LOGGER
from torch_max_backend.diagnostics import recompiles
from torch_max_backend.options import Options

_handler: logging.Handler | None = None
_level_before: int | None = None
"""The logger's own level, while it has the one that torch is asked for."""


def configure(options: Options) -> None:
    """Apply ``verbose`` and what torch's logging says, and listen to what torch says of the function it compiles."""
    global _handler
    recompiles.watch()
    logger = logging.getLogger("torch_max_backend")
    _follow_torch(logger)
    if not options.verbose:
        return
    if _handler is None:
        _handler = logging.StreamHandler(sys.stderr)
        _handler.setFormatter(logging.Formatter("[max_backend] %(message)s"))
        logger.addHandler(_handler)
    if logger.level == logging.NOTSET or logger.level > logging.INFO:
        logger.setLevel(logging.INFO)


class _ToTorch(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        torch_logger = logging.getLogger(TORCH_LOGGER)
        if torch_logger.isEnabledFor(record.levelno):
            torch_logger.handle(record)


_to_torch = _ToTorch()


def _follow_torch(logger: logging.Logger) -> None:
    """Take the level that torch's logging has for the package. Warnings alone are what torch has for all by default."""
    global _level_before
    level = logging.getLogger(TORCH_LOGGER).getEffectiveLevel()
    if _level_before is not None:
        logger.setLevel(_level_before)
        logger.removeHandler(_to_torch)
        _level_before = None
    if level != logging.WARNING:
        _level_before = logger.level
        logger.setLevel(level)
        logger.addHandler(_to_torch)
