"""Engines that the probes share, each started when the first probe asks for it."""

from __future__ import annotations

import atexit
import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import baton
from baton.config.engine_args import BUNDLED_MODEL
from tools.vllm_audit.verdict import DifferentError

MODEL: Final = BUNDLED_MODEL
PROMPT: Final = "The os module"
ADAPTER: Final = baton.LoRARequest("adapter", 1, "/adapter")
NO_ADAPTERS: Final = "enable_lora is False"
"""The refusal of an adapter by an engine that was not told to take any, as vLLM does."""
MAX_MODEL_LEN: Final = 256
KV_BYTES: Final = 16 << 20
SMALL: Final = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "enforce_eager": True}
"""Settings with which an engine warms up soon."""
CHAT_TEMPLATE: Final = "{% for message in messages %}[{{ message.content }}]{% endfor %}"


@cache
def llm() -> Any:
    """An `LLM` with the defaults of vLLM's, in float32."""
    return baton.LLM(model=MODEL, kv_cache_memory_bytes=KV_BYTES, dtype="float32", **SMALL)


@cache
def configured() -> Any:
    """An `LLM` with another value for each argument that shows in what it does."""
    return baton.LLM(
        model=MODEL,
        tokenizer=MODEL,
        dtype="float32",
        seed=7,
        kv_cache_memory_bytes=2 * KV_BYTES,
        max_model_len=MAX_MODEL_LEN,
        max_logprobs=2,
        stream_interval=4,
        enable_prompt_embeds=True,
        scheduling_policy="priority",
        served_model_name=["audited"],
        override_generation_config={"top_k": 7},
        structured_outputs_config={"backend": "xgrammar", "reasoning_parser": "qwen3"},
        profiler_config={"profiler": "torch", "torch_profiler_dir": str(folder())},
        disable_log_stats=True,
        **SMALL,
    )


@cache
def pooling() -> Any:
    """An `LLM` that pools: the mean of a prompt's hidden states."""
    return baton.LLM(
        model=MODEL,
        runner="pooling",
        convert="embed",
        pooler_config={"pooling_type": "MEAN"},
        kv_cache_memory_bytes=KV_BYTES,
        dtype="float32",
        **SMALL,
    )


@cache
def engine() -> Any:
    """An `LLMEngine`."""
    return baton.LLMEngine.from_engine_args(
        baton.EngineArgs(model=MODEL, kv_cache_memory_bytes=KV_BYTES, dtype="float32", **SMALL)
    )


@cache
def folder() -> Path:
    """A folder for what probes write, until this process ends."""
    made = mkdtemp(prefix="vllm-audit-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def generated(prompt: Any = PROMPT, *, subject: Any = None, **params: Any) -> Any:
    """The output of one prompt, greedy unless `params` say otherwise."""
    params = {"temperature": 0.0, "max_tokens": 4, **params}
    return (subject or llm()).generate(prompt, baton.SamplingParams(**params), use_tqdm=False)[0]


def expect(holds: object, otherwise: str) -> None:
    """Fail an item as different.

    Raises:
        DifferentError: it does not hold.
    """
    if not holds:
        raise DifferentError(otherwise)


@contextmanager
def said() -> Iterator[list[str]]:
    """Everything that is logged or warned of meanwhile, as text."""
    texts: list[str] = []

    class _Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    listener, root = _Listener(), logging.getLogger()
    level = root.level
    root.addHandler(listener)
    root.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield texts
        texts += [str(warning.message) for warning in caught]
    finally:
        root.removeHandler(listener)
        root.setLevel(level)
