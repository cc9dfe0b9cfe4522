"""Calls of one function from several streams, one after the other."""

from __future__ import annotations

import torch


class Turns:
    """Has calls from several streams run one after the other, since they share memory."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._stream: torch.cuda.Stream | None = None

    def take(self) -> None:
        """Have the current stream wait for the one that the last call was on."""
        last = self._stream
        if last is None or last.cuda_stream != torch._C._cuda_getCurrentRawStream(self._index):
            self._stream = torch.cuda.current_stream(self._index)
            if last is not None:
                self._stream.wait_stream(last)
