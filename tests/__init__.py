"""The tests: folders mirror the package; ``support/`` has the harness, ``gpu/`` what needs an NVIDIA GPU."""
