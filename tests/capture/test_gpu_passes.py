"""Graph passes that concern GPUs, on graphs of fake GPU tensors. Nothing is compiled here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from max.graph import Module, TensorValue, ops
from torch import fx
from torch._dynamo.exc import BackendCompilerFailed
from torch.fx.experimental.proxy_tensor import make_fx

from torch_max_backend.aten_functions.registry import aten_functions, map_to
from torch_max_backend.aten_functions.support.node_context import CodeSettings
from torch_max_backend.base.target import Machine
from torch_max_backend.capture import composite_ops
from torch_max_backend.capture.attention_masks import kind_of, simplify_masks
from torch_max_backend.capture.constant_folding import fold_constants
from torch_max_backend.capture.gelu_pattern import recognize_gelu
from torch_max_backend.capture.graph_passes import drop_copies
from torch_max_backend.capture.grouped_query_attention import share_heads
from torch_max_backend.frontend import prebuild
from torch_max_backend.lowering.graph_builder import build_graph

aten = torch.ops.aten
SIZE = 8


@pytest.fixture(autouse=True)
def elsewhere() -> Iterator[None]:
    with Machine.parse("cuda:sm_90a").pretended():
        yield


def traced(
    function: Callable[..., object], *shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16
) -> fx.GraphModule:
    inputs = [torch.empty(s, device="cuda", dtype=dtype) for s in shapes]
    return make_fx(function)(*inputs)


def attention(mask: Callable[[], torch.Tensor]) -> fx.Node:
    """The attention node after the pass, with the mask that a model would build from positions."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        zero, hidden = (torch.scalar_tensor(x, device="cuda", dtype=torch.bfloat16) for x in (0.0, float("-inf")))
        bias = torch.where(mask(), zero, hidden).expand(2, 4, SIZE, SIZE)
        return aten._scaled_dot_product_efficient_attention(q, k, v, bias, False)[0]

    gm = traced(attend, *[(2, 4, SIZE, 16)] * 3)
    simplify_masks(gm)
    (node,) = gm.graph.find_nodes(op="call_function", target=aten._scaled_dot_product_efficient_attention.default)
    return node


def repeated(x: torch.Tensor, repeats: int) -> torch.Tensor:
    """As models write it."""
    batch, groups, length, size = x.shape
    wide = x[:, :, None, :, :].expand(batch, groups, repeats, length, size)
    return wide.reshape(batch, groups * repeats, length, size)


def interleaved(x: torch.Tensor, repeats: int) -> torch.Tensor:
    """Groups take turns."""
    batch, groups, length, size = x.shape
    return x[:, None].expand(batch, repeats, groups, length, size).reshape(batch, groups * repeats, length, size)


@pytest.mark.any_runner("a graph pass, which comes before the partition")
@pytest.mark.parametrize(
    ("copies", "dtype", "is_masked", "is_shared"),
    [
        (repeated, torch.bfloat16, False, True),
        (interleaved, torch.bfloat16, False, False),
        (repeated, torch.float32, False, False),  # no fused kernel of torch's has groups of heads then
        (repeated, torch.bfloat16, True, False),
    ],
)
def test_heads_that_are_copied_for_groups(
    copies: Callable[[torch.Tensor, int], torch.Tensor], dtype: torch.dtype, is_masked: bool, is_shared: bool
) -> None:
    shapes = (2, 8, SIZE, 16), *[(2, 2, SIZE, 16)] * 2
    gm = traced(lambda q, k, v: (q, copies(k, 4), copies(v, 4)), *shapes, dtype=dtype)
    end = gm.graph.output_node()
    mask = (end.args[0][0],) if is_masked else ()
    with gm.graph.inserting_before(end):  # a trace by itself takes the op apart
        node = gm.graph.call_function(aten.scaled_dot_product_attention.default, (*end.args[0], *mask))
    end.args = (node,)
    before = len(gm.graph.nodes)
    share_heads(gm)
    gm.graph.lint()
    assert ([x.op for x in node.args[1:3]] == ["placeholder"] * 2) is is_shared
    assert node.kwargs == ({"enable_gqa": True} if is_shared else {})
    assert len(gm.graph.nodes) == (before - 8 if is_shared else before)


@pytest.mark.any_runner("a graph pass, which comes before the partition")
@pytest.mark.filterwarnings("error:erase_node")
def test_heads_that_are_keys_and_values_at_once() -> None:
    gm = traced(lambda q, k: (q, repeated(k, 4)), (2, 8, SIZE, 16), (2, 2, SIZE, 16))
    end = gm.graph.output_node()
    query, copied = end.args[0]
    with gm.graph.inserting_before(end):
        node = gm.graph.call_function(aten.scaled_dot_product_attention.default, (query, copied, copied))
    end.args = (node,)
    share_heads(gm)
    gm.graph.lint()
    assert [x.op for x in gm.graph.nodes] == ["placeholder", "placeholder", "call_function", "output"]


def positions() -> torch.Tensor:
    return torch.arange(SIZE, device="cuda").expand(2, SIZE)


@pytest.mark.any_runner("a graph pass, which comes before the partition")
def test_a_triangle_becomes_is_causal() -> None:
    node = attention(lambda: positions()[:, None, None, :] <= positions()[:, None, :, None])
    assert node.args[3] is None and node.args[6] is True


@pytest.mark.any_runner("a graph pass, which comes before the partition")
def test_a_mask_that_hides_nothing_goes_away() -> None:
    node = attention(lambda: positions()[:, None, None, :] >= 0)
    assert node.args[3] is None and node.args[6] is False


@pytest.mark.any_runner("a graph pass, which comes before the partition")
def test_masks_that_torch_makes_of_booleans_count() -> None:
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        shown = torch.ones(5, 5, dtype=torch.bool).tril()
        assert kind_of(shown) == "triangle" and kind_of(shown | True) == "nothing" and kind_of(~shown) == ""
        assert kind_of(torch.where(shown, 0.0, -65504.0).to(torch.bfloat16)) == "triangle"


@pytest.mark.any_runner("a graph pass, which comes before the partition")
@pytest.mark.parametrize("window", [2, 3])
def test_other_masks_stay(window: int) -> None:
    def banded() -> torch.Tensor:
        row, column = positions()[:, None, :, None], positions()[:, None, None, :]
        return (column <= row) & (column > row - window)

    assert isinstance(attention(banded).args[3], fx.Node)


@pytest.mark.any_runner("a graph pass, which comes before the partition")
def test_kinds_of_masks() -> None:
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        hidden = torch.full((1, 5, 5), float("-inf")).triu(1)
        assert kind_of(hidden) == "triangle"
        assert kind_of(torch.full((5, 5), torch.finfo(torch.float32).min).triu(1)) == "triangle"
        assert kind_of(hidden.expand(3, 5, 5)) == "triangle"
        assert kind_of(torch.zeros(5, 7)) == "nothing"
        for other in (hidden[:, :4], hidden.mT, hidden.triu(2), torch.full((5, 5), -1e4).triu(1), -hidden):
            assert kind_of(torch.nan_to_num(other, nan=0.0)) == ""


def _written_out(x: torch.Tensor, cubic: float = 0.044715) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + cubic * torch.pow(x, 3.0))))


@pytest.mark.any_runner("a graph pass, which comes before the partition")
def test_a_written_out_gelu_is_recognized() -> None:
    gm = traced(lambda x: _written_out(x), (4, 4))
    recognize_gelu(gm)
    (node,) = [n for n in gm.graph.nodes if n.op == "call_function"]
    assert node.target is aten.gelu.default and node.kwargs == {"approximate": "tanh"}


@pytest.mark.any_runner("a graph pass, which comes before the partition")
def test_what_only_resembles_gelu_stays() -> None:
    def shared(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inner = torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0)))
        return 0.5 * x * (1.0 + inner), inner

    for function in (lambda x: _written_out(x, 0.04), shared):
        gm = traced(function, (4, 4))
        recognize_gelu(gm)
        assert not gm.graph.find_nodes(op="call_function", target=aten.gelu.default)


@torch.no_grad()
def test_attention_without_heads_stays_whole() -> None:
    def run(device: str) -> None:
        q, mask = torch.empty(2, SIZE, 64, device=device), torch.empty(2, SIZE, SIZE, device=device, dtype=torch.bool)
        attend = torch.nn.functional.scaled_dot_product_attention
        options = {"fallback": "error"}
        torch.compile(lambda q, m: attend(q, q, q, m), backend="max_backend", dynamic=False, options=options)(q, mask)

    (job,) = prebuild.regions_of(run, "cuda").jobs.values()
    assert [n.target for n in job.region.nodes] == [aten.scaled_dot_product_attention.default]
    build_graph(job.region, "whole", Module(), CodeSettings("highest", "cuda"))


@torch.no_grad()
def test_attention_stays_whole_and_shares_keys() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(SIZE, device="cuda")[:, None] >= torch.arange(SIZE, device="cuda")
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

    def run(device: str) -> None:
        shapes = [(2, heads, SIZE, 64) for heads in (4, 2, 2)]
        inputs = [torch.empty(s, device=device, dtype=torch.bfloat16) for s in shapes]
        torch.compile(attend, backend="max_backend", dynamic=False, options={"fallback": "error"})(*inputs)

    (job,) = prebuild.regions_of(run, "cuda").jobs.values()
    (node,) = [n for n in job.region.nodes if n.target is aten.scaled_dot_product_attention.default]
    assert node.args[3:] == (None, 0.0, True) and node.kwargs["enable_gqa"] is True
    graph = str(build_graph(job.region, "whole", Module(), CodeSettings("highest", "cuda")))
    assert graph.count("tmb_library_attention") == 1


def lowered_attention(transposed: bool = False, **rest: float) -> str:
    """The MAX graph of attention whose result is handed out as torch promises it, or transposed as models do."""

    def attend(q: torch.Tensor) -> torch.Tensor:
        rows = torch.nn.functional.scaled_dot_product_attention(q, q, q, **rest)
        return rows.transpose(1, 2).reshape(2, SIZE, -1) if transposed else rows

    def run(device: str) -> None:
        q = torch.empty(2, 4, SIZE, 64, device=device, dtype=torch.bfloat16)
        torch.compile(attend, backend="max_backend", dynamic=False, options={"fallback": "error"})(q)

    with torch.no_grad():
        (job,) = prebuild.regions_of(run, "cuda").jobs.values()
    return str(build_graph(job.region, "whole", Module(), CodeSettings("highest", "cuda")))


def test_attention_is_written_as_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing has to transpose it: with its heads behind positions, unless torch promises it contiguous."""
    for transposed in (False, True):
        assert "result_inside = true" in lowered_attention(transposed)
    monkeypatch.setattr(composite_ops, "_attention_on_absent_gpu", lambda mode, op, query, *rest, **more: query.clone())
    assert "result_inside = false" in lowered_attention(False)


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_scales_that_fused_kernels_get_wrong(scale: float) -> None:
    """They take a row's largest score before they scale it, and give NaN."""
    assert "tmb_library_attention" in lowered_attention(scale=0.5)
    assert "tmb_library_attention" not in lowered_attention(scale=scale)


def lowered(
    function: Callable[..., object], *shapes: tuple[int, ...], gpu: str = "cuda", channels_last: bool = False
) -> str:
    """The MAX graph of the one region that a function of bfloat16 tensors becomes."""

    def run(device: str) -> None:
        inputs = [torch.empty(s, device=device, dtype=torch.bfloat16) for s in shapes]
        if channels_last:
            inputs = [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs]
        torch.compile(function, backend="max_backend", dynamic=False, options={"fallback": "error"})(*inputs)

    with torch.no_grad():
        (job,) = prebuild.regions_of(run, "cuda").jobs.values()
    return str(build_graph(job.region, "whole", Module(), CodeSettings("highest", gpu)))


def test_a_norm_takes_the_sum_before_it() -> None:
    """Of a product as well, if a library multiplies; not if the sum is computed with what is added."""

    def product(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = r + x @ w
        return torch.nn.functional.layer_norm(total, (64,)), total

    def gated(x: torch.Tensor, g: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = r + x * g
        return torch.nn.functional.layer_norm(total, (64,)), total

    shapes = (SIZE, 32), (32, 64), (SIZE, 64)
    assert "tmb_add_norm" in lowered(product, *shapes)
    assert "tmb_add_norm" not in lowered(product, *shapes, gpu="hip")
    assert "tmb_add_norm" not in lowered(gated, (SIZE, 64), (SIZE, 64), (SIZE, 64))


def test_gradients_of_attention_have_a_bias_for_every_row() -> None:
    """The library gives 0 for the query's gradient where rows share theirs."""

    def attend(q: torch.Tensor, mask: torch.Tensor, grad: torch.Tensor) -> object:
        found = aten._scaled_dot_product_cudnn_attention(q, q, q, mask, True, 0.0, False)
        out, logarithms, seed, offset = found[0], found[1], found[6], found[7]
        return aten._scaled_dot_product_cudnn_attention_backward(
            grad, q, q, q, out, logarithms, seed, offset, mask, None, None, SIZE, SIZE, 0.0, False
        )

    q = (2, 4, SIZE, 64)
    (call,) = [x for x in lowered(attend, q, (2, 1, 1, SIZE), q).splitlines() if "attention_gradients" in x]
    assert f"[2, 1, {SIZE}, {SIZE}]" in call


def test_what_follows_a_product_has_its_shape() -> None:
    """MAX makes several kernels of what is computed of a reshape."""

    def gated(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        gate, up = torch.nn.functional.linear(x, w), torch.nn.functional.linear(x, v)
        return torch.nn.functional.gelu(gate) * up

    text = lowered(gated, (2, 6, 32), (40, 32), (40, 32))
    assert set(re.findall(r"<\[([\d, ]+)\], f32", text)) == {"1, 12, 40"}, "as the library writes it"
    (product,) = [line for line in text.splitlines() if "rmo.mul" in line and "bf16" in line]
    assert "[1, 12, 40]" in product, "of two reshapes"


def test_pieces_of_one_row_are_not_copied() -> None:

    def attend(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        q, *_ = torch.addmm(b, x.view(1, 64), w).view(1, 1, 192).split(64, 2)
        return torch.nn.functional.scaled_dot_product_attention(q.view(1, 1, 1, 64).transpose(1, 2), k, k)

    text = lowered(attend, (1, 1, 64), (64, 192), (192,), (1, 1, SIZE, 64))
    slices = [line for line in text.splitlines() if "rmo.slice" in line]
    assert "tmb_library_attention" in text and slices
    assert all("<[3, 1, 64], bf16" in line for line in slices), "of the first dimension, where a piece is dense"


def test_a_lowering_of_the_user_gets_the_shapes_of_its_node() -> None:
    seen: list[list[int]] = []

    def own(self: TensorValue) -> TensorValue:
        seen.append([int(d) for d in self.shape])
        return ops.tanh(self)

    def activated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, w).tanh()

    ours = aten_functions.lowerings[aten.tanh.default]
    try:
        map_to(aten.tanh.default)(own)
        lowered(activated, (2, 6, 32), (40, 32))
    finally:
        aten_functions.lowerings[aten.tanh.default] = ours
    assert seen and all(shape == [2, 6, 40] for shape in seen)


def test_a_convolution_and_what_follows_it_are_two_kernels() -> None:
    def block(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, *norm: torch.Tensor) -> torch.Tensor:
        mean, variance, weight, shift = norm
        y = torch.nn.functional.batch_norm(torch.conv2d(x, w), mean, variance, weight, shift)
        return torch.relu(y + r)

    text = lowered(block, (2, 8, 5, 5), (16, 8, 3, 3), (2, 16, 3, 3), *[(16,)] * 4)
    calls = re.findall(r'symbol = "(\w+)"', text)
    assert [c for c in calls if c != "tmb_transpose"] == ["tmb_library_convolution", "tmb_finish_channels"]
    assert "rmo.add" not in text and "rmo.mul" not in text


def test_copies_that_differ_in_nothing_go_away() -> None:
    """Such as dropout leaves with some versions of torch: nothing is fused through them."""

    def dropped(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = r + (x @ w).clone()
        return torch.nn.functional.layer_norm(total, (64,)), total.clone(), x.clone(), total.t().clone()

    assert "tmb_add_norm" in lowered(dropped, (SIZE, 32), (32, 64), (SIZE, 64))


@pytest.mark.any_runner("a graph pass, which comes before the partition")
def test_other_copies_stay() -> None:
    def copies(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y.clone(), x.clone() + 1, y.t().clone(memory_format=torch.contiguous_format) + 1, y.clone() + 1

    gm = traced(copies, (4, 6))
    drop_copies(gm)
    kept = gm.graph.find_nodes(op="call_function", target=aten.clone.default)
    assert len(kept) == 3, "what is returned, what is an input's, what has other strides"


def test_products_of_integers_are_refused() -> None:
    """Torch has none on a GPU, and the library neither."""

    def run(device: str) -> None:
        x, w, b = (torch.empty(s, device=device, dtype=torch.int64) for s in ((4, 3), (5, 3), (5,)))
        options = {"fallback": "error"}
        torch.compile(torch.nn.functional.linear, backend="max_backend", dynamic=False, options=options)(x, w, b)

    with pytest.raises(BackendCompilerFailed, match="on a GPU matrices of floating point numbers are multiplied"):
        prebuild.regions_of(run, "cuda")


@pytest.mark.any_runner("a graph pass, which comes before the partition")
def test_positions_that_are_repeated_fold() -> None:
    def masked(x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(positions()[:, :, None] < positions()[:, None, :], 0.0)

    gm = traced(masked, (2, SIZE, SIZE))
    fold_constants(gm)
    assert [n.target for n in gm.graph.nodes if n.op == "call_function"] == [aten.masked_fill.Scalar]


def shapes_of(graph: str, op: str) -> set[str]:
    """The shapes of the results of an op, as the graph's text has them."""
    return {m[1] for m in re.finditer(rf"= {re.escape(op)}\(.*-> !mo\.tensor<(\[[\d, ]*\])", graph)}


def test_elementwise_ops_stay_in_the_shape_they_were_given() -> None:
    """Between the views of a model, conversions and functions of a row's numbers among them."""

    def chain(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        image = (x * y).view(4, 16, 32)
        return ((image.float() * w + r).to(torch.bfloat16) * y.view(4, 16, 32)).view(64, 32) + x

    graph = lowered(chain, (64, 32), (64, 32), (32,), (4, 16, 1))
    assert shapes_of(graph, "rmo.mul") | shapes_of(graph, "rmo.add") == {"[64, 32]"}


def test_images_are_not_made_rows() -> None:
    """MAX would move the reshape behind functions of one operand, and store what they give."""

    def gradient(g: torch.Tensor, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        g = aten.threshold_backward(g, x, 0)
        return aten.native_batch_norm_backward(g, x, v, None, None, v, v, True, 1e-5, [True] * 3)

    graph = lowered(gradient, (2, 16, 8, 8), (2, 16, 8, 8), (16,), channels_last=True)
    assert shapes_of(graph, "rmo.select") >= {"[2, 8, 8, 16]"}
    assert not any(s.startswith("[128,") for op in ("rmo.select", "rmo.sub", "rmo.mul") for s in shapes_of(graph, op))


def test_a_masked_gradient_is_stored_by_the_kernel_that_sums_it_up() -> None:
    """MAX would store it before. What reads it later reads what was stored; what lies in memory is not copied."""

    def gradient(g: torch.Tensor, x: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        masked = aten.threshold_backward(g, x, 0)
        first = aten.native_batch_norm_backward(masked, x, v, None, None, v, v, True, 1e-5, [True] * 3)
        second = aten.native_batch_norm_backward(masked, g, v, None, None, v, v, True, 1e-5, [True] * 3)
        return *first, *second, masked + 1

    graph = lowered(gradient, (4, 16, 8, 8), (4, 16, 8, 8), (16,), channels_last=True)
    (masked,) = re.findall(r"(%\w+) = rmo.select", graph)
    first, second = re.findall(r'(%\w+):2 = .*"tmb_column_products".*keeps = (\w+).*?\((%[\w#]+), ', graph)
    assert first[1:] == ("true", masked)
    assert second[1:] == ("false", f"{first[0]}#1")
    readers = re.findall(rf"(%\w+).* = .*\({masked}\b", graph)
    assert [r for r in readers if len(re.findall(rf"{r}\b", graph)) > 1] == [first[0]], (
        "of those whose results are read"
    )


def test_patches_of_images_become_rows_once() -> None:
    """A sequence that begins as a convolution's result, to which scaled rows are added, stays one in every layer."""

    def encode(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        rows = torch.conv2d(x, w, stride=2).flatten(2).transpose(1, 2) + scale
        for _ in range(3):
            rows = rows + (torch.nn.functional.layer_norm(rows, (16,)) @ m) * scale
        return rows

    graph = lowered(encode, (2, 3, 8, 8), (16, 3, 2, 2), (1, 16, 16), (16, 16))
    assert graph.count('symbol = "tmb_transpose"') == 1, "of the image, and none in a layer"


@pytest.mark.parametrize("odd", ["K", "M and K", "N"])
def test_odd_rows_are_padded(odd: str) -> None:
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.t() @ b.t() if odd == "M and K" else a @ b

    shapes = {"K": ((64, 257), (257, 256)), "M and K": ((257, 1027), (256, 257)), "N": ((64, 256), (256, 257))}
    graph = lowered(product, *shapes[odd])
    rows = {"K": {"[1, 264, 256]"}, "M and K": {"[1, 264, 1027]"}, "N": set()}
    columns = {"K": {"[1, 64, 264]"}, "M and K": {"[1, 264, 1032]", "[1, 256, 264]"}, "N": {"[1, 256, 264]"}}
    of_kernel = set(re.findall(r'"tmb_with_padding".*-> !mo.tensor<(\[.*?\])', graph))
    assert shapes_of(graph, "rmo.concat") | of_kernel == rows[odd] | columns[odd]
    assert of_kernel >= columns[odd] - {"[1, 264, 1032]"}, "whatever lies in memory"
    even = lowered(product, *[tuple(8 * (s // 8) for s in shape) for shape in shapes[odd]])
    assert "rmo.concat" not in even
    assert "tmb_with_padding" not in even


@pytest.mark.parametrize("shapes", [((63, 257), (257, 256)), ((1, 256), (256, 257)), ((256, 257), (257, 63))])
def test_odd_operands_of_few_rows_or_columns_are_read_as_they_are(shapes: tuple[tuple[int, int], ...]) -> None:
    """Padding would read and write the large operand before the product reads it."""
    graph = lowered(torch.matmul, *shapes)
    assert "rmo.concat" not in graph
    assert "tmb_with_padding" not in graph


def test_a_batch_norm_of_widened_images_is_not_rounded() -> None:
    """Its statistics may be read from the 16 bits that the images came from; its result has 32."""

    def norm(x: torch.Tensor) -> torch.Tensor:
        return aten._native_batch_norm_legit.no_stats(x.float(), None, None, True, 0.1, 1e-5)[0]

    graph = lowered(norm, (4, 32, 8, 8), channels_last=True)
    (moments,) = re.findall(r'"tmb_column_moments".*?: \((.*?)\) ->', graph)
    (scaled,) = re.findall(r'"tmb_scaled_columns".*?: \(.*?\) -> (.*)', graph)
    assert "bf16" in moments
    assert "f32" in scaled
    assert "bf16" not in scaled


@pytest.mark.parametrize(
    ("shape", "is_one"), [((3, 2048), True), ((3, 512), False), ((2, 2**21), False), ((300, 2**21), True)]
)
def test_extremes_of_rows_by_one_kernel(shape: tuple[int, int], is_one: bool) -> None:
    """Unless rows are short, or so few and long that one block for each is too little."""

    def extremes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.argmax(-1), *x.min(-1)

    assert ("tmb_row_extreme" in lowered(extremes, shape)) is is_one
    assert "tmb_row_extreme" not in lowered(lambda x: x.argmax(0), shape)


@pytest.mark.any_runner("a capability check")
def test_modes_are_taken_on_a_cpu_alone() -> None:
    lowering = aten_functions.get(aten.mode.default)
    assert lowering is not None
    assert lowering.supports is not None
    assert "got one on cuda" in str(lowering.supports(torch.empty(3, device="cuda")))
    assert lowering.supports(torch.empty(3, device="cpu")) is None


@pytest.mark.parametrize(("steps", "copies"), [((0, 8, 1, 0), 1), ((64, 64, 8, 1), 0)])
def test_a_mask_of_training_has_neighbours_along_its_rows(steps: tuple[int, ...], copies: int) -> None:
    """Torch takes attention with another mask apart, into products of float32."""
    seen: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        composite_ops.lay_masks_in_rows(gm)
        seen.append(gm)
        return gm.forward

    def attend(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    q = torch.empty(2, 4, 8, 16, device="cuda", requires_grad=True)
    mask = torch.empty_strided((2, 1, 8, 8), steps, device="cuda", dtype=torch.bool)
    torch.compile(attend, backend=backend)(q, mask)
    (gm,) = seen
    (node,) = (n for n in gm.graph.nodes if n.target is F.scaled_dot_product_attention)
    assert len(gm.graph.find_nodes(op="call_method", target="contiguous")) == copies
    assert node.kwargs["attn_mask"].meta["example_value"].stride(-1) == 1
