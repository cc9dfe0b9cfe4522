"""One process of ``benchmarks/training.py``: trains a model, and prints what it measured, in JSON, as its last line."""

from __future__ import annotations

import copy
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.checking import differences, what_is_wrong
from benchmarks.steps import Training, loss_of
from torch_max_backend.evidence.contenders import REFERENCE, compiled

Built = tuple[nn.Module, dict[str, torch.Tensor]]

VOCABULARY, BATCH, LENGTH, IMAGE = 2000, 4, 128, 64


def _text(**shape: int) -> dict[str, torch.Tensor]:
    tokens = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": tokens, "labels": tokens.clone()}


def _transformer(**more: Any) -> dict[str, Any]:
    shape = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1024}
    return shape | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} | more


def gpt2_small(batch: int, length: int) -> Built:
    """GPT-2 small as it is published, 124 M parameters, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False))
    tokens = torch.randint(0, model.config.vocab_size, (batch, length))
    return model, {"input_ids": tokens, "labels": tokens.clone()}


def gpt2() -> Built:
    """A GPT-2 of four layers of width 256."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {"n_embd": 256, "n_layer": 4, "n_head": 8, "n_positions": 2 * LENGTH, "vocab_size": VOCABULARY}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**shape, **dropout, use_cache=False)), _text()


def bert() -> Built:
    """A BERT of four layers of width 256 that fills in words."""
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(**_transformer(vocab_size=VOCABULARY))), _text()


def t5() -> Built:
    """A T5 of four layers of width 256 that writes a text of half the length."""
    from transformers import T5Config, T5ForConditionalGeneration

    shape = {"d_model": 256, "d_kv": 32, "d_ff": 1024, "num_layers": 4, "num_heads": 8, "vocab_size": VOCABULARY}
    model = T5ForConditionalGeneration(
        T5Config(**shape, dropout_rate=0.0, decoder_start_token_id=0, tie_word_embeddings=True, use_cache=False)
    )
    text = _text()
    return model, {"input_ids": text["input_ids"], "labels": text["labels"][:, : LENGTH // 2].contiguous()}


def vit() -> Built:
    """A ViT of four layers of width 256, images of 128 x 128 in patches of 8."""
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(**_transformer(image_size=128, patch_size=8, num_labels=10)))
    return model, {"pixel_values": torch.randn(BATCH, 3, 128, 128), "labels": torch.randint(0, 10, (BATCH,))}


def _images(name: str) -> Built:
    from timm import create_model

    model = create_model(name, pretrained=False, num_classes=10)
    return model, {"x": torch.randn(2 * BATCH, 3, IMAGE, IMAGE), "labels": torch.randint(0, 10, (2 * BATCH,))}


def resnet18() -> Built:
    """ResNet-18 on images of 64 x 64: convolutions and batch norms in training."""
    return _images("resnet18")


def mobilenetv3() -> Built:
    """MobileNetV3 on images of 64 x 64: depthwise convolutions, and batch norms of few pixels."""
    return _images("mobilenetv3_small_100")


MODELS: dict[str, Callable[[], Built]] = {f.__name__: f for f in (gpt2, bert, t5, vit, resnet18, mobilenetv3)}


def training_of(name: str, model: nn.Module, inputs: dict[str, torch.Tensor]) -> Training:
    """The training of a model whose loss and optimizer's step a contender has compiled."""
    return Training(model, inputs, compiled(name, loss_of), lambda update: compiled(name, update))


def _upcast(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def steps(model: str, contenders: list[str], rounds: int, seconds: float) -> dict[str, Any]:
    """Seconds of forward and backward, and of the optimizer's step, contenders in turns; and who computed wrongly."""
    torch.manual_seed(0)
    module, inputs = MODELS[model]()
    trainings = {name: training_of(name, copy.deepcopy(module), inputs) for name in contenders}
    answers = {name: [t.clone() for t in training.gradients()] for name, training in trainings.items()}
    wide = {k: _upcast(v) for k, v in inputs.items()}
    exact = training_of(REFERENCE, copy.deepcopy(module).double(), wide).gradients()

    def pieces(wanted: list[torch.Tensor]) -> Iterator[tuple[int, tuple[slice, ...], torch.Tensor]]:
        yield from ((i, (), t) for i, t in enumerate(wanted))

    found = {name: difference.as_json() for name, difference in differences(answers, pieces(exact)).items()}
    wrong = {name: what_is_wrong(found[name], found[REFERENCE], torch.float32) for name in contenders}
    for training in trainings.values():
        for _ in range(3):
            training()
    times: dict[str, dict[str, list[float]]] = {name: {"gradients": [], "update": []} for name in contenders}
    counts = {name: max(1, round(seconds / _seconds(t))) for name, t in trainings.items()}
    for number in range(rounds):
        turn = number % len(contenders)
        for name in contenders[turn:] + contenders[:turn]:
            training, count = trainings[name], counts[name]
            first = second = 0.0
            for _ in range(count):
                first += _seconds(training.gradients)
                second += _seconds(training.update)
            times[name]["gradients"].append(first / count)
            times[name]["update"].append(second / count)
    parameters = list(module.parameters())
    return {
        "times": times,
        "wrong": wrong,
        "differences": found,
        "tensors": len(parameters),
        "parameters": sum(p.numel() for p in parameters),
    }


def _seconds(function: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def _status(name: str) -> float:
    """A line of this process's status, in MiB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) / 1024


def memory(contender: str, batch: int, length: int, measured: int) -> dict[str, Any]:
    """MiB of this process above what it had before its first step: the most in the second and later steps."""
    torch.manual_seed(0)
    training = training_of(contender, *gpt2_small(batch, length))
    before = _status("VmRSS")
    begin = time.perf_counter()
    training()
    first_s = time.perf_counter() - begin
    after_first = _status("VmRSS")
    times, peaks = [], {"gradients": 0.0, "update": 0.0}
    for _ in range(measured):
        seconds = 0.0
        for part, function in (("gradients", training.gradients), ("update", training.update)):
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins again at what is held now
            seconds += _seconds(function)
            peaks[part] = max(peaks[part], _status("VmHWM") - before)
        times.append(seconds)
    return {
        "peak": max(peaks.values()),
        "peaks": peaks,
        "held": _status("VmRSS") - before,
        "after_first": after_first - before,
        "before": before,
        "first_s": first_s,
        "step_s": statistics.median(times),
        "parameters_mib": sum(p.numel() * p.element_size() for p in training.model.parameters()) / 2**20,
    }


PARTS: dict[str, Callable[..., dict[str, Any]]] = {"steps": steps, "memory": memory}


def main() -> None:
    """Measure what the argument, a line of JSON, says."""
    task = json.loads(sys.argv[1])
    found = PARTS[task.pop("part")](**task)
    print(json.dumps(found), flush=True)
    os._exit(0)  # MAX's and Inductor's threads are not waited for


if __name__ == "__main__":
    main()
