"""Fixtures written by AMD Quark: FP8, INT8, INT4, MXFP4, MXFP6, NVFP4, mixes of them, and its AutoFP8 export.

The reference is Quark's own import of the folder into a float32 model: its weights are dequantized in
float32, and its layers round their inputs as the scheme says.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from quark.torch import LLMTemplate, ModelQuantizer, export_safetensors, import_model_from_safetensors
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from tools.quantized_fixtures.base_models import calibration_ids, make_llama
from tools.quantized_fixtures.fixture import greedy_tokens, produce, write_expected

PACKAGE: Final = "amd-quark"
make_ragged_llama: Final = partial(make_llama, 192)


def _quantize(model: PreTrainedModel, scheme: str, **settings: Any) -> PreTrainedModel:
    config = LLMTemplate.get(model.config.model_type).get_config(scheme=scheme, **settings)
    quantizer = ModelQuantizer(config)
    batches = DataLoader(calibration_ids(16, 64), batch_size=4)
    return quantizer.freeze(quantizer.quantize_model(model, batches))


def _make(
    folder: Path,
    scheme: str,
    base: Callable[[], PreTrainedModel] = make_llama,
    is_batch_independent: bool = True,
    **settings: Any,
) -> None:
    model = _quantize(base(), scheme, **settings)
    with torch.no_grad():
        export_safetensors(model, folder)
    reference = import_model_from_safetensors(base().float(), str(folder)).eval()
    weights = {
        name: layer._get_qweight(layer.weight)
        for name, layer in reference.named_modules()
        if getattr(layer, "weight_quantizer", None) is not None
    }
    for layer in reference.modules():
        if getattr(layer, "output_quantizer", None) is not None:
            layer.output_quantizer = None
    greedy = greedy_tokens(reference, "as the scheme says; the KV cache is not rounded")
    named = scheme + "".join(f", {name} {value}" for name, value in settings.items())
    write_expected(folder, PACKAGE, named, weights, greedy if is_batch_independent else None)


FIXTURES: Final[dict[str, Callable[[Path], None]]] = {
    "quark-fp8-kv-fp8": partial(_make, scheme="fp8", kv_cache_scheme="fp8"),
    "quark-ptpc-fp8": partial(_make, scheme="ptpc_fp8", base=make_ragged_llama),
    "quark-int8": partial(_make, scheme="int8"),
    "quark-int4-128": partial(_make, scheme="int4_wo_128"),
    "quark-int4-32": partial(_make, scheme="int4_wo_32", base=make_ragged_llama),
    "quark-uint4-128": partial(_make, scheme="uint4_wo_128"),
    "quark-uint4-64": partial(_make, scheme="uint4_wo_64", base=make_ragged_llama),
    "quark-int4-channel": partial(_make, scheme="int4_wo_per_channel"),
    "quark-mxfp4": partial(_make, scheme="mxfp4", base=make_ragged_llama),
    "quark-mxfp4-weight-only": partial(_make, scheme="mxfp4_weight_only"),
    "quark-mxfp4-fp8": partial(_make, scheme="mxfp4_fp8"),
    "quark-mxfp4-mxfp6": partial(_make, scheme="mxfp4_mxfp6_e2m3"),
    "quark-mxfp6-e2m3": partial(_make, scheme="mxfp6_e2m3"),
    "quark-mxfp6-e3m2": partial(_make, scheme="mxfp6_e3m2", base=make_ragged_llama),
    "quark-nvfp4": partial(_make, scheme="nvfp4", base=make_ragged_llama),
    "quark-int4-fp8": partial(_make, scheme="int4_fp8"),
    "quark-mix": partial(_make, scheme="mxfp4", layer_config={"*o_proj": "fp8", "*down_proj": "ptpc_fp8"}),
}

if __name__ == "__main__":
    produce(FIXTURES)
