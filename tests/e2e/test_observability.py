"""A cluster of real processes describes itself: every service's metrics, and `baton explain`."""

from __future__ import annotations

import json

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from baton.cli import main
from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.e2e.processes import Cluster, until

NAME = "explained/once"
WITHIN_S = 30.0


@pytest.fixture(scope="module")
def finished(cluster: Cluster) -> str:
    """A request of 80 prompt tokens and 12 new ones, which is over for all workers."""
    request = ask(draw_prompt(80, seed=43), greedy(12))
    request.request_id = NAME
    answer(cluster.stub.Generate(request))
    path = f"http://{cluster.http_address}/debug/requests/{NAME}"
    until(lambda: len(httpx.get(path).json()["hops"]) == 3, WITHIN_S, "both workers' parts")
    cluster.wait_until_idle()
    return NAME


def samples_at(address: str) -> dict[tuple[str, ...], float]:
    """By name and values of all labels but the model's."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels.keys() - {"model_name"}))): (
            sample.value
        )
        for family in text_string_to_metric_families(httpx.get(f"http://{address}/metrics").text)
        for sample in family.samples
    }


def test_every_service_tells_its_own_series_and_no_others(cluster: Cluster, finished: str) -> None:
    state = httpx.get(f"http://{cluster.http_address}/debug/cluster").json()
    addresses = {worker["worker_id"]: worker["metrics_address"] for worker in state["workers"]}
    assert addresses.keys() == {"prefill-0", "decode-1"}
    for address in addresses.values():
        assert httpx.get(f"http://{address}/health").status_code == 200
    told = [samples_at(address) for address in (cluster.http_address, *addresses.values())]
    of_a_process = ("process_", "baton_log_lines_lost")
    names = [name for samples in told for name in samples if not name[0].startswith(of_a_process)]
    assert len(names) == len(set(names)), "a series is told twice"
    series = {name: value for samples in told for name, value in samples.items()}
    assert series["vllm:generation_tokens_total", "decode-1"] >= 11
    assert series["vllm:prompt_tokens_by_source_total", "decode-1", "external_kv_transfer"] >= 80
    assert series["vllm:prompt_tokens_by_source_total", "prefill-0", "local_compute"] >= 80
    assert series["vllm:nixl_bytes_transferred_count", "decode-1"] >= 1
    assert series["vllm:num_requests_running", "decode-1"] == 0
    assert series["baton_leases_open", "prefill-0"] == 0


def test_a_request_is_explained_in_the_terminal(
    cluster: Cluster, finished: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    address = ("--address", cluster.http_address)
    assert main(["explain", f"cmpl-{finished}", *address]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{finished}: finished, ")
    assert lines[1] == "80 prompt tokens (0 cached), 12 new"
    hops = [line.split()[0] for line in lines if line.startswith(("router ", "prefill-0 ", "decode-1 "))]
    assert hops == ["router", "prefill-0", "decode-1"]
    assert any(line.startswith(">  prefill-0 > decode-1 ") for line in lines)
    sources = [line.split() for line in lines[-2:]]
    assert sources == [["prefill-0", "80", "0", "0", "0"], ["decode-1", "0", "0", "80", "0"]]
    assert main(["explain", finished, *address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["request_id"] == finished
    assert main(["explain", "unknown", *address]) == 1
    assert "request_id is 'unknown'" in capsys.readouterr().err
    assert main(["explain", finished, "--address", "127.0.0.1:1"]) == 1
    assert "address is '127.0.0.1:1', where no router answers" in capsys.readouterr().err


def test_cached_prompt_tokens_calls_and_the_process_are_told_by_the_router(cluster: Cluster) -> None:
    before = samples_at(cluster.http_address)
    body = {"prompt": draw_prompt(96, seed=47), "max_tokens": 2, "temperature": 0}
    url = f"http://{cluster.http_address}/v1/completions"
    usages = [httpx.post(url, json=body, timeout=30.0).json()["usage"] for _ in range(2)]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached[1] > 0
    after = samples_at(cluster.http_address)

    def grown(name: str) -> float:
        return sum(after[key] - before.get(key, 0.0) for key in after if key[0] == name)

    assert grown("vllm:prompt_tokens_cached_total") == sum(cached)
    assert grown("vllm:prompt_tokens_total") == 2 * 96
    key = ("http_requests_total", "/v1/completions", "POST", "2xx")
    assert after[key] - before.get(key, 0.0) == 2
    assert after["process_cpu_seconds_total",] > before["process_cpu_seconds_total",] > 0
    assert after["process_resident_memory_bytes",] > 2**20


def test_each_worker_tells_what_waits_by_reason(cluster: Cluster) -> None:
    state = httpx.get(f"http://{cluster.http_address}/debug/cluster").json()
    for worker in state["workers"]:
        told = samples_at(worker["metrics_address"])
        for reason in ("capacity", "deferred"):
            assert told["vllm:num_requests_waiting_by_reason", worker["worker_id"], reason] == 0
