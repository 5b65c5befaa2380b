"""Builders of small LoRA adapters in PEFT's format, and the same deltas merged into a model's weights."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tests.models import reference_model
from tests.reference import Reference

PREFIX = "base_model.model."
RANK = 4
_EXPERTS = ("Qwen2MoeExperts", "Qwen3MoeExperts")
"""Modules of Transformers with the experts of a layer in one tensor for each projection."""


def make_adapter(
    folder: Path, model: Path, *, seed: int = 0, rank: int = RANK, is_everywhere: bool = False, **fields: Any
) -> Path:
    """Write a random adapter of a model folder's linear layers; `is_everywhere` adds embedding and head.

    `fields` are further ones of its configuration. Returns the folder.
    """
    base, generator = reference_model(model), torch.Generator().manual_seed(seed)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, **fields}
    tensors: dict[str, Tensor] = {}
    for name, _, (out_size, in_size) in _linear_layers(base):
        if "lm_head" not in name or is_everywhere:
            tensors[f"{PREFIX}{name}.lora_A.weight"] = _random(generator, rank, in_size)
            tensors[f"{PREFIX}{name}.lora_B.weight"] = _random(generator, out_size, rank)
    for name, weight in _expert_layers(base):
        out_size, in_size = weight.shape
        tensors[f"{PREFIX}{name}.lora_A.weight"] = _random(generator, rank, in_size)
        tensors[f"{PREFIX}{name}.lora_B.weight"] = _random(generator, out_size, rank)
    if is_everywhere:
        name, table = _embedding(base)
        tensors[f"{PREFIX}{name}.lora_embedding_A"] = _random(generator, rank, table.shape[0])
        tensors[f"{PREFIX}{name}.lora_embedding_B"] = _random(generator, table.shape[1], rank)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def merged_model(model: Path, adapter: Path) -> PreTrainedModel:
    """Return a model folder's model with an adapter's deltas in its weights."""
    merged = reference_model(model)
    config = json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    rank = config["r"]
    scale = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)
    head = merged.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach().clone())  # a tied head is not adapted with the embedding
    with torch.no_grad():
        for name, module, _ in _linear_layers(merged):
            if (down := tensors.get(f"{PREFIX}{name}.lora_A.weight")) is not None:
                delta = scale * tensors[f"{PREFIX}{name}.lora_B.weight"] @ down
                module.weight += delta.T if isinstance(module, Conv1D) else delta
        for name, weight in _expert_layers(merged):
            if (down := tensors.get(f"{PREFIX}{name}.lora_A.weight")) is not None:
                weight += scale * tensors[f"{PREFIX}{name}.lora_B.weight"] @ down
        name, table = _embedding(merged)
        if (down := tensors.get(f"{PREFIX}{name}.lora_embedding_A")) is not None:
            table += scale * (tensors[f"{PREFIX}{name}.lora_embedding_B"] @ down).T
    return merged


def _linear_layers(model: PreTrainedModel) -> Iterator[tuple[str, Any, tuple[int, int]]]:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            yield name, module, (module.out_features, module.in_features)
        elif isinstance(module, Conv1D):
            yield name, module, (module.weight.shape[1], module.weight.shape[0])


def _expert_layers(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield each expert's linear layers as checkpoints of Qwen name them, with views of their weights."""
    for name, module in model.named_modules():
        if type(module).__name__ in _EXPERTS:
            for number, (gate_up, down) in enumerate(zip(module.gate_up_proj, module.down_proj, strict=True)):
                gate, up = gate_up.detach().chunk(2)
                for layer, weight in (("gate_proj", gate), ("up_proj", up), ("down_proj", down.detach())):
                    yield f"{name}.{number}.{layer}", weight


def _embedding(model: PreTrainedModel) -> tuple[str, Tensor]:
    found = model.get_input_embeddings()
    name = next(name for name, module in model.named_modules() if module is found)
    return name, found.weight


def _random(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator) / math.sqrt(shape[-1])


class MergedReference(Reference):
    """A model folder with an adapter merged into its weights, as Transformers runs it."""

    def __init__(self, folder: Path, adapter: Path) -> None:
        super().__init__(folder)
        self._adapter = adapter

    @cached_property
    def _model(self) -> PreTrainedModel:
        return merged_model(self.folder, self._adapter)
