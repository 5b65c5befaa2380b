"""Operators control a real router's real workers over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from baton_core.sessions.control_messages import Control, ControlAction, ControlResult
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import OperatorStub
from baton_router.process.admission_settings import AdmissionSettings
from baton_router.process.http_settings import HttpSettings
from baton_worker.core.controls import Controls, OpenWork
from tests.integration import asked_functions
from tests.integration.controlled_cluster import Site, operated
from tests.integration.http_router import error_of, http_cluster
from tests.integration.router_cluster import serving, unary_error
from tests.integration.scripted_worker import ScriptedWorker, until
from tests.integration.worker_cluster import Gate, eventually

FUNCTIONS = asked_functions.__name__


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[ControlAction]:
    """Actions that workers have been asked for so far, by the controls of all workers of the test."""
    actions: list[ControlAction] = []
    take = Controls.take

    def note(controls: Controls, now: float, router_id: str, control: Control, work: OpenWork) -> Any:
        actions.append(control.action)
        return take(controls, now, router_id, control, work)

    monkeypatch.setattr(Controls, "take", note)
    return actions


async def test_workers_that_slept_give_the_same_tokens_as_before() -> None:
    async with operated() as site:
        expected, _ = await site.generate()
        for level in (1, 2):
            await eventually(site.has_settled)
            await sleep_and_wake_up(site, level)
            assert await site.generate() == (expected, 0)


async def tells(http: httpx.AsyncClient, name: str, **labels: str) -> bool:
    """Return whether the router's sample with these labels is above 0."""
    samples = [
        sample
        for family in text_string_to_metric_families((await http.get("/metrics")).text)
        for sample in family.samples
    ]
    return any(one.value > 0 for one in samples if one.name == name and labels.items() <= one.labels.items())


async def sleep_and_wake_up(site: Site, level: int) -> None:
    """See on the way what the routes and a client are told."""
    http = site.http
    slept = await http.post("/sleep", params={"level": level})
    assert slept.json() == {"status": "sleeping", "level": level}
    assert (await http.get("/is_sleeping")).json() == {"is_sleeping": True}
    assert (await http.get("/health")).status_code == 503
    assert await unary_error(site.generate()) == ("UNAVAILABLE", "every decode worker sleeps")
    asleep = {"sleep_state": ("weights_offloaded", "discard_all")[level - 1], "engine": "decode"}
    await eventually(lambda: tells(http, "vllm:engine_sleep_state", **asleep))
    assert await tells(http, "vllm:external_prefix_cache_hits_total", engine="decode")
    woken = await http.post("/wake_up?tags=weights")
    assert woken.json() == {"status": "sleeping", "tags": ["weights"]}
    assert (await http.get("/is_sleeping")).json() == {"is_sleeping": True}
    assert (await http.post("/wake_up")).json() == {"status": "awake", "tags": None}
    assert (await http.get("/is_sleeping")).json() == {"is_sleeping": False}
    assert (await http.get("/health")).status_code == 200


async def test_no_worker_sleeps_while_a_request_is_open(taken: list[ControlAction]) -> None:
    gate = Gate()
    async with operated(decode_gate=gate) as site:
        expected, _ = await site.generate(20)
        await eventually(site.has_settled)
        gate.close()
        generating = asyncio.create_task(site.generate(20))
        await until(lambda: gate.is_holding)
        response = await site.http.post("/sleep?level=1")
        status, _, message = error_of(response)
        assert status == 429
        assert "sleep has to wait: level is 1; allowed with 1 requests open: 0" in message
        codes = {code for _, code, _ in (await site.control("sleep", level=2)).values()}
        assert codes == {"overloaded"}
        assert ControlAction.SLEEP not in taken
        assert (await site.http.get("/is_sleeping")).json() == {"is_sleeping": False}
        assert (await site.http.get("/health")).status_code == 200
        gate.open()
        assert (await generating)[0] == expected
        await eventually(site.has_settled)
        assert [code for _, code, _ in (await site.control("sleep")).values()] == ["", ""]


async def test_workers_that_sleep_are_woken_again_when_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of another router is open at it, of which this router knows nothing."""
    make, begin = Controls.__init__, Controls.begin
    made: list[Controls] = []

    def make_noted(controls: Controls, *parts: Any) -> None:
        make(controls, *parts)
        made.append(controls)

    def begin_busy(controls: Controls, work: OpenWork) -> Any:
        return begin(controls, replace(work, num_requests=1) if controls is made[-1] else work)

    monkeypatch.setattr(Controls, "__init__", make_noted)
    async with operated() as site:
        expected, _ = await site.generate()
        await eventually(site.has_settled)
        monkeypatch.setattr(Controls, "begin", begin_busy)
        status, _, message = error_of(await site.http.post("/sleep?level=2"))
        assert status == 429
        assert message.startswith("worker decode: sleep has to wait: level is 2; allowed with 1 requests")
        assert message.endswith("open: 0; prefill was woken again")
        monkeypatch.setattr(Controls, "begin", begin)
        assert (await site.http.get("/is_sleeping")).json() == {"is_sleeping": False}
        assert (await site.http.get("/health")).status_code == 200
        assert (await site.generate())[0] == expected


async def test_a_pause_holds_requests_until_the_end_of_it() -> None:
    async with operated() as site:
        expected, _ = await site.generate()
        assert (await site.http.post("/sleep?level=0")).status_code == 200
        health = await site.http.get("/health")
        assert (health.status_code, health.text) == (503, "no worker prefills: prefill is paused\n")
        assert (await site.http.get("/is_sleeping")).json() == {"is_sleeping": True}
        generating = asyncio.create_task(site.generate())
        done, _ = await asyncio.wait((generating,), timeout=0.3)
        assert not done
        assert (await site.http.post("/wake_up?tags=scheduling")).status_code == 200
        assert (await generating)[0] == expected
        assert (await site.http.get("/health")).status_code == 200


async def test_a_request_that_waits_for_paused_workers_ends_when_its_time_in_the_queue_is_over() -> None:
    async with operated(admission=AdmissionSettings(queue_timeout_s=0.5)) as site:
        assert (await site.http.post("/sleep?level=0")).status_code == 200
        _, text = await unary_error(site.generate())
        assert text.endswith("for a worker: every decode worker is paused")


async def test_what_runs_at_a_worker_that_is_paused_goes_on_afterwards() -> None:
    gate = Gate()
    async with operated(decode_gate=gate) as site:
        expected, _ = await site.generate(20)
        gate.close()
        generating = asyncio.create_task(site.generate(20))
        await until(lambda: gate.is_holding)
        pausing = asyncio.create_task(site.http.post("/sleep?level=0"))
        gate.open()
        assert (await pausing).status_code == 200
        assert (await site.http.post("/wake_up")).status_code == 200
        assert (await generating)[0] == expected


async def test_a_reset_forgets_cached_prefixes_everywhere() -> None:
    async with operated() as site:
        await site.generate()
        _, num_cached = await site.generate()
        assert num_cached == 96
        response = await site.http.post("/reset_prefix_cache")
        reset = response.json()
        assert reset == {**reset, "success": reset["num_in_use"] == 0}
        assert reset["num_forgotten"] >= 3
        for other in ("/reset_mm_cache", "/reset_encoder_cache"):
            assert (await site.http.post(other)).status_code == 200
        assert (await site.generate())[1] == 0


async def test_functions_are_called_by_their_names_between_steps() -> None:
    async with operated(allow_functions=True) as site:
        results = await site.control("apply_model", func=f"{FUNCTIONS}:num_weights")
        assert results["prefill"] == results["decode"]
        assert results["prefill"][0] > 1000
        body = {"method": f"{FUNCTIONS}:block_size", "kwargs": {"factor": 2}}
        response = await site.http.post("/collective_rpc", json=body)
        assert response.json() == {"results": [64, 64]}
        for name, code, text in (
            ("give_a_tensor", "invalid_request", "allowed: what JSON can hold"),
            ("give_much", "invalid_request", "allowed: at most 65536 bytes of JSON"),
            ("fail", "internal", "collective_rpc failed: ValueError: on purpose"),
            ("nothing", "invalid_request", "no attribute 'nothing'"),
        ):
            results = await site.control("collective_rpc", method=f"{FUNCTIONS}:{name}")
            told = [(error, text in message) for _, error, message in results.values()]
            assert told == [(code, True)] * 2
        response = await site.http.post("/collective_rpc", json={"method": f"{FUNCTIONS}:fail"})
        assert error_of(response)[0] == 500
        assert "worker decode: collective_rpc failed: ValueError: on purpose" in error_of(response)[2]


async def test_an_answer_that_does_not_come_is_an_error_that_names_what_was_waited_for() -> None:
    gate = Gate()
    async with operated(decode_gate=gate, allow_functions=True) as site:
        gate.close()
        generating = asyncio.create_task(site.generate())
        await until(lambda: gate.is_holding)
        results = await site.control("collective_rpc", method=f"{FUNCTIONS}:block_size", timeout_s=0.3)
        assert results["prefill"] == (32, "", "")
        text = "collective_rpc waited 0.3 s for the step in flight to end"
        assert results["decode"] == (None, "deadline_exceeded", text)
        gate.open()
        await generating


async def test_a_worker_that_leaves_meanwhile_has_an_error_in_the_place_of_its_answer(
    taken: list[ControlAction],
) -> None:
    gate = Gate()
    async with operated(split="never", decode_gate=gate, move_timeout_s=1.0) as site:
        gate.close()
        generating = asyncio.create_task(unary_error(site.generate()))
        await until(lambda: gate.is_holding)
        asking = asyncio.create_task(site.control("wake_up"))
        await until(lambda: taken == [ControlAction.WAKE_UP])
        leaving = asyncio.create_task(site.workers.aclose())
        _, code, message = (await asking)["mixed"]
        assert (code, message.startswith("the worker was lost: ")) == ("worker_lost", True)
        gate.open()
        await leaving
        assert (await generating)[0] == "UNAVAILABLE"


async def test_a_worker_that_says_nothing_is_not_waited_for_longer_than_asked() -> None:
    silent = ScriptedWorker("w1")
    async with http_cluster(silent, http=HttpSettings(enable_operator_routes=True)) as client:
        asking = asyncio.create_task(client.post("/collective_rpc", json={"method": "x", "timeout": 0.1}))
        await until(lambda: bool(silent.commands))
        (asked,) = silent.commands
        assert isinstance(asked, Control)
        assert (asked.timeout_s, json.loads(asked.argument_json)["method"]) == (0.1, "x")
        status, _, message = error_of(await asking)
        assert (status, message) == (504, "worker w1: no answer to collective_rpc within 0.1 s")
        silent.client.send(silent.router_id, ControlResult(control_id=asked.control_id))
        asking = asyncio.create_task(client.get("/is_sleeping"))
        await until(lambda: len(silent.commands) == 2)
        awake = ControlResult(control_id=asked.control_id + 1, result_json="false")
        silent.client.send(silent.router_id, awake)
        assert (await asking).json() == {"is_sleeping": False}


async def test_profiles_are_written_where_the_worker_was_told(tmp_path: Path) -> None:
    async with operated(split="never", profiler_folder=str(tmp_path)) as site:
        assert (await site.http.post("/start_profile")).status_code == 200
        response = await site.http.post("/start_profile")
        assert error_of(response)[0] == 400
        assert "start_profile is 'called again'" in error_of(response)[2]
        assert (await site.http.post("/stop_profile")).status_code == 200
    traces = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert [bool(trace["traceEvents"]) for trace in traces] == [True]


async def test_functions_are_refused_by_name_unless_allowed_and_what_is_wrong_by_field() -> None:
    async with operated(split="never") as site:
        response = await site.http.post("/collective_rpc", json={"method": "warm_up", "args": [4]})
        status, _, message = error_of(response)
        assert status == 400
        assert "method is 'warm_up'; allowed: none: this worker runs without --allow-functions" in message
        results = await site.control("apply_model", func="os:getpid")
        assert [code for _, code, _ in results.values()] == ["invalid_request"]
        for path, text in (
            ("/sleep?level=3", "level is 3; allowed: 0, 1, 2"),
            ("/sleep?level=-1", "level is -1; allowed: 0, 1, 2"),
            ("/sleep?level=abc", "level is 'abc'; allowed: an integer"),
            ("/sleep?level=", "level is ''; allowed: an integer"),
            ("/sleep?tags=weights", "allowed: level"),
            ("/wake_up?level=1", "allowed: tags"),
            ("/wake_up?tags=", "tags is ''; allowed: weights, kv_cache, scheduling"),
            ("/sleep?levle=1", "allowed: level"),
            ("/sleep?mode=keep", "mode is 'keep'; allowed: abort, wait (level 0 keeps requests"),
            ("/sleep?mode=abort&level=3", "level is 3; allowed: 0, 1, 2"),
            ("/wake_up?tags=disk", "tags is 'disk'; allowed: weights, kv_cache, scheduling"),
            ("/start_profile", "torch_profiler_dir is ''"),
            ("/stop_profile", "stop_profile is 'called'"),
            ("/reset_prefix_cache?x=1", "allowed: reset_running_requests, reset_external"),
            ("/reset_prefix_cache?reset_running_requests=2", "reset_running_requests is '2'; allowed: "),
        ):
            status, _, message = error_of(await site.http.post(path))
            assert (status, text in message) == (400, True), message
        for request, text in (
            (pb.ControlRequest(action="stop"), "action is 'stop'; allowed: sleep, wake_up"),
            (pb.ControlRequest(action="check_weights"), "finish_weight_update, serve_adapter, "),
            (pb.ControlRequest(action="sleep", argument_json="[1]"), "allowed: a JSON object"),
            (
                pb.ControlRequest(action="reset_prefix_cache", argument_json='{"x": 1}'),
                "reset_running_requests",
            ),
            (pb.ControlRequest(action="sleep", timeout_s=0.0), "timeout_s is 0.0"),
            (
                pb.ControlRequest(action="apply_model", argument_json=json.dumps({"func": "x" * 70_000})),
                "bytes of JSON; allowed: at most 65536".replace("; ", "'; "),
            ),
        ):
            code, details = await unary_error(site.operator.Control(request))
            assert (code, text in details) == ("INVALID_ARGUMENT", True), details


async def test_a_wrong_level_is_the_fault_of_the_parameter() -> None:
    async with operated(split="never") as site:
        for query in ("level=-1", "level=3", "level=abc", "level=1.5"):
            response = await site.http.post(f"/sleep?{query}")
            assert (response.status_code, response.json()["error"]["param"]) == (400, "level")
        assert (await site.http.get("/is_sleeping")).json() == {"is_sleeping": False}


async def test_operators_need_to_be_let_in() -> None:
    request = pb.ControlRequest(action="is_sleeping")
    for settings, names in ((HttpSettings(), ()), (_keyed(), ("baton.v1.Operator",))):
        async with serving(http=settings) as server:
            address = f"127.0.0.1:{server.grpc_port}"
            async with grpc.aio.insecure_channel(address) as channel:
                key = (("authorization", "Bearer the-key"),) if names else ()
                assert await _reflected(channel, key) >= {"baton.v1.Baton", *names}
                operator = OperatorStub(channel)
                if not names:
                    assert (await unary_error(operator.Control(request)))[0] == "UNIMPLEMENTED"
                    continue
                assert (await unary_error(operator.Control(request)))[0] == "UNAUTHENTICATED"
                code, details = await unary_error(operator.Control(request, metadata=key))
                assert (code, details) == ("UNAVAILABLE", "is_sleeping reaches no worker: none is registered")


def _keyed() -> HttpSettings:
    return HttpSettings(enable_operator_routes=True, api_keys=("the-key",))


async def _reflected(channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...]) -> set[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    async for response in stub.ServerReflectionInfo(iter([asked]), metadata=metadata):
        return {service.name for service in response.list_services_response.service}
    return set()
