"""A run is reported as the table and the names that readers of such results know."""

from __future__ import annotations

from datetime import datetime

from baton_bench.answers import LoadRun
from baton_bench.figures import measure
from baton_bench.results import as_json, detailed, failures, file_name, table, warnings
from baton_bench.sweep import sweep_points, sweep_table
from tests.unit.baton_bench.answers import make_answer, make_run

PERCENTS = (50.0, 90.0, 99.0, 99.9)


def test_the_table_has_the_shape_that_is_known() -> None:
    figures = measure(make_run(make_answer()), (50.0, 99.0), {"ttft": 500.0})
    assert (
        table(figures, ("ttft", "tpot"), {"Maximum request concurrency": 8})
        == """\
============ Serving Benchmark Result ============
Successful requests:                     1
Failed requests:                         0
Maximum request concurrency:             8
Benchmark duration (s):                  2.00
Total input tokens:                      10
Total generated tokens:                  3
Request throughput (req/s):              0.50
Request goodput (req/s):                 0.50
Output token throughput (tok/s):         1.50
Peak output token throughput (tok/s):    3.00
Peak concurrent requests:                1
Total token throughput (tok/s):          6.50
---------------Time to First Token----------------
Mean TTFT (ms):                          100.00
Median TTFT (ms):                        100.00
Std TTFT (ms):                           0.00
P99 TTFT (ms):                           100.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          150.00
Median TPOT (ms):                        150.00
Std TPOT (ms):                           0.00
P99 TPOT (ms):                           150.00
------------------Load Generator------------------
P99 send lag (ms):                       0.00
CPU share of a core:                     0.10
==================================================
"""
    )


def test_json_has_vllms_names() -> None:
    result = as_json(measure(make_run(make_answer(), make_answer(error="lost")), PERCENTS, {}))
    parts = ("mean", "median", "std", "p50", "p90", "p99", "p99.9")
    latencies = {f"{part}_{name}_ms" for part in parts for name in ("ttft", "tpot", "itl", "e2el")}
    rates = {"request_throughput", "request_goodput", "output_throughput", "total_token_throughput"}
    counts = {"completed", "failed", "duration", "total_input_tokens", "total_output_tokens"}
    assert latencies | rates | counts <= set(result)
    assert (result["completed"], result["failed"], result["error_counts"]) == (1, 1, {"lost": 1})
    assert "p99_send_lag_ms" in result


def test_details_are_one_entry_for_each_request() -> None:
    result = detailed(make_run(make_answer(), make_answer(error="lost")))
    assert {len(entries) for entries in result.values()} == {2}
    assert result["errors"] == ["", "lost"]
    assert result["output_lens"] == [3, 3]


def test_a_load_generator_that_is_late_or_busy_is_warned_of() -> None:
    late = make_answer(sent_s=1.02)
    late.reported_tokens = None
    run = LoadRun(answers=(late,), start_s=1.0, duration_s=1.0, cpu_share=0.95)
    figures = measure(run, (50.0,), {})
    lines = list(warnings(figures, is_paced=True))
    assert lines[0].startswith("requests left the load generator up to 20.0 ms late (p99)")
    assert "95% of a core" in lines[1]
    assert "1 answers came without a usage" in lines[2]
    assert len(list(warnings(figures, is_paced=False))) == 2
    assert list(warnings(measure(make_run(make_answer()), (50.0,), {}), is_paced=True)) == []


def test_the_most_frequent_reasons_of_failures_come_first() -> None:
    run = make_run(make_answer(), *(make_answer(error=error) for error in ("a", "b", "b")))
    lines = list(failures(measure(run, (50.0,), {})))
    assert lines == ["2 of 4 requests failed: b", "1 of 4 requests failed: a"]


def test_a_file_is_named_by_what_was_measured() -> None:
    now = datetime(2026, 1, 31, 12)
    assert file_name("a", "4", 8, "org/m", now) == "a-4qps-concurrency8-m-20260131-120000.json"
    assert file_name("a", "inf", None, "m", now) == "a-infqps-m-20260131-120000.json"


def test_a_sweep_has_a_row_for_each_pair_of_rate_and_concurrency() -> None:
    points = sweep_points([1.0, float("inf")], [2, 4])
    names = [str(point) for point in points]
    assert names == ["1/s, 2 at a time", "1/s, 4 at a time", "inf/s, 2 at a time", "inf/s, 4 at a time"]
    figures = measure(make_run(make_answer()), (50.0, 99.0), {"ttft": 1.0})
    rows = sweep_table([(name, figures) for name in names]).splitlines()
    assert len(rows) == 6
    figured = "0 | 0.50 | 0.00 | 1.5 | 100.0 | 100.0 | 150.0 | 150.0 | 150.0 | 199.0 | 0.0"
    assert " ".join(rows[2].split()) == f"| 1/s, 2 at a time | {figured} |"
    failed = measure(make_run(make_answer(error="x")), (50.0, 99.0), {})
    row = " ".join(sweep_table([("1/s", failed)]).splitlines()[2].split())
    assert row == "| 1/s | 1 | 0.00 | | 0.0 | - | - | - | - | - | - | 0.0 |"
