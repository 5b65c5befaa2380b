"""The window and the totals count the same requests, whatever is known of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from baton_core.errors import ErrorCode
from baton_core.requests.finish import FinishReason
from baton_core.requests.request_context import RequestContext
from baton_core.sessions.router_messages import SequenceOutput
from baton_router.core.flow.request_record import RequestRecord, open_record
from baton_router.core.placement.placement_record import Candidate, Cost, Decision
from baton_router.core.router_events import FailRequest, FinishRequest, RequestTimings
from baton_router.metrics.latency_window import Latency
from baton_router.metrics.request_metrics import KEPT_S, RequestMetrics
from baton_router.requests.request_reader import PreparedRequest
from baton_router.streams.client_stream import ClientStream
from baton_service import vllm_metrics as vllm
from baton_service.exposition import Exposition
from tests.builders import make_request
from tests.unit.router.folders import make_tokenizer

NOW = 100.0
FAILED = FailRequest(request_id="r", code=ErrorCode.INTERNAL, message="a fault")
FINISHED = FinishRequest(request_id="r", num_prompt_tokens=4, num_output_tokens=1, num_cached_tokens=0)


def make_record(*, has_first_token: bool, has_ended: bool) -> RequestRecord:
    record = open_record(NOW - 2.0, make_request(), RequestContext())
    if has_first_token:
        record.take_first_token(NOW - 1.0, 0)
    if has_ended:
        record.finish(NOW, 1)
    return record


RECORDS = [
    pytest.param(None, id="no-record"),
    pytest.param(make_record(has_first_token=False, has_ended=False), id="running"),
    pytest.param(make_record(has_first_token=False, has_ended=True), id="without-tokens"),
    pytest.param(make_record(has_first_token=True, has_ended=True), id="with-times"),
]


@pytest.fixture
def stream(tmp_path: Path) -> ClientStream:
    stream = ClientStream(
        PreparedRequest(spec=make_request()), make_tokenizer(tmp_path), max_waiting_events=8
    )
    stream.push(SequenceOutput(request_id="r", index=0, token_ids=(1,), finish_reason=FinishReason.LENGTH))
    return stream


@pytest.fixture
def unfinished(tmp_path: Path) -> ClientStream:
    """Two sequences, of which one has ended."""
    stream = ClientStream(
        PreparedRequest(spec=make_request(n=2)), make_tokenizer(tmp_path), max_waiting_events=8
    )
    stream.push(SequenceOutput(request_id="r", index=1, token_ids=(1, 2), finish_reason=FinishReason.LENGTH))
    stream.push(SequenceOutput(request_id="r", index=0, token_ids=(1,)))
    return stream


def samples_of(
    requests: RequestMetrics, workers: Sequence[str] = (), now: float = NOW
) -> dict[tuple[str, str, str], float]:
    """By name, engine and reason of end, those that are not 0."""
    page = Exposition(vllm.REQUEST_FAMILIES)
    requests.report(page, "m", workers, now)
    return {
        (sample.name, sample.labels["engine"], sample.labels.get("finished_reason", "")): sample.value
        for family in text_string_to_metric_families(page.text().decode())
        for sample in family.samples
        if sample.value and sample.name.startswith("vllm:")
    }


def test_each_sequence_of_a_failed_request_ends_at_the_worker_that_had_it(unfinished: ClientStream) -> None:
    record = make_record(has_first_token=True, has_ended=True)
    chosen = Candidate(prefill="p", decode="d", cost=Cost())
    record.decisions = [
        Decision(policy="cost", at_s=1.0, chosen=chosen, reason="the only ones"),
        Decision(policy="cost", at_s=2.0, chosen=None, reason="none is left"),
    ]
    requests = RequestMetrics()
    requests.on_ended(NOW, unfinished, FAILED, record)
    requests.on_ended(NOW, unfinished, replace(FAILED, code=ErrorCode.CANCELLED), None)
    name = "vllm:request_success_total"
    assert {key: value for key, value in samples_of(requests).items() if key[0] == name} == {
        (name, "d", "length"): 1,
        (name, "d", "error"): 1,
        (name, "", "length"): 1,
        (name, "", "abort"): 1,
    }


def test_tokens_of_the_longest_sequence_are_told(unfinished: ClientStream) -> None:
    requests = RequestMetrics()
    end = replace(FINISHED, num_cached_tokens=1, timings=RequestTimings(decode_worker="d"))
    requests.on_ended(NOW, unfinished, end, None)
    told = samples_of(requests)
    assert told["vllm:request_generation_tokens_sum", "d", ""] == 3
    assert told["vllm:request_max_num_generation_tokens_sum", "d", ""] == 2
    assert told["vllm:request_prefill_kv_computed_tokens_sum", "d", ""] == 4 - 1


@pytest.mark.parametrize("record", RECORDS)
def test_each_request_is_counted_once_in_the_window_and_in_all_unless_its_client_left(
    record: RequestRecord | None, stream: ClientStream, tmp_path: Path
) -> None:
    requests = RequestMetrics()
    without_tokens = ClientStream(PreparedRequest(spec=make_request()), make_tokenizer(tmp_path))
    requests.on_ended(NOW, without_tokens, FAILED, record)
    requests.on_ended(NOW, without_tokens, replace(FAILED, code=ErrorCode.CANCELLED), record)
    requests.on_ended(NOW, stream, FINISHED, record)
    window, ended = requests.latencies.summary(NOW), requests.ended()
    assert (window.num_failed, ended.num_failed) == (1, 1)
    assert (window.num_finished, requests.num_finished_requests, ended.num_finished) == (1, 1, 1)


@pytest.mark.parametrize("code", [ErrorCode.OVERLOADED, ErrorCode.RATE_LIMIT_EXCEEDED])
def test_a_refusal_is_no_sequence_that_ended_in_an_error(
    code: ErrorCode, tmp_path: Path, unfinished: ClientStream
) -> None:
    requests = RequestMetrics()
    refused = ClientStream(
        PreparedRequest(spec=make_request()), make_tokenizer(tmp_path), max_waiting_events=8
    )
    refusal = replace(FAILED, code=code)
    requests.on_ended(NOW, refused, refusal, None)
    assert requests.ended().num_failed == 1
    assert not samples_of(requests)
    requests.on_ended(NOW, unfinished, refusal, None)  # after its first token
    assert samples_of(requests)["vllm:request_success_total", "", "error"] == 1


def test_latencies_are_those_of_requests_whose_times_are_known(stream: ClientStream) -> None:
    requests = RequestMetrics()
    requests.on_ended(NOW, stream, FINISHED, None)
    requests.on_ended(NOW, stream, FINISHED, make_record(has_first_token=True, has_ended=True))
    counts = {one.metric: one.count for one in requests.latencies.summary(NOW).percentiles}
    assert counts == {Latency.TTFT: 1, Latency.E2E: 1, Latency.TPOT: 0, Latency.ITL: 0}


def test_a_worker_that_is_long_gone_is_reported_no_more_and_stays_in_the_totals(stream: ClientStream) -> None:
    requests = RequestMetrics()
    requests.on_ended(NOW, stream, replace(FINISHED, timings=RequestTimings(decode_worker="d")), None)
    name = ("vllm:prompt_tokens_total", "d", "")
    assert name in samples_of(requests, ["d"], NOW)
    assert name in samples_of(requests, [], NOW + KEPT_S)
    assert name in samples_of(requests, [], NOW + KEPT_S + 1.0)
    before = requests.ended()
    assert name not in samples_of(requests, [], NOW + KEPT_S + 2.0)
    assert requests.ended() == before
    assert before.num_prompt_tokens == 4
