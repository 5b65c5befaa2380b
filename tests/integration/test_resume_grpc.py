"""A stream that breaks goes on at another router: the rest, and nothing of what the client has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from msgspec.structs import replace

from baton import SamplingParams
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.sessions.router_messages import Generate, OutputSoFar, RequestSpec
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_router.main import RouterServer
from tests.e2e.calls import ask, draw_prompt, greedy
from tests.integration.resume_cluster import two_routers
from tests.integration.router_cluster import ANSWER, cluster, error_of, tokens_of
from tests.integration.router_cluster import ask as ask_text
from tests.integration.scripted_worker import ScriptedWorker, until

PROMPT = draw_prompt(70, seed=3)
SAMPLED = SamplingParams(temperature=0.9, max_tokens=10, ignore_eos=True)
CASES = (
    replace(SAMPLED, n=2, presence_penalty=0.5, min_p=0.01, logprobs=2, prompt_logprobs=1),
    replace(
        SAMPLED,
        seed=5,
        ignore_eos=False,
        structured_outputs=StructuredOutputsParams(regex='[{]"a": [0-9]{3,8}[}]'),
    ),
)


@dataclass(slots=True)
class Heard:
    """One sequence as a client has it."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[pb.PositionLogprobs] = field(default_factory=list)
    ends: list[tuple[str, str, int]] = field(default_factory=list)


@dataclass(slots=True)
class Heap:
    """A request as a client has it, whichever router it came from."""

    sequences: list[Heard]
    prompt: list[pb.PositionLogprobs] = field(default_factory=list)
    finished: list[pb.FinishedEvent] = field(default_factory=list)

    def add(self, event: pb.GenerateEvent) -> None:
        match event.WhichOneof("event"):
            case "tokens":
                tokens, heard = event.tokens, self.sequences[event.tokens.index]
                heard.text += tokens.text
                heard.token_ids += tokens.token_ids
                heard.logprobs += tokens.logprobs
                if tokens.finish_reason:
                    heard.ends.append((tokens.finish_reason, tokens.stop_text, tokens.stop_token_id))
            case "prompt_logprobs":
                self.prompt += event.prompt_logprobs.entries
            case _:
                self.finished.append(event.finished)

    @property
    def counts(self) -> list[int]:
        return [len(heard.token_ids) for heard in self.sequences]


def heap_of(events: Sequence[pb.GenerateEvent], n: int) -> Heap:
    heap = Heap([Heard() for _ in range(n)])
    for event in events:
        heap.add(event)
    return heap


def same(one: Heap, other: Heap) -> None:
    for heard, expected in zip(one.sequences, other.sequences, strict=True):
        assert (heard.text, heard.token_ids, heard.ends) == (expected.text, expected.token_ids, expected.ends)
        same_logprobs(heard.logprobs, expected.logprobs)
    same_logprobs(one.prompt, other.prompt)
    (end,), (expected_end,) = one.finished, other.finished
    assert end.seed == expected_end.seed
    assert end.usage.prompt_tokens == expected_end.usage.prompt_tokens
    assert end.usage.completion_tokens == expected_end.usage.completion_tokens


def same_logprobs(one: Sequence[pb.PositionLogprobs], other: Sequence[pb.PositionLogprobs]) -> None:
    """The same up to the arithmetic of another batch."""
    assert [list(entry.token_ids) for entry in one] == [list(entry.token_ids) for entry in other]
    for entry, expected in zip(one, other, strict=True):
        assert entry.logprobs == pytest.approx(expected.logprobs, abs=1e-3)


@asynccontextmanager
async def stubs_of(*servers: RouterServer) -> AsyncIterator[list[BatonStub]]:
    async with AsyncExitStack() as stack:
        addresses = [f"127.0.0.1:{server.grpc_port}" for server in servers]
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address)) for address in addresses
        ]
        yield [BatonStub(channel) for channel in channels]


def resumed(request: pb.GenerateRequest, token: str, counts: Sequence[int]) -> pb.GenerateRequest:
    again = pb.GenerateRequest()
    again.CopyFrom(request)
    again.resume_token = token
    again.num_received_tokens[:] = counts
    return again


def resumed_with_tokens(request: pb.GenerateRequest, token: str, heap: Heap) -> pb.GenerateRequest:
    again = resumed(request, token, ())
    for heard in heap.sequences:
        again.received_token_ids.add(ids=heard.token_ids, is_finished=bool(heard.ends))
    return again


async def cut_and_resume(here: BatonStub, there: BatonStub, params: SamplingParams) -> None:
    """Cut a stream behind some of its events; each time the other router gives the rest."""
    request = ask(PROMPT, params)
    events = [event async for event in here.Generate(request)]
    whole = heap_of(events, params.n)
    token = events[0].resume_token
    assert token
    assert [event.resume_token for event in events[1:]] == [""] * (len(events) - 1)
    num_before = next(i for i, event in enumerate(events) if event.HasField("tokens"))
    half, last = (num_before + len(events)) // 2, len(events) - 1
    for cut, names_ids in ((0, False), (num_before + 1, False), (half, False), (half, True), (last, False)):
        heap = heap_of(events[:cut], params.n)
        counted = resumed(request, token, heap.counts)
        again = resumed_with_tokens(request, token, heap) if names_ids else counted
        rest = [event async for event in there.Generate(again)]
        assert rest[0].resume_token == token
        assert all(len(event.tokens.token_ids) for event in rest[:-1] if event.HasField("tokens"))
        for event in rest:
            heap.add(event)
        same(heap, whole)


async def go_on_while_it_runs(here: BatonStub, there: BatonStub) -> None:
    """Leave a call behind its third token, and go on at once, before its router has noticed."""
    request = ask(PROMPT, SAMPLED)
    call = here.Generate(request)
    heap = heap_of([], 1)
    token = ""
    while len(heap.sequences[0].token_ids) < 3:
        event = await call.read()
        token = token or event.resume_token
        heap.add(event)
    async for event in there.Generate(resumed(request, token, heap.counts)):
        heap.add(event)
    call.cancel()
    given = replace(SAMPLED, seed=heap.finished[0].seed)
    same(heap, heap_of([event async for event in here.Generate(ask(PROMPT, given))], 1))


async def ids_of(stub: BatonStub, request: pb.GenerateRequest) -> list[int]:
    events, _ = await tokens_of(stub.Generate(request))
    return [token_id for event in events for token_id in event.token_ids]


async def test_requests_of_one_name_at_two_routers_share_their_workers() -> None:
    async with two_routers() as servers, stubs_of(*servers) as stubs:
        prompts = [draw_prompt(40, seed=seed) for seed in (1, 2)]
        requests = [ask(prompt, greedy(12)) for prompt in prompts]
        alone = [await ids_of(stubs[0], request) for request in requests]
        for request in requests:
            request.request_id = "same"
        calls = (ids_of(stub, request) for stub, request in zip(stubs, requests, strict=True))
        assert await asyncio.gather(*calls) == alone
        assert alone[0] != alone[1]


@pytest.mark.timeout(100)
async def test_the_rest_comes_from_another_router_whatever_was_asked_for() -> None:
    async with two_routers() as servers, stubs_of(*servers) as (here, there):
        for params in CASES:
            await cut_and_resume(here, there, params)
        whole = heap_of([event async for event in here.Generate(ask(PROMPT, greedy(12)))], 1)
        stop = whole.sequences[0].text[-4:]
        await cut_and_resume(here, there, greedy(24, stop=[stop]))
        await go_on_while_it_runs(here, there)


async def test_a_client_that_comes_back_to_its_router_ends_its_other_call() -> None:
    worker = ScriptedWorker("w1", answers=[ANSWER], num_steps=4)
    async with cluster(worker) as stub:
        request = ask_text()
        call = stub.Generate(request)
        token = (await call.read()).resume_token
        other = ask_text(request_id="r1", seed=1)
        refusal = ("ALREADY_EXISTS", "request_id is 'r1'; allowed: a name that no running request has")
        assert await error_of(stub.Generate(other)) == refusal
        again = stub.Generate(resumed(request, token, [2]))
        assert (await again.read()).tokens.token_ids[0] == ANSWER[2]
        assert await error_of(call) == ("CANCELLED", "its client goes on in another call")
        worker._num_steps = None
        again.cancel()


async def test_no_work_is_done_for_what_does_not_fit_its_token() -> None:
    worker = ScriptedWorker("w1", answers=[ANSWER])
    async with cluster(worker) as stub:
        request = ask_text(n=1)
        events = [event async for event in stub.Generate(request)]
        token = events[0].resume_token
        num_commands = len(worker.commands)
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"text": "Another."}, "resume_token is 'of a request with another prompt'; allowed: "),
            ({"cache_salt": "s"}, "resume_token is 'of a request with another key or cache_salt'; "),
            ({"resume_token": token[:-1]}, f"resume_token is '{token[:60]}"),
            ({"resume_token": "x" * 10_000}, "resume_token is 'xxxxx"),
            ({"resume_token": ""}, "num_received_tokens is [3]; allowed: nothing, unless resume_token"),
        ]
        for change, message in wrong:
            again = resumed(request, token, [3])
            for name, value in change.items():
                setattr(again, name, value)
            code, details = await error_of(stub.Generate(again))
            assert code == "INVALID_ARGUMENT"
            assert details.startswith(message)
        hotter = resumed(request, token, [3])
        hotter.sampling_params.temperature = 0.5
        code, details = await error_of(stub.Generate(hotter))
        assert (code, "other sampling parameters" in details) == ("INVALID_ARGUMENT", True)
        for counts in ([3, 3], [len(ANSWER) + 1]):
            code, details = await error_of(stub.Generate(resumed(request, token, counts)))
            allowed = f"allowed: 1 of them, one a sequence, each 0 to {len(ANSWER)} tokens"
            assert (code, details) == ("INVALID_ARGUMENT", f"num_received_tokens is {counts}; {allowed}")
        assert len(worker.commands) == num_commands


async def test_workers_go_on_behind_the_tokens_that_a_client_tells() -> None:
    worker = ScriptedWorker("w1", answers=[ANSWER, ANSWER])
    async with cluster(worker) as stub:
        request = ask_text(n=2)
        events = [event async for event in stub.Generate(request)]
        heap = Heap([Heard(ends=[("stop", "", 2)]), Heard(token_ids=list(ANSWER[:3]))])
        heap.sequences[0].token_ids.append(5)
        call = stub.Generate(resumed_with_tokens(request, events[0].resume_token, heap))
        await until(lambda: spec_of(worker).resumed != ())
        assert spec_of(worker).resumed == (OutputSoFar(index=1, token_ids=ANSWER[:3]),)
        call.cancel()
        heap.sequences[1].token_ids = list(ANSWER)
        code, details = await error_of(
            stub.Generate(resumed_with_tokens(request, events[0].resume_token, heap))
        )
        text = f"received_token_ids is '{len(ANSWER)} tokens, which end it'; allowed: with is_finished"
        assert (code, details) == ("INVALID_ARGUMENT", text)


def spec_of(worker: ScriptedWorker) -> RequestSpec:
    """Return the specification of the last request that the worker was asked for."""
    return next(command.spec for command in reversed(worker.commands) if isinstance(command, Generate))


@pytest.mark.parametrize("num_tokens_per_output", [1, 3])
async def test_who_claims_more_tokens_than_there_are_is_told_how_many_there_are(
    num_tokens_per_output: int,
) -> None:
    worker = ScriptedWorker("w1", answers=[[5, 6, 7, 2]], num_tokens_per_output=num_tokens_per_output)
    async with cluster(worker) as stub:
        request = ask_text(max_tokens=9)
        tokens, _ = await tokens_of(stub.Generate(request))
        events = [event async for event in stub.Generate(request)]
        assert sum(len(one.token_ids) for one in tokens) == 4
        (last,) = [event async for event in stub.Generate(resumed(request, events[0].resume_token, [4]))]
        assert last.finished.usage.completion_tokens == 4
        code, details = await error_of(stub.Generate(resumed(request, events[0].resume_token, [5])))
        assert code == "INVALID_ARGUMENT"
        assert details == "num_received_tokens is [5]; allowed: at most 4 of sequence 0, all that it has"
