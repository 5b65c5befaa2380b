"""Fixtures written by GPTQModel: both versions of its format, and AWQ.

Two cores need the environment variable GPTQMODEL_CPU_WORKERS=2. The reference is GPTQModel's own import with
its kernels of torch, in the dtype of the scales, float16.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from tools.quantized_fixtures.base_models import (
    calibration_ids,
    make_llama,
    make_mixtral,
    make_qwen2_moe,
    make_qwen3_moe,
    make_tokenizer,
)
from tools.quantized_fixtures.fixture import produce, write_expected

PACKAGE: Final = "gptqmodel"
_DTYPE: Final = "torch_dtype" if version(PACKAGE).startswith("2.") else "dtype"


def make_gptq(
    folder: Path, scheme: str, *, make: Callable[[], PreTrainedModel] = make_llama, **settings: Any
) -> None:
    """Quantize a model that `make` returns by settings of GPTQModel, and write what it reads of it."""
    config = QuantizeConfig(**{"bits": 4, "group_size": 128, "desc_act": False} | settings)
    with tempfile.TemporaryDirectory() as base:
        make().save_pretrained(base)
        make_tokenizer().save_pretrained(base)
        model = GPTQModel.load(base, config, device="cpu")
        rows = [
            {"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in calibration_ids(32, 256).tolist()
        ]
        model.quantize(rows, batch_size=1)
        model.save(str(folder))
    for path in folder.glob("*.json"):  # where this machine kept what it computed
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if '"offload_to_disk_path"' not in line))
    write_reference(folder, scheme)


def write_reference(folder: Path, scheme: str) -> None:
    """Write what GPTQModel reads of a checkpoint that it wrote."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    read = _awq_weights if config["quant_method"] == "awq" else _gptq_weights
    write_expected(folder, PACKAGE, scheme, read(folder, config))


def _gptq_weights(folder: Path, _: Mapping[str, Any]) -> dict[str, Tensor]:
    make_tokenizer().save_pretrained(folder)
    dtype: dict[str, Any] = {_DTYPE: torch.float16}
    loaded = GPTQModel.load(str(folder), backend=BACKEND.TORCH, device="cpu", **dtype)
    return {
        name: layer.dequantize_weight().T.contiguous()
        for name, layer in loaded.model.named_modules()
        if hasattr(layer, "dequantize_weight")
    }


def _awq_weights(folder: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm  # older versions have no AWQ

    tensors = load_file(folder / "model.safetensors")
    layers = [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]
    return {
        layer: dequantize_gemm(
            *(tensors[f"{layer}.{part}"] for part in ("qweight", "qzeros", "scales")),
            config["bits"],
            config["group_size"],
        ).T.contiguous()
        for layer in layers
    }


FIXTURES: Final[dict[str, Callable[[Path], None]]] = {
    "gptq-v1": partial(make_gptq, scheme="4 bits, groups of 128"),
    "gptq-v2": partial(make_gptq, scheme="4 bits, groups of 128, version 2", format="gptq_v2"),
    "gptq-desc-act": partial(
        make_gptq, scheme="4 bits, groups of 32, desc_act", group_size=32, desc_act=True
    ),
    "gptq-asym": partial(make_gptq, scheme="4 bits, groups of 128, asymmetric", sym=False),
    "gptq-8-bits": partial(make_gptq, scheme="8 bits, groups of 128", bits=8),
    "gptq-3-bits": partial(make_gptq, scheme="3 bits, groups of 128", bits=3),
    "gptq-qwen3-moe": partial(
        make_gptq, scheme="4 bits, groups of 32, experts", group_size=32, make=make_qwen3_moe
    ),
    "gptq-mixtral": partial(
        make_gptq, scheme="4 bits, groups of 64, experts", group_size=64, make=make_mixtral
    ),
    "gptqmodel-awq-qwen2-moe": partial(
        make_gptq,
        scheme="AWQ gemm, groups of 32, experts",
        quant_method="awq",
        format="gemm",
        group_size=32,
        make=make_qwen2_moe,
    ),
    "gptqmodel-awq": partial(make_gptq, scheme="AWQ gemm, groups of 128", quant_method="awq", format="gemm"),
    "gptq-2-bits": partial(make_gptq, scheme="2 bits, groups of 64", bits=2, group_size=64),
}

if __name__ == "__main__":
    produce(FIXTURES)
