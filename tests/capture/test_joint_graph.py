"""What the forward saves for the backward. Graphs are traced and cut, and nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx

from torch_max_backend.base.target import Machine
from torch_max_backend.capture.attention_masks import simplify_masks
from torch_max_backend.capture.joint_graph import (
    drop_aliases,
    name_transposes,
    partition,
    save_narrow,
    save_no_probabilities,
    save_wholes,
)
from torch_max_backend.capture.user_controlled_ops import left_to_torch

pytestmark = pytest.mark.any_runner("graph passes, which come before the partition")

aten = torch.ops.aten
F = torch.nn.functional


def saved(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[torch.Tensor]:
    """What the forward of a function with one result gives the backward."""
    found = []

    def forward(gm: fx.GraphModule, _: list[Any]) -> fx.GraphModule:
        found.extend(n.meta["val"] for n in gm.graph.output_node().args[0][1:])
        return gm

    backend = aot_autograd(fw_compiler=forward, bw_compiler=lambda gm, _: gm, partition_fn=partition)
    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True)(*inputs).sum().backward()
    return found


def test_a_written_out_gelu_saves_its_input_alone() -> None:
    def gelu(x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * torch.pow(x, 3.0))))

    (only,) = saved(gelu, torch.randn(8, 8, requires_grad=True))
    assert only.shape == (8, 8)


def test_a_copy_is_not_saved_beside_what_it_copies() -> None:
    """Dropout of no element leaves one in some versions of torch."""

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w).clone() @ w

    kept = saved(layer, torch.randn(8, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True))
    assert sorted(t.numel() for t in kept) == [36, 48, 48]


def test_constants_are_not_saved() -> None:
    """They are computed once, while the graph is compiled, for forward and backward."""

    def bias(table: torch.Tensor) -> torch.Tensor:
        places = torch.arange(8)
        return F.embedding((places[None] - places[:, None]).abs(), table).sin()

    kept = saved(bias, torch.randn(8, 4, requires_grad=True))
    assert torch.int64 not in {t.dtype for t in kept}


NORMS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "layer": lambda x, w, b: F.layer_norm(x.movedim(1, -1), [8], w, b).movedim(-1, 1),
    "group": lambda x, w, b: F.group_norm(x, 2, w, b),
    "batch": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    "batch with running statistics": lambda x, w, b: F.batch_norm(x, b.detach(), w.detach().exp(), w, b),
}


@pytest.mark.parametrize("norm", NORMS.values(), ids=list(NORMS))
def test_an_activation_behind_a_norm_saves_its_input_alone(norm: Callable[..., torch.Tensor]) -> None:
    """Beside the statistics, and what is behind the activation, which a product reads."""
    parameters = [torch.randn(*shape, requires_grad=True) for shape in ((8, 8), (8,), (8,))]

    def function(x: torch.Tensor, u: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.silu(norm(x * x, w, b)).movedim(1, -1) @ u

    x = torch.randn(4, 8, 5, 5, requires_grad=True)
    large = [t for t in saved(function, x, *parameters) if t.numel() >= x.numel()]
    assert len(large) == 2, [t.shape for t in large]


@pytest.mark.parametrize("norm", NORMS.values(), ids=list(NORMS))
def test_the_forward_has_the_norm_itself(norm: Callable[..., torch.Tensor]) -> None:
    def joint(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.silu(norm(x, w, b))

    inputs = [torch.randn(*shape, requires_grad=True) for shape in ((4, 8, 5, 5), (8,), (8,))]
    found: list[fx.GraphModule] = []

    def noted(gm: fx.GraphModule, _: list[Any]) -> fx.GraphModule:
        found.append(gm)
        return gm

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=noted, bw_compiler=noted, partition_fn=partition)
    result = torch.compile(joint, backend=backend, fullgraph=True)(*inputs)
    torch.testing.assert_close(result, joint(*inputs))
    gradient = torch.randn_like(result)
    wanted = torch.autograd.grad(joint(*inputs), inputs, gradient)
    torch.testing.assert_close(torch.autograd.grad(result, inputs, gradient), wanted)
    forward, _ = found
    assert not {aten.sub.Tensor, aten.rsqrt.default} & {n.target for n in forward.graph.nodes}


def attend(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Attention as autocast computes it: products in 16 bits, and the softmax between them in float32."""
    narrow = x.to(torch.bfloat16)
    scores = torch.bmm(narrow, y.to(torch.bfloat16)) * x.sum()
    return torch.bmm(scores.softmax(-1, dtype=torch.float32).to(torch.bfloat16), narrow)


def test_a_softmax_of_narrow_scores_saves_nothing_of_their_size_in_float32() -> None:
    x, y = torch.randn(2, 64, 8, requires_grad=True), torch.randn(2, 8, 64, requires_grad=True)
    kept = saved(attend, x, y)
    assert sorted(str(t.dtype) for t in kept if t.numel() == 2 * 64) == ["torch.float32"] * 2, "two numbers a row"
    assert not [t.shape for t in kept if t.dtype is torch.float32 and t.numel() >= 2 * 64 * 64]
    for t in (x, y):
        t.grad = None
    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=lambda gm, _: gm, bw_compiler=lambda gm, _: gm, partition_fn=partition)
    torch.compile(attend, backend=backend)(x, y).float().square().sum().backward()
    found = [x.grad, y.grad]
    x.grad = y.grad = None
    attend(x, y).float().square().sum().backward()
    torch.testing.assert_close(found, [x.grad, y.grad])


def test_the_forward_has_the_softmax_itself() -> None:
    targets: list[Any] = []

    def noted(gm: fx.GraphModule, _: list[Any]) -> fx.GraphModule:
        targets.extend(n.target for n in gm.graph.nodes)
        return gm

    backend = aot_autograd(fw_compiler=noted, bw_compiler=lambda gm, _: gm, partition_fn=partition)
    torch._dynamo.reset()
    torch.compile(attend, backend=backend)(torch.randn(2, 64, 8, requires_grad=True), torch.randn(2, 8, 64))
    assert targets.count(aten._softmax.default) == 1
    assert aten.div.Tensor not in targets


def test_a_norm_by_sums_does_not_keep_what_is_read_behind_it() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return y * torch.linalg.vector_norm(y, dim=0, keepdim=True)

    x = torch.randn(64, 8, requires_grad=True)
    assert [t.shape for t in saved(function, x) if t.numel() > 8] == [x.shape]


def test_heads_are_saved_once() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        heads = x.view(4, 2, 8).transpose(0, 1)
        return heads.exp() @ heads.exp().transpose(1, 2)

    x = torch.randn(4, 16, requires_grad=True)
    assert sum(t.numel() for t in saved(twice, x)) == x.numel()


@pytest.fixture
def elsewhere() -> Any:
    with Machine.parse("cuda:sm_90a").pretended():
        yield


def joint_loss(x: torch.Tensor, t: torch.Tensor, g: torch.Tensor, reduction: int = 1) -> tuple[torch.Tensor, ...]:
    logarithms = aten._log_softmax(x, 1, False)
    loss, total = aten.nll_loss_forward(logarithms, t, None, reduction, 2)
    gradient = aten.nll_loss_backward(g, logarithms, t, None, reduction, 2, total)
    return loss, aten._log_softmax_backward_data(gradient, aten.detach(logarithms), 1, x.dtype)


@pytest.mark.parametrize("reduction", [0, 1, 2], ids=["none", "mean", "sum"])
def test_no_probabilities_are_saved(elsewhere: None, reduction: int) -> None:
    """One of the targets is ignored."""

    def joint(x: torch.Tensor, t: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return joint_loss(x, t, g, reduction)

    gradient_of = (6,) if reduction == 0 else ()
    gm = make_fx(joint)(
        torch.empty(6, 9, device="cuda"),
        torch.empty(6, dtype=torch.int64, device="cuda"),
        torch.empty(gradient_of, device="cuda"),
    )
    drop_aliases(gm)
    save_no_probabilities(gm)
    gm.recompile()
    assert not gm.graph.find_nodes(op="call_function", target=aten._log_softmax.default)
    for made in gm.graph.nodes:
        if "device" in made.kwargs:
            made.kwargs = {**made.kwargs, "device": torch.device("cpu")}
    gm.recompile()
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(6, 9, generator=generator) + 50, torch.arange(6), torch.full(gradient_of, 2.0)
        torch.testing.assert_close(gm(*inputs), joint(*inputs))


@pytest.mark.parametrize("reads", ["a rounded result", "a second reader"])
def test_probabilities_that_are_read_stay(elsewhere: None, reads: str) -> None:
    def joint(x: torch.Tensor, t: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = joint_loss(x, t, g)
        return results if reads == "a rounded result" else (*results, aten._log_softmax(x, 1, False) + 1)

    dtype = torch.bfloat16 if reads == "a rounded result" else torch.float32
    x, g = (torch.empty(s, device="cuda", dtype=dtype) for s in ((6, 9), ()))
    gm = make_fx(joint)(x, torch.empty(6, dtype=torch.int64, device="cuda"), g)
    if reads == "a second reader":  # of one node, as AOTAutograd's common subexpressions are
        first, second = gm.graph.find_nodes(op="call_function", target=aten._log_softmax.default)
        second.replace_all_uses_with(first)
        gm.graph.erase_node(second)
    drop_aliases(gm)
    before = str(gm.graph)
    save_no_probabilities(gm)
    assert str(gm.graph) == before


@pytest.mark.parametrize("op", ["efficient", "cudnn"])
@pytest.mark.parametrize("shared", [True, False])
def test_a_triangle_goes_from_attention_and_its_gradient(elsewhere: None, op: str, shared: bool) -> None:
    def joint(q: torch.Tensor, grad: torch.Tensor) -> Any:
        positions = torch.arange(8, device="cuda")
        mask = torch.where(positions[None] <= positions[:, None], 0.0, -torch.inf).to(q.dtype).expand(2, 4, 8, 8)
        other = mask if shared else mask + 0
        if op == "efficient":
            out, log, *seeds = aten._scaled_dot_product_efficient_attention(q, q, q, mask, True)
            needed = [True, True, True, False]
            return aten._scaled_dot_product_efficient_attention_backward(
                grad, q, q, q, other, out, log, *seeds, 0.0, needed
            )[:3]
        out, log, _, _, _, _, *seeds, _ = aten._scaled_dot_product_cudnn_attention(q, q, q, mask, True)
        return aten._scaled_dot_product_cudnn_attention_backward(
            grad, q, q, q, out, log, *seeds, other, None, None, 8, 8, 0.0, False
        )

    gm = make_fx(joint)(*[torch.empty(2, 4, 8, 16, device="cuda", dtype=torch.bfloat16) for _ in range(2)])
    simplify_masks(gm)
    forward = getattr(aten, f"_scaled_dot_product_{op}_attention").default
    backward = getattr(aten, f"_scaled_dot_product_{op}_attention_backward").default
    (attention,), (gradient,) = (gm.graph.find_nodes(op="call_function", target=t) for t in (forward, backward))
    mask, causal = {"efficient": (4, 11), "cudnn": (8, 14)}[op]
    if shared:
        assert (attention.args[3], attention.args[6]) == (None, True)
        assert (gradient.args[mask], gradient.args[causal]) == (None, True)
    else:
        assert attention.args[3] is not None and gradient.args[mask] is not None


def test_transposes_become_views_that_min_cut_knows() -> None:
    gm = make_fx(lambda x: (x.transpose(-1, 0).transpose(1, 2),))(torch.randn(2, 3, 4))
    name_transposes(gm)
    gm.recompile()
    x = torch.randn(2, 3, 4)
    assert not gm.graph.find_nodes(op="call_function", target=aten.transpose.int)
    assert torch.equal(gm(x)[0], x.transpose(-1, 0).transpose(1, 2))


def test_pieces_that_would_be_copied_are_saved_as_a_whole() -> None:
    """Queries, keys and values are strided in the product that gives all three."""

    def attend(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.view(4, 5, 2, 3).transpose(1, 2).exp() for each in (x @ w).split(6, 2))
        return q @ k.transpose(-2, -1) @ v

    x, w = torch.randn(4, 5, 6), torch.randn(6, 18, requires_grad=True)
    shapes = [tuple(t.shape) for t in saved(attend, x, w)]
    assert (20, 18) in shapes or (4, 5, 18) in shapes
    assert (4, 2, 5, 3) not in shapes and (4, 5, 6) not in [s for s in shapes if s != tuple(x.shape)]


def cut(forward: Callable[..., Any], backward: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Any, Any]:
    """Graphs of a forward with one result and its backward, whose inputs are named as the forward's nodes are."""
    first, second = make_fx(forward)(*inputs), make_fx(backward)(*make_fx(forward)(*inputs)(*inputs)[1:])
    saved_nodes = first.graph.output_node().args[0][1:]
    for placeholder, node in zip(second.graph.find_nodes(op="placeholder"), saved_nodes, strict=True):
        placeholder.name = placeholder.target = node.name
        placeholder.meta.update(node.meta)
    return first, second


@pytest.mark.parametrize("what", ["both halves", "one half", "rows", "the whole too"])
def test_what_is_saved_of_a_whole(what: str) -> None:
    """Halves of the columns have gaps, halves of the rows have none; one half alone is less than the whole."""

    def forward(x: torch.Tensor) -> Any:
        y = x.sin()
        first, second = y.split(2, 0 if what == "rows" else 1)
        kept = {"both halves": (first, second), "one half": (first,), "rows": (first, second)}
        return y.sum(), *kept.get(what, (first, y))

    first, second = cut(forward, lambda *saved: [t + i for i, t in enumerate(saved)], torch.randn(4, 4))
    x = torch.randn(4, 4)
    before = second(*first(x)[1:])
    save_wholes(first, second, 1)
    kept = [tuple(n.meta["val"].shape) for n in first.graph.output_node().args[0][1:]]
    expected = {"both halves": [(4, 4)], "one half": [(4, 2)], "rows": [(2, 4), (2, 4)], "the whole too": [(4, 4)]}
    assert kept == expected[what]
    torch.testing.assert_close(second(*first(x)[1:]), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("computed", [torch.bfloat16]),
        ("a product", [torch.bfloat16]),
        ("a view of a product", [torch.bfloat16]),
        ("saved too", [torch.bfloat16]),
        ("a mask", [torch.bool]),
        ("read by a product", [torch.float32]),
        ("a narrowing", [torch.bfloat16]),
        ("an integer", [torch.float64]),
    ],
)
def test_what_is_saved_of_a_cast(what: str, expected: list[torch.dtype]) -> None:
    def forward(x: torch.Tensor) -> Any:
        narrow = x.sin().to(torch.bfloat16)
        if what == "computed":
            kept = [narrow.float()]
        elif what == "a product":
            kept = [(narrow @ narrow).float()]
        elif what == "a view of a product":
            kept = [(narrow @ narrow).view(2, 2, 4).permute(2, 0, 1).float()]
        elif what == "saved too":
            kept = [narrow, narrow.float()]
        elif what == "a mask":
            kept = [(x > 0).float()]
        elif what == "an integer":
            kept = [x.int().double()]
        else:
            kept = [narrow.float() if what == "read by a product" else narrow]
        return x.sum(), *kept

    def backward(*saved: torch.Tensor) -> Any:
        return [t.t() @ t if what == "read by a product" else t * 2 + i for i, t in enumerate(saved)]

    x = torch.randn(4, 4)
    first, second = cut(forward, backward, x)
    before = second(*first(x)[1:])
    save_narrow(first, second, 1)
    first.graph.lint()
    second.graph.lint()
    assert [n.meta["val"].dtype for n in first.graph.output_node().args[0][1:]] == expected
    kinds = [n.target for n in first.graph.nodes]
    assert what != "a product" or kinds.count(aten._to_copy.default) == 2, "a product is in memory, and saved itself"
    torch.testing.assert_close(second(*first(x)[1:]), before, rtol=0, atol=0)


def test_a_norm_saves_its_input_in_16_bits() -> None:
    def normalized(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.layer_norm((x @ w).to(torch.bfloat16).float(), (8,))

    kept = saved(normalized, torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True))
    assert [t.dtype for t in kept if t.shape == (4, 8)].count(torch.bfloat16) == 1
    assert sum(t.dtype == torch.float32 and t.shape == (4, 8) for t in kept) <= 1, "and that is the product's factor"


def test_a_whole_is_cut_where_its_first_piece_is_read() -> None:
    """Until then it is one tensor; stages of the backward would hold the pieces of all layers."""

    def forward(x: torch.Tensor) -> Any:
        y = x.sin()
        return y.sum(), *y.split(2, 1), x.cos()

    def backward(first: torch.Tensor, second: torch.Tensor, other: torch.Tensor) -> Any:
        early = other.exp()
        return early, first + early[:, :2], second + 1

    first, second = cut(forward, backward, torch.randn(4, 4))
    save_wholes(first, second, 1)
    steps = [n.target for n in second.graph.nodes if n.op == "call_function"]
    assert aten.split.Tensor in steps
    assert steps.index(aten.exp.default) < steps.index(aten.split.Tensor) < steps.index(aten.add.Tensor)


@pytest.mark.parametrize("name", ["aten.transpose", "aten._log_softmax.default"])
def test_ops_that_torch_shall_run_stay(elsewhere: None, name: str) -> None:
    def joint(x: torch.Tensor, t: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss, gradient = joint_loss(x, t, g)
        return loss.detach() * 2, gradient.transpose(0, 1).contiguous()

    inputs = torch.empty(6, 9, device="cuda"), torch.empty(6, dtype=torch.int64, device="cuda"), torch.tensor(1.0)
    gm = make_fx(joint)(*inputs)
    ops = {str(n.target) for n in gm.graph.nodes}
    kept = {op for op in ops if op.startswith(name)}
    with left_to_torch([name]):
        drop_aliases(gm)
        name_transposes(gm)
        save_no_probabilities(gm)
    assert kept and kept <= {str(n.target) for n in gm.graph.nodes}


@pytest.mark.parametrize(("size", "dtype"), [(8, torch.int16), (181, torch.int16), (182, torch.int64)])
def test_places_of_maxima_are_saved_in_few_bytes(size: int, dtype: torch.dtype) -> None:
    image = torch.randn(1, 2, size, size, requires_grad=True)
    for kernel in ([3, 3], [3]):  # one number stands for all sizes
        kept = saved(lambda x, k=kernel: aten.max_pool2d_with_indices(torch.sin(x), k, [2], [1])[0], image)
        assert [t.dtype for t in kept if not t.is_floating_point()] == [dtype]


def test_places_that_are_read_are_left_alone() -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        values, places = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(values, places, 2)

    kept = saved(both, torch.randn(1, 2, 8, 8, requires_grad=True))
    assert torch.int64 in {t.dtype for t in kept}
