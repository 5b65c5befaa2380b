"""Names of the kinds of quantization. Imports no torch."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class OnlineQuantization(StrEnum):
    """The kinds of quantization; the values are those of the flag."""

    INT8 = "int8"
    """Codes of 8 bits: weights with a scale for each output, activations with one for each token."""
    INT8_WEIGHT_ONLY = "int8_per_channel_weight_only"
    """The same weights; activations stay as they are."""
    FP8_PER_TENSOR = "fp8_per_tensor"
    """Floats of 8 bits: one scale for the weight, activations with one for each token."""
    FP8_PER_CHANNEL = "fp8_per_channel"
    """The same with a scale for each output."""
    FP8_PER_BLOCK = "fp8_per_block"
    """The same with a scale for 128 outputs and 128 inputs; activations with one for 128 inputs."""
    MXFP8 = "mxfp8"
    """Floats of 8 bits with a power of two for each 32 inputs, of weights and of activations."""
    MXFP4 = "mxfp4"
    """Floats of 4 bits with a power of two for each 32 inputs; activations stay as they are."""
    INT4_WEIGHT_ONLY = "int4_per_group_weight_only"
    """Codes of 4 bits with a scale and a zero point for each 128 inputs; activations stay as they are."""


METHODS: Final = (
    "compressed-tensors",
    "quark",
    "fp8",
    "gptq",
    "awq",
    "auto-round",
    "modelopt",
    "bitsandbytes",
    "mxfp4",
    "torchao",
)
"""Methods of checkpoints that are stored quantized, by `quant_method` in config.json."""
GGUF: Final = "gguf"
"""The method of a checkpoint whose weights are a GGUF file, whatever its config.json says."""
ALIASES: Final = {
    "gptq_marlin": "gptq",
    "auto_gptq": "gptq",
    "awq_marlin": "awq",
    "auto_awq": "awq",
    "modelopt_fp4": "modelopt",
    "modelopt_mxfp8": "modelopt",
    "gpt_oss_mxfp4": "mxfp4",
    "inc": "auto-round",
}
"""Other names of methods that vLLM has for the same checkpoints, each with that in config.json."""
QUANTIZATIONS: Final = tuple(
    dict.fromkeys(
        (
            *(kind.value for kind in OnlineQuantization),
            *METHODS,
            GGUF,
            *(alias for alias, method in ALIASES.items() if method in METHODS),
        )
    )
)
"""Values of the flag."""
