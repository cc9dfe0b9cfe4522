"""Indices out of range that a kernel has reported: who is told, when, and with which words. The CPU stands in."""

from __future__ import annotations

import gc

import pytest
import torch
from max.driver import Buffer
from max.dtype import DType
from max.graph import TensorValue, ops

from tests.support.cases import Case
from tests.support.chunks import prepared
from tests.support.harness import compiled
from torch_max_backend import map_to, synchronize
from torch_max_backend.aten_functions.support.mojo_ops import mojo_op
from torch_max_backend.aten_functions.support.tensor_ops import broadcast_to, constant
from torch_max_backend.base.errors import OutOfRangeError
from torch_max_backend.base.index_sites import Site
from torch_max_backend.runtime import index_reports, region_call
from torch_max_backend.runtime.call_path import CallSpec
from torch_max_backend.runtime.index_reports import DeviceReports, raise_reported
from torch_max_backend.runtime.region_call import Model, RegionCall, RegionSpec
from torch_max_backend.runtime.tensor_interop import to_tensor

FIRST = Site("aten.embedding.default", "index out of range in self", ("model.py:3, in forward: e(i)",))
SECOND = Site("aten.gather.default", "index {index} is out of bounds for dimension 0 with size {size}", ("a", "b"))


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> DeviceReports:
    """Those of a stand-in for the only GPU."""
    found = DeviceReports(torch.device("cpu"))
    monkeypatch.setattr(index_reports, "_devices", [found])
    monkeypatch.setattr(region_call, "reports_of", lambda gpu: found)
    return found


def found_by_kernel(report: torch.Tensor, site: int, index: int, size: int) -> None:
    """What a kernel does with an index out of range, by the addresses in the report."""
    import ctypes

    words = (ctypes.c_int64 * 4).from_address(report.item())
    lock = (ctypes.c_int64 * 1).from_address(words[2])
    if lock[0]:
        return
    lock[0] = 1
    (ctypes.c_int64 * 5).from_address(words[3])[:] = [1, words[1], site, index, size]


@pytest.mark.any_runner("regions and kernels are stand-ins")
def test_nothing_reported_raises_nothing(reports: DeviceReports) -> None:
    reports.report_for((FIRST,))
    raise_reported()
    reports.raise_found()  # another thread was faster


@pytest.mark.any_runner("regions and kernels are stand-ins")
def test_what_no_call_has_raised_is_in_the_log_when_the_program_ends(
    reports: DeviceReports, caplog: pytest.LogCaptureFixture
) -> None:
    index_reports._say_what_was_not_raised()
    assert not caplog.records
    found_by_kernel(reports.report_for((FIRST,)), 0, 9, 4)
    index_reports._say_what_was_not_raised()
    (record,) = caplog.records
    assert record.levelname == "ERROR" and record.message.startswith("index out of range in self\n")
    assert "model.py:3" in record.message and "could have raised this" in record.message
    raise_reported()  # it is not told twice


@pytest.mark.any_runner("regions and kernels are stand-ins")
def test_the_first_index_is_raised_once_and_the_next_after_it(reports: DeviceReports) -> None:
    one, two = reports.report_for((FIRST,)), reports.report_for((FIRST, SECOND))
    found_by_kernel(two, 1, -7, 4)
    found_by_kernel(one, 0, 99, 4)
    with pytest.raises(OutOfRangeError) as error:
        raise_reported()
    text = str(error.value)
    assert text.startswith("index -7 is out of bounds for dimension 0 with size 4\n")
    assert "aten.gather.default was given the index -7 for a size of 4" in text and "at a\n  or b\n" in text
    assert isinstance(error.value, IndexError) and isinstance(error.value, RuntimeError)
    raise_reported()
    found_by_kernel(one, 0, 99, 4)
    with pytest.raises(IndexError, match=r"index out of range in self\n.*index 99 .*size of 4\.\n  at model.py:3"):
        synchronize()
    synchronize()


@pytest.mark.any_runner("regions and kernels are stand-ins")
def test_equal_sites_share_a_report(reports: DeviceReports) -> None:
    first = reports.report_for((FIRST,))
    gc.collect()
    assert first.data_ptr() == first.item() and first.shape == ()
    assert reports.report_for((Site(**vars(FIRST)),)) is first
    assert reports.report_for((SECOND,)) is not first


@pytest.mark.any_runner("regions and kernels are stand-ins")
def test_a_report_is_made_while_torch_traces() -> None:
    """As a program is loaded: its report has memory, whatever tensors are at that time."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    with FakeTensorMode(), FunctionalTensorMode(), torch.inference_mode():
        made = DeviceReports(torch.device("cpu")).report_for((FIRST,))
    assert type(made) is torch.Tensor and made.data_ptr() == made.item() and not made.is_inference()


@pytest.mark.any_runner("regions and kernels are stand-ins")
def test_a_call_path_raises_when_it_begins_and_when_it_ends(reports: DeviceReports) -> None:
    report = reports.report_for((FIRST,))
    source = "def call(args):\n    raise_reported()\n    k(args[0])\n    raise_reported()\n    return ()\n"
    calls = []

    def kernel(bad: bool) -> None:
        calls.append(bad)
        if bad:
            found_by_kernel(report, 0, 5, 4)

    call = CallSpec(source, (), {"k": kernel}).build([])
    with pytest.raises(OutOfRangeError):
        call([True])
    call([False])
    found_by_kernel(report, 0, 5, 4)
    with pytest.raises(OutOfRangeError):
        call([False])
    assert calls == [True, False]


class Listing(Model):
    """A model that keeps what it is given."""

    def _execute_device_tensors(self, buffers: list[Buffer]) -> list[Buffer]:
        self.given = [to_tensor(b) for b in buffers]
        return []


@pytest.mark.any_runner("regions and kernels are stand-ins")
@pytest.mark.parametrize("sizes", [(), (3, 4)])
def test_a_region_hands_its_report_over_behind_all_else(reports: DeviceReports, sizes: tuple[int, ...]) -> None:
    spec = RegionSpec((None,), frozenset(), frozenset(), (), len(sizes), (), sites=(FIRST,), reporting=(0,))
    model = Listing()
    call = RegionCall(spec, model)
    for _ in range(2):
        call((), (torch.zeros(2),), sizes)
        assert [tuple(t.shape) for t in model.given] == [(2,), *((n, 0) for n in sizes), ()]
        assert model.given[-1].item() == reports.report_for((FIRST,)).item()


@pytest.mark.any_runner("regions and kernels are stand-ins")
def test_sites_are_saved_with_the_call_path() -> None:
    spec = RegionSpec((), frozenset(), frozenset(), (), 0, (0,), sites=(FIRST, SECOND), reporting=(0,))
    saved = CallSpec("def call(args): pass", (spec,)).dumps()
    assert CallSpec.loads(saved).regions == (spec,)


# -- the kernel ----------------------------------------------------------------------------------------------------
@torch.library.custom_op("test_reports::read", mutates_args=())
def read(x: torch.Tensor, index: torch.Tensor, report: torch.Tensor, wraps: bool) -> torch.Tensor:
    at = torch.where(index < 0, index + len(x), index) if wraps else index
    return x[at.clamp(0, len(x) - 1).long()]


@read.register_fake
def _(x: torch.Tensor, index: torch.Tensor, report: torch.Tensor, wraps: bool) -> torch.Tensor:
    return x.new_empty(index.shape)


@map_to(torch.ops.test_reports.read.default)
def lower_read(x: TensorValue, index: TensorValue, report: TensorValue, wraps: bool) -> TensorValue:
    """As on a GPU, where MAX computes the check inside the gather."""
    at = ops.cast(index, DType.int64)
    numbers = [constant(n, DType.int64, x.device) for n in (int(x.shape[0]), 1)]
    operands = [at, *(broadcast_to(n, at.shape) for n in [*numbers, report])]
    name = "tmb_index_from_either_end" if wraps else "tmb_index"
    return ops.gather(x, mojo_op(name, operands, [(DType.int64, at.shape)])[0], 0)


X, AT = torch.arange(4.0) + 10, torch.tensor([[0, 3, 1], [2, 2, 0]])


def _case(wraps: bool, dtype: torch.dtype) -> Case:
    function = lambda x, i, report: torch.ops.test_reports.read(x, i, report, wraps)  # noqa: E731
    return Case(f"read_{wraps}_{dtype}", function, (X, AT.to(dtype), torch.zeros((), dtype=torch.int64)))


READS = {(wraps, dtype): _case(wraps, dtype) for wraps in (False, True) for dtype in (torch.int32, torch.int64)}


@pytest.mark.xdist_group("index_reports")
@pytest.mark.parametrize(("wraps", "dtype"), READS)
def test_the_kernel_reports_and_moves_into_range(wraps: bool, dtype: torch.dtype, reports: DeviceReports) -> None:
    case = READS[wraps, dtype]
    failed = prepared("index reports", list(READS.values()))
    assert id(case) not in failed, failed[id(case)]
    run, report = compiled(case), reports.report_for((FIRST, SECOND))
    for index, is_bad in ((5, True), (-1, not wraps), (-4, not wraps), (-5, True), (4, True), (3, False)):
        at = AT.to(dtype)
        at[1, 1] = index
        torch.testing.assert_close(run(X, at, report), case.function(X, at, report))
        if is_bad:
            with pytest.raises(OutOfRangeError, match=f"index {index} is out of bounds for dimension 0 with size 4"):
                raise_reported()
        raise_reported()
