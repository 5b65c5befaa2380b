"""`baton serve --kv-events-config` and `baton kv-events`, as processes."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from baton import SamplingParams
from tests.e2e.calls import ask
from tests.e2e.processes import BATON, Cluster


def stored_by(cluster: Cluster, suffix: str, token_ids: list[int]) -> list[str]:
    """Hashes of the event that begins with these tokens, as the worker's events are printed."""
    folder = cluster.log.parent
    command = [
        *BATON,
        "kv-events",
        f"ipc://{folder}/events{suffix}",
        "--replay",
        f"ipc://{folder}/replay{suffix}",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                event: dict[str, Any] = json.loads(line)
                if event["type"] == "BlockStored" and event["token_ids"][:32] == token_ids[:32]:
                    return event["block_hashes"]
        finally:
            process.terminate()
    raise AssertionError("the events ended")


def test_both_workers_publish_the_blocks_of_a_prompt_that_was_handed_over(cluster: Cluster) -> None:
    prompt = [7, 5, 3] * 30
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    list(cluster.stub.Generate(ask(prompt, params), timeout=60.0))
    prefill, decode = stored_by(cluster, "", prompt), stored_by(cluster, "_dp1", prompt)
    assert len(prefill) == 2
    assert prefill == decode
