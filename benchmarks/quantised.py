"""torchao's schemes: ``python -m benchmarks.quantised`` prints scheme by model against torchao with Inductor.

Models are of random weights. Speeds are of a prompt and of one token alone; Inductor and this backend take turns in
one process, on a GPU each with ``mode="reduce-overhead"`` as well, of which the better one counts; tokens are of that
mode alone there. Memory is the weights and what torch's allocator gives out at most while the prompt runs. A row
reaches what is required if no op is an island, the error is at most twice eager's (or a rounding, where torchao has
quantised nothing), memory is within 3 % of Inductor's, and a token is as fast.

Inductor compiles these models for minutes: ``--compile`` only fills the caches, for a run behind it to measure.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from filelock import FileLock
from torch import nn

import torch_max_backend
from benchmarks.allocations import allocations
from torch_max_backend.demo import Logits

Function = Callable[[torch.Tensor], torch.Tensor]
Clock = Callable[[], float] | None
PROMPT = 32
ROUNDS = 9
WARM_CALLS = 4
"""Calls until a graph is recorded, and played back."""
RECORDED = "reduce-overhead"
MEMORY = 0.03
"""How much more memory than with Inductor counts as the same."""


def schemes() -> dict[str, Callable[[], Any]]:
    """The schemes by name; those that a machine lacks raise torchao's own error when they are applied."""
    import torchao.quantization as q

    int4 = torch.int4
    return {
        "int8 weights": q.Int8WeightOnlyConfig,
        "int8 dynamic": q.Int8DynamicActivationInt8WeightConfig,
        "int4 weights, groups of 32": lambda: q.IntxWeightOnlyConfig(weight_dtype=int4, granularity=q.PerGroup(32)),
        "int4 weights, groups of 128": lambda: q.IntxWeightOnlyConfig(weight_dtype=int4, granularity=q.PerGroup(128)),
        "int8 dynamic, int4 weights": lambda: q.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=int4, weight_granularity=q.PerGroup(32)
        ),
        "int4 weights, packed": lambda: q.Int4WeightOnlyConfig(
            group_size=128, int4_packing_format="tile_packed_to_4d" if torch.cuda.is_available() else "plain"
        ),
        "float8 weights": q.Float8WeightOnlyConfig,
        "float8 dynamic, by tensor": lambda: q.Float8DynamicActivationFloat8WeightConfig(granularity=q.PerTensor()),
        "float8 dynamic, by row": lambda: q.Float8DynamicActivationFloat8WeightConfig(granularity=q.PerRow()),
    }


def models(layers: int) -> dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]]:
    """By name what makes a model and its input, a prompt or an image.

    GPT-2 small (124 M) and ViT-B/16 are whole. Llama has the widths of the one of a billion, and as many ``layers``
    of 16 as are asked for. The linears alone read 59 M weights for one row.
    """

    def gpt2() -> tuple[nn.Module, torch.Tensor]:
        from transformers import GPT2Config, GPT2LMHeadModel

        return Logits(GPT2LMHeadModel(GPT2Config())), torch.randint(0, 8192, (1, PROMPT))

    def llama() -> tuple[nn.Module, torch.Tensor]:
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
        config = LlamaConfig(**sizes, num_hidden_layers=layers, vocab_size=32000)
        return Logits(LlamaForCausalLM(config)), torch.randint(0, 8192, (1, PROMPT))

    def vit() -> tuple[nn.Module, torch.Tensor]:
        import timm

        return timm.create_model("vit_base_patch16_224", pretrained=False), torch.randn(1, 3, 224, 224)

    def linears() -> tuple[nn.Module, torch.Tensor]:
        sizes = itertools.pairwise((2048, 4096, 2048, 4096, 4096, 2048, 4096))
        return nn.Sequential(*(nn.Linear(a, b) for a, b in sizes)), torch.randn(1, 2048)

    return {"GPT-2": gpt2, f"Llama, {layers} layers": llama, "ViT-B": vit, "six linears, one row": linears}


@dataclass(frozen=True)
class Row:
    """What was measured of a scheme on a model.

    Attributes:
        difference: From the model before it was quantised, in norm; ``eager_difference`` is torchao's in eager.
        rounding: A unit in the last place of the results' dtype.
        weights: Bytes of parameters and buffers; ``peaks`` are those beyond them for a prompt, by contender.
        prompt: Seconds by contender; ``decode`` those for one token, or empty for an image model.
    """

    difference: float
    eager_difference: float
    rounding: float
    islands: int
    weights: int
    peaks: dict[str, int]
    prompt: dict[str, float]
    decode: dict[str, float]

    @property
    def memory(self) -> float:
        """What this backend needs in all, of what Inductor does."""
        return (self.weights + self.peaks["max"]) / (self.weights + self.peaks["inductor"])

    @property
    def is_reached(self) -> bool:
        """Whether it is what is required."""
        times = self.decode or self.prompt
        right = not self.islands and self.difference <= max(2 * self.eager_difference, self.rounding)
        return right and self.memory <= 1 + MEMORY and times["inductor"] >= times["max"]


def measured(
    model: nn.Module, prompt: torch.Tensor, exact: torch.Tensor, clock: Clock, turn: AbstractContextManager[Any]
) -> Row | None:
    """Run both contenders in turns; ``exact`` is what the model gave for the prompt before it was quantised.

    Without a clock they are compiled, and that is all. What is timed is so within ``turn``.
    """
    compiled: dict[str, Function] = {
        "inductor": torch.compile(model, dynamic=False),
        "max": torch.compile(model, backend="max_backend", dynamic=False, options={"executor": "auto"}),
    }
    if prompt.is_cuda:
        for name, backend in (("inductor", "inductor"), ("max", "max_backend")):
            recorded = torch.compile(model, backend=backend, dynamic=False, mode=RECORDED)
            compiled[f"{name} {RECORDED}"] = recorded
    before = len(torch_max_backend.reports())
    of_token = {name: f for name, f in compiled.items() if RECORDED in name} or compiled
    calls = [(prompt, compiled)]
    if not prompt.is_floating_point():
        calls.append((prompt[:, :1], of_token))
    for x, functions in calls:
        for function in functions.values():
            function(x)
    if clock is None:
        return None
    eager, found = model(prompt), compiled["max"](prompt).clone()
    with turn:
        times = [_in_turns(functions, x, clock) for x, functions in calls]
        peaks = {name: _peak(compiled[name], prompt) for name in ("inductor", "max")}
    islands = sum(len(report.islands) for report in torch_max_backend.reports()[before:])
    scale = float(exact.float().norm())
    differences = [float((y.float() - exact).norm()) / scale for y in (found, eager)]
    decode = times[1] if len(times) > 1 else {}
    rounding = torch.finfo(found.dtype).eps
    return Row(differences[0], differences[1], rounding, islands, _bytes(model), peaks, times[0], decode)


def _peak(function: Function, x: torch.Tensor) -> int:
    """The most bytes at once that a call allocates."""
    if x.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function(x)
        return torch.cuda.max_memory_allocated() - before
    with allocations() as found:
        function(x)
    return found.peak


def _in_turns(functions: dict[str, Function], x: torch.Tensor, clock: Callable[[], float]) -> dict[str, float]:
    """Median seconds of a call; of a contender with two modes, those of the better one."""
    for function in functions.values():
        for _ in range(WARM_CALLS):
            function(x)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, function in functions.items():
            _synchronize(x)
            start = clock()
            function(x)
            _synchronize(x)
            times[name].append(clock() - start)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {name: min(t for n, t in medians.items() if n.split()[0] == name) for name in ("inductor", "max")}


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
    parser.add_argument("--model", default="", help="a part of the names of models")
    parser.add_argument("--layers", type=int, default=2, help="of Llama")
    parser.add_argument("--prompt", type=int, default=PROMPT, help="its tokens; with 1 Inductor compiles less")
    parser.add_argument("--processor-time", action="store_true", help="of one thread, where others use the machine")
    parser.add_argument("--compile", action="store_true", help="fill the caches, and measure nothing")
    parser.add_argument("--lock", default="", help="a file that is locked meanwhile: processes compile side by side")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    print(f"torch {torch.__version__}, {arguments.device}, {arguments.dtype}, {torch.get_num_threads()} threads")
    clock: Clock = time.perf_counter
    if arguments.processor_time:
        torch.set_num_threads(1)
        clock = time.thread_time
    if arguments.compile:
        clock = None
    heads = ["scheme", "model", "error, eager's", "islands", "weights MB", "peak MB, Inductor's", "memory, <= 1.03"]
    heads += ["prompt ms", "x Inductor", "token ms", "x Inductor, >= 1", "reached"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name, config in schemes().items():
        for of, make in models(arguments.layers).items():
            if arguments.only in name and arguments.model in of:
                turn = FileLock(arguments.lock) if arguments.lock else nullcontext()
                dtype = getattr(torch, arguments.dtype)
                cells = _cells(config, make, arguments.device, dtype, arguments.prompt, clock, turn)
                print(f"| {name} | {of} | {' | '.join(cells)} |", flush=True)


@torch.no_grad()
def _cells(
    config: Callable[[], Any],
    make: Callable[[], tuple[nn.Module, torch.Tensor]],
    device: str,
    dtype: torch.dtype,
    tokens: int,
    clock: Clock,
    turn: AbstractContextManager[Any],
) -> list[str]:
    from torchao.quantization import quantize_

    torch.manual_seed(0)
    torch._dynamo.reset()
    model, prompt = make()
    model = model.eval().to(device=device, dtype=dtype)
    prompt = prompt.to(device, dtype) if prompt.is_floating_point() else prompt[:, :tokens].to(device)
    exact = model(prompt).float()
    try:
        quantize_(model, config())
        row = measured(model, prompt, exact, clock, turn)
    except Exception as error:  # what torchao says of a machine belongs into the table
        return [f"{type(error).__name__}: {str(error).splitlines()[0]}"]
    if row is None:
        return ["compiled"]
    cells = [f"{row.difference:.4f}, {row.eager_difference:.4f}", str(row.islands), f"{row.weights / 1e6:.1f}"]
    cells += [f"{row.peaks['max'] / 1e6:.1f}, {row.peaks['inductor'] / 1e6:.1f}", f"{row.memory:.3f}"]
    for times in (row.prompt, row.decode):
        cells += [f"{times['max'] * 1e3:.1f}", f"{times['inductor'] / times['max']:.2f}"] if times else ["", ""]
    return [*cells, "yes" if row.is_reached else "no"]


if __name__ == "__main__":
    main()
