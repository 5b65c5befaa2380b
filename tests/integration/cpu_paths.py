"""Tokens that a path of the CPU draws, in this process, or by `python -m` in one of its own.

It imports neither pytest nor Transformers, which such a process would load for longer than it computes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import torch

from baton import LLM, SamplingParams
from baton_engine import warm_up

BUDGET: Final = 64
"""Tokens of a step: the longest prompt takes three."""
NUM_TOKENS: Final = 12
Prompts = list[list[int]]


def generate(folder: Path, prompts: Prompts, path: str, dtype: str) -> Prompts:
    """Return the greedy tokens of all prompts together, twice: the second time from the prefix cache and
    replayed.
    """
    sizes: dict[str, Any] = {"kv_cache_memory_bytes": 4 << 20, "max_num_batched_tokens": BUDGET}
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with LLM(str(folder), cpu_kernels=path, dtype=dtype, **sizes) as llm:
        first, second = (
            [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]
            for _ in range(2)
        )
    return first + second


if __name__ == "__main__":
    warm_up.PROMPTS_WITHIN_S = 0.0  # type: ignore[misc]
    folder, prompts = Path(sys.argv[1]), json.loads(sys.argv[2])
    paths = [generate(folder, prompts, path, "float32") for path in ("torch", "plain")]
    print(json.dumps([torch.backends.cpu.get_cpu_capability(), *paths]))  # noqa: T201
