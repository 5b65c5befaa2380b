"""Makes what vLLM loads for int8: linear layers as codes per channel, for activations as codes per token.

    python -m bench.peer.quantized_model MODEL FOLDER

Embedding and head stay as they are, as in the models that are published in this format.

Source: compressed-tensors 0.17, format `int-quantized`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bench.command_line import make_parser

_INT8: Final = {"num_bits": 8, "type": "int", "symmetric": True}
QUANTIZATION: Final = {
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
}


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes `[out, in]` int8 and their scales `[out, 1]` float32: the largest of a channel is 127."""
    scale = weight.float().abs().amax(dim=1, keepdim=True) / 127
    return (weight.float() / scale).round().to(torch.int8), scale


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model", type=Path, help="folder of the model")
    parser.add_argument("folder", type=Path, help="folder to write; it must not exist")
    arguments = parser.parse_args()
    model, folder = arguments.model, arguments.folder
    shutil.copytree(model, folder)
    tensors = {}
    for name, tensor in load_file(model / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            tensors[name], tensors[f"{name}_scale"] = quantize(tensor)
        else:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": QUANTIZATION}))


if __name__ == "__main__":
    main()
