"""Fixtures written by auto-round, without tuning: its own layout, and those of GPTQ and AWQ.

The reference is computed here from the rounding that auto-round leaves in the float model, in bfloat16.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import torch
from auto_round import AutoRound
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


FIXTURES: Final[dict[str, Callable[[Path], None]]] = {
    f"{name.replace('_', '-')}": partial(_make, layout=name)
    for name in ("auto_round", "auto_gptq", "auto_awq")
}

if __name__ == "__main__":
    produce(FIXTURES)
