"""On which processors, of which sizes, and in which parts products of float32 are oneDNN's."""

from __future__ import annotations

import pytest
import torch

from torch_max_backend.base.target import Machine
from torch_max_backend.capture import onednn_products
from torch_max_backend.frontend.warm_start import tag_of
from torch_max_backend.options import Options

pytestmark = pytest.mark.any_runner("nothing is compiled")
DECIDES = onednn_products.is_faster
"""What decides, which no test's stand-in has replaced yet."""
PARTS = {1: 1, 64: 64, 192: 192, 193: 112, 256: 128, 384: 192, 385: 208, 512: 256, 768: 256, 1000: 256, 16384: 256}


@pytest.mark.parametrize("depth", PARTS)
def test_parts(depth: int) -> None:
    assert onednn_products.part_of(depth) == PARTS[depth]


def test_no_part_is_longer_than_mkl_would_have_it() -> None:
    for depth in range(1, 3000):
        part = onednn_products.part_of(depth)
        assert part <= (onednn_products.WHOLE if depth == part else onednn_products.LONGEST)
        assert depth == part or 2 <= -(-depth // part) <= -(-depth // 96)


SIZES = {
    (64, 64, 64): False,
    (3136, 64, 64): True,
    (128, 192, 192): True,
    (32, 192, 768): True,
    (784, 64, 64): False,
    (128, 768, 768): True,
    (48, 768, 768): False,
    (512, 4096, 32): False,
    (128, 512, 64): False,
    (512, 512, 64): True,
    (64, 512, 512): True,
    (1, 4096, 4096): False,
    (2048, 1024, 4095): True,
    (2048, 1024, 4096): False,
    (2048, 128, 8192): True,
    (256, 16384, 768): True,
    (256, 50257, 768): False,
}


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(sizes: tuple[int, int, int]) -> None:
    assert onednn_products.is_large(*sizes) == SIZES[sizes]


def test_who_made_the_processor_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    is_faster = DECIDES.__wrapped__
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    for vendor, wanted in (("AuthenticAMD", True), ("GenuineIntel", False), ("", False)):
        monkeypatch.setattr(onednn_products, "_vendor", lambda vendor=vendor: vendor)
        assert is_faster() == (wanted and torch.backends.mkl.is_available())
    monkeypatch.setattr(onednn_products, "_vendor", lambda: "AuthenticAMD")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not is_faster()


def test_onednn_is_left_out_where_users_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_products, "is_faster", lambda: True)
    assert onednn_products.pays(512, 512, 512)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert not onednn_products.pays(512, 512, 512)


def test_a_machine_elsewhere_has_mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_products, "is_faster", lambda: True)
    with Machine.parse("cuda:sm_90a").pretended():
        assert not onednn_products.pays(512, 512, 512)


def test_kept_graphs_are_of_one_library(monkeypatch: pytest.MonkeyPatch) -> None:
    tags = []
    for is_faster, is_enabled in ((True, True), (False, True), (True, False)):
        monkeypatch.setattr(onednn_products, "is_faster", lambda is_faster=is_faster: is_faster)
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", is_enabled)
        tags.append(tag_of(Options(), {torch.device("cpu")}))
    assert len({*tags}) == 3
