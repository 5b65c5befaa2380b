"""Writes Grafana's dashboards into the chart.

python -m tools.k8s.dashboards
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from string import ascii_uppercase
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

from tools.k8s.manifests import CHART

FOLDER: Final = CHART / "files/dashboards"
SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
IN: Final = 'namespace=~"$namespace"'
_WIDTH, _HEIGHT = 8, 7


@dataclass(frozen=True, slots=True)
class Panel:
    """A plot: its title, its unit as Grafana names it, and its expressions by legend."""

    title: str
    unit: str
    series: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard: rows of panels under their headings."""

    name: str
    title: str
    rows: Sequence[tuple[str, Sequence[Panel]]]


def _rate(counter: str, by: str, labels: str = "") -> str:
    inside = f"{IN}, {labels}" if labels else IN
    return f"sum by ({by}) (rate({counter}{{{inside}}}[$__rate_interval]))"


def _quantiles(histogram: str) -> list[tuple[str, str]]:
    buckets = f"sum by (le) (rate({histogram}_bucket{{{IN}}}[$__rate_interval]))"
    return [(f"p{100 * share:g}", f"histogram_quantile({share}, {buckets})") for share in (0.5, 0.9, 0.99)]


def _gauge(name: str, by: str, how: str = "max") -> str:
    return f"{how} by ({by}) ({name}{{{IN}}})"


def _slo(latency: str) -> tuple[str, str]:
    return ("SLO", f'max(baton_slo_seconds{{{IN}, latency="{latency}"}})')


BOARDS: Final = (
    Board(
        "requests",
        "Baton: requests",
        (
            (
                "Latency",
                (
                    Panel("TTFT", "s", [*_quantiles("vllm:time_to_first_token_seconds"), _slo("ttft")]),
                    Panel(
                        "Time per output token",
                        "s",
                        [*_quantiles("vllm:request_time_per_output_token_seconds"), _slo("tpot")],
                    ),
                    Panel("E2E", "s", _quantiles("vllm:e2e_request_latency_seconds")),
                    Panel("Inter-token latency", "s", _quantiles("vllm:inter_token_latency_seconds")),
                    Panel("Wait for a first step", "s", _quantiles("vllm:request_queue_time_seconds")),
                    Panel("Wait at the router", "s", _quantiles("baton_queue_wait_seconds")),
                ),
            ),
            (
                "Load",
                (
                    Panel(
                        "Sequences that ended",
                        "reqps",
                        [("{{finished_reason}}", _rate("vllm:request_success_total", "finished_reason"))],
                    ),
                    Panel(
                        "Tokens",
                        "short",
                        [
                            ("prompt", _rate("vllm:prompt_tokens_total", "namespace")),
                            ("cached", _rate("vllm:prompt_tokens_cached_total", "namespace")),
                            ("generated", _rate("vllm:generation_tokens_total", "namespace")),
                        ],
                    ),
                    Panel(
                        "Admission", "reqps", [("{{outcome}}", _rate("baton_admissions_total", "outcome"))]
                    ),
                    Panel(
                        "At the routers",
                        "short",
                        [
                            ("open", f"sum(baton_open_requests{{{IN}}})"),
                            ("waiting", f"sum(baton_queue_length{{{IN}}})"),
                        ],
                    ),
                    Panel("Placements", "reqps", [("{{kind}}", _rate("baton_placements_total", "kind"))]),
                    Panel("HTTP", "reqps", [("{{status}}", _rate("http_requests_total", "status"))]),
                ),
            ),
        ),
    ),
    Board(
        "workers",
        "Baton: workers",
        (
            (
                "Roles",
                (
                    Panel(
                        "Workers", "short", [("{{role}} {{state}}", _gauge("baton_workers", "role, state"))]
                    ),
                    Panel(
                        "Need, of those there are",
                        "percentunit",
                        [("{{role}}", _gauge("baton_role_need", "role"))],
                    ),
                    Panel(
                        "Desired workers",
                        "short",
                        [("{{role}}", _gauge("baton_role_desired_workers", "role"))],
                    ),
                    Panel(
                        "Predicted",
                        "s",
                        [
                            ("wait for prefill", _gauge("baton_predicted_ttft_seconds", "namespace")),
                            ("decode step", _gauge("baton_predicted_tpot_seconds", "namespace")),
                        ],
                    ),
                    Panel(
                        "Changes of roles",
                        "short",
                        [("{{before}} to {{after}}", _rate("baton_role_shifts_total", "before, after"))],
                    ),
                    Panel(
                        "Migrations", "reqps", [("requests", _rate("baton_request_moves_total", "namespace"))]
                    ),
                ),
            ),
            (
                "Each worker",
                (
                    Panel(
                        "Running", "short", [("{{engine}}", _gauge("vllm:num_requests_running", "engine"))]
                    ),
                    Panel(
                        "Waiting", "short", [("{{engine}}", _gauge("vllm:num_requests_waiting", "engine"))]
                    ),
                    Panel(
                        "KV blocks in use",
                        "percentunit",
                        [("{{engine}}", _gauge("vllm:kv_cache_usage_perc", "engine"))],
                    ),
                    Panel(
                        "Prefill rate",
                        "short",
                        [("{{worker}}", _gauge("baton_worker_prefill_tokens_per_second", "worker"))],
                    ),
                    Panel(
                        "Decode step",
                        "s",
                        [("{{worker}}", _gauge("baton_worker_decode_step_seconds", "worker"))],
                    ),
                    Panel(
                        "Prompt tokens queued",
                        "short",
                        [("{{worker}}", _gauge("baton_worker_queued_tokens", "worker"))],
                    ),
                    Panel(
                        "Prompt tokens by source",
                        "short",
                        [("{{source}}", _rate("vllm:prompt_tokens_by_source_total", "source"))],
                    ),
                    Panel(
                        "Preemptions",
                        "short",
                        [("{{engine}}", _rate("vllm:num_preemptions_total", "engine"))],
                    ),
                    Panel(
                        "Age of the step in flight",
                        "s",
                        [("{{worker}}", _gauge("baton_worker_step_age_seconds", "worker"))],
                    ),
                ),
            ),
        ),
    ),
    Board(
        "parts",
        "Baton: transfers, Redis and processes",
        (
            (
                "KV transfers",
                (
                    Panel("Time of a transfer", "s", _quantiles("vllm:nixl_xfer_time_seconds")),
                    Panel(
                        "Bytes", "Bps", [("copied", _rate("vllm:nixl_bytes_transferred_sum", "namespace"))]
                    ),
                    Panel(
                        "Failures",
                        "short",
                        [
                            ("failed", _rate("vllm:nixl_num_failed_transfers_total", "namespace")),
                            ("leases expired", _rate("baton_leases_expired_total", "namespace")),
                            ("broken pairs", _gauge("baton_broken_pairs", "namespace")),
                        ],
                    ),
                    Panel(
                        "Learned rate of copies",
                        "Bps",
                        [("{{worker}}", _gauge("baton_worker_pull_bytes_per_second", "worker"))],
                    ),
                    Panel("KV blocks", "short", [("{{state}}", _gauge("baton_kv_blocks", "state", "sum"))]),
                    Panel(
                        "Tokens computed again",
                        "short",
                        [("{{worker}}", _rate("baton_recomputed_tokens_total", "worker"))],
                    ),
                ),
            ),
            (
                "Redis and processes",
                (
                    Panel(
                        "Redis reached",
                        "short",
                        [("{{process}}", _gauge("baton_redis_up", "process", "min"))],
                    ),
                    Panel(
                        "Changes not read yet",
                        "short",
                        [("{{process}}", _gauge("baton_redis_changes_behind", "process"))],
                    ),
                    Panel("Turn of the router's loop", "s", _quantiles("baton_event_loop_lag_seconds")),
                    Panel("Memory", "bytes", [("{{pod}}", _gauge("process_resident_memory_bytes", "pod"))]),
                    Panel("CPU", "short", [("{{pod}}", _rate("process_cpu_seconds_total", "pod"))]),
                    Panel(
                        "Sessions of workers",
                        "short",
                        [
                            ("{{worker}}", _gauge("baton_sessions", "worker")),
                            ("{{worker}} refused", _gauge("baton_session_refusals", "worker")),
                        ],
                    ),
                ),
            ),
        ),
    ),
)


def board_json(board: Board) -> str:
    """Return a dashboard as Grafana imports it; its data source and namespace are variables."""
    source = dashboard.DatasourceVariable("datasource").type("prometheus").label("Data source")
    namespace = (
        dashboard.QueryVariable("namespace")
        .datasource(SOURCE)
        .query("label_values(baton_ready, namespace)")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .label("Namespace")
    )
    made = (
        dashboard.Dashboard(board.title)
        .uid(f"baton-{board.name}")
        .tags(["baton"])
        .refresh("30s")
        .time("now-1h", "now")
        .with_variable(source)
        .with_variable(namespace)
    )
    numbers = count(1)
    for heading, panels in board.rows:
        made = made.with_row(dashboard.Row(heading).id(next(numbers)))
        for panel in panels:
            made = made.with_panel(_plot(panel).id(next(numbers)))
    return str(JSONEncoder(sort_keys=True, indent=1).encode(made.build())) + "\n"


def _plot(panel: Panel) -> timeseries.Panel:
    legend = common.VizLegendOptions().show_legend(True).placement(LegendPlacement.BOTTOM)
    legend = legend.display_mode(LegendDisplayMode.LIST)
    plot = timeseries.Panel().title(panel.title).unit(panel.unit).datasource(SOURCE).legend(legend)
    plot = plot.span(_WIDTH).height(_HEIGHT)
    for letter, (name, expression) in zip(ascii_uppercase, panel.series, strict=False):
        plot = plot.with_target(prometheus.Dataquery().expr(expression).legend_format(name).ref_id(letter))
    return plot


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for board in BOARDS:
        (FOLDER / f"{board.name}.json").write_text(board_json(board))
    return 0


if __name__ == "__main__":
    sys.exit(main())
