"""What `benchmarks.distributed` trains: causal language models of transformers, laid out over the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

HEAD = 64
"""Width of an attention head."""


@dataclass(frozen=True)
class Shape:
    """A model's sizes, and those of a rank's batch. ``group`` query heads share a head of keys and values."""

    family: str
    layers: int
    width: int
    words: int
    batch: int
    length: int
    group: int = 1
    is_tied: bool = False

    @property
    def heads(self) -> int:
        """Query heads."""
        return max(2, self.width // HEAD)

    @property
    def shared_heads(self) -> int:
        """Heads of keys and values."""
        return max(1, self.heads // self.group)


SHAPES = {
    "gpt2": Shape("gpt2", 2, 256, 1024, 2, 128),
    "llama": Shape("llama", 2, 256, 1024, 2, 128),
    "gpt2-small": Shape("gpt2", 12, 768, 50257, 1, 128),
    "gpt2-medium": Shape("gpt2", 24, 1024, 50257, 8, 512),
    "llama-1b": Shape("llama", 16, 2048, 128256, 4, 512, group=4, is_tied=True),
}
"""Models by name. `gpt2` and `llama` compile in seconds, and `gpt2-small` is for CPUs; `llama-1b` has the
sizes of Llama 3.2 1B. Weights are random."""


def built(shape: Shape) -> tuple[nn.Module, nn.ModuleList, dict[str, Any]]:
    """A model without dropout, its blocks, and how a block is shared out by columns and rows.

    GPT-2 has queries, keys and values in one product, so that its attention stays whole.
    """
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    if shape.family == "llama":
        sizes = {"hidden_size": shape.width, "intermediate_size": 4 * shape.width, "num_hidden_layers": shape.layers}
        heads = {"num_attention_heads": shape.heads, "num_key_value_heads": shape.shared_heads}
        words = {"vocab_size": shape.words, "tie_word_embeddings": shape.is_tied}
        model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, **words, use_cache=False))
        columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
        rows = ("self_attn.o_proj", "mlp.down_proj")
        plan = {**{n: ColwiseParallel() for n in columns}, **{n: RowwiseParallel() for n in rows}}
        blocks = model.model.layers
    else:
        off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        config = GPT2Config(n_layer=shape.layers, n_embd=shape.width, n_head=shape.heads, **off, **ends)
        config.vocab_size = shape.words
        model = GPT2LMHeadModel(config)
        blocks = model.transformer.h
        for block in blocks:
            block.mlp.c_fc, block.mlp.c_proj = linear(block.mlp.c_fc), linear(block.mlp.c_proj)
        plan = {"mlp.c_fc": ColwiseParallel(), "mlp.c_proj": RowwiseParallel()}
    model.loss_type = "ForCausalLM"  # the default, but with a warning that breaks the graph before the loss
    return model, blocks, plan


def linear(layer: nn.Module) -> nn.Linear:
    """A layer of GPT-2, which holds its weight transposed, as one that DTensor knows."""
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, torch.Tensor) and isinstance(bias, torch.Tensor)
    found = nn.Linear(*weight.shape)
    with torch.no_grad():
        found.weight.copy_(weight.t())
        found.bias.copy_(bias)
    return found


def mesh_of(way: str, world: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Shape and names of a way's mesh. That of `2d` is (2, world / 2): on two ranks the parallel tensors are whole.

    Raises:
        ValueError: A 2-D mesh of an odd number of ranks.
    """
    if way == "2d":
        if world % 2:
            raise ValueError(f"a 2-D mesh wants an even number of ranks, got {world}")
        return (2, world // 2), ("dp", "tp")
    return (world,), ("tp" if way == "tp" else "dp",)


def shared_out(
    shape: Shape, way: str, device: str, dtype: torch.dtype, rounded: torch.dtype
) -> tuple[nn.Module, torch.nn.ModuleList, int]:
    """A model laid out over the ranks, its blocks, and which batches this rank has.

    Args:
        dtype: Of parameters and arithmetic.
        rounded: The parameters are rounded to this dtype first.

    Raises:
        ValueError: The ranks do not divide the heads of an attention that is to be shared out.
    """
    world = dist.get_world_size()
    sizes, names = mesh_of(way, world)
    parts = sizes[-1] if "tp" in names else 1
    if shape.family == "llama" and shape.shared_heads % parts:
        raise ValueError(f"{parts} ranks cannot share {shape.shared_heads} heads of keys and values")
    torch.manual_seed(0)
    with torch.device(device):
        model, blocks, plan = built(shape)
    model.to(device).to(rounded).to(dtype)
    if way == "ddp":
        return DistributedDataParallel(model), blocks, dist.get_rank()
    mesh = init_device_mesh(device.partition(":")[0], sizes, mesh_dim_names=names)
    if "tp" in names:
        for block in blocks:
            parallelize_module(block, mesh["tp"], plan)
    if "dp" in names:
        for block in blocks:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    return model, blocks, mesh["dp"].get_local_rank() if "dp" in names else 0
