"""Traces of an engine in this process: the same spans, of one process."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from baton import LLM, AsyncLLMEngine, LLMEngine, PoolingParams
from baton.api import trace_headers
from baton_core.errors import InvalidRequestError
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args
from tests.models import make_model
from tests.otlp_receiver import OtlpReceiver, ReceivedSpan, receiving

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = {"Traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "tracestate": "congo=t61rcWkgMzE"}
NOT_SAMPLED = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-00"}
MALFORMED: list[Any] = [
    {},
    {"traceparent": "00"},
    {"traceparent": f"00-{'0' * 32}-{PARENT_ID}-01"},
    {"traceparent": 1, 2: "a"},
    {"tracestate": "congo=t61rcWkgMzE"},
]
PROCESSES = {"prefill_workers": 1, "decode_workers": 1}
PHASES = ["admit", "decode", "decode_queue", "finish", "first_token", "place", "prefill_chunk", "queue"]


def test_an_llm_exports_a_trace_for_each_prompt(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "llama", "llama")
    with receiving() as receiver:
        args = tiny_args(folder, otlp_traces_endpoint=f"http://{receiver.address}")
        with LLM.from_engine_args(args) as llm:
            llm.generate([{"prompt_token_ids": PROMPT}] * 2, greedy(3))
        roots = [span for span in receiver.spans if span.name == "llm_request"]
        assert len({root.trace_id for root in roots}) == len(roots) == 2
        for root in roots:
            assert (root.service, root.attributes["gen_ai.usage.output_tokens"]) == ("baton", 3)
            phases = [span for span in receiver.trace(root.trace_id) if span.parent_id == root.span_id]
            assert sorted({span.name for span in phases}) == PHASES


def roots(receiver: OtlpReceiver) -> dict[str, ReceivedSpan]:
    """The root spans that came so far, by their requests."""
    found = [span for span in receiver.spans if span.name == "llm_request"]
    return {span.attributes["gen_ai.request.id"]: span for span in found}


def check(receiver: OtlpReceiver) -> None:
    """All but `own` are children of the caller's span, with their own phases below them."""
    found = roots(receiver)
    own = found.pop("own")
    assert own.trace_id != TRACE_ID
    assert not own.parent_id
    assert {(root.trace_id, root.parent_id) for root in found.values()} == {(TRACE_ID, PARENT_ID)}
    for root in found.values():
        names = {span.name for span in receiver.trace(TRACE_ID) if span.parent_id == root.span_id}
        assert names >= {"place", "queue", "prefill_chunk", "finish"}


@pytest.mark.parametrize("workers", [{}, PROCESSES], ids=["in process", "in processes"])
def test_a_request_is_traced_below_its_caller_s_span(folder: Path, workers: dict[str, int]) -> None:
    with receiving() as receiver:
        args = tiny_args(folder, otlp_traces_endpoint=f"http://{receiver.address}", **workers)
        engine = LLMEngine.from_engine_args(args)
        given = {"below": HEADERS, "unsampled": NOT_SAMPLED, "own": None}
        for name, headers in given.items():
            engine.add_request(name, PROMPT, greedy(2), trace_headers=headers)
        while engine.has_unfinished_requests():
            engine.step()
        engine.close()
        check(receiver)
        assert set(roots(receiver)) == {"below", "own"}


@pytest.mark.parametrize("workers", [{}, PROCESSES], ids=["on a thread", "in processes"])
async def test_asynchronous_requests_are_traced_below_their_caller_s_span(
    folder: Path, workers: dict[str, int]
) -> None:
    with receiving() as receiver:
        args = tiny_args(folder, otlp_traces_endpoint=f"http://{receiver.address}", **workers)
        engine = AsyncLLMEngine.from_engine_args(args)
        for name, headers in {"below": HEADERS, "own": None}.items():
            async for _ in engine.generate(PROMPT, greedy(2), name, trace_headers=headers):
                pass
        await asyncio.to_thread(engine.shutdown)
        check(receiver)


async def test_pooled_requests_are_traced_below_their_caller_s_span(folder: Path) -> None:
    with receiving() as receiver:
        args = tiny_args(folder, runner="pooling", otlp_traces_endpoint=f"http://{receiver.address}")
        engine = AsyncLLMEngine.from_engine_args(args)
        for name, headers in {"below": HEADERS, "own": None}.items():
            async for _ in engine.encode(PROMPT, PoolingParams(), name, trace_headers=headers):
                pass
        engine.shutdown()
        check(receiver)


def test_malformed_headers_are_ignored(folder: Path) -> None:
    with receiving() as receiver:
        engine = LLMEngine.from_engine_args(
            tiny_args(folder, otlp_traces_endpoint=f"http://{receiver.address}")
        )
        for number, headers in enumerate(MALFORMED):
            engine.add_request(str(number), PROMPT, greedy(1), trace_headers=headers)
        with pytest.raises(InvalidRequestError, match="trace_headers is 'a'; allowed: None, or a mapping"):
            engine.add_request("none", PROMPT, greedy(1), trace_headers="a")  # type: ignore[arg-type]
        while engine.has_unfinished_requests():
            engine.step()
        engine.close()
        found = roots(receiver)
        assert len(found) == len({root.trace_id for root in found.values()}) == len(MALFORMED)
        assert {root.parent_id for root in found.values()} == {""}


def test_without_tracing_it_is_said_once_that_headers_are_ignored(
    llm: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    trace_headers._warn_ignored.cache_clear()
    with caplog.at_level(logging.WARNING, trace_headers.__name__):
        llm.llm_engine.add_request("silent", PROMPT, greedy(1), trace_headers={"accept": "*/*"})
        assert not caplog.messages
        for name in ("first", "second"):
            llm.llm_engine.add_request(name, PROMPT, greedy(1), trace_headers=HEADERS)
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
    assert caplog.messages == ["trace_headers are ignored: nothing is traced without otlp_traces_endpoint"]
