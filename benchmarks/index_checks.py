"""What checking indices on a GPU costs, with the option ``check_indices`` on and off, in turns.

    python -m benchmarks.index_checks
    python -m benchmarks.index_checks --small --device cpu    # to try the script; a CPU checks nothing

Three cases in bfloat16: an embedding and an MLP behind it (8 x 512 tokens), an embedding alone (the dearest there is),
and GPT-2's decoding step of one token, each plain and played back (``reduce-overhead``). Reported are the medians of
what the GPU takes and of the host's time until a call is enqueued, in microseconds, and the share that checks have in
them. Of two equal programs such a share is within the spread of the samples, which is shown as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.decoding import Decoder
from benchmarks.models import gpt2_model
from benchmarks.work import Call
from torch_max_backend.measurement.clocks import Times, clock_for
from torch_max_backend.measurement.statistics import spread
from torch_max_backend.measurement.turns import interleave

Maker = Callable[[Callable[[Any], Any]], Call]
"""Of the function that compiles: the call to be timed."""


def embedding_mlp(device: str, small: bool) -> Maker:
    """Token and position embeddings, a sum and an MLP."""
    width, vocabulary = (64, 1000) if small else (768, 50304)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            return self.mlp(self.tokens(tokens) + self.positions(positions))

    model = Model().to(device, torch.bfloat16)
    tokens = torch.randint(0, vocabulary, (8, 512), device=device)
    positions = torch.arange(512, device=device).expand(8, 512).contiguous()
    return lambda compiled: _calling(compiled(model), tokens, positions)


def embeddings(device: str, small: bool) -> Maker:
    """Lookups and nothing else."""
    table = torch.randn(1000 if small else 50304, 768, device=device, dtype=torch.bfloat16)
    tokens = torch.randint(0, len(table), (8, 512), device=device)

    def lookup(table: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(tokens, table)

    return lambda compiled: _calling(compiled(lookup), table, tokens)


def decoding(device: str, small: bool) -> Maker:
    """A token of GPT-2, whose cache is written in place."""
    model = gpt2_model({"small": small}).eval().to(device, torch.bfloat16)
    prompt = torch.randint(0, model.config.vocab_size, (1, 128), device=device)

    def step(token: torch.Tensor, position: torch.Tensor, cache: Any) -> tuple[torch.Tensor, torch.Tensor]:
        logits = model(input_ids=token, position_ids=position, past_key_values=cache, use_cache=True).logits[0, -1]
        return logits.argmax(-1, keepdim=True)[None], logits

    return lambda compiled: Decoder(model, prompt, 512, compiled(step))


def _calling(function: Callable[..., Any], *args: Any) -> Call:
    return lambda number: function(*args)


CASES = {"embedding and MLP": embedding_mlp, "embedding": embeddings, "GPT-2, a token": decoding}


def compiler(check: bool, replays: bool) -> Callable[[Any], Any]:
    """What compiles a function, with checks or without."""
    from torch_max_backend import max_backend

    options = {"check_indices": check, "device_graphs": replays, "fallback": "error"}

    def compiled(function: Any) -> Any:
        wrapped = function.forward if isinstance(function, nn.Module) else function

        def own(*args: Any) -> Any:  # code of its own: Dynamo keeps compiled code with the code object
            return wrapped(*args)

        own.__code__ = own.__code__.replace(co_name=f"checked_{check}_{replays}")
        return torch.compile(own, backend=max_backend, dynamic=False, options=options)

    return compiled


def row(name: str, times: dict[str, Times], kind: str) -> list[str]:
    """Median times of both, the share of the checks and the spread of the samples."""
    on, off = (spread(getattr(times[which], kind)) for which in ("on", "off"))
    share = on["median"] / off["median"] - 1
    noise = max((s["q3"] - s["q1"]) / s["median"] for s in (on, off))
    return [name, kind, f"{on['median'] * 1e6:.1f}", f"{off['median'] * 1e6:.1f}", f"{share:+.2%}", f"{noise:.2%}"]


@torch.no_grad()
def main(device: str = "cuda", small: bool = False, rounds: int = 40, sample_ms: float = 30) -> None:
    """Print the table."""
    clock = clock_for(device, sample_ms / 1e3)
    table = Table("case", "time", "on, us", "off, us", "checks", "quartiles", title="check_indices")
    for name, build in CASES.items():
        make = build(device, small)
        for replays in (False, True) if device == "cuda" else (False,):
            calls = {which: make(compiler(which == "on", replays)) for which in ("on", "off")}
            for call in calls.values():
                for number in range(4):
                    call(number)
            times, errors = interleave(calls, clock, rounds)
            for which, error in errors.items():
                print(f"{name}, {which}: {error}")
            for kind in ("device", "host") if device == "cuda" else ("wall",):
                if not errors:
                    table.add_row(*row(f"{name}, played back" if replays else name, times, kind))
    Console().print(table, f"torch {torch.__version__}, {torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}")


if __name__ == "__main__":
    typer.run(main)
