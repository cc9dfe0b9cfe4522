"""torchao's schemes: ``python -m benchmarks.quantised`` prints scheme by model against torchao with Inductor.

Models are of random weights. Speeds are of a prompt and of one token alone behind it; eager, Inductor and this backend
take turns in one process. Memory is that of the weights, in MB.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import torch_max_backend
from torch_max_backend.demo import Logits

Function = Callable[[torch.Tensor], torch.Tensor]
PROMPT = 32
ROUNDS = 9


def schemes() -> dict[str, Callable[[], Any]]:
    """The schemes by name; those that a machine lacks raise torchao's own error when they are applied."""
    import torchao.quantization as q

    int4 = torch.int4
    return {
        "int8 weights": q.Int8WeightOnlyConfig,
        "int8 dynamic": q.Int8DynamicActivationInt8WeightConfig,
        "int4 weights, groups of 32": lambda: q.IntxWeightOnlyConfig(weight_dtype=int4, granularity=q.PerGroup(32)),
        "int4 weights, groups of 128": lambda: q.IntxWeightOnlyConfig(weight_dtype=int4, granularity=q.PerGroup(128)),
        "int4 weights, packed": lambda: q.Int4WeightOnlyConfig(group_size=128),
        "float8 weights": q.Float8WeightOnlyConfig,
        "float8 dynamic, by tensor": lambda: q.Float8DynamicActivationFloat8WeightConfig(granularity=q.PerTensor()),
        "float8 dynamic, by row": lambda: q.Float8DynamicActivationFloat8WeightConfig(granularity=q.PerRow()),
    }


def models(device: str) -> dict[str, tuple[nn.Module, torch.Tensor, torch.Tensor]]:
    """A model with a prompt and with one token (for an image model twice an image), by name; large ones on a GPU."""
    import timm
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    big = device == "cuda"
    width, layers = (2048, 16) if big else (512, 4)
    gpt2 = GPT2LMHeadModel(GPT2Config() if big else GPT2Config(n_embd=width, n_layer=layers, n_head=8, vocab_size=8192))
    llama = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=width // 64,
            num_key_value_heads=8,
            vocab_size=8192,
        )
    )
    vit = timm.create_model("vit_base_patch16_224" if big else "vit_tiny_patch16_224", pretrained=False)
    tokens, image = torch.randint(0, 8192, (1, PROMPT)), torch.randn(1, 3, 224, 224)
    texts = {"GPT-2": gpt2, "Llama": llama}
    found: dict[str, tuple[nn.Module, torch.Tensor, torch.Tensor]] = {
        name: (Logits(model), tokens, tokens[:, :1]) for name, model in texts.items()
    }
    return found | {"ViT": (vit, image, image)}


@dataclass(frozen=True)
class Row:
    """What was measured of a scheme on a model: seconds by contender, and what the report says of this backend."""

    difference: float
    eager_difference: float
    islands: int
    weights: int
    prompt: dict[str, float]
    decode: dict[str, float]


def measured(model: nn.Module, prompt: torch.Tensor, token: torch.Tensor, exact: torch.Tensor) -> Row:
    """Run all contenders in turns; ``exact`` is what the model gave for the prompt before it was quantised."""
    compiled: dict[str, Function] = {
        "eager": model,
        "inductor": torch.compile(model, dynamic=False),
        "max": torch.compile(model, backend="max_backend", dynamic=False, options={"executor": "auto"}),
    }
    before = len(torch_max_backend.reports())
    outputs = {name: function(prompt) for name, function in compiled.items()}
    prompts, decodes = _in_turns(compiled, prompt), _in_turns(compiled, token)
    islands = sum(len(report.islands) for report in torch_max_backend.reports()[before:])
    scale = float(exact.float().norm())
    difference = float((outputs["max"].float() - exact).norm()) / scale
    eager = float((outputs["eager"].float() - exact).norm()) / scale
    return Row(difference, eager, islands, _bytes(model), prompts, decodes)


def _in_turns(functions: dict[str, Function], x: torch.Tensor) -> dict[str, float]:
    for function in functions.values():
        function(x)
        function(x)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, function in functions.items():
            _synchronize(x)
            start = time.perf_counter()
            function(x)
            _synchronize(x)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def _synchronize(x: torch.Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def _bytes(model: nn.Module) -> int:
    """What parameters and buffers take: those of torchao's tensors are inside them."""
    total = 0
    for tensor in (*model.parameters(), *model.buffers()):
        names = getattr(tensor, "tensor_data_names", None)
        parts = [getattr(tensor, name) for name in names] if names else [tensor]
        total += sum(p.numel() * p.element_size() for p in parts)
    return total


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--only", default="", help="a part of the names of schemes")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    print(f"torch {torch.__version__}, {arguments.device}, {arguments.dtype}, {torch.get_num_threads()} threads")
    print("| scheme | model | error, eager's | islands | weights MB | prompt ms | x Inductor | token ms | x Inductor |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, config in schemes().items():
        if arguments.only in name:
            _scheme(name, config, arguments.device, getattr(torch, arguments.dtype))


@torch.no_grad()
def _scheme(name: str, config: Callable[[], Any], device: str, dtype: torch.dtype) -> None:
    from torchao.quantization import quantize_

    torch.manual_seed(0)
    for of, (model, prompt, token) in models(device).items():
        torch._dynamo.reset()
        model = model.eval().to(device=device, dtype=dtype)
        prompt, token = (
            x.to(device=device, dtype=dtype if x.is_floating_point() else x.dtype) for x in (prompt, token)
        )
        exact = model(prompt).float()
        try:
            quantize_(model, config())
            row = measured(model, prompt, token, exact)
        except Exception as error:  # what torchao says of a machine belongs into the table
            print(f"| {name} | {of} | {type(error).__name__}: {str(error).splitlines()[0]} | | | | | | |", flush=True)
            continue
        cells = [f"{row.difference:.4f}, {row.eager_difference:.4f}", str(row.islands), f"{row.weights / 1e6:.1f}"]
        for times in (row.prompt, row.decode):
            cells += [f"{times['max'] * 1e3:.2f}", f"{times['inductor'] / times['max']:.2f}"]
        print(f"| {name} | {of} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
