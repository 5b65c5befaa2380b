"""Model folders and a logits processor that probes need, and what an `LLM` makes of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

import baton
from tests.quantized_reference import copy_with_tokenizer
from tools.vllm_audit.subjects import KV_BYTES, MODEL, PROMPT, SMALL, expect, folder, generated, said
from tools.vllm_audit.verdict import Probe

FORCED_TOKEN: Final = 42


class ForcedToken:
    """A logits processor with the interface that vLLM documents; it leaves one token."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        del vllm_config, device, is_pin_memory

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        logits[:, :FORCED_TOKEN] = float("-inf")
        logits[:, FORCED_TOKEN + 1 :] = float("-inf")
        return logits

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        del batch_update


def checkpoint(dtype: str = "", **config: Any) -> Path:
    """A copy of the bundled model with other weights' type and other entries in its config.json."""
    target = Path(mkdtemp(dir=folder()))
    shutil.copytree(MODEL, target, dirs_exist_ok=True)
    written = json.loads((target / "config.json").read_text()) | config
    if dtype:
        written["dtype"] = written["torch_dtype"] = dtype
        weights = load_file(target / "model.safetensors")
        cast = {name: tensor.to(getattr(torch, dtype)) for name, tensor in weights.items()}
        save_file(cast, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(written))
    return target


def computed_dtype(dtype: str) -> tuple[str, list[str]]:
    """The dtype that a checkpoint of another is computed in by default, and what the log says of it."""
    with said() as texts, loaded(checkpoint(dtype)) as llm:
        embeddings = llm.apply_model(lambda model: next(iter(_tensors_of(model)), None))[0]
    return str(getattr(embeddings, "dtype", "unknown")), [text for text in texts if dtype in text]


def secondary_end_reason(token_id: int) -> object:
    """The stop_reason of a token that generation_config.json lists behind the first end token."""
    target = checkpoint()
    path = target / "generation_config.json"
    settings = json.loads(path.read_text())
    first = settings["eos_token_id"]
    first = first if isinstance(first, list) else [first]
    path.write_text(json.dumps(settings | {"eos_token_id": [*first, token_id]}))
    with loaded(target) as llm:
        return generated(subject=llm, logit_bias={token_id: 100.0}).outputs[0].stop_reason


def loaded(model: Path, **arguments: Any) -> Any:
    """An `LLM` of a folder."""
    return baton.LLM(**{"model": str(model), "kv_cache_memory_bytes": KV_BYTES, **SMALL, **arguments})


def with_processor() -> bool:
    """Return whether a processor's class decides what an `LLM` generates."""
    with loaded(Path(MODEL), logits_processors=[f"{__name__}:{ForcedToken.__name__}"]) as llm:
        output = generated(PROMPT, subject=llm, max_tokens=2)
    return list(output.outputs[0].token_ids) == [FORCED_TOKEN] * 2


def _tensors_of(model: Any) -> list[torch.Tensor]:
    if hasattr(model, "parameters"):
        return list(model.parameters())
    return [value for value in vars(model).values() if isinstance(value, torch.Tensor)]


def generates(name: str, **arguments: Any) -> Probe:
    """A checkpoint that another package quantized is loaded and generates."""

    def probe() -> None:
        model = copy_with_tokenizer(name, Path(mkdtemp(dir=folder())) / "model")
        with loaded(model, **arguments) as llm:
            output = generated("w5 w6", subject=llm, max_tokens=3)
        expect(len(output.outputs[0].token_ids) == 3, "it generates nothing")

    return probe
