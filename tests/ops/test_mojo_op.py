"""Ops of Mojo files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_max_backend import MaxBackendError, mojo_op, ops, reports
from torch_max_backend.base.errors import CompileError, RegistrationError
from torch_max_backend.compile.cuda_build import build_ptx
from torch_max_backend.ops.mojo_file import ENTRY, MojoFile
from torch_max_backend.ops.mojo_kernel import BLOCK, MojoKernel

HEAD = """# op: {name}(Tensor x, Tensor y, float factor, int shift=1) -> Tensor
# x: ... n
# y: n
# result: ... n
# dtypes: float32, float16
from kernel import *


"""
BODY = """def {name}[
    d: DType
](result: Ptr[d], x: Ptr[d], y: Ptr[d], rows: Int, n: Int, factor: Vec[f64, 1], shift: Int):
    var row = share_begin(rows, 1)
    while row < share_end(rows, 1):
        var k = 0
        while k < n:
            var sum = add(cast[f32](load[1](x, row * n + k)), mul(cast[f32](load[1](y, k)), cast[f32](factor)))
            store(result, row * n + k, cast[d](add(sum, from_int[f32, 1](shift))))
            k += 1
        row += 1
"""


def made(folder: Path, name: str, text: str = HEAD + BODY) -> Any:
    file = folder / f"{name}.mojo"
    file.write_text(text.replace("{name}", name))
    return mojo_op(file)


@pytest.mark.any_runner("a user's kernel")
def test_results_and_errors(tmp_path: Path) -> None:
    op = made(tmp_path, "tmb_test_mix")
    for dtype, shape in ((torch.float32, (3, 5, 7)), (torch.float16, (300, 200)), (torch.float32, (0, 4))):
        x, y = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(dtype)
        wanted = (x.double() + y.double() * 0.5 + 1).to(dtype)
        torch.testing.assert_close(op(x, y, 0.5), wanted)
    x, y = torch.randn(8, 6).t(), torch.randn(8)
    torch.testing.assert_close(op(x, y, 2.0, -3), x + y * 2 - 3)
    torch.library.opcheck(torch.ops.torch_max_backend.tmb_test_mix.default, (x, y, 2.0))
    with pytest.raises(
        ops.ArgumentError, match=r"tmb_test_mix: y must have the shape \[n\] with n = 8 as in x, got \[7\]"
    ):
        op(x, y[1:], 2.0)
    with pytest.raises(ops.ArgumentError, match="tmb_test_mix: x must be float32 or float16, got float64"):
        op(x.double(), y.double(), 2.0)


@pytest.mark.any_runner("a user's kernel")
def test_a_file_becomes_a_kernel_for_a_gpu(tmp_path: Path) -> None:
    """None is needed to compile for it. Tensors are pointers, all else words of 64 bits; threads share the work."""
    path = tmp_path / "tmb_test_gpu.mojo"
    path.write_text((HEAD + BODY).replace("{name}", "tmb_test_gpu"))
    file = MojoFile.read(path)
    ptx = build_ptx(file.gpu_source(torch.float16), threads={ENTRY: BLOCK})
    assert f".visible .entry {ENTRY}(" in ptx and f".maxntid {BLOCK}" in ptx
    assert re.findall(rf"\.param \.[bu]64 (?:\.ptr \.align 1 )?{ENTRY}_param_(\d)", ptx) == list("0123456")
    assert "%ctaid.x" in ptx and "%nctaid.x" in ptx
    path.write_text(
        (HEAD + BODY).replace("{name}", "tmb_test_gpu").replace("from kernel", "from std.math import sqrt\nfrom kernel")
    )
    kernel = MojoKernel(MojoFile.read(path))
    with (
        pytest.raises(ops.ArgumentError, match="x must be on a cpu, since the file imports from std, got cuda:0"),
        FakeTensorMode(),
    ):
        kernel.check({}, torch.empty(3, device="cuda"))


@pytest.mark.any_runner("a user's kernel")
def test_the_same_text_is_the_same_op(tmp_path: Path) -> None:
    assert made(tmp_path, "tmb_test_same") is made(tmp_path, "tmb_test_same")


def test_a_graph_calls_the_op(tmp_path: Path) -> None:
    op, x, y = made(tmp_path, "tmb_test_graph"), torch.randn(6, 8), torch.randn(8)
    strict = {"fallback": "error", "executor": "auto"}
    compiled = torch.compile(
        lambda x, y: op(x * 2, y, 1.0).sin(), backend="max_backend", fullgraph=True, options=strict
    )
    torch.testing.assert_close(compiled(x, y), (x * 2 + y + 1).sin())
    assert reports()[-1].programs[0].library_calls == ("torch_max_backend torch_max_backend.tmb_test_graph.default",)


@pytest.mark.any_runner("a user's kernel")
def test_a_gradient_may_be_given(tmp_path: Path) -> None:
    op = made(tmp_path, "tmb_test_slope")

    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None, None, None

    torch.library.register_autograd("torch_max_backend::tmb_test_slope", backward)
    x = torch.randn(3, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(op(x, torch.randn(4), 1.0).sum(), x)
    assert torch.equal(slope, torch.ones(3, 4))


@pytest.mark.any_runner("a user's kernel")
def test_compile_errors_have_the_files_lines(tmp_path: Path) -> None:
    with pytest.raises(CompileError) as caught:
        made(tmp_path, "tmb_test_typo", HEAD + BODY.replace("row += 1", "row += one"))
    line = len(HEAD.splitlines()) + len(BODY.splitlines())
    assert f"{tmp_path / 'tmb_test_typo.mojo'}:{line}:" in str(caught.value)
    assert "unknown declaration 'one'" in str(caught.value)


@pytest.mark.any_runner("a user's kernel")
def test_a_function_of_other_arguments_is_shown_its_call(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"Behind the file, in line 24, is the call: tmb_test_short\(t"):
        made(tmp_path, "tmb_test_short", HEAD + BODY.replace(", shift: Int", "").replace("(shift)", "(1)"))


@pytest.mark.any_runner("a user's kernel")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# op:", "# no:", "its head must have a line '# op: …'"),
        (
            "float32, float16",
            "float32, int8",
            "dtypes must be of float32, bfloat16, float16, float64, got 'float32, int8'",
        ),
        ("float factor", "str factor", "arguments must be Tensor, float, int or bool, got str"),
        ("# y: n\n", "", "arguments must be Tensor, float, int or bool, got Tensor"),
    ],
)
def test_heads_that_are_wrong(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RegistrationError, match=message):
        made(tmp_path, "tmb_test_wrong", (HEAD + BODY).replace(old, new))


@pytest.mark.any_runner("a user's kernel")
def test_a_name_is_taken_once(tmp_path: Path) -> None:
    with pytest.raises(MaxBackendError, match="gelu is a public op already"):
        made(tmp_path, "gelu")


@pytest.mark.any_runner("a user's kernel")
@pytest.mark.full
def test_the_standard_library(tmp_path: Path) -> None:
    text = (HEAD + BODY).replace("from kernel", "from std.math import exp as power\nfrom kernel")
    op = made(tmp_path, "tmb_test_std", text.replace("cast[f32](factor)", "Vec[f32, 1](power(cast[f32](factor).v))"))
    x, y = torch.randn(3, 4), torch.randn(4)
    torch.testing.assert_close(op(x, y, 1.0), x + y * 2.718281828 + 1)
