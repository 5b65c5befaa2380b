"""Finds out how a checkpoint is quantized, by `quant_method` in its config.json or in a file beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from baton_engine.checkpoint.config_fields import ConfigFields
from baton_engine.checkpoint.quantization.auto_round import read_auto_round
from baton_engine.checkpoint.quantization.awq import read_awq
from baton_engine.checkpoint.quantization.bitsandbytes import read_bitsandbytes
from baton_engine.checkpoint.quantization.compressed_tensors import read_compressed_tensors
from baton_engine.checkpoint.quantization.fp8 import read_fp8
from baton_engine.checkpoint.quantization.gpt_oss_mxfp4 import read_gpt_oss_mxfp4
from baton_engine.checkpoint.quantization.gptq import read_gptq
from baton_engine.checkpoint.quantization.layer_format import CheckpointQuantization
from baton_engine.checkpoint.quantization.methods import METHODS
from baton_engine.checkpoint.quantization.modelopt import read_modelopt
from baton_engine.checkpoint.quantization.quark import read_quark
from baton_engine.checkpoint.quantization.separate_files import SECTIONS, read_separate_file
from baton_engine.checkpoint.quantization.torchao import read_torchao

_READERS: Final[dict[str, Callable[[ConfigFields], CheckpointQuantization]]] = {
    "compressed-tensors": read_compressed_tensors,
    "quark": read_quark,
    "fp8": read_fp8,
    "gptq": read_gptq,
    "awq": read_awq,
    "auto-round": read_auto_round,
    "modelopt": read_modelopt,
    "bitsandbytes": read_bitsandbytes,
    "mxfp4": read_gpt_oss_mxfp4,
}
_OTHER_NAMES: Final = {"intel/auto-round": "auto-round"}


def read_quantization(fields: ConfigFields, folder: Path) -> CheckpointQuantization | None:
    """Read the quantization of a config.json or of a file beside it; None where the checkpoint has none.

    Raises:
        InvalidModelError: its method is unknown, or its description cannot be followed.
    """
    for key, default in SECTIONS.items():
        if (section := fields.section(key)) is not None:
            return _read_section(section.with_default("quant_method", default), folder)
    separate = read_separate_file(fields, folder)
    return None if separate is None else _read_section(separate, folder)


def _read_section(section: ConfigFields, folder: Path) -> CheckpointQuantization:
    method = section.raw("quant_method")
    method = _OTHER_NAMES.get(str(method), method)
    if method not in METHODS:
        allowed = f"{', '.join(METHODS)} (other formats of stored weights cannot be read yet)"
        raise section.refuse("quant_method", method, allowed)
    if method == "torchao":
        return read_torchao(section, folder)
    return _READERS[method](section)
