"""Versions of the bundled model's weights, and what each generates alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton import LLM, EngineArgs
from tests.e2e.calls import draw_prompt, greedy
from tests.integration.router_cluster import MODEL

PROMPTS = tuple(tuple(draw_prompt(100, seed)) for seed in range(6))
"""Each of more than three blocks."""
NUM_TOKENS = 24


def write_version(folder: Path, change: Callable[[dict[str, Tensor]], Any] = lambda tensors: None) -> Path:
    """Write the bundled weights with noise, and then with `change`, into a folder."""
    tensors, noise = load_file(MODEL / "model.safetensors"), torch.Generator().manual_seed(1)
    for name, tensor in tensors.items():
        if tensor.dim() > 1:
            tensors[name] = tensor + 0.02 * torch.randn(tensor.shape, generator=noise)
    change(tensors)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@cache
def answers_of(folder: Path | None = None) -> list[list[int]]:
    """The outputs for `PROMPTS` of the bundled weights, or of those in a folder, in this process."""
    args = EngineArgs(model=str(MODEL), dtype="float32", kv_cache_memory_bytes=32 << 20)
    with LLM.from_engine_args(args) as llm:
        if folder is not None:
            llm.start_weight_update()
            llm.update_weights({"update_info": {"path": str(folder)}})
            llm.finish_weight_update()
        prompts: Sequence[Any] = [list(prompt) for prompt in PROMPTS]
        outputs = llm.generate(prompts, greedy(NUM_TOKENS), use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]
