"""Large pages for large tensors on a CPU.

What the C library maps anew for a tensor, as it does from 32 MiB on, Linux hands out where it is first written, 4 KiB
at a time: that takes several times as long as writing it. Where the system gives large pages on request (its setting
``transparent_hugepage`` is ``madvise``), a program requests them for what its kernels write.
"""

from __future__ import annotations

import ctypes
import mmap

import torch

LARGE = 4 << 20
"""Bytes of a tensor that are worth the request, which takes about a microsecond."""


def in_large_pages(x: torch.Tensor) -> torch.Tensor:
    """``x``, whose memory has not been written yet: whole pages of it are to be large ones. No error if they cannot."""
    if _advise is not None:
        begin = x.data_ptr()
        end = (begin + x.untyped_storage().nbytes()) // mmap.PAGESIZE * mmap.PAGESIZE
        begin = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        if begin < end:
            _advise(begin, end - begin, mmap.MADV_HUGEPAGE)
    return x


_advise = None
if hasattr(mmap, "MADV_HUGEPAGE"):
    _advise = ctypes.CDLL(None).madvise
    _advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
