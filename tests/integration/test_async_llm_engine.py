"""`AsyncLLMEngine`: one event loop, an engine on a thread or in processes of its own."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from baton import AsyncEngineArgs, AsyncLLMEngine, RequestOutput, RequestOutputKind
from baton_core.errors import EngineDeadError, InvalidRequestError, RequestError
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args

LONG = 400
"""Tokens that take many steps."""


@pytest.fixture(scope="module", params=["on a thread", "in processes"])
def engine(folder: Path, request: pytest.FixtureRequest) -> Iterator[AsyncLLMEngine]:
    workers = {"prefill_workers": 1, "decode_workers": 1} if request.param == "in processes" else {}
    fields = {name: getattr(tiny_args(folder), name) for name in ("model", "kv_cache_memory_bytes")}
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(**fields, **workers, enable_log_requests=True))
    yield engine
    engine.shutdown()
    assert not engine.is_running


@pytest.fixture
def threaded(folder: Path) -> Iterator[AsyncLLMEngine]:
    engine = AsyncLLMEngine.from_engine_args(tiny_args(folder))
    yield engine
    engine.shutdown()


async def collect(outputs: AsyncIterator[RequestOutput]) -> list[RequestOutput]:
    return [output async for output in outputs]


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  (the engine tells nobody)
        await asyncio.sleep(0.01)


async def until_idle(engine: AsyncLLMEngine) -> None:
    """Wait until nothing runs and no block is in use."""
    load = await engine._executor.load()
    while load.num_running or load.num_waiting or load.kv_cache_usage:
        await asyncio.sleep(0.01)
        load = await engine._executor.load()


async def test_a_short_prompt_is_not_handed_over(engine: AsyncLLMEngine) -> None:
    *_, last = await collect(engine.generate(PROMPT[:8], greedy(4), "short"))
    assert last.kv_transfer_params is None


async def test_callers_beside_each_other_get_their_own_outputs(engine: AsyncLLMEngine) -> None:
    calls = [
        collect(engine.generate(PROMPT[: 9 + number % 5], greedy(8), f"r{number}")) for number in range(20)
    ]
    outputs = await asyncio.gather(*calls)
    alone = [
        (await collect(engine.generate(PROMPT[: 9 + length], greedy(8), "alone")))[-1] for length in range(5)
    ]
    for number, shown in enumerate(outputs):
        assert {output.request_id for output in shown} == {f"r{number}"}
        assert [output.finished for output in shown] == [False] * (len(shown) - 1) + [True]
        assert shown[-1].outputs == alone[number % 5].outputs
    await until_idle(engine)


async def test_each_kind_shows_the_same_tokens(engine: AsyncLLMEngine) -> None:
    whole, parts, final = await asyncio.gather(
        *(
            collect(engine.generate(PROMPT, greedy(9, output_kind=kind), kind.name))
            for kind in RequestOutputKind
        )
    )
    tokens = whole[-1].outputs[0].token_ids
    assert len(tokens) == 9
    assert [token for output in parts for token in output.outputs[0].token_ids] == tokens
    assert [output.outputs[0].token_ids for output in final] == [tokens]
    assert "".join(output.outputs[0].text for output in parts) == whole[-1].outputs[0].text


async def test_every_output_says_how_many_prompt_tokens_were_cached(engine: AsyncLLMEngine) -> None:
    for name in ("fresh", "again"):
        outputs = await collect(engine.generate(PROMPT, greedy(6), name))
        assert {output.num_cached_tokens for output in outputs} == {outputs[-1].num_cached_tokens}
    assert outputs[0].num_cached_tokens


async def test_leaving_an_iterator_aborts_its_request(engine: AsyncLLMEngine) -> None:
    async for output in engine.generate(PROMPT, greedy(LONG), "left"):
        assert not output.finished
        break
    gc.collect()
    await until_idle(engine)
    closed = engine.generate(PROMPT, greedy(LONG), "closed")
    await anext(closed)
    await closed.aclose()
    assert not engine.get_num_unfinished_requests()
    task = asyncio.create_task(collect(engine.generate(PROMPT, greedy(LONG), "cancelled")))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_idle(engine)
    again = await collect(engine.generate(PROMPT, greedy(3), "left"))
    assert len(again[-1].outputs[0].token_ids) == 3


async def test_an_aborted_request_ends_with_what_it_has(engine: AsyncLLMEngine) -> None:
    task = asyncio.create_task(collect(engine.generate(PROMPT, greedy(LONG), "aborted")))
    await until(lambda: engine._open)
    await engine.abort(["aborted", "nobody"])
    output = (await task)[-1]
    assert output.finished
    assert output.outputs[0].finish_reason == "abort"
    assert len(output.outputs[0].token_ids) < LONG
    await until_idle(engine)


async def test_trainers_count_end_and_await_requests(threaded: AsyncLLMEngine) -> None:
    requests = threaded.output_processor
    tasks = [asyncio.create_task(collect(threaded.generate(PROMPT, greedy(LONG), name))) for name in "ab"]
    await until(lambda: requests.get_num_unfinished_requests() == 2)
    assert set(requests.request_states) == {"a", "b"}
    assert requests.abort_requests(["a", "nobody"]) == ["a"]
    await threaded.engine_core.abort_requests_async(["a"])
    with pytest.raises(TimeoutError):
        await threaded.wait_for_requests_to_drain(0.001)
    await threaded.wait_for_requests_to_drain()
    assert [(await task)[-1].outputs[0].finish_reason for task in tasks] == ["abort", "length"]
    assert not requests.has_unfinished_requests()


async def test_an_abort_needs_nobody_who_reads(engine: AsyncLLMEngine) -> None:
    unread = engine.generate(PROMPT, greedy(LONG), "unread")
    num_tokens = len((await anext(unread)).outputs[0].token_ids)
    await engine.abort("unread")
    assert engine.get_num_unfinished_requests() == 0
    await until_idle(engine)
    assert (await collect(engine.generate(PROMPT, greedy(3), "unread")))[-1].finished
    (last,) = await collect(unread)
    assert last.outputs[0].finish_reason == "abort"
    assert num_tokens <= len(last.outputs[0].token_ids) < LONG


@pytest.mark.parametrize(("mode", "reason"), [("abort", "abort"), ("wait", "length")])
async def test_a_sleep_needs_nobody_who_reads(engine: AsyncLLMEngine, mode: str, reason: str) -> None:
    unread = engine.generate(PROMPT, greedy(40), "unread")
    await anext(unread)
    async for output in engine.generate(PROMPT, greedy(40), "own"):
        last = output
        if not await engine.is_sleeping():
            await engine.sleep(1, mode)
    assert last.outputs[0].finish_reason == reason
    await engine.wake_up()
    await engine.pause_generation(mode=mode)
    await engine.resume_generation()
    (output,) = await collect(engine.generate(PROMPT, greedy(1), "after"))
    assert output.num_cached_tokens == 0
    assert (await collect(unread))[-1].outputs[0].finish_reason == reason


async def test_a_slow_caller_misses_nothing_and_holds_nobody_up(engine: AsyncLLMEngine) -> None:
    slow = engine.generate(PROMPT, greedy(LONG, output_kind=RequestOutputKind.DELTA), "slow")
    tokens = list((await anext(slow)).outputs[0].token_ids)
    quick = await collect(engine.generate(PROMPT, greedy(LONG), "quick"))
    await until_idle(engine)
    num_outputs = 0
    async for output in slow:
        num_outputs += 1
        tokens += output.outputs[0].token_ids
    assert tokens == quick[-1].outputs[0].token_ids
    assert num_outputs == 1, "what has come in the meantime is shown at once"


async def test_refusals_reach_their_caller_alone(engine: AsyncLLMEngine) -> None:
    for params, said in (
        ({"sampling_params": greedy(1, stop_token_ids=(9999,))}, "stop_token_ids is 9999"),
        ({"lora_request": "a"}, "lora_request is 'a'; allowed: None"),
        ({"prompt": []}, "prompt is '0 tokens'"),
    ):
        given = {"prompt": PROMPT, "sampling_params": greedy(1), "request_id": "bad", **params}
        with pytest.raises(InvalidRequestError, match=said):
            await collect(engine.generate(**given))
    assert await collect(engine.generate(PROMPT, greedy(1), "first in, first out", priority=3))
    first = engine.generate(PROMPT, greedy(400), "twice")
    assert not (await anext(first)).finished
    with pytest.raises(InvalidRequestError, match="request_id is 'twice'; allowed: a name that no open"):
        await collect(engine.generate(PROMPT, greedy(5), "twice"))
    assert (await collect(first))[-1].finished


async def test_a_name_is_free_with_the_last_output(engine: AsyncLLMEngine) -> None:
    async for output in engine.generate(PROMPT, greedy(2), "again"):
        if output.finished:
            assert (await collect(engine.generate(PROMPT, greedy(2), "again")))[-1].finished


async def test_it_says_how_it_does(engine: AsyncLLMEngine, caplog: pytest.LogCaptureFixture) -> None:
    await engine.check_health()
    with caplog.at_level(logging.INFO, "baton"):
        await collect(engine.generate(PROMPT, greedy(1), "logged"))
        await engine.do_log_stats()
    (request,) = [text for text in caplog.messages if text.startswith("request logged: 70 tokens, ")]
    assert "max_tokens=1" in request
    assert any("prompt tokens/s" in text for text in caplog.messages)
    assert engine.get_tokenizer().eos_token == "<|im_end|>"
    names = [metric.name for metric in await engine.get_metrics()]
    assert names[0] == "vllm:num_requests_running"


def test_one_loop_may_follow_another(engine: AsyncLLMEngine) -> None:
    async def main() -> None:
        assert len((await collect(engine.generate(PROMPT, greedy(2), "again")))[-1].outputs[0].token_ids) == 2

    asyncio.run(main())
    asyncio.run(main())


async def test_an_engine_on_a_thread_sleeps_and_wakes_up(threaded: AsyncLLMEngine) -> None:
    engine = threaded
    expected = (await collect(engine.generate(PROMPT, greedy(6), "a")))[-1].outputs
    task = asyncio.create_task(collect(engine.generate(PROMPT, greedy(LONG), "long")))
    await until(lambda: engine._open)
    await engine.sleep(2)
    assert (await task)[-1].outputs[0].finish_reason == "abort"
    assert await engine.is_sleeping()
    with pytest.raises(RequestError, match="the engine sleeps without kv_cache and weights"):
        await collect(engine.generate(PROMPT, greedy(1), "b"))
    assert not await engine.wake_up(["weights"])
    assert await engine.is_sleeping()
    assert await engine.wake_up()
    output = (await collect(engine.generate(PROMPT, greedy(6), "c")))[-1]
    assert (output.outputs, output.num_cached_tokens) == (expected, 0)
    waiting = asyncio.create_task(collect(engine.generate(PROMPT, greedy(LONG), "d")))
    await until(lambda: engine.get_num_unfinished_requests() == 1)
    await engine.sleep(0, mode="keep")
    kept = asyncio.create_task(collect(engine.generate(PROMPT, greedy(6), "e")))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    assert not kept.done()
    with pytest.raises(RequestError, match="the engine sleeps; allowed: wake_up first"):
        await engine.sleep(0, mode="wait")
    await engine.wake_up()
    assert len((await waiting)[-1].outputs[0].token_ids) == LONG
    assert (await kept)[-1].outputs == expected


async def test_an_engine_on_a_thread_does_what_operators_ask(threaded: AsyncLLMEngine) -> None:
    assert await threaded.apply_model(lambda model: type(model).__name__) == ["LlamaForCausalLM"]
    assert await threaded.collective_rpc("builtins:isinstance", args=(object,)) == [True]
    assert await threaded.reset_prefix_cache()
    with pytest.raises(InvalidRequestError, match="torch_profiler_dir is ''; allowed: a folder"):
        await threaded.start_profile()
    with pytest.raises(InvalidRequestError, match="max_iterations is 2; allowed: None: a trace"):
        await threaded.start_profile(max_iterations=2)
    with pytest.raises(InvalidRequestError, match="stop_profile is 'called'"):
        await threaded.stop_profile()


async def test_what_is_open_ends_with_an_error_when_it_is_shut_down(folder: Path) -> None:
    engine = AsyncLLMEngine.from_engine_args(tiny_args(folder))
    task = asyncio.create_task(collect(engine.generate(PROMPT, greedy(LONG), "open")))
    await until(lambda: engine._open)
    await asyncio.to_thread(engine.shutdown)
    with pytest.raises(EngineDeadError, match="open: the engine is shut down"):
        await task
    assert engine.errored
    with pytest.raises(EngineDeadError, match="the engine is shut down"):
        await collect(engine.generate(PROMPT, greedy(1), "late"))
    with pytest.raises(EngineDeadError, match="the engine has ended"):
        await engine.check_health()


async def test_a_failure_of_the_engine_reaches_every_caller(
    threaded: AsyncLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(threaded._executor._executor, "step", fail)
    calls = [collect(threaded.generate(PROMPT, greedy(3), name)) for name in ("a", "b")]
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(result, EngineDeadError)
        assert "the engine failed: RuntimeError: out of order" in str(result)
    assert not threaded.is_running
