"""Clients learn over HTTP and gRPC why the router does not take their request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc
import httpx
import pytest

from baton_core.errors import ErrorCode
from baton_core.requests.attempt_names import name_at_client
from baton_core.requests.request_context import Slo
from baton_core.sessions.router_messages import Generate
from baton_core.sessions.worker_info import WorkerRates
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_router.core.admission.admission_outcome import AdmissionOutcome
from baton_router.core.admission.rate_limits import RateLimit
from baton_router.main import RouterServer
from baton_router.process.admission_settings import AdmissionSettings
from baton_router.process.http_settings import HttpSettings
from baton_service.keys import Keys
from tests.integration.http_router import client_of, error_of
from tests.integration.router_cluster import ANSWER, access_to, ask, serving
from tests.integration.router_cluster import error_of as grpc_error_of
from tests.integration.scripted_worker import ScriptedWorker, until

SLOW = WorkerRates(prefill_tokens_per_s=10.0, decode_step_s=0.5)
KEYED = HttpSettings(api_keys=("key-a", "key-b"))
COMPLETIONS = "/v1/completions"
BODY = {"prompt": list(range(5, 105)), "max_tokens": 1}
"""A hundred tokens: ten seconds for a slow worker."""


@dataclass
class Clients:
    http: httpx.AsyncClient
    grpc: BatonStub
    server: RouterServer

    async def complete(
        self, key: str = "", headers: dict[str, str] | None = None, **body: Any
    ) -> httpx.Response:
        authorization = {"authorization": f"Bearer {key}"} if key else {}
        return await self.http.post(
            COMPLETIONS, json={**BODY, **body}, headers={**authorization, **(headers or {})}
        )


@asynccontextmanager
async def clients(worker: ScriptedWorker, **settings: Any) -> AsyncIterator[Clients]:
    """Yield the clients of a router that has heard how fast its worker is."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(**settings))
        await stack.enter_async_context(worker.joined(server.grpc_port, access_to(server)))
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}")
        stub = BatonStub(await stack.enter_async_context(channel))
        http = await stack.enter_async_context(client_of(server))
        fleet = server._router.fleet
        await until(lambda: fleet.workers()[0][1].rates == worker.load.rates)
        yield Clients(http, stub, server)


def worker(rates: WorkerRates = SLOW, **script: Any) -> ScriptedWorker:
    scripted = ScriptedWorker("w1", answers=[ANSWER], **script)
    scripted.load = replace(scripted.load, rates=rates)
    return scripted


async def retry_after_of(call: Any) -> tuple[str, str, str | None]:
    """Status, message and the wait that a failing gRPC call tells."""
    status, message = await grpc_error_of(call)
    metadata = {str(key): str(value) for key, value in await call.trailing_metadata()}
    return status, message, metadata.get("retry-after")


async def test_a_deadline_that_cannot_be_met_is_refused_at_once_with_the_time_to_come_again() -> None:
    async with clients(worker()) as client:
        response = await client.complete(headers={"x-slo-ttft-ms": "3000"})
        status, param, message = error_of(response)
        assert (status, param) == (429, None)
        assert message.startswith("slo_ttft_s is 3; the first token is predicted after 10.")
        assert response.headers["retry-after"] == "8"
        assert response.json()["error"]["type"] == "rate_limit_error"
        assert (await client.complete(headers={"x-slo-ttft-ms": "30000"})).status_code == 200
        response = await client.complete(headers={"x-slo-tpot-ms": "20"})
        message = "slo_tpot_s is 0.02; the fastest worker needs 0.5 s a token"
        assert error_of(response) == (429, None, message)
        assert response.headers["retry-after"] == "1"
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=range(5, 105)), slo_ttft_s=3.0)
        told = await retry_after_of(client.grpc.Generate(request))
        assert told[0] == "RESOURCE_EXHAUSTED"
        assert told[1].startswith("slo_ttft_s is 3; ")
        assert told[2] == "8"


async def test_the_routers_own_deadline_holds_for_all() -> None:
    admission = AdmissionSettings(slo=Slo(ttft_s=5.0))
    async with clients(worker(), admission=admission) as client:
        assert (await client.complete()).status_code == 429
        assert (await client.complete(headers={"x-slo-ttft-ms": "60000"})).status_code == 200
        body = {"token_ids": BODY["prompt"], "sampling_params": {"max_tokens": 1}}
        assert (await client.http.post("/inference/v1/generate", json=body)).status_code == 429


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf", ""])
async def test_a_deadline_that_is_none_is_refused_by_name(value: str) -> None:
    async with clients(worker()) as client:
        text = f"x-slo-ttft-ms is {value!r}; allowed: milliseconds, over 0"
        response = await client.complete(headers={"x-slo-ttft-ms": value})
        assert error_of(response) == (400, "x-slo-ttft-ms", text)
        if value in ("0", "-1", "nan", "inf"):
            call = client.grpc.Generate(pb.GenerateRequest(text="x", slo_tpot_s=float(value)))
            assert await grpc_error_of(call) == (
                "INVALID_ARGUMENT",
                f"slo_tpot_s is {float(value)!r}; allowed: seconds, over 0",
            )


async def test_each_key_has_a_rate_of_its_own() -> None:
    admission = AdmissionSettings(rate_limit=RateLimit(requests=2))
    async with clients(worker(), admission=admission, http=KEYED) as client:
        statuses = [(await client.complete(key)).status_code for key in ("key-a", "key-a", "key-b")]
        assert statuses == [200, 200, 200]
        response = await client.complete("key-a")
        status, _, message = error_of(response)
        assert status == 429
        assert message.startswith("requests per minute of this key are at their limit of 2; ")
        assert response.json()["error"]["code"] == "rate_limit_exceeded", "as OpenAI has it"
        assert 28 <= int(response.headers["retry-after"]) <= 30
        assert (await client.complete("key-b")).status_code == 200


async def test_a_call_of_many_prompts_is_taken_or_refused_as_a_whole() -> None:
    admission = AdmissionSettings(rate_limit=RateLimit(requests=3))
    async with clients(worker(), admission=admission, http=KEYED) as client:
        assert (await client.complete("key-a")).status_code == 200
        many = [BODY["prompt"]] * 4
        assert (await client.complete("key-a", prompt=many)).status_code == 429
        assert (await client.complete("key-a", prompt=many[:2])).status_code == 200
        body = {"input": "x", "background": True}
        headers = {"authorization": "Bearer key-a"}
        assert (await client.http.post("/v1/responses", json=body, headers=headers)).status_code == 429
        answers = (await client.complete("key-b", prompt=many)).json()["choices"]
        assert len(answers) == 4, "a larger one passes where nothing is used"


async def test_a_key_counts_over_grpc_too() -> None:
    admission = AdmissionSettings(rate_limit=RateLimit(requests=1))
    async with clients(worker(), admission=admission, http=KEYED) as client:

        async def status(*metadata: tuple[str, str]) -> str:
            call = client.grpc.Generate(ask(max_tokens=1), metadata=metadata)
            try:
                return "OK" if [event async for event in call] else "nothing"
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)

        key = ("authorization", "Bearer key-a")
        assert [await status(key), await status(key)] == ["OK", "RESOURCE_EXHAUSTED"]
        assert (await client.complete("key-a")).status_code == 429
        assert await status(("authorization", "Bearer key-b")) == "OK"


async def test_a_client_that_resumes_its_call_is_not_charged_again() -> None:
    admission = AdmissionSettings(rate_limit=RateLimit(requests=2))
    slow = worker(num_steps=2)
    async with clients(slow, admission=admission) as client:
        request = ask()
        call = client.grpc.Generate(request)
        request.resume_token = (await call.read()).resume_token
        for _ in range(2):
            call.cancel()
            call = client.grpc.Generate(request)
            assert (await call.read()).HasField("tokens")
        other = client.grpc.Generate(ask(request_id="other"))
        assert (await other.read()).HasField("tokens")
        assert (await grpc_error_of(client.grpc.Generate(ask(request_id="last"))))[0] == "RESOURCE_EXHAUSTED"
        slow._num_steps = None


async def spend(client: Any, given: dict[str, Any]) -> None:
    """Ask until it is refused: a slow machine earns tokens meanwhile."""
    for _ in range(100):
        await client.completions.create(**given)


async def test_openais_client_comes_again_by_itself_when_it_was_told_to() -> None:
    from openai import AsyncOpenAI, RateLimitError  # seconds that every process of the suite would take

    admission = AdmissionSettings(rate_limit=RateLimit(tokens=60))
    async with clients(worker(), admission=admission) as client:
        base_url = f"http://127.0.0.1:{client.server.http_port}/v1"
        given: dict[str, Any] = {"model": "tiny", "prompt": [5], "max_tokens": 1}
        async with AsyncOpenAI(base_url=base_url, api_key="none") as patient:
            assert (await client.complete(prompt=[5] * 59)).status_code == 200
            with pytest.raises(RateLimitError) as caught:
                await spend(patient.with_options(max_retries=0), given)
            assert caught.value.response.headers["retry-after"] in ("1", "2")
            assert (await patient.completions.create(**given)).choices[0].finish_reason == "length"


async def test_keys_take_turns_when_workers_are_full_and_the_line_has_an_end() -> None:
    busy = worker(WorkerRates(), num_steps=1, max_num_seqs=1)
    admission = AdmissionSettings(max_queued_requests=4)
    async with clients(busy, admission=admission, http=KEYED) as client:
        core = client.server._router.core

        def num_known() -> int:
            return core.num_requests + core.admission.num_by_outcome[AdmissionOutcome.QUEUE_FULL]

        calls: dict[str, asyncio.Task[httpx.Response]] = {}
        for name in ("a1", "a2", "a3", "a4", "a5", "a6", "b1"):
            call = client.complete(f"key-{name[0]}", {"x-request-id": name}, max_tokens=2)
            calls[name] = asyncio.create_task(call)
            await until(lambda: num_known() == len(calls))
        assert error_of(await calls.pop("a6"))[::2] == (429, "4 requests wait for a worker, the maximum")
        await until(lambda: names(busy) == ["a1", "a2"])
        assert core.admission.num_waiting == 4
        busy.go_on("a1", 1)
        calls.pop("a2").cancel()
        responses = await asyncio.gather(*calls.values())
        assert {response.status_code for response in responses} == {200}
        assert names(busy)[2:] == ["a3", "b1", "a4", "a5"]


async def test_prompts_of_a_call_of_which_one_is_refused_end_with_that_refusal() -> None:
    busy = worker(WorkerRates(), num_steps=1, max_num_seqs=1)
    admission = AdmissionSettings(max_queued_requests=1)
    async with clients(busy, admission=admission, http=KEYED) as client:
        response = await client.complete("key-a", {"x-request-id": "r"}, prompt=["a"] * 4, max_tokens=2)
        status, _, message = error_of(response)
        assert (status, message) == (429, "1 requests wait for a worker, the maximum")
        assert response.json()["error"]["code"] == "overloaded"
        log = client.server._router.core.log
        await until(lambda: client.server._router.core.num_requests == 0)
        records = [log.get(f"r-{number}") for number in range(4)]
        assert [record and record.code for record in records] == [ErrorCode.OVERLOADED] * 4
        messages = {record.message for record in records if record is not None}
        assert messages == {message, f"its call ended: {message}"}


async def test_a_session_is_named_by_body_header_or_prompt_cache_key() -> None:
    async with clients(worker(), http=KEYED) as client:
        log = client.server._router.core.log

        async def context(headers: dict[str, str], **body: Any) -> Any:
            response = await client.complete("key-a", {"x-request-id": "named", **headers}, **body)
            assert response.status_code == 200
            record = log.get("named")
            assert record is not None
            return record.context

        given = await context({"x-session-id": "s2"}, session_id="s1", prompt_cache_key="s3")
        assert given.session_id == "s1"
        assert given.tenant == Keys(["key-a"]).tenant("Bearer key-a")
        assert "key-a" not in given.tenant
        assert (await context({"x-session-id": "s2"}, prompt_cache_key="s3")).session_id == "s2"
        assert (await context({}, prompt_cache_key="s3")).session_id == "s3"
        response = await client.complete("key-a", session_id="x" * 129)
        assert error_of(response)[:2] == (400, "session_id")
        key = (("authorization", "Bearer key-a"),)
        call = client.grpc.Generate(pb.GenerateRequest(text="x", session_id="x" * 129), metadata=key)
        assert (await grpc_error_of(call))[0] == "INVALID_ARGUMENT"


def names(busy: ScriptedWorker) -> list[str]:
    """Requests that it was given, in order."""
    return [name_at_client(one.spec.request_id) for one in busy.commands if isinstance(one, Generate)]
