"""Holders of different keys learn nothing of each other through a real router and worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest

from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.sessions.worker_info import Role
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_router.process.http_settings import HttpSettings
from baton_router.text.tenant_turns import TenantTurns
from baton_worker.worker_shell import GrammarBackend
from tests.integration.http_router import client_of
from tests.integration.router_cluster import serving
from tests.integration.scripted_worker import until
from tests.integration.worker_cluster import working

KEYS = ("key-a", "key-b")
PROMPT = list(range(5, 105))
NUM_CACHED = 96
"""Whole blocks of 32 tokens."""


@dataclass(frozen=True, slots=True)
class Clients:
    http: httpx.AsyncClient
    grpc: BatonStub

    async def over_http(self, key: str, **fields: Any) -> int:
        """Ask with a key; returns how many tokens of the prompt were cached, as `usage` says."""
        body = {"prompt": PROMPT, "max_tokens": 1, **fields}
        headers = {"authorization": f"Bearer {key}"}
        answer = (await self.http.post("/v1/completions", json=body, headers=headers)).json()
        assert answer["usage"]["prompt_tokens"] == len(PROMPT)
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    async def over_grpc(self, key: str) -> int:
        """The same, as the last event says."""
        prompt = pb.TokenIds(ids=PROMPT)
        request = pb.GenerateRequest(token_ids=prompt, sampling_params=pb.SamplingParams(max_tokens=1))
        metadata = (("authorization", f"Bearer {key}"),)
        events = [event async for event in self.grpc.Generate(request, metadata=metadata)]
        return events[-1].finished.usage.cached_tokens


@asynccontextmanager
async def clients(
    hold: Callable[[GrammarBackend], GrammarBackend] = lambda grammars: grammars, **http: Any
) -> AsyncIterator[Clients]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(http=HttpSettings(**http)))
        await stack.enter_async_context(working(Role.MIXED, server.grpc_port, key="key-a", hold=hold))
        await until(lambda: server._router.is_ready)
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}")
        stub = BatonStub(await stack.enter_async_context(channel))
        yield Clients(await stack.enter_async_context(client_of(server)), stub)


async def test_a_key_finds_its_own_prefixes_and_nobody_elses() -> None:
    async with clients(api_keys=KEYS) as client:
        assert await client.over_http("key-a") == 0
        assert await client.over_http("key-b") == 0
        for key in KEYS:
            assert await client.over_http(key) == NUM_CACHED
            assert await client.over_grpc(key) == NUM_CACHED
        assert [await client.over_http("key-a", cache_salt="s") for _ in range(2)] == [0, NUM_CACHED]
        assert await client.over_http("key-b", cache_salt="s") == 0


@pytest.mark.parametrize(
    "shares", [{"api_keys": KEYS, "shared_prefix_cache": True}, {}], ids=["asked", "open"]
)
async def test_prefixes_are_shared_on_purpose_or_without_keys(shares: dict[str, Any]) -> None:
    async with clients(**shares) as client:
        assert await client.over_http("key-a") == 0
        assert await client.over_http("key-b") == NUM_CACHED
        assert await client.over_http("key-b", cache_salt="s") == 0


class TenantsSeen:
    """Notes whose grammars are compiled."""

    def __init__(self) -> None:
        self.tenants: list[str] = []

    def before(self, inner: GrammarBackend) -> TenantsSeen:
        self._inner = inner
        return self

    def compile(self, params: StructuredOutputsParams, tenant: str = "") -> Future[None]:
        self.tenants.append(tenant)
        return self._inner.compile(params, tenant)

    def close(self) -> None:
        self._inner.close()


@pytest.mark.parametrize("shares", [False, True])
async def test_a_worker_knows_whose_grammars_it_compiles_whatever_salt_they_bring(shares: bool) -> None:
    seen = TenantsSeen()
    async with clients(seen.before, api_keys=KEYS, shared_prefix_cache=shares) as client:
        for key in KEYS:
            for salt in "st":
                await client.over_http(key, cache_salt=salt, structured_outputs={"choice": ["a"]})
    first, second, third, fourth = seen.tenants
    assert first == second != third == fourth


async def test_texts_are_read_in_turns_of_their_key_over_both_protocols(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, list[str]] = {key: [] for key in KEYS}
    take = TenantTurns.take
    async with clients(api_keys=KEYS) as client:
        for key in KEYS:

            async def note(turns: TenantTurns, tenant: str, key: str = key) -> None:
                seen[key].append(tenant)
                await take(turns, tenant)

            monkeypatch.setattr(TenantTurns, "take", note)
            headers, metadata = {"authorization": f"Bearer {key}"}, (("authorization", f"Bearer {key}"),)
            large = "word " * 20_000  # whose body, decoding and prompt have a turn each
            for path, body in (
                ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
                ("/tokenize", {"prompt": "a"}),
                ("/tokenize", {"prompt": large}),
                ("/detokenize", {"tokens": [5]}),
            ):
                (await client.http.post(path, json=body, headers=headers)).raise_for_status()
            await client.over_grpc(key)
            await client.grpc.Tokenize(pb.TokenizeRequest(text="a"), metadata=metadata)
            await client.grpc.Tokenize(pb.TokenizeRequest(text=large), metadata=metadata)
            await client.grpc.Detokenize(pb.DetokenizeRequest(token_ids=[5]), metadata=metadata)
    first, second = seen.values()
    assert len(first) == len(second) == 6 + 2 * 3
    (tenant,), (other,) = set(first), set(second)
    assert "" != tenant != other != ""
