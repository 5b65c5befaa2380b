from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest

from baton import LLM
from tests.e2e.processes import FLOAT32, SMALL, Cluster, serving


@pytest.fixture(scope="session", autouse=True)
def _interrupts() -> None:
    """Whoever starts the tests in the background may ignore SIGINT; they and their children take it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="package")
def llm() -> Iterator[LLM]:
    """Everything in this process: the oracle of what a cluster answers."""
    with LLM(dtype="float32", enable_prompt_embeds=True) as running:
        yield running


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A prefill worker and a decode worker, for tests that leave them as they were."""
    folder = tmp_path_factory.mktemp("cluster")
    events = {"endpoint": f"ipc://{folder}/events", "replay_endpoint": f"ipc://{folder}/replay"}
    config = json.dumps({"enable_kv_cache_events": True, **events})
    with serving(folder, *SMALL, *FLOAT32, "--kv-events-config", config, "--metrics-port", "0") as running:
        yield running
