"""Python imports this at its start where this folder is on its path: see ``tests/support/all_to_torch.py``."""

from tests.support.all_to_torch import install

install()
