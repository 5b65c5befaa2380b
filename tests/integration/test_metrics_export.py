"""Figures of this process's engines, on the page that an application makes with `prometheus_client`."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from baton import LLM, AsyncLLMEngine, EngineArgs
from baton.api.metrics_export import ENGINES, FAMILIES, EngineCollector
from baton.executors import engine_loop
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args

DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
PROCESSES = {"prefill_workers": 1, "decode_workers": 1}


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Engines of other modules are not on the page meanwhile, and none of these are afterwards."""
    gc.collect()
    others, ENGINES._engines = ENGINES._engines, {}
    ENGINES._unregister()
    yield
    gc.collect()
    left, ENGINES._engines = ENGINES._engines, others
    assert not any(read() for read in left.values())


def samples(registry: CollectorRegistry = REGISTRY) -> dict[tuple[str, str], float]:
    """The values of vLLM's series by name and engine; of several, such as buckets, the last one's."""
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a family is there twice"
    found = (sample for family in families for sample in family.samples if family.name.startswith("vllm:"))
    return {(sample.name, sample.labels["engine"]): sample.value for sample in found}


async def generate(engine: AsyncLLMEngine, num_tokens: int) -> None:
    async for _ in engine.generate(PROMPT, greedy(num_tokens), "a"):
        pass


def engine_of(args: EngineArgs) -> AsyncLLMEngine:
    return AsyncLLMEngine.from_engine_args(args)


@pytest.mark.parametrize("workers", [{}, PROCESSES], ids=["on a thread", "in processes"])
async def test_an_engine_is_on_its_application_s_page(folder: Path, workers: dict[str, int]) -> None:
    engine = engine_of(tiny_args(folder, **workers))
    await generate(engine, 3)
    page = samples()  # read on the loop, as make_asgi_app does
    assert page["vllm:generation_tokens_total", "0"] == 3
    assert page["vllm:num_requests_running", "0"] == 0
    assert page["vllm:time_to_first_token_seconds_count", "0"] == 1
    assert page["vllm:time_to_first_token_seconds_bucket", "0"] == 1
    assert page["vllm:request_prompt_tokens_sum", "0"] == len(PROMPT)
    assert page["vllm:cache_config_info", "0"] == 1
    assert {metric.name for metric in await engine.get_metrics()} <= FAMILIES.keys()
    await asyncio.to_thread(engine.shutdown)
    assert not samples()
    assert ENGINES not in REGISTRY._collector_to_names


async def test_a_page_does_not_wait_for_a_long_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, release = engine_of(tiny_args(folder)), threading.Event()
    await generate(engine, 3)
    before = samples()
    monkeypatch.setattr(engine_loop, "_LOAD_WITHIN_S", 0.01)
    busy = asyncio.create_task(engine.apply_model(lambda model: release.wait(30)))
    await asyncio.sleep(0.1)
    assert samples() == before
    assert not release.is_set()
    release.set()
    assert await busy == [True]
    engine.shutdown()


async def test_engines_are_told_apart_by_a_label(folder: Path) -> None:
    first, second = (engine_of(tiny_args(folder)) for _ in range(2))
    await generate(first, 2)
    await generate(second, 5)
    page = samples()
    name = "vllm:generation_tokens_total"
    assert (page[name, "0"], page[name, "1"]) == (2, 5)
    first.shutdown()
    assert {engine for _, engine in samples()} == {"1"}
    third = engine_of(tiny_args(folder))
    assert samples()[name, "0"] == 0
    for engine in (second, third, third):
        engine.shutdown()
    assert not samples()


def test_an_llm_is_on_it_until_it_is_gone(folder: Path) -> None:
    llm = LLM.from_engine_args(tiny_args(folder, speculative_config=DRAFTS))
    llm.generate({"prompt_token_ids": [5, 6, 7, 8, 9] * 6}, greedy(40), use_tqdm=False)
    page = samples()
    assert page["vllm:spec_decode_num_drafts_total", "0"]
    assert page["vllm:spec_decode_num_accepted_tokens_per_pos_total", "0"] is not None
    assert {metric.name for metric in llm.get_metrics()} <= FAMILIES.keys()
    del llm
    gc.collect()
    assert not samples()


def test_it_is_on_each_page_that_another_thread_reads_while_steps_run(folder: Path) -> None:
    interval, is_over, pages = sys.getswitchinterval(), threading.Event(), []

    def read() -> None:
        while not is_over.is_set():
            pages.append(b"vllm:num_requests_running{" in generate_latest(REGISTRY))

    with LLM.from_engine_args(tiny_args(folder, max_num_seqs=64)) as llm:
        reader = threading.Thread(target=read)
        sys.setswitchinterval(1e-6)
        try:
            reader.start()
            llm.generate([PROMPT] * 300, greedy(2), use_tqdm=False)
        finally:
            is_over.set()
            reader.join()
            sys.setswitchinterval(interval)
    assert pages
    assert all(pages)


def test_without_statistics_it_is_not_on_it(folder: Path) -> None:
    with LLM.from_engine_args(tiny_args(folder, disable_log_stats=True)):
        assert ENGINES not in REGISTRY._collector_to_names


class Engine:
    def get_metrics(self) -> list[object]:
        raise RuntimeError("broken on purpose")


def test_an_engine_that_cannot_be_read_leaves_the_page_as_it_is() -> None:
    collector, engine = EngineCollector(registry := CollectorRegistry()), Engine()
    number = collector.add(engine.get_metrics)  # type: ignore[arg-type]
    Gauge("mine", "One of the application's own.", registry=registry).set(1)
    assert b"\nmine 1.0\n" in generate_latest(registry)
    registry.unregister(collector)
    collector.remove(number)


def test_names_that_an_application_has_itself_end_no_engine(caplog: pytest.LogCaptureFixture) -> None:
    registry, engine = CollectorRegistry(), Engine()
    Gauge("vllm:num_requests_running", "One of the application's own.", registry=registry)
    collector = EngineCollector(registry)
    collector.remove(collector.add(engine.get_metrics))  # type: ignore[arg-type]
    assert "not exported with prometheus_client: Duplicated timeseries" in caplog.text
