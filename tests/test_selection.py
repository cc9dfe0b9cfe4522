"""Which op cases a run has: what a change concerns, at most a tenth, the same for the same commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.selection import (
    Change,
    affected,
    change_of,
    drawn,
    modules_in,
    modules_of_lowerings,
    select,
    share_of,
)

pytestmark = pytest.mark.any_runner("names of cases and files")

PACKAGE = "torch_max_backend.aten_functions"
USES = {
    "aten.add.Tensor": {f"{PACKAGE}.pointwise.arithmetic", f"{PACKAGE}.support.tensor_ops"},
    "aten.mm": {f"{PACKAGE}.matmul.products", f"{PACKAGE}.support.tensor_ops"},
}
REACHED = {f"sums-{i}": ("aten.add.Tensor",) for i in range(40)} | {
    f"products-{i}": ("aten.add.Tensor", "aten.mm") if i else ("aten.mm",) for i in range(4)
}
ARITHMETIC = "torch_max_backend/aten_functions/pointwise/arithmetic.py"
PRODUCTS = "torch_max_backend/aten_functions/matmul/products.py"


def test_modules() -> None:
    files = ["torch_max_backend/base/__init__.py", ARITHMETIC, "tests/test_options.py", "torch_max_backend/a.mojo"]
    assert modules_in(files) == {"torch_max_backend.base", f"{PACKAGE}.pointwise.arithmetic"}


@pytest.mark.parametrize(
    ("file", "cases", "is_everybodys"),
    [
        (PRODUCTS, {f"products-{i}" for i in range(4)}, False),
        (ARITHMETIC, set(REACHED) - {"products-0"}, False),
        ("torch_max_backend/aten_functions/support/tensor_ops.py", set(), True),
        ("torch_max_backend/frontend/pipeline.py", set(), True),
        ("mojo_kernels/cpu/sort.mojo", set(), True),
        ("tests/support/harness.py", set(), True),
        ("tests/aten_functions/matmul/cases_products.py", {f"products-{i}" for i in range(4)}, False),
        ("docs/index.md", set(), False),
        ("tests/test_options.py", set(), False),
    ],
)
def test_what_a_file_concerns(file: str, cases: set[str], is_everybodys: bool) -> None:
    assert affected([file], REACHED, USES) == (cases, is_everybodys)


def test_few_cases_run_all() -> None:
    assert select(Change("c", frozenset({PRODUCTS})), REACHED, USES).cases == tuple(f"products-{i}" for i in range(4))


def test_of_many_a_tenth_is_drawn_by_the_commit() -> None:
    first, again, other = (select(Change(c, frozenset({ARITHMETIC})), REACHED, USES) for c in ("a", "a", "b"))
    assert len(first.cases) == len(other.cases) == 5
    assert first == again and first.cases != other.cases
    assert "5 of 43 cases that the change concerns" in first.told


def test_what_is_concerned_comes_before_what_is_drawn() -> None:
    chosen = select(Change("a", frozenset({PRODUCTS, "mojo_kernels/x.mojo"})), REACHED, USES)
    assert len(chosen.cases) == 5 and {f"products-{i}" for i in range(4)} < set(chosen.cases)


def test_without_a_change_a_tenth_of_all_and_without_git_nothing() -> None:
    assert len(select(Change("a"), REACHED, USES).cases) == 5
    assert select(Change("a", frozenset({"docs/index.md"})), REACHED, USES).cases == ()
    assert select(None, REACHED, USES).cases == ()


def test_commits_draw_every_case_in_time() -> None:
    seen = {case for k in range(100) for case in drawn(REACHED, str(k), 5)}
    assert seen == set(REACHED)


def test_a_checkout(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    assert change_of(tmp_path) is None
    git("init", "-b", "main")
    (tmp_path / "one").touch()
    git("add", ".")
    git("commit", "-m", "first")
    clean = change_of(tmp_path)
    assert clean is not None and not clean.files
    git("checkout", "-b", "work")
    (tmp_path / "one").write_text("changed")
    git("commit", "-am", "second")
    (tmp_path / "two").touch()
    assert getattr(change_of(tmp_path), "files", None) == {"one", "two"}
    (tmp_path / "below").mkdir()
    assert change_of(tmp_path / "below") is None


def test_a_family_concerns_its_lowerings() -> None:
    uses = modules_of_lowerings()
    assert f"{PACKAGE}.special.bessel" not in uses["aten.add.Tensor"]
    assert f"{PACKAGE}.support.tensor_ops" in uses["aten.add.Tensor"]


def test_of_what_is_sampled_a_variable_says_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"test_{i}" for i in range(40)]
    assert share_of(names, "SHARE_OF_A_TEST") == set(names)
    monkeypatch.setenv("SHARE_OF_A_TEST", "3")
    drawn_names = share_of(names, "SHARE_OF_A_TEST")
    assert len(drawn_names) == 14 and drawn_names < set(names) and drawn_names == share_of(names, "SHARE_OF_A_TEST")
    assert share_of(names[:1], "SHARE_OF_A_TEST") == {"test_0"}
