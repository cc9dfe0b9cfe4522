"""The benchmark system on the CPU, with eager only: suites, checks, times, verdicts, records and their page."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import decoding, measure, models, ops, record, report, run, steps
from benchmarks.checking import Difference, differences, what_is_wrong
from benchmarks.suites import Case, SuiteError, choose, expand, load
from benchmarks.verdict import compare, geometric_mean, judge, verdict
from benchmarks.work import build
from benchmarks.workers import Worker, WorkerFailed, side_by_side
from torch_max_backend.evidence import contenders
from torch_max_backend.measurement import clocks
from torch_max_backend.measurement.statistics import spread
from torch_max_backend.measurement.turns import interleave

pytestmark = pytest.mark.any_runner("the benchmarks' own arithmetic, with eager as the contender")

TINY = {
    **{what: {"rows": 6, "n": 5} for what in ops.OPS},
    "linear": {"m": 4, "k": 3, "n": 5, "layout": "kn", "bias": True, "weights": "fixed"},
    "batched": {"b": 3, "m": 4, "k": 3, "n": 5, "layout": "nk"},
    "attention": {"d": 4, "h": 3, "s": 4, "tokens": 8, "causal": True},
    "conv2d": {"batch": 3, "i": 2, "o": 4, "k": 3, "stride": 2, "size": 6},
}
SUITE = {"judged_by": "device", "against": ["eager", "inductor"], "required": 1.0, "geomean": 1.2, "device": "cuda"}


def tiny(what: str, dtype: str = "float32", **parameters: Any) -> Case:
    return Case("tiny", what, "op", what, "cpu", dtype, TINY[what] | parameters)


# -- suites --------------------------------------------------------------------------------------------------------
def test_suites_name_what_exists() -> None:
    makers = {"op": ops.OPS, "model": models.MODELS, "decoding": decoding.MODELS, "training": steps.MODELS}
    for suite in load().values():
        assert set(suite.contenders) <= set(contenders.SETTINGS)
        assert set(suite.against) <= set(suite.contenders)
        assert suite.cases
        assert {case.what for case in suite.cases} <= set(makers[suite.kind])


def test_gpu_suites_cover_the_sizes() -> None:
    suites = load()
    assert {case.parameters["n"] for case in suites["memory"].cases} == {2**i for i in range(10, 18)}
    assert {case.parameters["s"] for case in suites["attention"].cases} == {2**i for i in range(9, 15)}
    assert {case.parameters["batch"] for case in suites["convolution"].cases} == {32, 64}
    assert {case.what for case in suites["models"].cases} == set(models.MODELS)


def test_lists_are_axes_and_tables_join() -> None:
    entry = {"what": "linear", "shape": [{"name": "a", "k": 1}, {"k": 2}], "m": [3, 4], "layout": "nk"}
    assert list(expand(entry)) == [
        ("linear[a,m=3]", "linear", {"k": 1, "m": 3, "layout": "nk"}),
        ("linear[a,m=4]", "linear", {"k": 1, "m": 4, "layout": "nk"}),
        ("linear[k=2,m=3]", "linear", {"k": 2, "m": 3, "layout": "nk"}),
        ("linear[k=2,m=4]", "linear", {"k": 2, "m": 4, "layout": "nk"}),
    ]


def test_choosing() -> None:
    suites = load()
    ((suite, cases),) = choose(suites, ["cpu-ops"], ["linear[layout=nk*", "softmax"])
    assert suite.name == "cpu-ops"
    assert {case.what for case in cases} == {"linear", "softmax"}
    assert all(case.parameters.get("layout", "nk") == "nk" for case in cases)
    ((_, cases),) = choose(suites, ["models"], ["t5"])
    assert [case.name for case in cases] == ["t5"], "a name is no part of another, such as resnet50"
    with pytest.raises(SuiteError, match="no suite is called cpu-op;"):
        choose(suites, ["cpu-op"], [])
    with pytest.raises(SuiteError, match="no case matches"):
        choose(suites, ["cpu-ops"], ["nothing"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {kind: op, color: red}", "no key is called color"),
        ("a: {kind: op}", "missing"),
        (
            "a: {about: '', kind: op, device: cpu, dtype: float32, contenders: [], against: [], judged_by: x}",
            "judged_by",
        ),
    ],
)
def test_wrong_suites_are_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "suites.yaml"
    file.write_text(text)
    with pytest.raises(SuiteError, match=message):
        load(file)


# -- work and checks -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("what", ops.OPS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exact_pieces_cover_the_answer(what: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "PIECE", 1)
    monkeypatch.setattr(ops, "CACHE_ON_CPU", 1)
    work = build(tiny(what, dtype))
    answers = work.answers(work.caller(work.function))
    pieces = list(work.exact())
    assert len(pieces) > len(answers), "cut at least once"
    assert all(values.dtype == torch.float64 for _, _, values in pieces)
    found = differences({"eager": answers}, pieces)["eager"]
    assert found.count == sum(a.numel() for a in answers)
    assert found.relative < 4 * torch.finfo(getattr(torch, dtype)).eps
    assert work.bytes_moved > 0


def test_input_sets_do_not_keep_further_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A language model's head has a gigabyte, and there may be 256 sets of inputs."""
    made: list[weakref.ref[torch.Tensor]] = []

    def linear(p: dict[str, Any], new: ops.New) -> ops.Op:
        op = ops.linear(p, new)

        def inputs() -> tuple[torch.Tensor, ...]:
            assert sum(r() is not None for r in made) <= 2, "the layer's own, and that of the set before"
            x, weight, bias = op.inputs()
            made.append(weakref.ref(weight))
            return x, weight, bias

        return dataclasses.replace(op, inputs=inputs)

    monkeypatch.setitem(ops.OPS, "linear", linear)
    work = build(tiny("linear"))
    assert work.sets == len(made) == ops.MOST_SETS
    assert sum(r() is not None for r in made) == 1


def test_exact_values_of_models_leave_nothing_behind() -> None:
    case = Case("tiny", "dit", "model", "dit", "cpu", "float32", {"batch": 1, "small": True})
    graphs: list[Any] = []

    def backend(gm: Any, inputs: list[Any]) -> Any:
        graphs.append(gm)
        return gm.forward

    with torch.no_grad():
        work = build(case)
        call = work.caller(torch.compile(work.function, backend=backend, dynamic=False))
        before = work.answers(call)
        found = differences({"eager": before}, work.exact())["eager"]
        after = work.answers(call)
    assert 0 < found.relative < 1e-5
    assert torch.equal(before[0], after[0])
    assert len(graphs) == 1, "Dynamo guards on settings and weights"


def test_training_answers_are_gradients_at_the_first_parameters() -> None:
    work = build(Case("tiny", "gpt2", "training", "gpt2", "cpu", "float32", {"batch": 2, "length": 8, "small": True}))
    call = work.caller(work.function)
    assert isinstance(call, steps.Training)
    before = work.answers(call)
    weights = [p.detach().clone() for p in call.model.parameters()]
    call(0)
    assert not all(map(torch.equal, weights, call.model.parameters())), "a call is a step"
    after = work.answers(call)
    assert all(map(torch.equal, before, after))
    assert 0 < differences({"eager": before}, work.exact())["eager"].relative < 1e-5


def test_input_sets_exceed_the_cache() -> None:
    assert ops.sets_for(ops.CACHE_ON_CPU, "cpu") == 3
    assert ops.sets_for(10 * ops.CACHE_ON_CPU, "cpu") == 2
    assert ops.sets_for(1, "cpu") == ops.MOST_SETS


def test_fixed_weights_are_parameters() -> None:
    rotated, fixed = build(tiny("linear", weights="rotated")), build(tiny("linear"))
    assert rotated.function.__code__.co_argcount == 3
    assert fixed.function.__code__.co_flags & 4, "takes what rotates"


def numbers(given: torch.Tensor, exact: torch.Tensor) -> dict[str, float]:
    found = Difference()
    found.add(given, exact)
    return found.as_json()


def test_answers_are_judged_by_eagers_rounding() -> None:
    exact = torch.randn(2000, 640, dtype=torch.float64)
    rounded = exact.bfloat16()
    eager = numbers(rounded, exact)
    assert what_is_wrong(eager, eager, torch.bfloat16) == ""
    twice = (exact.bfloat16() * torch.tensor(1.001)).bfloat16()
    assert what_is_wrong(numbers(twice, exact), eager, torch.bfloat16) == ""

    few = rounded.clone()
    few.view(-1)[::333] = few.view(-1)[1::333]  # 0.3 % of the elements are others
    assert "relative" in what_is_wrong(numbers(few, exact), eager, torch.bfloat16)
    one = rounded.clone()
    one[5, 5] += 3
    assert "largest" in what_is_wrong(numbers(one, exact), eager, torch.bfloat16)
    missing = rounded.clone()
    missing[7, 7] = math.nan
    assert "inf" in what_is_wrong(numbers(missing, exact), eager, torch.bfloat16)

    single = numbers(exact.float(), exact)
    tf32 = (exact.float().view(torch.int32) & ~0x1FFF).view(torch.float32)
    assert "relative" in what_is_wrong(numbers(tf32, exact), single, torch.float32)


def test_where_eager_is_exact_nothing_may_differ() -> None:
    exact = torch.randn(64, 64)
    eager, other = numbers(exact, exact.double()), exact.clone()
    other[0, 0] *= 1 + 1e-6
    assert what_is_wrong(eager, eager, torch.float32) == ""
    assert "eager is exact" in what_is_wrong(numbers(other, exact.double()), eager, torch.float32)


# -- times ---------------------------------------------------------------------------------------------------------
def test_spread() -> None:
    found = spread([5.0, 1.0, 2.0, 4.0, 3.0])
    assert found == {"median": 3.0, "q1": 2.0, "q3": 4.0, "least": 1.0, "samples": 5}
    assert spread([2.0])["q3"] == 2.0


def test_contenders_take_turns_and_fail_alone() -> None:
    order: list[str] = []

    def call(name: str, fails_at: int = 10**9) -> Any:
        def one(number: int) -> None:
            order.append(name)
            if number >= fails_at:
                raise ValueError("no more")

        return one

    class Clock(clocks.CpuClock):
        def calibrate(self, call: Any) -> int:
            return 1

    calls = {"a": call("a"), "b": call("b", 1), "c": call("c")}
    times, errors = interleave(calls, Clock(0.0), 3)
    assert order == ["a", "b", "c", "b", "c", "a", "c", "a"]
    assert list(times) == ["a", "c"]
    assert len(times["a"].wall) == 3
    assert errors == {"b": "ValueError: no more"}


# -- a case from end to end, in this process -----------------------------------------------------------------------
def timed(names: list[str], monkeypatch: pytest.MonkeyPatch, **made: Any) -> dict[str, Any]:
    """A tiny row norm, with contenders made from ``made`` instead of a compiler."""
    monkeypatch.setattr(measure, "compiled", lambda name, function: made.get(name, lambda f: f)(function))
    return measure.time_case(tiny("rms_norm"), names, 2, 1e-4, lambda name: None)["contenders"]


def test_a_wrong_answer_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    found = timed(
        ["eager", "inductor", "inductor-max-autotune"],
        monkeypatch,
        inductor=lambda f: lambda *x: f(*x) * 1.01,
        **{"inductor-max-autotune": lambda f: lambda *x: f(*x).double()},
    )
    assert "problem" not in found["eager"]
    assert found["eager"]["times"]["wall"]["samples"] == 2
    assert "relative difference" in found["inductor"]["problem"]
    assert "float64" in found["inductor-max-autotune"]["problem"]
    assert found["inductor"]["difference"]["max"] > 0


def test_an_error_is_marked_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(f: Any) -> Any:
        raise RuntimeError("does not compile")

    found = timed(["eager", "inductor"], monkeypatch, inductor=broken)
    assert found["inductor"]["problem"] == "RuntimeError: does not compile"
    assert "times" not in found["inductor"]
    assert found["eager"]["times"]["wall"]["median"] > 0


def test_an_island_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_max_backend.diagnostics import report as backend_report

    def island(f: Any) -> Any:
        def run(*x: Any) -> Any:
            if not backend_report.reports():
                stats = backend_report.CompileStats(regions=2)
                island = backend_report.Island("aten.sort", "no lowering is registered for it", "here")
                backend_report.record(backend_report.GraphReport("0/0", 3, 2, (island,), stats))
            return f(*x)

        return run

    backend_report.clear()
    found = timed(["eager", "max"], monkeypatch, max=island)["max"]
    backend_report.clear()
    assert found["problem"] == "torch runs aten.sort: no lowering is registered for it"
    assert found["regions"] == 2
    row = {"case": "x", "contenders": {"eager": {"times": found["times"]}, "max": found}}
    assert verdict(row, SUITE | {"judged_by": "wall"}).speedup is None


# -- verdicts ------------------------------------------------------------------------------------------------------
def entry(ms: float, spread: float = 0.01, **more: Any) -> dict[str, Any]:
    seconds = ms / 1e3
    time = {
        "median": seconds,
        "q1": seconds * (1 - spread),
        "q3": seconds * (1 + spread),
        "least": seconds,
        "samples": 9,
    }
    return {"times": {"device": time, "wall": {k: 2 * v for k, v in time.items()}}, "compile_s": 3.0, **more}


def row(case: str = "softmax[n=1024]", **found: Any) -> dict[str, Any]:
    names = {name.replace("_", "-"): value for name, value in found.items()}
    return {"suite": "memory", "case": case, "what": "softmax", "parameters": {}, "bytes": 10**9, "contenders": names}


def test_speedup_is_over_the_best_of_the_others() -> None:
    found = verdict(row(eager=entry(4.0), inductor=entry(3.0), max=entry(2.0), max_reduce_overhead=entry(1.5)), SUITE)
    assert (found.speedup, found.ours, found.against) == (2.0, "max-reduce-overhead", "inductor")


def test_problems_give_no_speedup() -> None:
    slow, wrong = entry(4.0), entry(1.0, problem="relative difference 0.1")
    found = verdict(row(eager=slow, max=wrong), SUITE)
    assert found.speedup is None
    assert "relative difference" in found.reason
    assert verdict(row(eager=slow, inductor=wrong, max=entry(2.0)), SUITE).against == "eager"
    assert verdict(row(eager=wrong, max=entry(2.0)), SUITE).speedup is None
    assert verdict(row(eager=slow), SUITE).reason == "not measured"


def test_a_suite_with_a_failed_row_reaches_nothing() -> None:
    good = [row(f"c{i}", eager=entry(2.0), max=entry(1.0)) for i in range(3)]
    found = judge(good, SUITE)
    assert (found.geomean, found.required_met, found.geomean_met) == (pytest.approx(2.0), True, True)
    found = judge([*good, row("bad", eager=entry(9.0), max=entry(1.0, problem="torch runs aten.sort"))], SUITE)
    assert (found.counted, found.rows) == (3, 4)
    assert found.geomean == pytest.approx(2.0)
    assert (found.required_met, found.geomean_met) == (False, False)
    found = judge([*good, row("slow", eager=entry(1.0), max=entry(2.0))], SUITE)
    assert (found.reached, found.required_met) == (3, False)
    assert found.least is not None
    assert found.least.case == "slow"
    assert geometric_mean([]) is None


def whole(*rows: dict[str, Any]) -> dict[str, Any]:
    made = record.new("python -m benchmarks.run memory")
    suite = load()["memory"]
    made["suites"] = {"memory": json.loads(json.dumps(suite.facts()))}
    made["devices"] = {"cuda": {"name": "a GPU", "copy_bytes_per_s": 4e12}}
    made["rows"] = list(rows)
    return made


def test_regressions() -> None:
    old = whole(row("a", eager=entry(1.0), max=entry(1.0)), row("b", max=entry(1.0)), row("c", max=entry(1.0)))
    new = whole(row("a", eager=entry(1.0), max=entry(1.2)), row("b", max=entry(0.5, problem="wrong")))
    found = {(c.case, c.contender): c for c in compare(new, old)}
    assert found["a", "max"].ratio == pytest.approx(1.2)
    assert found["a", "max"].is_regression(10)
    assert not found["a", "max"].is_regression(30)
    assert not found["a", "eager"].is_regression(0)
    assert found["b", "max"].lost == "wrong"
    assert found["b", "max"].is_regression(50)
    assert found["c", "max"].lost == "not measured"
    noisy = whole(row("a", max=entry(1.2, spread=0.3)))
    (change,) = [c for c in compare(noisy, whole(row("a", max=entry(1.0)))) if c.contender == "max"]
    assert not change.is_regression(10), "within the spread of the samples"


# -- records and the page ------------------------------------------------------------------------------------------
def test_records_survive_a_file(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "r.json"
    made = whole(row(max=entry(1 / 3, difference={"max": math.inf})))
    record.save(made, file)
    found = record.load(file)
    assert found["rows"][0]["contenders"]["max"]["difference"]["max"] == "inf"
    assert torch.__version__.startswith(found["environment"]["packages"]["torch"])
    again = record.resume(file, "second")
    assert again["commands"] == [*made["commands"], "second"]
    assert record.is_complete(again, "memory", "softmax[n=1024]", ["max"])
    assert not record.is_complete(again, "memory", "softmax[n=1024]", ["eager"])
    found["environment"]["python"] = "2.7"
    record.save(found, file)
    with pytest.raises(record.RecordError, match=r"another environment: python was 2\.7"):
        record.resume(file, "third")
    file.write_text("{}")
    with pytest.raises(record.RecordError, match="no record"):
        record.load(file)


def test_page_is_made_from_records(tmp_path: Path) -> None:
    wrong = entry(0.1, problem="relative difference 0.1")
    found = {"gpu": whole(row("a", eager=entry(2.0), max=entry(1.0)), row("b|c", eager=entry(2.0), max=wrong))}
    where, plots = tmp_path / "performance.md", tmp_path / "plots"
    assert report.stale_files(found, where, plots) == [where, plots / "gpu-memory.svg"]
    report.write(found, where, plots)
    assert report.stale_files(found, where, plots) == []
    text = where.read_text()
    assert "geometric mean 2.00 of 1 of 2 cases" in text
    assert "every case ≥ 1: not reached (1 of 2)" in text
    assert "| a | 2.000 ±1% | 1.000 ±1% | 2.00 | 0.25 of copy |" in text
    assert "| b\\|c | 2.000 ±1% | ✗ | – | – |" in text
    assert "- b|c, max: relative difference 0.1" in text
    busy = copy.deepcopy(found)
    busy["gpu"]["environment"]["load"] = 7.5
    assert "Others used the machine (load 7.5" in report.page(busy)

    changed = copy.deepcopy(found)
    changed["gpu"]["rows"][0]["contenders"]["max"] = entry(1.5)
    assert report.stale_files(changed, where, plots) == [where, plots / "gpu-memory.svg"]
    assert report.stale_files({}, where, plots) == [where, plots / "gpu-memory.svg"]
    report.write({}, where, plots)
    assert not list(plots.iterdir())


def test_the_page_is_current() -> None:
    assert report.stale_files(report.load_records()) == [], "run: python -m benchmarks.report --write"


# -- processes -----------------------------------------------------------------------------------------------------
STUB = """
import json, os, sys, time
out = os.fdopen(int(sys.argv[1]), "w", buffering=1)
for line in sys.stdin:
    task = json.loads(line)
    print("noise", flush=True)
    print(json.dumps({"at": "max"}), file=out)
    if task["do"] == "die":
        os.abort()
    if task["do"] == "hang":
        time.sleep(60)
    print(json.dumps({"error": "no"} if task["do"] == "fail" else {"result": task["do"]}), file=out)
"""


def test_workers_survive_crashes_and_time_limits(tmp_path: Path) -> None:
    worker = Worker({}, tmp_path / "log", (sys.executable, "-c", STUB))
    soon = lambda: time.monotonic() + 20  # noqa: E731
    assert worker.run({"do": "x"}, soon()) == "x"
    with pytest.raises(WorkerFailed, match="no") as failed:
        worker.run({"do": "fail"}, soon())
    assert failed.value.at == "max"
    with pytest.raises(WorkerFailed, match=r"died \(SIGABRT\).*noise"):
        worker.run({"do": "die"}, soon())
    with pytest.raises(WorkerFailed, match="too long"):
        worker.run({"do": "hang"}, time.monotonic() + 0.5)
    assert worker.run({"do": "y"}, soon()) == "y"
    worker.stop()

    found: dict[str, Any] = {}
    two = [Worker({}, tmp_path / f"log{i}", (sys.executable, "-c", STUB)) for i in range(2)]
    tasks = [{"do": "1"}, {"do": "die"}, {"do": "2"}]
    side_by_side(tasks, two, soon, lambda task, result: found.update({task["do"]: result}))
    assert (found["1"], found["2"]) == ("1", "2")
    assert isinstance(found["die"], WorkerFailed)
    assert all(w.process is None for w in two)


def test_runner_with_eager_only(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    arguments = ["cpu-ops", "--only", "softmax", "--contenders", "eager", "--rounds", "2", "--save", str(file)]
    arguments += ["--caches", str(tmp_path / "caches")]
    app = run.typer.Typer()
    app.command()(run.main)
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "cpu-ops: speed-up –" in done.output
    (found,) = record.load(file)["rows"]
    assert found["contenders"]["eager"]["times"]["wall"]["samples"] == 2
    assert found["contenders"]["eager"]["difference"]["relative"] < 1e-6

    again = CliRunner().invoke(app, [*arguments, "--resume", "--compare", str(file), "--fail-on-regression", "10"])
    assert again.exit_code == 0, again.output
    assert len(record.load(file)["commands"]) == 2
    assert CliRunner().invoke(app, ["no-such-suite"]).exit_code == 2
    assert CliRunner().invoke(app, ["cpu-ops", "--fail-on-regression", "1"]).exit_code == 2
