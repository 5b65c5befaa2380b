"""The window and the totals count the same requests, whatever is known of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from baton_core.errors import ErrorCode
from baton_core.requests.finish import FinishReason
from baton_core.requests.request_context import RequestContext
from baton_core.sessions.router_messages import SequenceOutput
from baton_router.core.flow.request_record import RequestRecord, open_record
from baton_router.core.router_events import FailRequest, FinishRequest
from baton_router.metrics.latency_window import Latency
from baton_router.metrics.request_metrics import RequestMetrics
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
    stream = ClientStream(make_request(), make_tokenizer(tmp_path), max_waiting_events=8)
    stream.push(SequenceOutput(request_id="r", index=0, token_ids=(1,), finish_reason=FinishReason.LENGTH))
    return stream


@pytest.mark.parametrize("record", RECORDS)
def test_each_request_is_counted_once_in_the_window_and_in_all(
    record: RequestRecord | None, stream: ClientStream
) -> None:
    requests = RequestMetrics()
    requests.on_ended(NOW, stream, FAILED, record)
    requests.on_ended(NOW, stream, FINISHED, record)
    window, ended = requests.latencies.summary(NOW), requests.ended()
    assert (window.num_failed, ended.num_failed) == (1, 1)
    assert (window.num_finished, requests.num_finished_requests, ended.num_finished) == (1, 1, 1)


def test_a_refusal_is_no_sequence_that_ended_in_an_error(tmp_path: Path, stream: ClientStream) -> None:
    requests, page = RequestMetrics(), Exposition(vllm.REQUEST_FAMILIES)
    refused = ClientStream(make_request(), make_tokenizer(tmp_path), max_waiting_events=8)
    overloaded = replace(FAILED, code=ErrorCode.OVERLOADED)
    requests.on_ended(NOW, refused, overloaded, None)
    assert requests.ended().num_failed == 1
    requests.report(page, "m")
    assert b"finished_reason" not in page.text()
    requests.on_ended(NOW, stream, overloaded, None)  # after its first token
    requests.report(page, "m")
    assert b'finished_reason="error"' in page.text()


def test_latencies_are_those_of_requests_whose_times_are_known(stream: ClientStream) -> None:
    requests = RequestMetrics()
    requests.on_ended(NOW, stream, FINISHED, None)
    requests.on_ended(NOW, stream, FINISHED, make_record(has_first_token=True, has_ended=True))
    counts = {one.metric: one.count for one in requests.latencies.summary(NOW).percentiles}
    assert counts == {Latency.TTFT: 1, Latency.E2E: 1, Latency.TPOT: 0, Latency.ITL: 0}
