"""A fixture written by AutoAWQ.

The reference is AutoAWQ's own unpacking of its layers, in float16.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import torch
from awq import AutoAWQForCausalLM
from awq.utils.packing_utils import dequantize_gemm

from tools.quantized_fixtures.base_models import calibration_ids, make_llama, make_tokenizer
from tools.quantized_fixtures.fixture import produce, write_expected

PACKAGE: Final = "autoawq"
CONFIG: Final = {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMM"}


def _make(folder: Path) -> None:
    tokenizer = make_tokenizer()
    with tempfile.TemporaryDirectory() as unquantized:
        make_llama().save_pretrained(unquantized)
        tokenizer.save_pretrained(unquantized)
        model = AutoAWQForCausalLM.from_pretrained(unquantized, device_map="cpu", safetensors=True)
        texts = [tokenizer.decode(ids) for ids in calibration_ids(16, 64)]
        model.quantize(tokenizer, quant_config=CONFIG, calib_data=texts, max_calib_seq_len=64)
        model.save_quantized(str(folder))
    weights = {
        name: dequantize_gemm(layer.qweight, layer.qzeros, layer.scales, 4, CONFIG["q_group_size"]).T.half()
        for name, layer in model.model.named_modules()
        if hasattr(layer, "qweight")
    }
    write_expected(folder, PACKAGE, "AWQ gemm, groups of 64", {k: v.contiguous() for k, v in weights.items()})


FIXTURES: Final = {"autoawq": _make}

if __name__ == "__main__":
    torch.manual_seed(0)
    produce(FIXTURES)
