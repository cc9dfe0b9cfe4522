"""Recording and playing back with stand-ins for MAX's model and the device: when, in whose memory, what leaves."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from max.driver import Buffer

from torch_max_backend.options import Options
from torch_max_backend.runtime import region_call
from torch_max_backend.runtime.call_path import CallSpec
from torch_max_backend.runtime.cuda_graphs import captured_region, replay
from torch_max_backend.runtime.cuda_graphs.output_copies import hand_out, plan_outputs
from torch_max_backend.runtime.cuda_graphs.replay import Replayed, with_replay
from torch_max_backend.runtime.region_spec import RegionSpec
from torch_max_backend.runtime.tensor_interop import to_buffer, to_tensor

pytestmark = pytest.mark.any_runner("regions and models are stand-ins")

Function = Callable[..., Sequence[torch.Tensor]]


class StandInModel:
    """Computes with torch on the buffers' memory; a captured graph knows its buffers and keeps its outputs' memory."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.executed = self.replayed = 0
        self.captured: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        self.released: list[int] = []
        self.times_captured = 0
        self.refuses = ""

    def _compute(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [t.contiguous().clone() for t in self.function(*inputs)]

    def _execute_device_tensors(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        self.executed += 1
        return [to_buffer(t) for t in self._compute([to_tensor(b) for b in buffers])]

    @torch.inference_mode(False)  # memory of the engine's own knows no such mode
    def _capture(self, keys: Sequence[int], buffers: Sequence[Buffer]) -> list[Buffer]:
        if self.refuses:
            raise RuntimeError(self.refuses)
        (key,) = keys
        inputs = [to_tensor(b) for b in buffers]
        saved = [t.clone() for t in inputs]
        outputs = self._compute(inputs)
        for tensor, before in zip(inputs, saved, strict=True):  # capturing runs nothing
            tensor.copy_(before)
        for output in outputs:
            output.fill_(0)
        self.captured[key] = inputs, outputs
        self.times_captured += 1
        return [to_buffer(o) for o in outputs]

    def _replay(self, keys: Sequence[int], buffers: Sequence[Buffer]) -> None:
        (key,) = keys
        inputs, outputs = self.captured[key]
        assert [to_tensor(b).data_ptr() for b in buffers] == [t.data_ptr() for t in inputs]
        self.replayed += 1
        for output, value in zip(outputs, self._compute(inputs), strict=True):
            output.copy_(value)

    def _release_captured_graph(self, keys: Sequence[int]) -> None:
        self.released += keys
        for key in keys:
            del self.captured[key]


@pytest.fixture(autouse=True)
def no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions that are said to run on a GPU need none."""
    monkeypatch.setattr(region_call, "in_order", lambda gpus: contextlib.nullcontext())
    monkeypatch.setattr(captured_region, "end_capture", lambda index: None)
    monkeypatch.setattr(replay.Turns, "take", lambda self: None)
    monkeypatch.setattr(replay, "_is_on_gpu", lambda tensor: True)


def region(inputs: int, static: set[int], mutable: set[int] = frozenset(), **more: Any) -> RegionSpec:  # type: ignore[assignment]
    """A region on a GPU with contiguous inputs."""
    values = {"may_alias": (), "host_values": 0, "gpus": (0,), **more}
    return RegionSpec((None,) * inputs, frozenset(static), frozenset(mutable), **values)


class Setup:
    """A call path on stand-ins."""

    def __init__(self, source: str, regions: Sequence[RegionSpec], functions: Sequence[Function], **spec: Any) -> None:
        self.models = [StandInModel(f) for f in functions]
        self.spec = CallSpec(source, tuple(regions), **spec)
        self.call = Replayed(self.spec, self.models, self.spec.build(self.models), 0)

    def __call__(self, *args: Any) -> Any:
        return self.call(list(args))

    @property
    def recorded(self) -> int:
        """How often the first region was captured."""
        return self.models[0].times_captured


def linear(**spec: Any) -> Setup:
    """``x @ w``, where ``w`` is a parameter."""
    source = "def call(args):\n    w, x, = args\n    args.clear()\n    y, = region0((w,), (x,))\n    return (y,)\n"
    return Setup(source, [region(2, {0})], [lambda w, x: [x @ w]], static=frozenset({0}), **spec)


def test_the_second_call_is_recorded_and_the_third_played() -> None:
    setup, w = linear(), torch.randn(4, 4)
    inputs = [torch.randn(3, 4) for _ in range(5)]  # all alive: each has its own place
    for n, x in enumerate(inputs):
        torch.testing.assert_close(setup(w, x)[0], x @ w)
        assert setup.recorded == (n > 0)
    assert setup.models[0].executed == 1
    assert setup.models[0].replayed == 4


def test_results_are_the_callers_to_keep() -> None:
    setup, w = linear(), torch.randn(4, 4)
    xs = [torch.randn(3, 4) for _ in range(5)]
    kept = [setup(w, x)[0] for x in xs]
    for x, y in zip(xs, kept, strict=True):
        torch.testing.assert_close(y, x @ w)


def test_arguments_that_stay_where_they_are_are_not_copied() -> None:
    setup, w, x = linear(), torch.randn(4, 4), torch.randn(3, 4)
    for _ in range(4):
        x.copy_(torch.randn(3, 4))
        torch.testing.assert_close(setup(w, x)[0], x @ w)
    (recording,) = setup.call._held
    assert not recording.copied
    assert recording.fixed == [0, 1]


def test_an_argument_that_moves_later_is_copied_from_then_on() -> None:
    setup, w, x = linear(), torch.randn(4, 4), torch.randn(3, 4)
    setup(w, x), setup(w, x), setup(w, x)
    others = [torch.randn(3, 4) for _ in range(4)]
    for y in others:
        torch.testing.assert_close(setup(w, y)[0], y @ w)
    assert setup.recorded == 2
    assert setup.call._held[0].copied == [1]
    assert len(setup.models[0].released) == 1


def test_a_parameter_that_moves_often_ends_the_recordings() -> None:
    setup = linear()
    parameters = [torch.randn(4, 4) for _ in range(2 * replay.WASTED)]
    for w in parameters:
        for _ in range(2):
            x = torch.randn(3, 4)
            torch.testing.assert_close(setup(w, x)[0], x @ w)
    assert setup.recorded == replay.WASTED + 1
    assert not setup.call._held
    assert not setup.models[0].captured


def test_a_cache_that_is_replaced_now_and_then_is_recorded_again_each_time() -> None:
    source = "def call(args):\n    c, x, = args\n    args.clear()\n    region0((), (c, x))\n    return ()\n"
    setup = Setup(source, [region(2, set(), {0})], [lambda c, x: [c.add_(x)][:0]], written=frozenset({0}))
    caches = [torch.zeros(4) for _ in range(3 * replay.WASTED)]
    for cache in caches:
        for _ in range(replay.PLAYS + 2):
            setup(cache, torch.ones(4))
        assert cache.tolist() == [replay.PLAYS + 2] * 4
    assert 0 not in setup.call._held[0].copied
    assert setup.recorded >= len(caches)


def test_each_shape_has_its_recording_up_to_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    setup, w = linear(varying=(1,)), torch.randn(4, 4)
    with caplog.at_level(logging.INFO, "torch_max_backend"):
        inputs = [torch.randn(n, 4) for _ in range(3) for n in range(1, replay.SHAPES + 4)]
        for x in inputs:
            torch.testing.assert_close(setup(w, x)[0], x @ w)
    assert setup.recorded == replay.SHAPES
    assert sum("no more device graphs" in r.message for r in caplog.records) == 1


def test_numbers_belong_to_the_key() -> None:
    source = "def call(args):\n    n, x, = args\n    y, = region0((), (x,), (), (n * 2.0,))\n    return (y,)\n"
    setup = Setup(source, [region(1, set(), host_values=1)], [lambda x, n: [x * n]], varying=(0,))
    x = torch.randn(3)
    for n in (1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 3.0):
        torch.testing.assert_close(setup(n, x)[0], x * n * 2)
    assert setup.recorded == 2


def test_a_cache_that_stays_is_written_in_place_once_per_call() -> None:
    source = "def call(args):\n    c, x, = args\n    args.clear()\n    y, = region0((c,), (x,))\n    return (y,)\n"
    setup = Setup(
        source,
        [region(2, {0}, {0})],
        [lambda c, x: [c.add_(x).clone()]],
        static=frozenset({0}),
        written=frozenset({0}),
    )
    cache = torch.zeros(4)
    for n in range(1, 7):
        torch.testing.assert_close(setup(cache, torch.ones(4))[0], torch.full((4,), float(n)))
        assert cache.tolist() == [n] * 4
    assert setup.models[0].replayed == 5


def test_an_argument_that_moves_and_is_written_is_copied_back() -> None:
    source = "def call(args):\n    c, = args\n    args.clear()\n    region0((), (c,))\n    return ()\n"
    setup = Setup(source, [region(1, set(), {0})], [lambda c: [c.add_(1)][:0]], written=frozenset({0}))
    caches = [torch.full((4,), float(n)) for n in range(5)]
    for n, cache in enumerate(caches):
        setup(cache)
        assert cache.tolist() == [n + 1] * 4


def test_what_torch_makes_between_regions_is_copied_to_the_next_region() -> None:
    source = (
        "def call(args):\n    x, = args\n    args.clear()\n    a, = region0((), (x,))\n    b = torch.cos(a)\n"
        "    y, = region1((), (b, a,))\n    return (y, b,)\n"
    )
    functions = [lambda x: [x * 2], lambda b, a: [b + a]]
    setup = Setup(source, [region(1, set()), region(2, set())], functions)
    inputs = [torch.randn(4) for _ in range(5)]
    for x in inputs:
        y, b = setup(x)
        torch.testing.assert_close(b, torch.cos(x * 2))
        torch.testing.assert_close(y, b + x * 2)
    assert [m.replayed for m in setup.models] == [4, 4]
    second = setup.call._held[0].regions[1]
    assert [own is None for own in second._own] == [False, True]  # torch's result moves, the region's stays


def test_a_region_that_max_cannot_capture_leaves_the_plain_path(caplog: pytest.LogCaptureFixture) -> None:
    setup, w = linear(), torch.randn(4, 4)
    setup.models[0].refuses = "it synchronises"
    with caplog.at_level(logging.INFO, "torch_max_backend"):
        for _ in range(4):
            x = torch.randn(3, 4)
            torch.testing.assert_close(setup(w, x)[0], x @ w)
    assert setup.models[0].executed == 4
    assert [r.message for r in caplog.records] == [
        "no device graph is recorded: MAX cannot capture a region: it synchronises"
    ]


def test_a_number_that_depends_on_data_is_no_part_of_a_recording() -> None:
    source = (
        "def call(args):\n    n, x, = args\n    m = n.item()\n    y, = region0((), (x,), (), (m,))\n    return (y,)\n"
    )
    setup = Setup(source, [region(1, set(), host_values=1)], [lambda x, n: [x * n]])
    x = torch.randn(3)
    for n in (1.0, 1.0, 1.0, 2.0, 3.0, 1.0):
        torch.testing.assert_close(setup(torch.tensor(n), x)[0], x * n)


def test_large_outputs_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "COPY_LIMIT", 40)
    setup, w = linear(), torch.randn(4, 4)
    for _ in range(4):
        setup(w, torch.randn(3, 4))
    assert setup.recorded == 0


def test_memory_goes_back_when_the_function_dies() -> None:
    setup, w = linear(), torch.randn(4, 4)
    for _ in range(3):
        setup(w, torch.randn(3, 4))
    (model,) = setup.models
    assert model.captured
    del setup
    gc.collect()
    assert not model.captured


def test_the_argument_list_is_emptied() -> None:
    setup, w = linear(), torch.randn(4, 4)
    for _ in range(4):
        args = [w, torch.randn(3, 4)]
        setup.call(args)
        assert args == []


def test_only_regions_on_one_gpu_are_recorded() -> None:
    source = "def call(args):\n    x, = args\n    args.clear()\n    y, = region0((), (x,))\n    return (y,)\n"
    model = StandInModel(lambda x: [x + 1])
    on = Options(device_graphs=True)
    for spec in (
        region(1, set(), gpus=()),
        region(1, set(), gpus=(0, 1)),
        region(1, set(), on_host=True),
        region(1, set(), scalars=1),
    ):
        assert not isinstance(with_replay(CallSpec(source, (spec,)), [model], on), Replayed)
    spec = CallSpec(source, (region(1, set()),))
    assert not isinstance(with_replay(spec, [model], Options()), Replayed)


# -- what leaves ---------------------------------------------------------------------------------------------------
def test_results_that_share_memory_share_it_in_the_copy() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    values = [base[1:], base.t(), 7, None, base[:, 1]]
    handed = hand_out(values, plan_outputs(values, []), [])
    for value, result in zip(values, handed, strict=True):
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(result, value)
            assert result.stride() == value.stride()
    assert len({r.untyped_storage().data_ptr() for r in handed if isinstance(r, torch.Tensor)}) == 1
    handed[1].fill_(0)
    assert base.sum() == 66
    assert handed[0].sum() == 0


def test_a_cache_of_inference_mode_is_written_in_place() -> None:
    source = "def call(args):\n    c, x, = args\n    args.clear()\n    region0((), (c, x))\n    return ()\n"
    setup = Setup(source, [region(2, set(), {0})], [lambda c, x: [c.add_(x)][:0]], written=frozenset({0}))
    with torch.inference_mode():
        caches = [torch.zeros(4) for _ in range(4)]
        for cache in caches:
            setup(cache, torch.ones(4))
            assert cache.tolist() == [1.0] * 4


def test_many_results_are_copied_at_once() -> None:
    values = [torch.randn(3, 4).t(), torch.randn(5), torch.arange(4), 3, torch.zeros(0, 3)]
    handed = hand_out(values, plan_outputs(values, []), [])
    for value, result in zip(values, handed, strict=True):
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(result, value)
            assert result.stride() == value.stride()
            assert result is not value


def test_a_result_in_inference_mode_can_be_written_to_outside() -> None:
    setup, w = linear(), torch.randn(4, 4)
    with torch.inference_mode():
        setup(w, torch.randn(3, 4)), setup(w, torch.randn(3, 4))
    for _ in range(2):
        x = torch.randn(3, 4)
        torch.testing.assert_close(setup(w, x)[0].mul_(2.0), x @ w * 2.0)


def test_strides_with_gaps_stay() -> None:
    value = torch.zeros(3, 8)[:, :4]
    (result,) = hand_out([value], plan_outputs([value], []), [])
    assert result.stride() == (8, 1)
    assert result.data_ptr() != value.data_ptr()


def test_arguments_and_their_views_are_the_callers() -> None:
    used = torch.arange(6.0)
    values = [used, used[2:4]]
    planned = plan_outputs(values, [used])
    mine = torch.arange(10.0)[3:9]
    whole, part = hand_out(values, planned, [mine])
    assert whole is mine
    assert part.tolist() == [5.0, 6.0]
    assert part.untyped_storage().data_ptr() == mine.untyped_storage().data_ptr()


def saving() -> Setup:
    """The first result is the caller's, the other two are saved for a backward, one of them transposed."""
    source = "def call(args):\n    w, x, = args\n    args.clear()\n    y, z, = region0((w,), (x,))\n"
    source += "    return (y, z, y.t())\n"
    functions = [lambda w, x: [x @ w, x + 1]]
    return Setup(source, [region(2, {0})], functions, static=frozenset({0}), saved=frozenset({1, 2}))


def test_what_is_saved_for_a_backward_is_lent() -> None:
    setup, w = saving(), torch.randn(4, 4)
    places = set()
    for n in range(5):
        x = torch.randn(3, 4)
        y, z, t = setup(w, x)
        torch.testing.assert_close((y, z, t), (x @ w, x + 1, (x @ w).t()))
        if n:
            places.add((z.data_ptr(), t.data_ptr()))
            assert y.data_ptr() != t.data_ptr()
        del y, z, t
    assert len(places) == 1 and setup.models[0].replayed == 4


def test_nothing_is_played_while_something_is_lent() -> None:
    """Two forwards before their backwards, or a graph that is kept; an alias counts, too."""
    setup, w = saving(), torch.randn(4, 4)
    inputs = [torch.randn(3, 4) for _ in range(6)]
    for x in inputs[:2]:
        setup(w, x)
    kept = setup(w, inputs[2])[1][:2].detach()
    for x in inputs[3:5]:
        torch.testing.assert_close(setup(w, x)[1], x + 1)
    torch.testing.assert_close(kept, inputs[2][:2] + 1)
    assert (setup.models[0].replayed, setup.models[0].executed) == (2, 3)
    del kept
    torch.testing.assert_close(setup(w, inputs[5])[1], inputs[5] + 1)
    assert setup.models[0].replayed == 3


def test_a_recorded_backward_does_not_keep_what_was_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both halves of a training step play from then on; what is saved is too large to be copied."""
    monkeypatch.setattr(replay, "COPY_LIMIT", 200)
    forward, w = saving(), torch.randn(4, 4)
    source = (
        "def call(args):\n    g, z, t, = args\n    args.clear()\n    y, = region0((), (g, z, t))\n    return (y,)\n"
    )
    backward = Setup(source, [region(3, set())], [lambda g, z, t: [(g * z).sum(0) + t.sum()]])
    g, first = torch.randn(9, 4), []
    for n in range(8):
        x = torch.randn(9, 4)
        y, z, t = forward(w, x)
        del y
        z, t = z[:], t.t()[:]  # as torch unpacks them
        torch.testing.assert_close(backward(g, z, t)[0], (g * (x + 1)).sum(0) + (x @ w).sum())
        first += [z, t] if n == 0 else []  # so that the recording's memory is elsewhere
        del z, t
    assert (forward.models[0].replayed, forward.models[0].executed) == (7, 1)
    assert (backward.models[0].replayed, backward.models[0].executed) == (6, 2)


def test_memory_that_is_lent_goes_back_later() -> None:
    setup, w = saving(), torch.randn(4, 4)
    model = setup.models[0]
    for _ in range(2):
        kept = setup(w, torch.ones(3, 4))
    del setup
    gc.collect()
    assert not model.released
    torch.testing.assert_close(kept[1], torch.full((3, 4), 2.0))
    del kept
    other = linear()
    for _ in range(2):
        other(w, torch.randn(3, 4))
    del other
    gc.collect()
    assert len(model.released) == 1


@pytest.mark.parametrize(("calls", "is_recorded"), [(3, False), (4, True)])
def test_a_backward_waits_for_its_arguments_to_stay(
    monkeypatch: pytest.MonkeyPatch, calls: int, is_recorded: bool
) -> None:
    """They are too large to be copied, and somewhere else in the first calls."""
    monkeypatch.setattr(replay, "COPY_LIMIT", 50)
    source = "def call(args):\n    w, x, = args\n    args.clear()\n    y, = region0((w,), (x,))\n    return (y,)\n"
    setup = Setup(source, [region(2, {0})], [lambda w, x: [(x @ w).sum(0)]], static=frozenset({0}))
    w, inputs = torch.randn(4, 4), [torch.randn(5, 4) for _ in range(3)]
    for x in [*inputs, inputs[-1]][:calls]:
        torch.testing.assert_close(setup(w, x)[0], (x @ w).sum(0))
    assert setup.recorded == is_recorded


def test_arguments_that_never_stay_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replay, "COPY_LIMIT", 50)
    caplog.set_level(logging.INFO, "torch_max_backend")
    source = "def call(args):\n    w, x, = args\n    args.clear()\n    y, = region0((w,), (x,))\n    return (y,)\n"
    setup = Setup(source, [region(2, {0})], [lambda w, x: [(x @ w).sum(0)]], static=frozenset({0}))
    w, inputs = torch.randn(4, 4), [torch.randn(5, 4) for _ in range(9)]
    for x in inputs:
        setup(w, x)
    assert setup.recorded == 0
    assert "arguments that move" in caplog.text
