"""Traces of a real cluster at a real receiver: one for each request, connected, with every hop."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from baton_proto.v1 import baton_pb2 as pb
from tests.e2e.processes import BATON, NO_GRAMMARS, SMALL, Cluster, serving, starting, until
from tests.otlp_http_receiver import receiving_http
from tests.otlp_receiver import OtlpReceiver, ReceivedSpan, receiving

ROUTER, PREFILL, DECODE = "baton-router", "baton-prefill-worker", "baton-decode-worker"
TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "quagmire"
PROMPT = f"{SECRET} " * 300
NUM_TOKENS = 160
HOPS = {
    (ROUTER, "llm_request"),
    *((ROUTER, name) for name in ("receive", "tokenize", "admit", "place", "first_token", "finish")),
    *((PREFILL, name) for name in ("queue", "prefill_chunk")),
    *((DECODE, name) for name in ("transfer", "decode_queue", "decode")),
}


@dataclass(frozen=True, slots=True)
class Traced:
    cluster: Cluster
    receiver: OtlpReceiver

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        """The whole trace of a request that is over."""
        until(lambda: self._hops(trace_id) >= HOPS, 10.0, f"every hop in trace {trace_id}")
        return self.receiver.trace(trace_id)

    def _hops(self, trace_id: str) -> set[tuple[str, str]]:
        return {(span.service, span.name) for span in self.receiver.trace(trace_id)}


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    with receiving() as receiver, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        endpoint = ("--otlp-traces-endpoint", f"http://{receiver.address}")
        budget = ("--max-num-batched-tokens", "256", "--log-level", "debug")
        with serving(tmp_path_factory.mktemp("traced"), *SMALL, *NO_GRAMMARS, *endpoint, *budget) as cluster:
            yield Traced(cluster, receiver)


@dataclass(frozen=True, slots=True)
class Answer:
    """A request as its client saw it, in wall-clock time."""

    traceparent: str
    sent_ns: int
    ended_ns: int

    @property
    def trace_id(self) -> str:
        return self.traceparent.split("-")[1]


def generate(cluster: Cluster, traceparent: str = "", **sampling: object) -> Answer:
    """One request over gRPC, read to its end."""
    fields = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "seed": 1, "temperature": 0.5, **sampling}
    request = pb.GenerateRequest(text=PROMPT, sampling_params=pb.SamplingParams(**fields))
    metadata = (("traceparent", traceparent),) if traceparent else ()
    sent_ns = time.time_ns()
    call = cluster.stub.Generate(request, metadata=metadata, timeout=30.0)
    events = list(call)
    ended_ns = time.time_ns()
    assert events[-1].HasField("finished")
    given = dict(call.initial_metadata())
    return Answer(given.get("traceparent", ""), sent_ns, ended_ns)


def covered_ns(spans: list[ReceivedSpan], start_ns: int, end_ns: int) -> int:
    """Time within the bounds that at least one span covers."""
    total, reached_ns = 0, start_ns
    for span in sorted(spans, key=lambda span: span.start_ns):
        until_ns = min(span.end_ns, end_ns)
        total += max(0, until_ns - max(span.start_ns, reached_ns))
        reached_ns = max(reached_ns, until_ns)
    return total


def test_a_request_is_one_connected_trace_whose_phases_add_up_to_its_time(traced: Traced) -> None:
    answer = generate(traced.cluster)
    spans = traced.trace(answer.trace_id)
    (root,) = [span for span in spans if span.name == "llm_request"]
    phases = [span for span in spans if span is not root]
    assert (root.parent_id, root.kind) == ("", 2)
    assert {span.parent_id for span in phases} == {root.span_id}
    assert len({span.span_id for span in spans}) == len(spans)
    assert answer.traceparent == f"00-{root.trace_id}-{root.span_id}-01"
    assert answer.sent_ns <= root.start_ns < root.end_ns <= answer.ended_ns
    covered = covered_ns(phases, root.start_ns, root.end_ns)
    assert covered >= 0.95 * (root.end_ns - root.start_ns)
    assert all(root.start_ns <= span.start_ns + 10**6 for span in phases)


def test_spans_tell_what_was_done_and_never_what_was_said(traced: Traced) -> None:
    spans = traced.trace(generate(traced.cluster, max_tokens=5).trace_id)
    by_name = {span.name: span for span in spans}
    root, chunks = by_name["llm_request"], [span for span in spans if span.name == "prefill_chunk"]
    num_prompt_tokens = root.attributes["gen_ai.usage.input_tokens"]
    num_cached_tokens = root.attributes["gen_ai.usage.cache_read.input_tokens"]
    assert (
        sum(span.attributes["baton.num_tokens"] for span in chunks) + num_cached_tokens == num_prompt_tokens
    )
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "baton",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.completion_tokens": 5,
        "gen_ai.response.finish_reasons": ["length"],
        "baton.prefill_worker": "prefill-0",
    }
    assert {name: root.attributes[name] for name in expected} == expected
    assert root.attributes["gen_ai.request.model"] == root.attributes["gen_ai.response.model"]
    ttft_s = root.attributes["gen_ai.latency.time_to_first_token"]
    assert 0 < ttft_s < root.attributes["gen_ai.latency.e2e"]
    assert root.attributes["gen_ai.latency.time_in_queue"] >= 0
    assert by_name["transfer"].attributes["baton.peer"] == "prefill-0"
    assert by_name["transfer"].attributes["baton.num_bytes"] > 0
    assert by_name["decode"].attributes["baton.num_tokens"] == 4
    assert by_name["decode"].attributes["baton.worker_id"] == by_name["decode"].instance_id == "decode-1"
    assert by_name["place"].attributes["baton.placement.reason"]
    assert SECRET not in repr(spans)
    assert SECRET not in traced.cluster.log.read_text()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_clients_trace_goes_on(traced: Traced, protocol: str) -> None:
    trace_id = TRACE_ID.replace("4b", "5b" if protocol == "grpc" else "6b")
    traceparent = f"00-{trace_id}-{PARENT_ID}-01"
    if protocol == "grpc":
        given = generate(traced.cluster, traceparent, max_tokens=4).traceparent
    else:
        given = complete(traced.cluster, traceparent)
    (root,) = [span for span in traced.trace(trace_id) if span.name == "llm_request"]
    assert root.parent_id == PARENT_ID
    assert given == f"00-{trace_id}-{root.span_id}-01"


def complete(cluster: Cluster, traceparent: str) -> str:
    """One request over HTTP; returns the traceparent of the answer."""
    body = {"model": cluster.info().model, "prompt": PROMPT, "max_tokens": 4, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://{cluster.http_address}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "traceparent": traceparent},
    )
    with urllib.request.urlopen(request, timeout=30.0) as reply:
        assert json.load(reply)["choices"]
        return str(reply.headers["traceparent"])


def test_what_is_not_sampled_is_not_exported(traced: Traced) -> None:
    trace_id = TRACE_ID.replace("4b", "7b")
    answer = generate(traced.cluster, f"00-{trace_id}-{PARENT_ID}-00", max_tokens=4)
    assert answer.traceparent.startswith(f"00-{trace_id}-")
    assert answer.traceparent.endswith("-00")
    traced.trace(generate(traced.cluster, max_tokens=4).trace_id)
    assert traced.receiver.trace(trace_id) == []


def test_a_request_that_fails_has_its_error(traced: Traced) -> None:
    request = pb.GenerateRequest(
        text=PROMPT, sampling_params=pb.SamplingParams(max_tokens=100, ignore_eos=True)
    )
    call = traced.cluster.stub.Generate(request, timeout=30.0)
    next(call)
    trace_id = dict(call.initial_metadata())["traceparent"].split("-")[1]
    call.cancel()
    until(lambda: any(span.name == "llm_request" for span in traced.receiver.trace(trace_id)), 10.0, "a root")
    (root,) = [span for span in traced.receiver.trace(trace_id) if span.name == "llm_request"]
    assert root.is_error
    assert root.attributes["error.type"] == "cancelled"


def test_a_router_exports_over_http_where_its_flag_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with receiving_http() as receiver:
        endpoint = ("--otlp-traces-endpoint", f"http://{receiver.address}")
        protocol = ("--otlp-traces-protocol", "http/protobuf")
        with starting(tmp_path, *endpoint, *protocol, command=(*BATON, "router")) as router:
            call = router.stub.Generate(pb.GenerateRequest(text=PROMPT), timeout=30.0)
            with pytest.raises(grpc.RpcError, match="no decode worker is registered"):
                list(call)
            until(lambda: {span.service for span in receiver.spans} == {ROUTER}, 10.0, "spans")
    assert set(receiver.paths) == {"/v1/traces"}
