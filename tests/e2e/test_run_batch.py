"""A batch that is killed in the middle, and goes on under vLLM's name at a server of its own."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

from baton.config.engine_args import BUNDLED_MODEL
from tests.e2e.processes import BATON, READY_WITHIN_S, Cluster, until

NUM_LINES = 60


def test_every_line_of_a_killed_batch_is_answered_once(cluster: Cluster, tmp_path: Path) -> None:
    body = {"max_tokens": 16, "temperature": 0}
    (tmp_path / "in.jsonl").write_text(
        "\n".join(
            json.dumps(
                {
                    "custom_id": f"line-{number}",
                    "method": "POST",
                    "url": "/v1/completions",
                    "body": {**body, "prompt": f"The os module, {number}"},
                }
            )
            for number in range(NUM_LINES)
        )
    )
    files = ("-i", "in.jsonl", "-o", "out.jsonl", "--max-inflight", "2")
    process = subprocess.Popen(
        [*BATON, "run-batch", *files, "--url", f"http://{cluster.http_address}"], cwd=tmp_path
    )
    until(lambda: len(_partial(tmp_path).splitlines()) >= NUM_LINES // 4, READY_WITHIN_S, "a quarter is done")
    process.kill()
    assert process.wait() == -signal.SIGKILL
    whole, newline, _ = _partial(tmp_path).rpartition(b"\n")
    assert NUM_LINES // 4 <= len(whole.splitlines()) < NUM_LINES
    assert not (tmp_path / "out.jsonl").exists()
    module = ("as-vllm", "python", "-m", "vllm.entrypoints.openai.run_batch")
    flags = ("--model", BUNDLED_MODEL, "--kv_cache_memory_bytes", "64M", "--dtype", "float32")
    done = subprocess.run(
        [*BATON, *module, *files, *flags],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=READY_WITHIN_S,
    )
    assert done.returncode == 0, done.stderr
    assert f"{NUM_LINES} requests, 0 with an error: out.jsonl\n" in done.stderr
    output = (tmp_path / "out.jsonl").read_bytes()
    assert output.startswith(whole + newline)
    answers = [json.loads(line) for line in output.splitlines()]
    assert sorted(one["custom_id"] for one in answers) == sorted(f"line-{n}" for n in range(NUM_LINES))
    assert {one["response"]["body"]["usage"]["completion_tokens"] for one in answers} == {16}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def _partial(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("out.jsonl.*.partial"))
