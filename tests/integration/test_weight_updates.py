"""A new version of the weights reaches real workers under load, and no answer mixes versions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import torch
from torch import Tensor

from baton_core.sessions.worker_info import Role
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_router.main import RouterServer
from baton_router.process.http_settings import HttpSettings
from tests.e2e.calls import answer, ask, greedy
from tests.integration.http_router import client_of, error_of
from tests.integration.router_cluster import MODEL, serving
from tests.integration.scripted_worker import until
from tests.integration.weight_versions import NUM_TOKENS, PROMPTS, answers_of, write_version
from tests.integration.worker_cluster import Gate, working
from tests.tiers import exhaustive

WITHIN_S = 240.0
pytestmark = pytest.mark.timeout(WITHIN_S)
FLEETS = {
    "prefill and decode": ("always", (Role.PREFILL, Role.DECODE)),
    "mixed alone": ("never", (Role.MIXED,)),
    "prefill, decode and mixed": ("auto", (Role.PREFILL, Role.DECODE, Role.MIXED)),
}


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_version(tmp_path_factory.mktemp("weights") / "new")


@dataclass
class Site:
    server: RouterServer
    http: httpx.AsyncClient
    baton: BatonStub

    async def generate(self, index: int) -> tuple[list[int], int]:
        """Return the tokens that follow a prompt, and how many of its own were cached."""
        request = ask(list(PROMPTS[index]), greedy(NUM_TOKENS))
        outputs, finished = answer([event async for event in self.baton.Generate(request)])
        return list(outputs[0].token_ids), finished.usage.cached_tokens

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.http.post(path, json=body, timeout=WITHIN_S)

    async def check(self, folder: Path) -> httpx.Response:
        assert (await self.http.post("/start_weight_update", timeout=WITHIN_S)).status_code == 200
        return await self.post("/update_weights", update_info={"path": str(folder)})

    async def update(self, folder: Path) -> None:
        assert (await self.check(folder)).status_code == 200
        finished = await self.post("/finish_weight_update")
        assert finished.status_code == 200, finished.text

    def weights(self) -> set[str]:
        return {info.identity.weights for info, _ in self.server._router.fleet.workers()}


@asynccontextmanager
async def fleet(
    name: str, gate: Gate | None = None, **settings: Any
) -> AsyncIterator[tuple[Site, AsyncExitStack]]:
    """A fleet of `FLEETS`; all but its prefill worker pass the gate. Gives the stack of its workers, too."""
    split, roles = FLEETS[name]
    async with AsyncExitStack() as stack:
        http = HttpSettings(enable_operator_routes=True)
        server = await stack.enter_async_context(serving(split=split, http=http))
        workers = await stack.enter_async_context(AsyncExitStack())
        for role in roles:
            held = None if role is Role.PREFILL else gate
            await workers.enter_async_context(working(role, server.grpc_port, gate=held))
        client = await stack.enter_async_context(client_of(server))
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}")
        await stack.enter_async_context(channel)
        await until(lambda: len(server._router.fleet.workers()) == len(roles))
        yield Site(server, client, BatonStub(channel)), workers


async def test_every_answer_under_load_is_of_one_version(new: Path) -> None:
    name = "prefill, decode and mixed"
    old_answers, new_answers = answers_of(), answers_of(new)
    assert all(old != other for old, other in zip(old_answers, new_answers, strict=True))
    versions: list[str] = []
    is_over = asyncio.Event()

    async def load(site: Site, index: int) -> None:
        while not is_over.is_set():
            tokens, _ = await site.generate(index)
            assert tokens in (old_answers[index], new_answers[index])
            versions.append("old" if tokens == old_answers[index] else "new")

    async with fleet(name) as (site, _), asyncio.TaskGroup() as clients:
        for index in range(len(PROMPTS)):
            clients.create_task(load(site, index))
        await until(lambda: len(versions) > len(PROMPTS), WITHIN_S)
        assert (await site.check(new)).status_code == 200
        num_before = len(versions)
        assert {"new"} & {*versions[:num_before]} == set()
        assert (await site.post("/finish_weight_update")).status_code == 200
        num_answers = len(versions)
        await until(lambda: len(versions) > num_answers + 2 * len(PROMPTS), WITHIN_S)
        is_over.set()
        assert versions.count("old") >= num_before
        assert {*versions[-len(PROMPTS) :]} == {"new"}
        assert len(site.weights()) == 1


@pytest.mark.parametrize(
    "name", [exhaustive("mixed alone"), exhaustive("prefill and decode"), "prefill, decode and mixed"]
)
async def test_what_runs_ends_on_the_old_version_and_what_waits_begins_on_the_new_one(
    name: str, new: Path
) -> None:
    gate = Gate()
    async with fleet(name, gate) as (site, _):
        assert await site.generate(0) == (answers_of()[0], 0)
        assert (await site.generate(0))[1] > 0
        assert (await site.check(new)).status_code == 200
        gate.close()
        running = asyncio.create_task(site.generate(1))
        await until(lambda: gate.is_holding)
        finishing = asyncio.create_task(site.post("/finish_weight_update"))
        await until(lambda: site.server._router.core.is_held)
        waiting = asyncio.create_task(site.generate(0))
        done, _ = await asyncio.wait((running, finishing, waiting), timeout=0.5)
        assert not done
        assert (await site.http.get("/health")).status_code == 200
        gate.open()
        assert (await running)[0] == answers_of()[1]
        assert (await finishing).json() == {"message": "Weight update finished"}
        assert await waiting == (answers_of(new)[0], 0)
        assert (await site.generate(0))[1] > 0


def drop_a_tensor(tensors: dict[str, Tensor]) -> None:
    del tensors["model.layers.0.mlp.down_proj.weight"]


def reshape_a_tensor(tensors: dict[str, Tensor]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()


def retype_a_tensor(tensors: dict[str, Tensor]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float64)


def break_a_number(tensors: dict[str, Tensor]) -> None:
    tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = float("nan")


async def test_bad_weights_are_refused_by_name_and_the_old_ones_serve_on(tmp_path: Path) -> None:
    bad: dict[str, tuple[Callable[[dict[str, Tensor]], None], str]] = {
        "lacking": (drop_a_tensor, "tensor model.layers.0.mlp.down_proj.weight is missing"),
        "reshaped": (reshape_a_tensor, "tensor model.norm.weight has shape"),
        "retyped": (retype_a_tensor, "tensor model.norm.weight has dtype F64; allowed: F32, BF16, F16"),
        "broken": (break_a_number, "tensor model.layers.1.mlp.down_proj.weight holds NaN or an infinity"),
    }

    async def refusal(site: Site, folder: Path) -> str:
        response = await site.check(folder)
        assert 400 <= response.status_code < 500, response.text
        after = await site.post("/finish_weight_update")
        assert error_of(after)[2].startswith(
            "the weight update is without weights; allowed: update_weights before"
        )
        return error_of(response)[2]

    async with fleet("prefill and decode") as (site, _):
        before = site.weights()
        for name, (change, message) in bad.items():
            folder = write_version(tmp_path / name, change)
            assert message in await refusal(site, folder)
        assert "is missing; allowed: an existing folder" in await refusal(site, tmp_path / "nowhere")
        other = write_version(tmp_path / "other")
        config = json.loads((MODEL / "config.json").read_text()) | {"rms_norm_eps": 0.5}
        (other / "config.json").write_text(json.dumps(config))
        assert "config.rms_norm_eps is '0.5'; allowed: '1e-05'" in await refusal(site, other)
        assert site.weights() == before
        assert (await site.generate(0))[0] == answers_of()[0]


async def test_files_that_change_after_the_check_are_not_loaded(tmp_path: Path, new: Path) -> None:
    folder = write_version(tmp_path / "changing")
    async with fleet("mixed alone") as (site, _):
        assert (await site.check(folder)).status_code == 200
        (folder / "model.safetensors").write_bytes((MODEL / "model.safetensors").read_bytes()[:-1] + b"\0")
        status, _, message = error_of(await site.post("/finish_weight_update"))
        assert 400 <= status < 500
        assert "as checked" in message
        assert (await site.generate(0))[0] == answers_of()[0]
        await site.update(new)
        assert (await site.generate(0))[0] == answers_of(new)[0]


async def test_a_worker_that_comes_back_with_the_old_weights_loads_the_new_ones_first(new: Path) -> None:
    async with fleet("prefill and decode") as (site, workers):
        port = site.server.grpc_port
        assert (await site.check(new)).status_code == 200
        await workers.aclose()
        await until(lambda: not site.server._router.fleet.workers())
        async with working(Role.PREFILL, port, epoch=2):
            await until(lambda: len(site.server._router.fleet.workers()) == 1)
            assert (await site.post("/finish_weight_update")).status_code == 200
            changed = site.weights()
            async with working(Role.DECODE, port, epoch=2):
                await until(lambda: len(site.server._router.fleet.workers()) == 2)
                assert (await site.generate(0))[0] == answers_of(new)[0]
                assert site.weights() == changed


async def test_another_router_of_the_workers_follows_without_a_mixed_or_a_failed_answer(new: Path) -> None:
    answers_of(), answers_of(new)
    versions: list[str] = []

    async def load(baton: BatonStub, index: int, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            request = ask(list(PROMPTS[index]), greedy(NUM_TOKENS))
            outputs, _ = answer([event async for event in baton.Generate(request)])
            tokens = list(outputs[0].token_ids)
            assert tokens in (answers_of()[index], answers_of(new)[index])
            versions.append("old" if tokens == answers_of()[index] else "new")

    is_over = asyncio.Event()
    async with AsyncExitStack() as stack:
        http = HttpSettings(enable_operator_routes=True)
        one, two = [await stack.enter_async_context(serving(split="never", http=http)) for _ in range(2)]
        await stack.enter_async_context(working(Role.MIXED, one.grpc_port, also=(two.grpc_port,)))
        client = await stack.enter_async_context(client_of(one))
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{two.grpc_port}")
        baton = BatonStub(await stack.enter_async_context(channel))
        await until(lambda: all(server._router.is_ready for server in (one, two)))
        async with asyncio.TaskGroup() as clients:
            for index in range(3):
                clients.create_task(load(baton, index, is_over))
            await until(lambda: len(versions) > 3, WITHIN_S)
            await Site(one, client, baton).update(new)
            num_answers = len(versions)
            await until(lambda: len(versions) > num_answers + 6, WITHIN_S)
            is_over.set()
        assert {*versions[-3:]} == {"new"}
        assert one._router.fleet.weights == two._router.fleet.weights


async def test_a_pause_ends_what_runs_or_waits_for_it_or_keeps_it() -> None:
    gate = Gate()
    async with fleet("prefill and decode", gate) as (site, _):
        expected = answers_of()[0]
        assert (await site.http.post("/pause?mode=stop")).status_code == 400
        for mode in ("abort", "wait", "keep"):
            gate.close()
            running = asyncio.create_task(site.generate(0))
            await until(lambda: gate.is_holding)
            pausing = asyncio.create_task(site.post(f"/pause?mode={mode}"))
            await until(lambda: site.server._router.pauses.is_paused)
            waiting = asyncio.create_task(site.generate(0))
            gate.open()
            assert (await pausing).json() == {"status": "paused"}
            assert (await site.http.get("/is_paused")).json() == {"is_paused": True}
            health = await site.http.get("/health")
            assert (health.status_code, health.text) == (503, "an operator has paused generation\n")
            assert not waiting.done()
            if mode == "abort":
                with pytest.raises(grpc.aio.AioRpcError, match="an operator has paused generation"):
                    await running
            elif mode == "wait":
                assert (await running)[0] == expected
            assert (await site.post("/resume")).json() == {"status": "resumed"}
            if mode == "keep":
                assert (await running)[0] == expected
            assert (await waiting)[0] == expected
        assert (await site.http.get("/is_paused")).json() == {"is_paused": False}
        assert (await site.http.get("/health")).status_code == 200


async def test_a_stream_that_waited_through_an_update_is_resumed(tmp_path: Path) -> None:
    new = write_version(tmp_path / "new")
    body = {"prompt": "A", "max_tokens": 8, "temperature": 0, "stream": True, "return_token_ids": True}

    async def stream(site: Site, **fields: Any) -> tuple[list[int], list[str]]:
        """Return the tokens of a stream, and its resume tokens: of the first chunk and of the header."""
        token_ids: list[int] = []
        async with site.http.stream("POST", "/v1/completions", json=body | fields) as reply:
            assert reply.status_code == 200, await reply.aread()
            tokens = [reply.headers["x-resume-token"]]
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line[6:])
                    tokens += [chunk["resume_token"]] if "resume_token" in chunk else []
                    token_ids += [token for choice in chunk["choices"] for token in choice["token_ids"]]
        return token_ids, tokens

    gate = Gate()
    async with fleet("mixed alone", gate) as (site, _):
        assert (await site.check(new)).status_code == 200
        gate.close()
        running = asyncio.create_task(site.generate(0))
        await until(lambda: gate.is_holding)
        finishing = asyncio.create_task(site.post("/finish_weight_update"))
        await asyncio.sleep(0.2)
        waiting = asyncio.create_task(stream(site))
        await asyncio.sleep(0.2)
        gate.open()
        await running
        assert (await finishing).status_code == 200
        token_ids, tokens = await waiting
        assert len({*tokens}) == 1
        rest, _ = await stream(site, resume_token=tokens[0], num_received_tokens=3)
        assert rest == token_ids[3:]


async def test_other_ways_of_the_weights_are_refused_with_what_to_do_instead() -> None:
    http = HttpSettings(enable_operator_routes=True)
    async with serving(http=http) as server, client_of(server) as client:
        site = Site(server, client, BatonStub(grpc.aio.insecure_channel("127.0.0.1:1")))
        init, update = "/init_weight_transfer_engine", "/update_weights"
        assert (await site.post(init, init_info={})).status_code == 200
        assert (await site.post(init, init_info={"backend": "files"})).status_code == 200
        nccl = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 3}
        for path, body in ((init, {"init_info": nccl}), (update, {"update_info": {"ipc_handles": []}})):
            status, field, message = error_of(await site.post(path, **body))
            assert (status, field) == (400, next(iter(body)))
            assert "neither NCCL nor IPC: new weights are safetensors files in a folder" in message
        status, _, message = error_of(await site.post(update, update_info={"path": "/models/new"}))
        assert (status, message) == (400, "no weight update is open; allowed: start_weight_update first")
        response = await site.post("/start_weight_update", is_checkpoint_format=False)
        status, field, message = error_of(response)
        assert (status, field) == (400, "is_checkpoint_format")
        assert message.startswith("is_checkpoint_format is false; allowed: true")
        assert (await client.get("/get_world_size")).json() == {"world_size": 0}
        assert (await client.get("/get_world_size?include_dp=false")).json() == {"world_size": 1}
