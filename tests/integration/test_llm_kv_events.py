"""KV events of an engine in this process, heard by a subscriber that knows nothing but the wire format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from baton import LLM
from tests.integration.kv_event_subscriber import Subscriber
from tests.integration.tiny_llm import greedy, tiny_args
from tests.models import make_model, make_prompt


@pytest.fixture
def subscriber(tmp_path: Path) -> Iterator[Subscriber]:
    with zmq.Context() as context:
        yield Subscriber(context, f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay")
        context.destroy(linger=0)


def cached(llm: LLM) -> set[bytes]:
    executor: Any = llm.llm_engine._executor
    return set(executor._cores._worker.pool.cache.snapshot().stored)


def test_a_subscriber_knows_what_an_engine_has_cached(tmp_path: Path, subscriber: Subscriber) -> None:
    folder = make_model(tmp_path / "llama", "llama")
    config = {
        "enable_kv_cache_events": True,
        "endpoint": f"ipc://{tmp_path}/events",
        "replay_endpoint": f"ipc://{tmp_path}/replay",
    }
    args = tiny_args(folder, kv_events_config=config, kv_cache_memory_bytes=1 << 18)
    with LLM.from_engine_args(args) as llm:
        for round_ in range(3):
            prompts = [make_prompt(70 + 9 * number, seed=10 * round_ + number) for number in range(6)]
            llm.generate(prompts, greedy(40), use_tqdm=False)
            subscriber.follow(0.2)
            subscriber.catch_up()
            assert subscriber.hashes == cached(llm) != set()
        assert subscriber.num_removed > 0
        assert len(subscriber.epochs) == 1
        assert llm.reset_prefix_cache()
        subscriber.follow(0.2)
        assert subscriber.hashes == set()
