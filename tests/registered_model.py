"""A model from elsewhere, as a plugin registers it: Llama, whose logits stand one token further on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.models.decoder import Decoder
from baton_engine.models.decoder_config import DecoderConfig
from baton_engine.models.decoder_reading import read_decoder_config

ARCHITECTURE = "ShiftedForCausalLM"


class Shifted(Decoder):
    """Predicts the token after the one that Llama predicts, by its id."""

    @staticmethod
    def read_config(folder: Path, fields: ConfigFields, max_model_len: int | None) -> DecoderConfig:
        """Read the configuration as Llama's."""
        llama = fields.updated({"architectures": ["LlamaForCausalLM"]})
        return replace(read_decoder_config(folder, llama, max_model_len), architecture=ARCHITECTURE)

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.roll(super().logits(hidden), 1, dims=-1)


def register() -> None:
    """Register the model; the plugin's entry point."""
    from baton import ModelRegistry

    ModelRegistry.register_model(ARCHITECTURE, f"{__name__}:Shifted")
