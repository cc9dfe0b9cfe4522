"""Indices out of range that a GPU has found: how a kernel tells the host, and when the program is told.

A kernel cannot raise. One that reads an index out of range moves it into range and fills a *record* in pinned memory,
which the host reads without waiting for the GPU. MAX's kernels do so by ``mojo_kernels/elementwise/index_checks.mojo``,
generated ones by ``codegen/kernel_interface/cuda/vectors/errors.mojo``; both have the layout of what is shared. Every
call path that uses a GPU looks at the record when it begins and when it ends.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torch_max_backend.base.errors import OutOfRangeError
from torch_max_backend.base.index_sites import Site

log = logging.getLogger("torch_max_backend")
WORDS = 5
"""Of 64 bits, in a record: state, number of the call path, site, index, size."""


def error_at(site: Site, index: int, size: int) -> OutOfRangeError:
    """The error for an index that was found at a site."""
    text = [site.message.format(index=index, size=size)]
    text.append(f"  {site.op} was given the index {index} for a size of {size}.")
    text += [f"  {'or' if k else 'at'} {line}" for k, line in enumerate(site.lines)]
    text.append(
        "  The GPU found it while it ran, and went on with an index in range: what was computed from it is of no use. "
        "The process can go on using the GPU."
    )
    return OutOfRangeError("\n".join(text))


@contextmanager
def _plain_tensors() -> Iterator[None]:
    """Tensors that are made inside have memory, also while torch traces, and belong to no inference."""
    with torch.inference_mode(False), _disable_current_modes():
        yield


class DeviceReports:
    """The record of one device, and the reports that kernels are handed.

    Args:
        device: A GPU; the CPU stands in for one in tests.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with _plain_tensors():
            self._record = torch.zeros(WORDS, dtype=torch.int64, device="cpu", pin_memory=device.type != "cpu")
            self._lock = torch.zeros(1, dtype=torch.int64, device=device)
        self.words = (ctypes.c_int64 * WORDS).from_address(self._record.data_ptr())
        self._sites: list[tuple[Site, ...]] = []
        self._reports: dict[tuple[Site, ...], torch.Tensor] = {}
        self._guard = threading.Lock()

    def report_for(self, sites: tuple[Site, ...]) -> torch.Tensor:
        """What the kernels of a region are handed: a 0-d tensor on the device with its own address, and more behind."""
        with self._guard:
            if sites not in self._reports:
                self._reports[sites] = self._new_report(len(self._sites))
                self._sites.append(sites)
            return self._reports[sites]

    def _new_report(self, number: int) -> torch.Tensor:
        with _plain_tensors():
            report = torch.empty(4, dtype=torch.int64, device=self._device)
            words = [report.data_ptr(), number, self._lock.data_ptr(), self._record.data_ptr()]
            report.copy_(torch.tensor(words, dtype=torch.int64, device="cpu"))
            if report.is_cuda:  # it is read on other streams
                torch.cuda.current_stream(self._device).synchronize()
            return report[0]

    def raise_found(self) -> None:
        """Raise for the index in the record, if there is one, and empty it.

        Raises:
            OutOfRangeError: An index was out of range.
        """
        with self._guard:
            filled, number, site, index, size = self.words
            if not filled:  # another thread was faster
                return
            self.words[0] = 0
            self._lock.zero_()
            found = self._sites[number][site]
        raise error_at(found, index, size)


_devices: list[DeviceReports] = []


@functools.cache
def reports_of(gpu: int) -> DeviceReports:
    """Those of a GPU, made on first use."""
    reports = DeviceReports(torch.device("cuda", gpu))
    _devices.append(reports)
    return reports


@atexit.register
def _say_what_was_not_raised() -> None:
    """A program that ends without another call is told in its log: nothing can be raised by then."""
    try:
        raise_reported()
    except OutOfRangeError as error:
        log.error("%s\n  No call came after it that could have raised this.", error)


def raise_reported() -> None:
    """Raise for an index out of range that a GPU has reported by now. Nothing is waited for.

    Raises:
        OutOfRangeError: An index was out of range.
    """
    for reports in _devices:
        if reports.words[0]:
            reports.raise_found()


def synchronize() -> None:
    """Wait for every GPU that compiled functions have used, and raise for an index out of range that one has found.

    Raises:
        OutOfRangeError: An index was out of range.
    """
    if torch.cuda.is_initialized():
        for gpu in range(torch.cuda.device_count()):
            torch.cuda.synchronize(gpu)
    raise_reported()
