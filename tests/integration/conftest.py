"""Engines that start with less work, one thread for torch, a small model, and an ear at the routers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from baton import LLM
from baton_engine import warm_up
from baton_router.core.flow.router_core import RouterCore
from baton_router.core.router_events import FromWorker, RouterEffect, RouterEvent, WorkerReported
from baton_router.streams import client_stream
from tests.integration.tiny_llm import tiny_args
from tests.integration.worker_cluster import Said
from tests.models import make_model


@pytest.fixture(scope="package", autouse=True)
def _short_warm_up() -> Iterator[None]:
    """An engine of this process warms up as a large model does: most of its start is warm-up otherwise.

    It computes one short prompt, and of the batches with a graph the smallest and the largest; it records
    the others when they come.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm_up, "PROMPTS_WITHIN_S", 0.0)
        patch.setattr(warm_up, "SLOW_STEP_S", 0.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models as small as these compute no faster with two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package", autouse=True)
def _tokens_apart() -> Iterator[None]:
    """Each output of a worker is an event of its own, also where several wait for a busy reader."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_stream, "MAX_JOINED", 1)
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with random weights, to be read only."""
    return make_model(tmp_path_factory.mktemp("models") / "llama", "llama")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM.from_engine_args(tiny_args(folder)) as llm:
        yield llm


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    """Listens to every router of the test."""
    heard, on_event = Said(), RouterCore.on_event

    def listen(core: RouterCore, now: float, event: RouterEvent) -> list[RouterEffect]:
        if isinstance(event, FromWorker):
            heard.messages.append(event.message)
            heard.speakers.append(event.worker_id)
        if isinstance(event, WorkerReported):
            heard.loads[event.worker_id] = event.load
        return on_event(core, now, event)

    monkeypatch.setattr(RouterCore, "on_event", listen)
    return heard
