"""The decoding suites: a language model that makes one token at a time, with transformers' static cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.models import gpt2_model, llama_model, precision_for, upcast
from benchmarks.suites import Case, SuiteError
from benchmarks.work import Call, Function, Piece, Work

MODELS = {"gpt2": gpt2_model, "llama": llama_model}
CHECKED = 8
"""Steps whose logits are compared; they follow given tokens, so that one rounding cannot lead to another text."""


class Decoder:
    """A cache of its own that holds a prompt, and the steps after it.

    Each step writes the cache in place and takes the likeliest token as the next input. Where the cache ends, decoding
    goes back to the end of the prompt.
    """

    def __init__(self, model: nn.Module, prompt: torch.Tensor, longest: int, step: Function) -> None:
        from transformers import StaticCache

        self.step, self.start, self.longest = step, prompt.shape[1], longest
        self.cache = StaticCache(config=model.config, max_cache_len=longest)
        logits = model(input_ids=prompt, past_key_values=self.cache, use_cache=True).logits
        self.first = logits[:, -1].argmax(-1, keepdim=True)
        self.token = self.first.clone()
        self.position = torch.full((1, 1), self.start, device=prompt.device)
        self.length = self.start

    def rewind(self) -> None:
        """Back to the end of the prompt; what lies behind it in the cache is masked, and written again."""
        self.length = self.start
        self.position.fill_(self.start)
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.start)

    def __call__(self, number: int) -> torch.Tensor:
        """The next token; ``number`` is of no use here."""
        if self.length == self.longest:
            self.rewind()
        token, _ = self.step(self.token, self.position, self.cache)
        self.token.copy_(token)
        self.position.add_(1)
        self.length += 1
        return self.token

    def follow(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        """Logits [V] after each of the given tokens [T]."""
        self.rewind()
        found = []
        for token in tokens:
            self.token.fill_(token)
            _, logits = self.step(self.token, self.position, self.cache)
            found.append(logits.clone())
            self.position.add_(1)
            self.length += 1
        self.rewind()
        self.token.copy_(self.first)
        return found


def build(case: Case, to_time: bool = True) -> Work:
    """The work of a decoding case; a call is one token."""
    if case.what not in MODELS:
        raise SuiteError(f"no language model is called {case.what!r}; there are {', '.join(MODELS)}")
    p = case.parameters
    dtype = getattr(torch, case.dtype)
    model = MODELS[case.what](p).eval().requires_grad_(False).to(device=case.device, dtype=dtype)
    prompt = torch.randint(0, model.config.vocab_size, (1, p["prompt"]), device=case.device)
    tokens = torch.randint(0, model.config.vocab_size, (CHECKED,), device=case.device)
    precision = precision_for(case)

    def step(token: torch.Tensor, position: torch.Tensor, cache: Any) -> tuple[torch.Tensor, torch.Tensor]:
        logits = model(input_ids=token, position_ids=position, past_key_values=cache, use_cache=True).logits[0, -1]
        return logits.argmax(-1, keepdim=True)[None], logits

    def caller(compiled: Function) -> Call:
        return Decoder(model, prompt, p["longest"], compiled)

    def answers(call: Call) -> list[torch.Tensor]:
        assert isinstance(call, Decoder)
        return [torch.stack(call.follow(tokens))]

    def exact() -> Iterator[Piece]:
        with upcast(model, precision):
            whole = model(input_ids=torch.cat((prompt, tokens[None]), 1), use_cache=False).logits
        yield 0, (), whole[0, -CHECKED:]

    return Work(step, caller, answers, exact, unit="token", units=1, precision=str(precision).removeprefix("torch."))
