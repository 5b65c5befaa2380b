"""Writes a model with its linear layers in a format that both engines load, rounded to the nearest codes.

    python -m bench.peer.quantized_model MODEL FOLDER --format gptq

Embedding and head stay as they are, as in models that are published in these formats.

Source of the layouts: what compressed-tensors, GPTQModel, AutoAWQ and Quark write.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bench.command_line import make_parser

GROUP: Final = 128
_AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
_INT8: Final = {"num_bits": 8, "type": "int", "symmetric": True}
_E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def to_int8(weight: Tensor, group: int) -> dict[str, Tensor]:
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    return {"weight": (weight / scale).round().to(torch.int8), "weight_scale": scale}


def to_fp8_blocks(weight: Tensor, group: int) -> dict[str, Tensor]:
    blocks = weight.view(weight.shape[0] // group, group, weight.shape[1] // group, group)
    scales = blocks.abs().amax(dim=(1, 3)) / 448
    codes = (blocks / scales[:, None, :, None]).view(weight.shape)
    return {"weight": codes.to(torch.float8_e4m3fn), "weight_scale_inv": scales}


def to_gptq(weight: Tensor, group: int) -> dict[str, Tensor]:
    """Symmetric codes with the zero point 8, which the format stores less 1."""
    groups = weight.view(len(weight), -1, group)
    scales = (groups.abs().amax(dim=2) / 7.5).half()
    codes = (groups / scales.float()[:, :, None]).round().add(8).clamp(0, 15).view(weight.shape)
    zeros = torch.full((weight.shape[1] // group, len(weight) // 8), 0x77777777, dtype=torch.int32)
    groups_of_inputs = torch.arange(weight.shape[1], dtype=torch.int32) // group
    packed = pack(codes.T.reshape(-1, 8, len(weight)).transpose(1, 2))
    return {"qweight": packed, "qzeros": zeros, "scales": scales.T.contiguous(), "g_idx": groups_of_inputs}


def to_awq(weight: Tensor, group: int) -> dict[str, Tensor]:
    """Codes with a zero point for each group."""
    groups = weight.view(len(weight), -1, group)
    low, high = groups.amin(dim=2).clamp(max=0), groups.amax(dim=2).clamp(min=0)
    scales = ((high - low) / 15).half()
    zeros = (-low / scales.float()).round().clamp(0, 15)
    codes = (groups / scales.float()[:, :, None]).round().add(zeros[:, :, None]).clamp(0, 15)
    in_order = [codes.view(weight.shape).T, zeros.T]
    qweight, qzeros = (pack(one.reshape(len(one), -1, 8)[:, :, list(_AWQ_ORDER)]) for one in in_order)
    return {"qweight": qweight, "qzeros": qzeros, "scales": scales.T.contiguous()}


def pack(codes: Tensor) -> Tensor:
    """Return `[..., 8]` codes of 4 bits as `[...]` int32, the first in the lowest bits."""
    words = (codes.to(torch.int64) << torch.arange(0, 32, 4)).sum(dim=-1)
    return (words - ((words >> 31) << 32)).to(torch.int32)


def to_mxfp4(weight: Tensor, group: int) -> dict[str, Tensor]:
    """The 4-bit floats nearest to the weight, with a power of two for each 32 inputs."""
    groups = weight.view(len(weight), -1, 32)
    exponents = groups.abs().amax(dim=2, keepdim=True).log2().floor().clamp(min=-125) - 2
    scaled = groups / exponents.exp2()
    codes = (scaled.abs()[..., None] - torch.tensor(_E2M1)).abs().argmin(dim=-1).to(torch.uint8)
    codes = (codes | (scaled < 0).to(torch.uint8) << 3).view(weight.shape)
    scales = (exponents[:, :, 0] + 127).to(torch.uint8)
    return {"weight": codes[:, 0::2] | codes[:, 1::2] << 4, "weight_scale": scales}


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A way of storing linear layers: the section of config.json, and the tensors of a weight, for a number
    of inputs that share a scale. int8 has a scale for each output, and mxfp4 one for 32 inputs, always."""

    config: Callable[[int], Mapping[str, Any]]
    quantize: Callable[[Tensor, int], dict[str, Tensor]]


FORMATS: Final = {
    "int8": Format(
        config=lambda group: {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "quantization_status": "compressed",
            "ignore": ["lm_head"],
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {**_INT8, "strategy": "channel", "dynamic": False},
                    "input_activations": {**_INT8, "strategy": "token", "dynamic": True},
                }
            },
        },
        quantize=to_int8,
    ),
    "gptq": Format(
        config=lambda group: {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": group,
            "desc_act": False,
            "sym": True,
        },
        quantize=to_gptq,
    ),
    "awq": Format(
        config=lambda group: {
            "quant_method": "awq",
            "bits": 4,
            "group_size": group,
            "zero_point": True,
            "version": "gemm",
        },
        quantize=to_awq,
    ),
    "fp8": Format(
        config=lambda group: {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [group, group],
        },
        quantize=to_fp8_blocks,
    ),
    "mxfp4": Format(
        config=lambda group: {
            "quant_method": "quark",
            "exclude": ["lm_head"],
            "export": {"pack_method": "order", "weight_format": "real_quantized", "kv_cache_group": []},
            "layer_quant_config": {},
            "layer_type_quant_config": {},
            "global_quant_config": {
                "weight": {
                    "dtype": "fp4",
                    "qscheme": "per_group",
                    "ch_axis": -1,
                    "group_size": 32,
                    "is_dynamic": False,
                    "scale_format": "e8m0",
                },
                "input_tensors": None,
                "output_tensors": None,
                "bias": None,
            },
        },
        quantize=to_mxfp4,
    ),
}


def write(model: Path, folder: Path, name: str, group: int = GROUP) -> None:
    """Copy a model with its linear layers in a format to a folder that is not there yet."""
    chosen = FORMATS[name]
    shutil.copytree(model, folder)
    tensors = {}
    for key, tensor in load_file(model / "model.safetensors").items():
        if key.endswith("_proj.weight"):
            layer = key.removesuffix(".weight")
            parts = chosen.quantize(tensor.float(), group)
            tensors |= {f"{layer}.{part}": value.contiguous() for part, value in parts.items()}
        else:
            tensors[key] = tensor
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": chosen.config(group)}))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model", type=Path, help="folder of the model")
    parser.add_argument("folder", type=Path, help="folder to write; it must not exist")
    parser.add_argument("--format", choices=FORMATS, default="int8")
    parser.add_argument("--group-size", type=int, default=GROUP, help="inputs that share a scale")
    arguments = parser.parse_args()
    write(arguments.model, arguments.folder, arguments.format, arguments.group_size)


if __name__ == "__main__":
    main()
