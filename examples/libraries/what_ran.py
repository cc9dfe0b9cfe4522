"""What ran where: a line for every graph that was compiled in this process.

The examples beside this file find the backend by its name; only this module imports the package, to show what it did.
"""

from __future__ import annotations

from torch_max_backend import reports


def print_what_ran() -> None:
    """Print each graph's kernels, library calls and islands; ``AssertionError`` if nothing was compiled."""
    assert reports(), "nothing was compiled"
    for report in reports():
        print(report.summary())
