"""A router makes the spans of a request from its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from baton_core.errors import ErrorCode
from baton_core.requests.phases import Phase, PhaseName
from baton_core.requests.pooling import PoolingSpec, PoolingTask
from baton_core.requests.request_context import RequestContext
from baton_router.core.flow.request_record import RequestRecord, open_record
from baton_router.core.placement.placement_record import Candidate, Cost, Decision
from baton_router.core.router_events import FailRequest, FinishRequest, RequestTimings
from baton_router.requests.request_text import RequestText
from baton_router.requests.validation import read_traceparent
from baton_router.streams.request_spans import RequestSpans
from baton_router.text.tokenization import Tokenizer
from baton_service.tracing import Span
from tests.builders import make_request
from tests.unit.router.folders import make_tokenizer

CLIENTS = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CHOSEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-1111111111111111-01"
CONTEXT = RequestContext(traceparent=CLIENTS, arrived_s=1.0)
FINISHED = FinishRequest(
    request_id="r",
    num_prompt_tokens=8,
    num_output_tokens=2,
    num_cached_tokens=4,
    timings=RequestTimings(queue_s=0.5, prefill_worker="p", decode_worker="d"),
)


class Kept:
    """A `Tracing` that keeps what it is given."""

    def __init__(self, chosen: str = CHOSEN) -> None:
        self.chosen = chosen
        self.parents: list[str] = []
        self.roots: list[Span] = []
        self.spans: list[Span] = []

    def begin(self, parent: str) -> str:
        self.parents.append(parent)
        return self.chosen

    def export_root(self, now: float, traceparent: str, parent: str, span: Span) -> None:
        assert (now, traceparent, parent) == (9.0, self.chosen, CLIENTS)
        self.roots.append(span)

    def export(self, now: float, traceparent: str, spans: Sequence[Span]) -> None:
        assert (now, traceparent) == (9.0, self.chosen)
        self.spans += spans

    def close(self) -> None:
        return


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return make_tokenizer(tmp_path)


def begin(kept: Kept, tokenizer: Tokenizer) -> tuple[RequestText, RequestRecord]:
    """A request that is placed at 2 and has its first token at 3."""
    spec = make_request(traceparent=RequestSpans(kept, "m").begin(CONTEXT), max_tokens=2)
    tokenize = Phase(name=PhaseName.TOKENIZE, start_s=1.5, end_s=2.0)
    record = open_record(2.0, spec, CONTEXT, (tokenize,))
    record.place(2.0)
    record.take_first_token(3.0, num_cached_tokens=4)
    return RequestText(spec, tokenizer), record


def end(kept: Kept, text: RequestText, record: RequestRecord, how: FinishRequest | FailRequest) -> Span:
    RequestSpans(kept, "m").on_ended(9.0, text, how, record, is_chat=True)
    (root,) = kept.roots
    return root


def test_a_request_is_given_its_place_below_its_clients_span(tokenizer: Tokenizer) -> None:
    kept = Kept()
    text, record = begin(kept, tokenizer)
    assert kept.parents == [CLIENTS]
    assert text.spec.traceparent == record.traceparent == CHOSEN


def test_the_root_span_bears_both_sets_of_names(tokenizer: Tokenizer) -> None:
    kept = Kept()
    text, record = begin(kept, tokenizer)
    text.finish_reasons.append("length")
    record.finish(5.0, num_output_tokens=2)
    root = end(kept, text, record, FINISHED)
    assert (root.name, root.start_s, root.end_s, root.error) == ("llm_request", 1.0, 5.0, "")
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.request.id": "r",
        "gen_ai.request.max_tokens": 2,
        "gen_ai.usage.input_tokens": 8,
        "gen_ai.usage.prompt_tokens": 8,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.latency.time_in_queue": 0.5,
        "gen_ai.latency.time_to_first_token": 2.0,
        "gen_ai.latency.e2e": 4.0,
        "baton.prefill_worker": "p",
        "baton.decode_worker": "d",
    }
    assert {name: root.attributes[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("task", "operation"), [(PoolingTask.EMBED, "embeddings"), (PoolingTask.CLASSIFY, "classify")]
)
def test_the_span_of_a_pooled_prompt_has_no_sampling(
    task: PoolingTask, operation: str, tokenizer: Tokenizer
) -> None:
    kept = Kept()
    text, record = begin(kept, tokenizer)
    text.spec = replace(text.spec, pooling=PoolingSpec(task=task))
    record.finish(5.0, num_output_tokens=0)
    RequestSpans(kept, "m").on_ended(9.0, text, FINISHED, record, model="asked-for")
    (root,) = kept.roots
    assert root.attributes["gen_ai.operation.name"] == operation
    assert root.attributes["gen_ai.request.model"] == "asked-for"
    assert root.attributes["gen_ai.response.model"] == "m"
    names = ("max_tokens", "temperature", "top_p", "n")
    assert not {f"gen_ai.request.{name}" for name in names} & {*root.attributes}


def test_the_routers_phases_are_spans_and_a_placement_has_its_decision(tokenizer: Tokenizer) -> None:
    kept = Kept()
    text, record = begin(kept, tokenizer)
    cost = Cost(queue_s=0.25, prefill_s=0.5, gap_s=0.125)
    chosen = Candidate(prefill="p", decode="d", cost=cost, num_cached_tokens=4)
    record.decisions = [
        Decision(policy="cost", at_s=1.75, chosen=None, reason="nobody was there"),
        Decision(policy="cost", at_s=2.0, chosen=chosen, reason="it is the fastest", num_candidates=3),
    ]
    record.finish(5.0, num_output_tokens=2)
    end(kept, text, record, FINISHED)
    assert [(span.name, span.start_s, span.end_s) for span in kept.spans] == [
        ("tokenize", 1.5, 2.0),
        ("admit", 2.0, 2.0),
        ("place", 2.0, 2.0),
        ("first_token", 3.0, 3.0),
        ("finish", 5.0, 5.0),
    ]
    assert kept.spans[2].attributes == {
        "baton.placement.policy": "cost",
        "baton.placement.reason": "it is the fastest",
        "baton.placement.num_candidates": 3,
        "baton.placement.prefill_worker": "p",
        "baton.placement.decode_worker": "d",
        "baton.placement.num_cached_tokens": 4,
        "baton.placement.predicted_ttft_s": 0.75,
        "baton.placement.predicted_gap_s": 0.125,
    }


def test_a_failure_is_named_by_its_code_and_not_by_its_words(tokenizer: Tokenizer) -> None:
    kept = Kept()
    text, record = begin(kept, tokenizer)
    record.fail(4.0, 1, ErrorCode.WORKER_LOST, "worker d was lost")
    failed = FailRequest(request_id="r", code=ErrorCode.WORKER_LOST, message="worker d was lost")
    root = end(kept, text, record, failed)
    assert (root.error, root.attributes["error.type"]) == ("worker_lost", "worker_lost")
    assert "worker d was lost" not in repr(root)


def test_nothing_is_told_where_nobody_traces(tokenizer: Tokenizer) -> None:
    kept = Kept(chosen="")
    text, record = begin(kept, tokenizer)
    record.finish(5.0, num_output_tokens=2)
    RequestSpans(kept, "m").on_ended(9.0, text, FINISHED, record)
    assert (text.spec.traceparent, kept.roots, kept.spans) == ("", [], [])


@pytest.mark.parametrize("text", [CLIENTS, f" {CLIENTS} ", f"cc-{CLIENTS[3:]}-what-the-future-brings"])
def test_a_traceparent_is_taken_as_it_is(text: str) -> None:
    assert read_traceparent(text) == text.strip()


@pytest.mark.parametrize("text", ["", "00", CLIENTS.upper(), CLIENTS + "x", CLIENTS + "-" + "x" * 100])
def test_what_is_no_traceparent_is_passed_over(text: str) -> None:
    assert read_traceparent(text) == ""
