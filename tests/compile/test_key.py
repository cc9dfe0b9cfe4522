"""What a region's cache key covers: all code that lowers it, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from torch_max_backend.aten_functions.registry import aten, aten_functions
from torch_max_backend.base.digests import PACKAGE, digest_files
from torch_max_backend.base.import_graph import import_closure, imports_of, module_file
from torch_max_backend.compile.cache import key
from torch_max_backend.compile.compiler import put_off

pytestmark = pytest.mark.sampled

ADD = aten_functions.lowerings[aten.add.Tensor].modules
SOFTMAX = aten_functions.lowerings[aten._softmax.default].modules
CONVOLUTION = aten_functions.lowerings[aten.convolution.default].modules
EVERY = sorted(
    f"torch_max_backend.{f.relative_to(PACKAGE).with_suffix('').as_posix().replace('/', '.')}"
    for f in PACKAGE.rglob("*.py")
    if f.name != "__init__.py"
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package that may be edited."""
    folder = tmp_path_factory.mktemp("package") / PACKAGE.name
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__", "_mojo_kernels"))
    return folder


def digest_after_edit(module: str, ops: frozenset[str], package: Path) -> str:
    """The digest of what lowers ``ops`` in a copy of the package, while a line stands at the end of one module."""
    file = module_file(module, package)
    assert file is not None
    before = file.read_text()
    file.write_text(before + "# edited\n")
    key.lowering_digest.cache_clear()
    imports_of.cache_clear()
    try:
        return key.lowering_digest(ops, package)
    finally:
        file.write_text(before)


@pytest.mark.any_runner("digests of modules, without a graph")
@pytest.mark.parametrize("ops", [ADD, SOFTMAX, CONVOLUTION], ids=["add", "softmax", "convolution"])
def test_an_edit_changes_the_key_exactly_if_the_module_lowers_the_region(ops: frozenset[str], copy: Path) -> None:
    key.lowering_digest.cache_clear()
    unchanged = key.lowering_digest(ops, copy)
    closure = import_closure({*key._ROOTS, *ops}, copy)
    noticed = {module for module in EVERY if digest_after_edit(module, ops, copy) != unchanged}
    assert noticed == closure & set(EVERY)
    assert noticed != set(EVERY)


@pytest.mark.any_runner("digests of modules, without a graph")
@pytest.mark.parametrize(
    "module",
    [
        "aten_functions.support.channels_last",
        "aten_functions.support.tensor_ops",
        "aten_functions.support.written_transpose",
        "capture.fake_tensors",
        "lowering.graph_builder",
        "lowering.row_kernels",
        "lowering.transposed_reads",
        "partition.region",
        "partition.symbolic_dims",
    ],
)
def test_what_every_region_passes_through_is_covered(module: str) -> None:
    assert f"torch_max_backend.{module}" in import_closure({*key._ROOTS, *ADD})


@pytest.mark.any_runner("digests of modules, without a graph")
def test_another_family_is_not_covered() -> None:
    closure = import_closure({*key._ROOTS, *ADD})
    assert "torch_max_backend.aten_functions.special.bessel" not in closure
    assert "torch_max_backend.frontend.pipeline" not in closure


@pytest.mark.any_runner("a digest of files")
def test_a_file_that_moves_to_another_folder_changes_the_digest(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").write_text("same\n")
    assert digest_files([tmp_path / "a" / "module.py"]) != digest_files([tmp_path / "b" / "module.py"])


def test_the_version_of_the_package_is_a_part() -> None:
    with put_off() as batch:
        torch.compile(torch.sin, backend="max_backend")(torch.ones(3))
    ((job, _),) = batch.looked_up
    assert job.parts["package"]
    assert key.key_of({**job.parts, "package": "another"}) != job.key
