"""Small `LLM`s for tests, and what they are asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from baton import EngineArgs, SamplingParams
from tests.models import make_prompt

PROMPT: Final = make_prompt(70, seed=3)
"""More than two blocks."""


def tiny_args(folder: Path, **changes: Any) -> EngineArgs:
    """On one CPU thread's worth of memory; the float32 of the folder."""
    fields = {"model": str(folder), "kv_cache_memory_bytes": 4 << 20, "max_num_batched_tokens": 64}
    return EngineArgs(**{**fields, **changes})


def greedy(max_tokens: int, **params: Any) -> SamplingParams:
    """Exactly `max_tokens` tokens, unless `params` stop them."""
    return SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, **params})
