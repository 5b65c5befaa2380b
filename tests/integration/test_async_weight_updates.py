"""`AsyncLLMEngine` changes its weights between requests: each answer is of one version."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from baton import AsyncLLMEngine, RequestOutput
from baton_core.errors import EngineDeadError, InvalidModelError, InvalidRequestError, RequestError
from tests.e2e.calls import greedy
from tests.integration.router_cluster import MODEL
from tests.integration.tiny_llm import tiny_args
from tests.integration.weight_versions import NUM_TOKENS, PROMPTS, answers_of, write_version

LONG = 400
"""Tokens that take many steps."""
IN_PROCESSES = {"prefill_workers": 1, "decode_workers": 1}


def started(**changes: Any) -> AsyncLLMEngine:
    return AsyncLLMEngine.from_engine_args(
        tiny_args(MODEL, dtype="float32", kv_cache_memory_bytes=32 << 20, **changes)
    )


pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", params=[{}, IN_PROCESSES], ids=["on a thread", "in processes"])
def shared(request: pytest.FixtureRequest) -> Iterator[AsyncLLMEngine]:
    engine = started(**request.param)
    yield engine
    engine.shutdown()


@pytest.fixture
def engine(shared: AsyncLLMEngine) -> Iterator[AsyncLLMEngine]:
    """An engine with the weights of its model, which it gets again after the test."""

    async def restore() -> None:
        await stage(shared, path=str(MODEL))
        await shared.finish_weight_update("default")

    yield shared
    asyncio.run(restore())


@pytest.fixture
def threaded() -> Iterator[AsyncLLMEngine]:
    engine = started()
    yield engine
    engine.shutdown()


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with other weights."""
    return write_version(tmp_path_factory.mktemp("weights") / "new")


async def generated(engine: AsyncLLMEngine, index: int, num_tokens: int, name: str) -> RequestOutput:
    """The last output of a prompt."""
    outputs = engine.generate(list(PROMPTS[index]), greedy(num_tokens), name)
    *_, output = [output async for output in outputs]
    return output


async def tokens(engine: AsyncLLMEngine, index: int, name: str) -> list[int]:
    return list((await generated(engine, index, NUM_TOKENS, name)).outputs[0].token_ids)


async def stage(engine: AsyncLLMEngine, **info: Any) -> None:
    await engine.init_weight_transfer_engine({"init_info": {}})
    await engine.start_weight_update()
    await engine.update_weights({"update_info": info})


async def is_open(engine: AsyncLLMEngine, name: str) -> None:
    while name not in engine._open:  # noqa: ASYNC110  (the engine tells nobody)
        await asyncio.sleep(0.01)


async def test_every_answer_under_load_is_of_one_version(engine: AsyncLLMEngine, new: Path) -> None:
    old_answers, new_answers = answers_of(), answers_of(new)
    assert all(old != other for old, other in zip(old_answers, new_answers, strict=True))
    versions: list[str] = []
    is_over = asyncio.Event()

    async def load(index: int) -> None:
        while not is_over.is_set():
            found = await tokens(engine, index, f"r{index}")
            assert found in (old_answers[index], new_answers[index])
            versions.append("old" if found == old_answers[index] else "new")

    async with asyncio.TaskGroup() as clients:
        for index in range(len(PROMPTS)):
            clients.create_task(load(index))
        while len(versions) < len(PROMPTS):  # noqa: ASYNC110  (the clients tell nobody)
            await asyncio.sleep(0.01)
        await stage(engine, path=str(new))
        assert {*versions} == {"old"}
        await engine.finish_weight_update()
        num_answers = len(versions)
        while len(versions) < num_answers + 2 * len(PROMPTS):  # noqa: ASYNC110  (the same)
            await asyncio.sleep(0.01)
        is_over.set()
    assert {*versions[-len(PROMPTS) :]} == {"new"}


async def test_what_is_open_ends_on_the_old_weights_and_what_comes_begins_on_the_new_ones(
    engine: AsyncLLMEngine, new: Path
) -> None:
    expected = list((await generated(engine, 1, LONG, "old")).outputs[0].token_ids)
    await stage(engine, path=str(new))
    running = asyncio.create_task(generated(engine, 1, LONG, "running"))
    await is_open(engine, "running")
    finishing = asyncio.create_task(engine.finish_weight_update())
    await asyncio.sleep(0.1)
    late = asyncio.create_task(generated(engine, 0, NUM_TOKENS, "late"))
    await asyncio.sleep(0.1)
    assert not running.done()
    assert not finishing.done()
    assert not late.done()
    assert list((await running).outputs[0].token_ids) == expected
    await finishing
    output = await late
    assert list(output.outputs[0].token_ids) == answers_of(new)[0]
    assert output.num_cached_tokens == 0


async def test_tensors_are_taken_and_those_that_do_not_fit_leave_the_old_weights(
    engine: AsyncLLMEngine, new: Path
) -> None:
    tensors = load_file(new / "model.safetensors")
    with pytest.raises(RequestError, match="allowed: start_weight_update first"):
        await engine.finish_weight_update()
    lacking = dict(list(tensors.items())[1:])
    await stage(engine, tensors=lacking)
    with pytest.raises((InvalidModelError, RequestError), match=r"tensor \S+ is missing"):
        await engine.finish_weight_update()
    assert await tokens(engine, 0, "a") == answers_of()[0]
    await stage(engine, tensors=tensors)
    assert await engine.get_weight_version() == "default"
    await engine.finish_weight_update("step-2")
    assert await engine.get_weight_version() == "step-2"
    assert await tokens(engine, 0, "b") == answers_of(new)[0]
    with pytest.raises(InvalidRequestError, match="is_checkpoint_format is False; allowed: True"):
        await engine.start_weight_update(is_checkpoint_format=False)


async def test_requests_that_are_aborted_do_not_keep_an_update_waiting(
    threaded: AsyncLLMEngine, new: Path
) -> None:
    await stage(threaded, path=str(new))
    running = asyncio.create_task(generated(threaded, 1, LONG, "running"))
    await is_open(threaded, "running")
    finishing = asyncio.create_task(threaded.finish_weight_update())
    await asyncio.sleep(0)
    held = asyncio.create_task(generated(threaded, 1, LONG, "held"))
    await is_open(threaded, "held")
    await threaded.abort(["held", "running"])
    assert (await held).outputs[0].token_ids == []
    assert len((await running).outputs[0].token_ids) < LONG
    await finishing
    assert await tokens(threaded, 0, "new") == answers_of(new)[0]


async def test_an_update_is_refused_while_open_requests_are_paused(
    threaded: AsyncLLMEngine, new: Path
) -> None:
    await stage(threaded, path=str(new))
    kept = asyncio.create_task(generated(threaded, 1, LONG, "kept"))
    await is_open(threaded, "kept")
    await threaded.sleep(0, mode="keep")
    with pytest.raises(RequestError, match="allowed with 1 requests open: 0"):
        await threaded.finish_weight_update()
    await threaded.wake_up()
    assert len((await kept).outputs[0].token_ids) == LONG
    await threaded.finish_weight_update()


async def test_a_shutdown_ends_an_update_that_waits_and_the_requests_behind_it(
    threaded: AsyncLLMEngine, new: Path
) -> None:
    await stage(threaded, path=str(new))
    running = asyncio.create_task(generated(threaded, 1, LONG, "running"))
    await is_open(threaded, "running")
    finishing = asyncio.create_task(threaded.finish_weight_update())
    await asyncio.sleep(0)
    held = asyncio.create_task(generated(threaded, 1, LONG, "held"))
    await is_open(threaded, "held")
    await asyncio.to_thread(threaded.shutdown)
    results = await asyncio.gather(running, finishing, held, return_exceptions=True)
    assert [type(result) for result in results] == [EngineDeadError, RequestError, EngineDeadError]
