"""Compile the kernels of ``test_cuda_interface.py`` for a machine without Mojo: ``python -m ... DIR [ARCH]``.

There, without MAX and with this checkout as the working directory:
``CUDA_INTERFACE_KERNELS=DIR python -m pytest --noconftest -c /dev/null --rootdir . tests/gpu/test_cuda_interface.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.gpu.cuda_kernels import prebuild

if __name__ == "__main__":
    prebuild(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "sm_90a")
