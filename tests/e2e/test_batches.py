"""A batch at `baton serve`, whose worker and then router are killed in the middle."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import openai

from tests.e2e.processes import BRISK, FLOAT32, KV_CACHE_BYTES, NO_GRAMMARS, ONE_MIXED, serving, until

NUM_LINES = int(os.environ.get("BATON_BATCH_LINES", "60"))
WITHIN_S = 100.0 + NUM_LINES / 2
FLAGS = (
    *(*ONE_MIXED, *FLOAT32, *BRISK, *NO_GRAMMARS, "--kv-cache-memory-bytes", str(KV_CACHE_BYTES)),
    *("--files-directory", "files", "--max-batch-inflight", "3", "--api-key", "key"),
)


def test_every_line_is_answered_once_though_worker_and_router_are_killed(tmp_path: Path) -> None:
    body = {"max_tokens": 16, "temperature": 0}
    lines = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {**body, "messages": [{"role": "user", "content": f"The os module, {number}"}]},
        }
        for number in range(NUM_LINES)
    ]
    with serving(tmp_path, *FLAGS) as cluster:
        url = f"http://{cluster.http_address}/v1"
        client = openai.OpenAI(base_url=url, api_key="key", max_retries=20)
        content = "\n".join(map(json.dumps, lines)).encode()
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        made = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )

        def num_done() -> int:
            counts = client.batches.retrieve(made.id).request_counts
            assert counts is not None
            return counts.completed + counts.failed

        until(lambda: num_done() >= NUM_LINES // 4, WITHIN_S, "a quarter is done")
        (worker,) = cluster.pids_of("baton mixed-worker")
        os.kill(worker, signal.SIGKILL)
        until(lambda: num_done() >= NUM_LINES // 2, WITHIN_S, "half is done")
        (router,) = cluster.pids_of("baton router")
        os.kill(router, signal.SIGKILL)
        until(lambda: client.batches.retrieve(made.id).status == "completed", WITHIN_S, "all is done")

        batch = client.batches.retrieve(made.id)
        assert (batch.error_file_id, batch.output_file_id is None) == (None, False)
        answers = [json.loads(one) for one in client.files.content(str(batch.output_file_id)).iter_lines()]
        assert sorted(one["custom_id"] for one in answers) == sorted(one["custom_id"] for one in lines)
        texts = {one["custom_id"]: one["response"]["body"]["choices"][0]["message"] for one in answers}
        chat: Any = client.chat.completions
        for line in lines[:: NUM_LINES // 4]:
            answer = chat.create(model="", **line["body"])
            assert answer.choices[0].message.content == texts[line["custom_id"]]["content"]
