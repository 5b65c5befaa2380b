"""Which service tells which metric, and what a worker counts."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from baton_core.requests.attempt_names import PROBE_MARK
from baton_core.requests.phases import Phase, PhaseName, PhaseReport, TokenSources
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.sessions.router_messages import Generate, Transferred
from baton_core.sessions.worker_info import EngineFigures, Role, WorkerLoad
from baton_core.worker.model_work import AttentionGroup, ModelWork, Product
from baton_core.worker.worker_events import CompileGrammar, FromRouter, GrammarCompiled, StepDone
from baton_router.core.flow.router_core import RouterConfig, RouterCore
from baton_router.core.router_events import WorkerJoined, WorkerReported
from baton_router.metrics.request_metrics import RequestMetrics
from baton_router.metrics.router_metrics import RouterMetrics
from baton_service.exposition import Exposition
from baton_service.wire.wire_worker import decode_load, encode_load
from baton_worker.core.metrics_config import MetricsConfig
from baton_worker.core.worker_core import WorkerCore
from baton_worker.worker_metrics import WorkerMetrics
from tests.builders import make_request, make_worker_config, make_worker_info, step_result
from tests.unit.core.workers import Pair, Worker

GAUGES: Final = {
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info"),
    *("lora_requests_info", "num_requests_waiting_by_reason", "engine_sleep_state"),
}
COUNTERS: Final = {
    *("prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "prompt_tokens_cached"),
    *("generation_tokens", "external_prefix_cache_queries", "external_prefix_cache_hits"),
    *("prompt_tokens_by_source", "request_success", "num_preemptions"),
    *("nixl_num_failed_transfers", "nixl_num_kv_expired_reqs"),
    *("spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"),
    *("spec_decode_num_accepted_tokens_per_pos", "estimated_flops_per_gpu"),
    *("estimated_read_bytes_per_gpu", "estimated_write_bytes_per_gpu"),
}
HISTOGRAMS: Final = {
    *("iteration_tokens_total", "time_to_first_token_seconds", "inter_token_latency_seconds"),
    *("request_time_per_output_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"),
    *("request_inference_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"),
    *("request_prompt_tokens", "request_generation_tokens", "request_params_n"),
    *("request_max_num_generation_tokens", "request_prefill_kv_computed_tokens"),
    *("request_params_max_tokens", "nixl_xfer_time_seconds", "nixl_bytes_transferred"),
    *("nixl_num_descriptors", "kv_block_lifetime_seconds", "kv_block_idle_before_evict_seconds"),
    "kv_block_reuse_gap_seconds",
}
TYPES: Final = {
    f"vllm:{name}": kind
    for kind, names in (("gauge", GAUGES), ("counter", COUNTERS), ("histogram", HISTOGRAMS))
    for name in names
}

OF_A_PROCESS: Final = ("process_", "baton_log_lines_lost")
"""How names begin of what each process tells of itself."""
Key = tuple[str, tuple[str, ...]]


def types_of(page: Exposition) -> dict[str, str]:
    """Return the type of each family by its name without `_total`."""
    return {family.name: family.type for family in text_string_to_metric_families(page.text().decode())}


def samples_of(page: Exposition) -> dict[Key, float]:
    """By name and the values of the labels beyond the engine's and the worker's."""
    return {
        (sample.name, tuple(sample.labels[name] for name in sorted({*sample.labels} - _OWN))): sample.value
        for family in text_string_to_metric_families(page.text().decode())
        for sample in family.samples
    }


_OWN: Final = {"model_name", "engine", "worker"}


def worker_metrics(core: WorkerCore | None = None) -> WorkerMetrics:
    return WorkerMetrics("tiny", core or WorkerCore(make_worker_config("w1")))


def router_metrics(figures: EngineFigures | None = None, **info: object) -> RouterMetrics:
    core = RouterCore(RouterConfig())
    core.on_event(0.0, WorkerJoined(info=make_worker_info("w1", **info)))
    core.on_event(0.0, WorkerReported(worker_id="w1", load=WorkerLoad(figures=figures)))
    return RouterMetrics("tiny", core, RequestMetrics())


def test_router_and_worker_together_tell_every_name_that_dashboards_know() -> None:
    told = types_of(router_metrics().exposition(is_ready=True)) | types_of(worker_metrics().exposition())
    assert {name: kind for name, kind in told.items() if name.startswith("vllm:")} == TYPES
    assert all(name.startswith(("vllm:", "baton_", "http_", "process_")) for name in told)


def test_the_documentation_lists_every_name() -> None:
    listed = (Path(__file__).parents[3] / "docs" / "observability.md").read_text(encoding="utf-8")
    told = types_of(router_metrics().exposition(is_ready=True)) | types_of(worker_metrics().exposition())
    for name, kind in told.items():
        shown = f"{name}_total" if kind == "counter" else name
        assert f"| `{shown}` | {kind} |" in listed


def test_each_series_is_told_by_one_service() -> None:
    metrics = worker_metrics()
    of_worker = {name for name, _ in samples_of(metrics.exposition())}
    apart = router_metrics(metrics.figures, metrics_address="w1:9100")
    of_router = {name for name, _ in samples_of(apart.exposition(is_ready=True))}
    shared = {name for name in of_worker & of_router if not name.startswith(OF_A_PROCESS)}
    assert not shared, "each process tells of itself alone, and of nothing else that another tells"
    instead = {
        name for name, _ in samples_of(router_metrics(metrics.figures).exposition(is_ready=True))
    } - of_router
    assert instead == {name for name in of_worker if name.startswith("vllm:") and "nixl" not in name}


def test_a_router_tells_for_a_worker_what_the_worker_has_counted() -> None:
    core = WorkerCore(make_worker_config("w1"))
    metrics = worker_metrics(core)
    figures = EngineFigures(
        sleep_level=2,
        num_queried_tokens=9,
        num_hit_tokens=8,
        num_computed_tokens=7,
        num_cached_tokens=6,
        num_remote_tokens=5,
        num_remote_queried_tokens=10,
        num_preemptions=4,
        step_counts=(1, 2, *metrics.figures.step_counts[2:]),
        num_step_tokens=17,
        num_drafts=3,
        num_draft_tokens=6,
        num_accepted_tokens=2,
        num_accepted_per_position=(2, 0),
        max_loras=2,
        waiting_adapters=("a", "b"),
        running_adapters=("c",),
    )
    load = decode_load(encode_load(replace(core.load(0.0), figures=figures)))
    told = samples_of(router_metrics(load.figures).exposition(is_ready=True))
    prefix, drafts, began_s = "vllm:prefix_cache", "vllm:spec_decode_num", time.time()
    assert [told[f"{prefix}_queries_total", ()], told[f"{prefix}_hits_total", ()]] == [9, 8]
    external = "vllm:external_prefix_cache"
    assert [told[f"{external}_queries_total", ()], told[f"{external}_hits_total", ()]] == [10, 5]
    sources = ("local_compute", "local_cache_hit", "external_kv_transfer")
    assert [told["vllm:prompt_tokens_by_source_total", (source,)] for source in sources] == [7, 6, 5]
    assert told["vllm:num_preemptions_total", ()] == 4
    steps = "vllm:iteration_tokens_total"
    assert [told[f"{steps}_bucket", (bound,)] for bound in ("1.0", "8.0", "+Inf")] == [1, 3, 3]
    assert told[f"{steps}_sum", ()] == 17
    names = ("drafts", "draft_tokens", "accepted_tokens")
    assert [told[f"{drafts}_{name}_total", ()] for name in names] == [3, 6, 2]
    assert [told[f"{drafts}_accepted_tokens_per_pos_total", (at,)] for at in "01"] == [2, 0]
    assert told["vllm:lora_requests_info", ("2", "c", "a,b")] == pytest.approx(began_s, abs=60)
    states = ("awake", "weights_offloaded", "discard_all")
    assert [told["vllm:engine_sleep_state", (state,)] for state in states] == [0, 0, 1]


@pytest.mark.parametrize("is_on", [True, False])
def test_the_router_tells_of_a_workers_cache_as_the_worker_would(is_on: bool) -> None:
    core = WorkerCore(make_worker_config("w1", enable_prefix_caching=is_on))
    pages = (
        worker_metrics(core).exposition(),
        router_metrics(has_prefix_cache=is_on).exposition(is_ready=True),
    )
    name = "vllm:cache_config_info"
    told = [{labels[2] for family, labels in samples_of(page) if family == name} for page in pages]
    assert told == [{str(is_on)}] * 2


def test_each_process_tells_its_memory_time_and_files() -> None:
    for page in (worker_metrics().exposition(), router_metrics().exposition(is_ready=True)):
        told = samples_of(page)
        assert told["process_resident_memory_bytes", ()] > 2**20
        assert told["process_cpu_seconds_total", ()] > 0
        assert 0 < told["process_open_fds", ()] < told["process_max_fds", ()]
        assert told["process_start_time_seconds", ()] == pytest.approx(time.time(), abs=10**5)


def test_series_name_model_and_engine() -> None:
    for page in (worker_metrics().exposition(), router_metrics().exposition(is_ready=True)):
        engines = [
            sample.labels
            for family in text_string_to_metric_families(page.text().decode())
            for sample in family.samples
            if sample.name.startswith("vllm:")
        ]
        assert engines
        assert all((labels["model_name"], labels["engine"]) == ("tiny", "w1") for labels in engines)


def test_lookups_steps_and_blocks_are_counted() -> None:
    worker = Worker(make_worker_config("w1", num_blocks=16))
    metrics = worker_metrics(worker.core)
    for request_id in ("a", "b"):
        worker.generate(make_request(request_id, prompt=9, max_tokens=1))
        plan = worker.plan()
        metrics.on_step(plan)
        worker.feed(StepDone(result=step_result(plan)))
    told = samples_of(metrics.exposition())
    assert told["vllm:prefix_cache_queries_total", ()] == 18
    assert told["vllm:prefix_cache_hits_total", ()] == 8, "two full blocks of four tokens"
    assert told["vllm:iteration_tokens_total_count", ()] == 2
    assert told["vllm:iteration_tokens_total_sum", ()] == 9 + 1
    assert told["vllm:kv_cache_usage_perc", ()] == 0
    states = ("free", "cached", "in_use", "quarantined")
    assert [told["baton_kv_blocks", (state,)] for state in states] == [14, 2, 0, 0]


def test_residency_of_blocks_is_told_by_the_worker_or_its_router_where_it_is_measured() -> None:
    stays = ("kv_block_lifetime_seconds", "kv_block_idle_before_evict_seconds", "kv_block_reuse_gap_seconds")
    names = [f"vllm:{name}_{part}" for name in stays for part in ("count", "sum")]
    worker = Worker(make_worker_config("w1", num_blocks=16, metrics=MetricsConfig(residency_share=1.0)))
    metrics = worker_metrics(worker.core)
    for now, first in ((1.0, 0), (2.0, 0), (4.0, 0), (10.0, 100)):
        request = make_request(f"at {now}", prompt=9 if first == 0 else 57, first=first, max_tokens=1)
        worker.feed(FromRouter(router_id="router", message=Generate(spec=request)), now=now)
        plan = worker.core.schedule(now)
        assert plan is not None
        worker.feed(StepDone(result=step_result(plan)), now=now)
    load = decode_load(encode_load(replace(worker.core.load(0.0), figures=metrics.figures)))
    pages = metrics.exposition(), router_metrics(load.figures).exposition(is_ready=True)
    for told in map(samples_of, pages):
        assert [told[name, ()] for name in names] == [1, 9, 1, 6, 2, 4], "the second block of two is evicted"
    assert not {names[0]} & {name for name, _ in samples_of(worker_metrics().exposition())}


def test_work_of_steps_is_told_by_the_worker_or_its_router_where_it_is_estimated() -> None:
    model = ModelWork(
        products=(Product(inputs=8, outputs=4),),
        head=(Product(inputs=8, outputs=16),),
        groups=(AttentionGroup(num_layers=2),),
        query_size=8,
        kv_bytes=32,
        weight_bytes=2.0,
        item_bytes=2,
    )
    worker = Worker(make_worker_config("w1", metrics=MetricsConfig(model_work=model)))
    metrics = worker_metrics(worker.core)
    worker.generate(make_request("r", prompt=3, max_tokens=2))
    for _ in range(2):
        plan = worker.plan()
        metrics.on_step(plan)
        worker.feed(StepDone(result=step_result(plan)))
    flops = 2 * (4 * 32 + 2 * 128) + 4 * 2 * 8 * (6 + 4)
    read = 2 * 2 * (32 + 128) + 2 * 8 * (4 + 2) + 2 * 32 * (3 + 4)
    written = 2 * (4 * 4 + 16 * 2) + 2 * 32 * 4
    load = decode_load(encode_load(replace(worker.core.load(0.0), figures=metrics.figures)))
    pages = metrics.exposition(), router_metrics(load.figures).exposition(is_ready=True)
    names = [f"vllm:estimated_{name}_per_gpu_total" for name in ("flops", "read_bytes", "write_bytes")]
    for told in map(samples_of, pages):
        assert [told[name, ()] for name in names] == [flops, read, written]
    assert not {names[0]} & {name for name, _ in samples_of(worker_metrics().exposition())}


def test_a_routers_probes_are_not_counted() -> None:
    worker = Worker(make_worker_config("w1", num_blocks=16))
    metrics = worker_metrics(worker.core)
    name = f"{PROBE_MARK}1.1"
    worker.generate(make_request(name, prompt=3, max_tokens=1))
    metrics.on_step(worker.plan())
    failed = Transferred(request_id=name, num_blocks=1, num_bytes=0, transfer_s=0.5, num_recomputed_tokens=3)
    metrics.on_message(failed)
    told = samples_of(metrics.exposition())
    assert told["vllm:prefix_cache_queries_total", ()] == 0
    assert told["vllm:iteration_tokens_total_count", ()] == 0
    assert told["vllm:nixl_num_failed_transfers_total", ()] == 0


def test_what_waits_is_told_by_what_it_waits_for() -> None:
    pair = Pair()
    metrics = worker_metrics(pair.d.core)
    form = StructuredOutputsParams(regex="a+")

    def waiting() -> tuple[float, ...]:
        """Waiting requests by the worker's own metrics and those that a router tells of its heartbeats."""
        told = samples_of(metrics.exposition())
        load = pair.d.core.load(0.0)
        by_reason = tuple(
            told["vllm:num_requests_waiting_by_reason", (why,)] for why in ("capacity", "deferred")
        )
        assert told["vllm:num_requests_waiting", ()] == sum(by_reason)
        assert by_reason == (load.num_waiting, load.num_deferred)
        return by_reason

    assert waiting() == (0, 0)
    pair.reserve(make_request("pulled", first=100))
    assert waiting() == (0, 1), "its blocks are on their way"
    pair.d.generate(make_request("plain", first=200))
    (prepare,) = [
        effect
        for effect in pair.d.generate(make_request("formed", first=300, structured_outputs=form))
        if isinstance(effect, CompileGrammar)
    ]
    assert waiting() == (1, 2)
    pair.d.feed(GrammarCompiled(compilation_id=prepare.compilation_id))
    assert waiting() == (2, 1), "its form is compiled"
    assert pair.d.core.schedule(0.0) is not None
    assert waiting() == (0, 1), "both are computed"


def test_a_router_tells_for_a_worker_what_waits_there_by_reason() -> None:
    core = RouterCore(RouterConfig())
    core.on_event(0.0, WorkerJoined(info=make_worker_info("w1")))
    core.on_event(0.0, WorkerReported(worker_id="w1", load=WorkerLoad(num_waiting=3, num_deferred=2)))
    told = samples_of(RouterMetrics("tiny", core, RequestMetrics()).exposition(is_ready=True))
    assert told["vllm:num_requests_waiting", ()] == 5
    assert told["vllm:num_requests_waiting_by_reason", ("capacity",)] == 3
    assert told["vllm:num_requests_waiting_by_reason", ("deferred",)] == 2


def test_a_router_tells_how_full_the_pools_of_each_role_are() -> None:
    core = RouterCore(RouterConfig())
    for name, role, share in (("p", Role.PREFILL, 1.0), ("d", Role.DECODE, 0.5), ("e", Role.DECODE, 0.0)):
        info = make_worker_info(name, role)
        core.on_event(0.0, WorkerJoined(info=info))
        load = WorkerLoad(num_available_blocks=round(share * info.num_blocks))
        core.on_event(0.0, WorkerReported(worker_id=name, load=load))
    told = samples_of(RouterMetrics("tiny", core, RequestMetrics()).exposition(is_ready=True))
    assert told["baton_role_kv_cache_usage", ("prefill",)] == 0
    assert told["baton_role_kv_cache_usage", ("decode",)] == 0.75


def test_a_router_has_series_of_a_worker_before_its_first_request() -> None:
    told = samples_of(router_metrics().exposition(is_ready=False))
    reasons = ("stop", "length", "abort", "error", "repetition")
    assert [told["vllm:request_success_total", (reason,)] for reason in reasons] == [0] * 5
    assert told["vllm:e2e_request_latency_seconds_count", ()] == 0
    assert told["baton_ready", ()] == 0


def test_transfers_and_sources_are_counted_from_reports() -> None:
    metrics = worker_metrics()
    block_bytes = make_worker_config().kv_spec.block_bytes
    pulled = Phase(name=PhaseName.TRANSFER, start_s=1.0, end_s=1.25, num_bytes=3 * block_bytes, peer="p")
    sources = TokenSources(num_computed=1, num_local_cache=4, num_remote=12, num_recomputed=2)
    metrics.on_message(PhaseReport(request_id="r", phases=(pulled, pulled), sources=sources, sent_s=2.0))
    for num_recomputed in (0, 2):
        metrics.on_message(
            Transferred(
                request_id="r",
                num_blocks=6,
                num_bytes=0,
                transfer_s=0.5,
                num_recomputed_tokens=num_recomputed,
            )
        )
    told = samples_of(metrics.exposition())
    assert told["vllm:nixl_xfer_time_seconds_sum", ()] == 0.5
    assert told["vllm:nixl_bytes_transferred_sum", ()] == 6 * block_bytes
    assert told["vllm:nixl_num_descriptors_sum", ()] == 6
    assert told["vllm:nixl_num_descriptors_count", ()] == 1
    assert told["vllm:nixl_num_failed_transfers_total", ()] == 1
    by_source = {labels: value for (name, labels), value in told.items() if "by_source" in name}
    assert by_source == {("local_compute",): 3, ("local_cache_hit",): 4, ("external_kv_transfer",): 12}
    external = "vllm:external_prefix_cache"
    assert [told[f"{external}_queries_total", ()], told[f"{external}_hits_total", ()]] == [15, 12]
    assert told["baton_recomputed_tokens_total", ()] == 2


def test_offers_that_end_by_time_are_counted_by_cause() -> None:
    pair = Pair()
    producer = worker_metrics(pair.p.core)
    pair.hand_over(make_request("pulled", first=100))
    pair.prefill(make_request("unclaimed"))
    pair.reserve(make_request("silent", first=200))
    pair.prefill(make_request("silent", first=200))
    pair.is_cut = True
    assert samples_of(producer.exposition())["baton_leases_open", ()] == 2
    pair.wait(100.0)
    told = samples_of(producer.exposition())
    assert told["baton_leases_open", ()] == 0
    assert told["baton_leases_expired_total", ("unclaimed",)] == 1
    assert told["baton_leases_expired_total", ("silent",)] == 1
    assert told["vllm:nixl_num_kv_expired_reqs_total", ()] == 2


def test_a_worker_is_healthy_while_a_router_gives_it_work() -> None:
    metrics = worker_metrics()
    assert metrics.problem == "no router"
    metrics.refusals, metrics.unreachable = lambda: ["r1 refuses it"], lambda: ["r2 is away"]
    assert metrics.problem == "r1 refuses it; r2 is away"
    assert samples_of(metrics.exposition())["baton_session_refusals", ()] == 1
    metrics.num_sessions = 1
    assert metrics.problem == ""
    assert samples_of(metrics.exposition())["baton_sessions", ()] == 1
