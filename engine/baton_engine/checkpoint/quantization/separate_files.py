"""Finds the description of a quantized checkpoint that lies in a file of its own, beside config.json.

Source: `get_config_filenames` of vLLM's quantization methods.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from baton_engine.checkpoint.config_fields import ConfigFields

SECTIONS: Final = {"quantization_config": "", "compression_config": "compressed-tensors"}
"""Where a config.json says how its checkpoint is quantized, each with the method that goes without saying."""
_FILES: Final = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
    "quantization_config.json": "",
}
"""Files of GPTQ, AutoAWQ, Model Optimizer and auto-round, in this order, each with its method."""


def read_separate_file(fields: ConfigFields, folder: Path) -> ConfigFields | None:
    """Return the description beside a config.json; None where there is none or config.json has its own.

    Args:
        fields: The config.json under the operator's overrides. A key of it decides, also where it is `null`.
        folder: The model's folder.

    Raises:
        InvalidModelError: the file is no JSON object.
    """
    if any(key in fields.names() for key in SECTIONS):
        return None
    for name, method in _FILES.items():
        if (folder / name).exists():
            section = ConfigFields.from_file(folder / name)
            return (section.section("quantization") or section).with_default("quant_method", method)
    return None
