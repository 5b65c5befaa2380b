"""`baton bench` against a real server: its figures are those of the server, and it survives its target."""

from __future__ import annotations

import asyncio
import json
import subprocess
import urllib.request
from pathlib import Path

from baton.config.engine_args import BUNDLED_MODEL, BUNDLED_MODEL_NAME
from tests.e2e.processes import BATON, Cluster
from tests.integration.tcp_proxy import Proxy

NUM_PROMPTS = 12
COUNTERS = ("prompt_tokens_total", "generation_tokens_total")


def counted(cluster: Cluster) -> dict[str, float]:
    """Return the router's counts of all of its requests."""
    with urllib.request.urlopen(f"http://{cluster.http_address}/metrics", timeout=10) as answer:
        lines = [line.split() for line in answer.read().decode().splitlines() if line.startswith("vllm:")]
    return {
        name: sum(float(value) for series, value in lines if series.startswith(f"vllm:{name}{{"))
        for name in COUNTERS
    }


def num_running(cluster: Cluster) -> int:
    return sum(worker.num_running for worker in cluster.info().workers)


def test_figures_are_the_servers(cluster: Cluster, tmp_path: Path) -> None:
    before = counted(cluster)
    flags = f"--num-prompts {NUM_PROMPTS} --random-input-len 40 --random-output-len 9 --request-rate 20"
    results = f"--goodput ttft:60000 --save-result --save-detailed --result-filename {tmp_path}/result.json"
    command = [*BATON, "bench", "serve", "--base-url", f"http://{cluster.http_address}/v1", "--ignore-eos"]
    ended = subprocess.run(
        [*command, *flags.split(), *results.split()], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads((tmp_path / "result.json").read_text())
    after = counted(cluster)
    grown = [after[name] - before[name] for name in COUNTERS]
    assert grown == [told["total_input_tokens"], told["total_output_tokens"]]
    assert grown == [NUM_PROMPTS * 40, NUM_PROMPTS * 9]
    assert (told["completed"], told["failed"]) == (NUM_PROMPTS, 0)
    assert (told["model_id"], told["tokenizer_id"]) == (BUNDLED_MODEL_NAME, BUNDLED_MODEL)
    assert told["request_goodput"] == told["request_throughput"] == NUM_PROMPTS / told["duration"]
    assert told["duration"] >= (NUM_PROMPTS - 1) / 20
    assert all(0 < ttft_s < told["duration"] for ttft_s in told["ttfts"])
    assert 0 < told["median_ttft_ms"] < told["median_e2el_ms"] <= told["p99_e2el_ms"]
    assert f"Successful requests:                     {NUM_PROMPTS}" in ended.stdout
    cluster.wait_until_idle()


def test_a_target_that_dies_leaves_an_error_count_and_an_exit_status(
    cluster: Cluster, tmp_path: Path
) -> None:
    flags = "--num-prompts 6 --random-input-len 8 --random-output-len 1500 --max-concurrency 2 --ignore-eos"
    results = f"--disable-tqdm --save-result --result-filename {tmp_path}/result.json"

    async def die_in_mid_stream() -> tuple[int | None, str]:
        proxy = Proxy(int(cluster.http_address.rpartition(":")[2]))
        async with proxy as port:
            command = [*BATON, "bench", "serve", "--port", str(port), *flags.split(), *results.split()]
            bench = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
            while num_running(cluster) < 2:  # noqa: ASYNC110  (it tells nobody)
                await asyncio.sleep(0.02)
            proxy.is_refusing = True
            proxy.cut()
            _, said = await bench.communicate()
        return bench.returncode, said.decode()

    status, said = asyncio.run(asyncio.wait_for(die_in_mid_stream(), 60))
    told = json.loads((tmp_path / "result.json").read_text())
    assert status == 1
    assert told["failed"] > 0
    assert told["completed"] + told["failed"] == 6
    assert sum(told["error_counts"].values()) == told["failed"]
    assert "of 6 requests failed: " in said
    cluster.wait_until_idle()
