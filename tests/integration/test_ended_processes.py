"""`LLM` and `AsyncLLMEngine` whose processes have ended: every call says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from baton import LLM, AsyncLLMEngine
from baton_core.errors import EngineDeadError, RequestError
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args
from tests.models import make_model

ENDED = "the processes of the cluster have ended"


@pytest.fixture
def args(tmp_path: Path) -> Any:
    folder = make_model(tmp_path / "llama", "llama", num_layers=1)
    return tiny_args(folder, prefill_workers=1, decode_workers=1)


async def collect(outputs: AsyncIterator[Any]) -> list[Any]:
    return [output async for output in outputs]


def kill(executor: Any) -> None:
    executor._process._process.kill()
    executor._process._process.wait()


def test_every_call_of_an_llm_says_so(args: Any) -> None:
    with LLM.from_engine_args(args) as llm:
        llm.enqueue(PROMPT, greedy(400), use_tqdm=False)
        kill(llm.llm_engine._executor)
        with pytest.raises(RequestError):
            llm.wait_for_completion(use_tqdm=False)
        for call in (
            llm.get_metrics,
            llm.reset_prefix_cache,
            llm.sleep,
            lambda: llm.generate(PROMPT, greedy(2), use_tqdm=False),
        ):
            with pytest.raises(EngineDeadError, match=ENDED):
                call()


async def test_every_call_of_an_async_engine_says_so(args: Any) -> None:
    engine = AsyncLLMEngine.from_engine_args(args)
    kill(engine._executor)
    for call in (engine.get_metrics, engine.reset_prefix_cache, engine.sleep):
        with pytest.raises(EngineDeadError, match=ENDED):
            await call()
    with pytest.raises(EngineDeadError, match=ENDED):
        await collect(engine.generate(PROMPT, greedy(2), "a"))
    engine.shutdown()


async def test_what_is_open_ends_with_an_error_when_an_async_engine_is_shut_down(args: Any) -> None:
    engine = AsyncLLMEngine.from_engine_args(args)
    outputs = engine.generate(PROMPT, greedy(400), "open")
    await anext(outputs)
    engine.shutdown()
    with pytest.raises(EngineDeadError, match="open: the engine is shut down"):
        async with asyncio.timeout(10):
            await collect(outputs)
