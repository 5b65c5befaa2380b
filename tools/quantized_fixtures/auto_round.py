"""Fixtures written by auto-round, without tuning: its own layout, and those of GPTQ and AWQ.

The reference is computed here from the rounding that auto-round leaves in the float model, in bfloat16.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import torch
from auto_round import AutoRound
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tools.quantized_fixtures.base_models import make_llama, make_tokenizer
from tools.quantized_fixtures.fixture import produce, write_expected

PACKAGE: Final = "auto-round"


def _make(folder: Path, layout: str) -> None:
    tokenizer = make_tokenizer()
    with tempfile.TemporaryDirectory() as unquantized, tempfile.TemporaryDirectory() as rounded:
        make_llama().save_pretrained(unquantized)
        tokenizer.save_pretrained(unquantized)
        for target, name in ((folder, layout), (Path(rounded), "fake")):
            tuner = AutoRound(unquantized, scheme="W4A16", iters=0, disable_opt_rtn=True, device_map="cpu")
            tuner.quantize_and_save(str(target), format=name)
        found = next(Path(rounded).rglob("config.json")).parent
        reference = AutoModelForCausalLM.from_pretrained(found, dtype=torch.bfloat16)
    nested = next(folder.rglob("model.safetensors")).parent
    for path in nested.iterdir() if nested != folder else ():
        path.rename(folder / path.name)
    weights = {
        name: layer.weight
        for name, layer in reference.named_modules()
        if isinstance(layer, torch.nn.Linear) and name != "lm_head"
    }
    write_expected(folder, PACKAGE, f"W4A16 as {layout}", weights)


def _make_floats(folder: Path, scheme: str) -> None:
    """Write floats of 4 or 8 bits. The reference are the packed values, unpacked here."""
    with tempfile.TemporaryDirectory() as unquantized:
        make_llama().save_pretrained(unquantized)
        make_tokenizer().save_pretrained(unquantized)
        tuner = AutoRound(unquantized, scheme=scheme, iters=0, disable_opt_rtn=True, device_map="cpu")
        tuner.quantize_and_save(str(folder), format="auto_round")
    nested = next(folder.rglob("model.safetensors")).parent
    for path in nested.iterdir() if nested != folder else ():
        path.rename(folder / path.name)
    tensors = load_file(folder / "model.safetensors")
    layers = {name.rpartition(".")[0] for name in tensors if ".weight_scale" in name}
    weights = {layer: _unpack(layer, tensors) for layer in layers}
    write_expected(folder, PACKAGE, scheme, weights)


def _unpack(layer: str, tensors: Mapping[str, Tensor]) -> Tensor:
    if (blocks := tensors.get(f"{layer}.weight_scale_inv")) is not None:
        codes = tensors[f"{layer}.weight"].float()
        scales = blocks.float().repeat_interleave(128, 0).repeat_interleave(128, 1)
        return codes * scales[: codes.shape[0], : codes.shape[1]]
    exponents = torch.ldexp(torch.tensor(1.0), tensors[f"{layer}.weight_scale"].int() - 127)
    packed = tensors.get(f"{layer}.weight_packed")
    if packed is None:
        return tensors[f"{layer}.weight"].float() * exponents.repeat_interleave(32, 1)
    codes = torch.stack((packed & 15, packed >> 4), dim=2).flatten(1)
    return E2M1[codes.int()] * exponents.repeat_interleave(32, 1)


E2M1: Final = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
FIXTURES: Final[dict[str, Callable[[Path], None]]] = {
    f"{name.replace('_', '-')}": partial(_make, layout=name)
    for name in ("auto_round", "auto_gptq", "auto_awq")
} | {
    f"auto-round-{scheme.lower().replace('_', '-')}": partial(_make_floats, scheme=scheme)
    for scheme in ("MXFP4", "MXFP8", "FP8_BLOCK")
}

if __name__ == "__main__":
    produce(FIXTURES)
