"""Checkpoints that other libraries quantized, as Transformers runs their models in float32."""

from __future__ import annotations

import json
import shutil
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar, Final

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.checkpoint_quantization import read_quantization
from baton_engine.checkpoint.quantization.gguf import read_gguf_quantization
from baton_engine.checkpoint.weight_files import find_gguf
from baton_engine.checkpoint.weights import WeightReader
from baton_kernels.interface.quantized import InputRounding
from baton_kernels.reference.quantized_product import dequantize, round_inputs
from tests.reference import ROUNDING, Reference

FIXTURES: Final = Path(__file__).parent / "fixtures" / "quantized"
TURNED: Final = 0.15
"""More than the best logits of these models change where some inputs of many are rounded the other way."""
_MIXTRAL_NAMES: Final = ("w1", "w3", "w2")
_PLAIN_NAMES: Final = ("gate_proj", "up_proj", "down_proj")
CHECKPOINTS: Final = tuple(sorted(path.parent.name for path in FIXTURES.glob("*/config.json")))


class QuantizedReference(Reference):
    """One quantized checkpoint: its weights in float32, and inputs of its layers rounded as it says."""

    max_draws: ClassVar[int] = 100

    @property
    def min_gap(self) -> float:  # type: ignore[override]
        """Where inputs are rounded, a sum that differs in its last bit may turn the rounding of one."""
        return TURNED if self.rounds_inputs else ROUNDING

    @property
    def num_tokens(self) -> int:
        """Length of a continuation that is likely to be clear."""
        return 4 if self.rounds_inputs else 12

    @cached_property
    def rounds_inputs(self) -> bool:
        """True if the inputs of a layer are rounded."""
        return any(module._forward_pre_hooks for module in self._model.modules())

    @cached_property
    def _model(self) -> PreTrainedModel:
        return dequantized_model(self.folder)


def copy_with_tokenizer(name: str, folder: Path) -> Path:
    """Copy a checkpoint to a new folder, with a tokenizer of as many words as it has tokens."""
    shutil.copytree(FIXTURES / name, folder)
    num_words = json.loads((folder / "config.json").read_text())["vocab_size"]
    words = {f"w{number}": number for number in range(num_words)}
    tokenizer = Tokenizer(models.WordLevel(vocab=words, unk_token=next(iter(words))))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def quantized_weights(folder: Path) -> WeightReader:
    """Return the weights of a checkpoint that is stored quantized."""
    fields, gguf = ConfigFields.from_file(folder / "config.json"), find_gguf(folder)
    stored = read_quantization(fields, folder) if gguf is None else read_gguf_quantization(gguf, fields)
    return WeightReader(folder, torch.float32, quantization=stored)


def dequantized_model(folder: Path) -> PreTrainedModel:
    """Return Transformers' model of a checkpoint, with the weights for which its codes stand."""
    config = AutoConfig.from_pretrained(folder)
    for section in ("quantization_config", "compression_config"):
        if hasattr(config, section):
            delattr(config, section)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    weights = quantized_weights(folder)
    has_mixtral_names = "model.layers.0.block_sparse_moe.gate.weight" in weights
    if config.model_type != "gpt_oss" and "model.layers.0.mlp.experts.down_proj" not in weights:
        _separate_experts(model, _MIXTRAL_NAMES if has_mixtral_names else _PLAIN_NAMES)
    for path, module in model.named_modules():
        name = path.replace(".mlp", ".block_sparse_moe") if has_mixtral_names else path
        if isinstance(module, nn.Linear) and weights.is_quantized(name):
            weight = weights.load_quantized(name, module.out_features, module.in_features)
            module.weight.data = dequantize(weight)
            if weight.input_rounding is not None:
                module.register_forward_pre_hook(partial(_round, rounding=weight.input_rounding))
        else:
            for part, parameter in module.named_parameters(recurse=False):
                tensor = f"{name}.{part}"
                if parameter.dim() == 3 and weights.is_quantized(tensor):
                    num_experts, in_features, out_features = parameter.shape
                    fused = weights.load_quantized(tensor, out_features, in_features, num_experts)
                    values = dequantize(fused).view(num_experts, out_features, in_features)
                    parameter.data = values.transpose(1, 2).contiguous()
                elif tensor in weights:
                    parameter.data = weights.load(tensor, parameter.shape)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.data = weights.load(f"{name}.bias", module.bias.shape)
    model.tie_weights()
    return model


class _Experts(nn.ModuleList):
    """Experts with a linear layer for each matrix, in the place of those that Transformers keeps as one."""

    def __init__(self, num_experts: int, hidden_size: int, size: int, names: tuple[str, str, str]) -> None:
        sizes = [(hidden_size, size), (hidden_size, size), (size, hidden_size)]
        super().__init__(
            nn.ModuleDict({name: nn.Linear(*one, bias=False) for name, one in zip(names, sizes, strict=True)})
            for _ in range(num_experts)
        )
        self._names = names

    def forward(self, hidden: torch.Tensor, experts: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """Map `[num_tokens, hidden_size]` to a new tensor of the same shape.

        `experts` and `factors` are `[num_tokens, num_experts_per_token]`.
        """
        out = torch.zeros_like(hidden)
        for number, expert in enumerate(self):
            assert isinstance(expert, nn.ModuleDict)
            gate, up, down = (expert[name] for name in self._names)
            tokens, places = torch.where(experts == number)
            if not len(tokens):
                continue
            rows = hidden[tokens]
            result = down(nn.functional.silu(gate(rows)) * up(rows))
            out.index_add_(0, tokens, result * factors[tokens, places, None])
        return out


def _separate_experts(model: PreTrainedModel, names: tuple[str, str, str]) -> None:
    """Put linear layers under the names of the checkpoint in the place of fused experts."""
    for path, module in list(model.named_modules()):
        if path.endswith(".experts"):
            num_experts, hidden_size, size = module.down_proj.shape
            model.set_submodule(path, _Experts(num_experts, hidden_size, size, names))


def _round(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], rounding: InputRounding
) -> tuple[torch.Tensor]:
    (x,) = inputs
    return (round_inputs(x.flatten(0, -2), rounding).view(x.shape),)
