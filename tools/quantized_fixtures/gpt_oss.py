"""A fixture in the format of GPT-OSS: experts as MXFP4, packed by NVIDIA's ModelOpt.

The reference is Transformers' own unpacking of the stored tensors, in bfloat16.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
from modelopt.torch.quantization.qtensor.mxfp4_tensor import MXFP4QTensor
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tools.quantized_fixtures.base_models import ATTENTION, SEED
from tools.quantized_fixtures.fixture import produce, write_expected

PACKAGE: Final = "nvidia-modelopt"
GROUP: Final = 32
SIZES: Final[dict[str, Any]] = {
    **ATTENTION,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 16,
    "swiglu_limit": 2.0,
    "tie_word_embeddings": False,
}
QUANTIZATION: Final[dict[str, Any]] = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
"""As in openai/gpt-oss-20b."""


@torch.no_grad()
def _make_model() -> GptOssForCausalLM:
    torch.manual_seed(SEED)
    model = GptOssForCausalLM(GptOssConfig(**SIZES)).to(torch.bfloat16)
    for name, parameter in model.named_parameters():
        if "experts" in name or name.endswith(("bias", "sinks")):
            parameter.normal_(std=0.3)
    return model


def _pack(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return blocks and scales of a projection [experts, in features, out features]."""
    transposed = weight.transpose(1, 2).contiguous()
    packed, exponents = MXFP4QTensor.quantize(transposed, GROUP)
    shape = (*transposed.shape[:2], -1)
    return packed._quantized_data.view(*shape, GROUP // 2), exponents.view(shape)


def _make(folder: Path) -> None:
    _make_model().save_pretrained(folder)
    path, weights = folder / "model.safetensors", {}
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        blocks, scales = _pack(tensors.pop(name))
        weights[name] = convert_moe_packed_tensors(blocks, scales).transpose(1, 2)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales.contiguous()}
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": QUANTIZATION}, indent=2))
    write_expected(folder, PACKAGE, "GPT-OSS, experts as MXFP4", weights)


FIXTURES: Final = {"gpt-oss-mxfp4": _make}

if __name__ == "__main__":
    produce(FIXTURES)
