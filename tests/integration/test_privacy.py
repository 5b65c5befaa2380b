"""Text of clients is in no log line and no span, at any level, whether it is served or refused.

Names of unknown fields are no text: they are logged once each.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import httpx
import pytest

from baton_core.errors import ErrorCode
from baton_core.sessions.router_messages import Failed, ToRouter
from baton_core.sessions.worker_info import Role
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_router.requests.request_limits import RequestLimits
from baton_service.tracing import TracingSettings
from tests.integration.http_router import client_of, http_cluster
from tests.integration.router_cluster import serving
from tests.integration.scripted_worker import ScriptedWorker, until
from tests.integration.worker_cluster import working
from tests.otlp_receiver import OtlpReceiver, receiving

SECRET = "quagmire"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SHORT = {"max_tokens": 2}
MESSAGES = [{"role": "user", "content": SECRET}]
SERVED: tuple[tuple[str, dict[str, Any]], ...] = (
    (COMPLETIONS, {"prompt": SECRET, "stop": [SECRET], "echo": True, **SHORT}),
    (COMPLETIONS, {"prompt": SECRET, "stream": True, **SHORT}),
    (COMPLETIONS, {"prompt": "x", "bad_words": [SECRET], "cache_salt": SECRET, **SHORT}),
    (CHAT, {"messages": [{"role": SECRET, "content": [SECRET]}], **SHORT}),
    (CHAT, {"messages": MESSAGES, "user": SECRET, "metadata": {"a": SECRET}, **SHORT}),
    ("/v1/responses", {"input": SECRET, "user": SECRET, "max_output_tokens": 2}),
    ("/tokenize", {"prompt": SECRET}),
)
REFUSED: tuple[tuple[str, dict[str, Any]], ...] = (
    (COMPLETIONS, {"prompt": {"a": SECRET}}),
    (COMPLETIONS, {"prompt": SECRET * 5000, **SHORT}),
    (COMPLETIONS, {"prompt": "x", "stop": [SECRET * 500]}),
    (COMPLETIONS, {"prompt": "x", "model": SECRET}),
    (COMPLETIONS, {"prompt": "x", "structured_outputs": {"regex": f"({SECRET}"}}),
    (COMPLETIONS, {"prompt": "x", "structured_outputs": {"grammar": f'root ::= "{SECRET}'}}),
    (COMPLETIONS, {"prompt": "x", "structured_outputs": {"json": {"type": SECRET}}}),
    (CHAT, {"messages": MESSAGES, "chat_template": f"{{{{ raise_exception('{SECRET}') }}}}"}),
    (CHAT, {"messages": MESSAGES, "chat_template": f"{{{{ {SECRET}.{SECRET}.{SECRET} }}}}"}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": SECRET}]}]}),
)


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with receiving() as receiver, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield receiver


async def ask_over_http(client: httpx.AsyncClient) -> None:
    for path, body in SERVED:
        assert (await client.post(path, json=body)).status_code == 200, body
    for path, body in REFUSED:
        assert 400 <= (await client.post(path, json=body)).status_code < 500, body
    headers = {"content-type": "application/json", "authorization": f"Bearer {SECRET}"}
    assert (await client.post(COMPLETIONS, content=SECRET, headers=headers)).status_code == 400


async def ask_over_grpc(stub: BatonStub) -> None:
    params = pb.SamplingParams(max_tokens=2, stop=[SECRET])
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content=SECRET)])
    for served in (pb.GenerateRequest(text=SECRET, sampling_params=params), pb.GenerateRequest(chat=chat)):
        served.sampling_params.max_tokens = 2
        assert [event async for event in stub.Generate(served)][-1].HasField("finished")
    for refused in (
        pb.GenerateRequest(text=SECRET, model=SECRET),
        pb.GenerateRequest(text="x", sampling_params=pb.SamplingParams(stop=[SECRET * 500])),
        pb.GenerateRequest(text=SECRET, request_id=f"{SECRET}\n"),
    ):
        with pytest.raises(grpc.aio.AioRpcError):
            [event async for event in stub.Generate(refused)]


async def test_no_text_of_a_request_is_in_a_log_line_or_a_span(
    receiver: OtlpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            serving(
                tracing=TracingSettings(endpoint=f"http://{receiver.address}"),
                limits=RequestLimits(trust_request_chat_template=True),
            )
        )
        await stack.enter_async_context(working(Role.MIXED, server.grpc_port))
        await until(lambda: server._router.is_ready)
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}")
        await ask_over_http(await stack.enter_async_context(client_of(server)))
        await ask_over_grpc(BatonStub(await stack.enter_async_context(channel)))
    roots = [span for span in receiver.spans if span.name == "llm_request"]
    assert len(roots) == len(SERVED) - 1 + 2  # all but the one that only tokenizes, and those over gRPC
    assert SECRET not in repr(receiver.spans)
    lines = [
        f"{record.getMessage()} {record.exc_text}"
        for record in caplog.records
        if not record.name.startswith(("httpx", "httpcore"))  # the test's own client
    ]
    assert sum("finished on mixed" in line for line in lines) == len(roots)
    assert [line for line in lines if SECRET in line] == []


class Refusing(ScriptedWorker):
    """A worker that finds a form wrong, in words that quote it."""

    def _say_first(self, spec: Any) -> None:
        form = json.dumps({"type": SECRET})
        text = f"structured_outputs.json is {form!r}; allowed: not {SECRET}"
        failed: ToRouter = Failed(request_id=spec.request_id, code=ErrorCode.INVALID_REQUEST, message=text)
        self.client.send(self.router_id, failed)

    def _decode(self, *args: Any, **kwargs: Any) -> None:
        """Send nothing more."""


async def test_a_workers_refusal_is_quoted_to_the_client_and_not_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with http_cluster(Refusing("w1")) as client:
        response = await client.post(COMPLETIONS, json={"prompt": "x", **SHORT})
        assert response.status_code == 400
        assert SECRET in response.text
    assert "ended as invalid_request: structured_outputs.json is invalid" in caplog.messages
    assert SECRET not in caplog.text
