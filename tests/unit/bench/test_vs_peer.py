"""The comparison's figures are those of the engines' answers, and no process of an engine is left."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from bench.peer.engine_process import EngineFailedError, OfflineEngine
from bench.peer.figures import Limits, Weights, agreement, figures_of, limit_s, ratio, share_of_limit
from bench.peer.scenarios import OFFLINE, Scenario
from bench.peer.table import Results, table

pytestmark = pytest.mark.slow

LIMITS = Limits(bytes_per_s=100.0, flops=1000.0)
WEIGHTS = Weights(num_parameters=50, num_bytes=200)
"""A step takes 2 s for its bytes, and 0.1 s for each token."""
TWO = Scenario(num_requests=2, num_prompt_tokens=30, num_output_tokens=3)


def make_answer() -> dict[str, object]:
    return {"wall_s": 6.0, "times_s": [[1.0, 2.0, 5.0], [2.0, 4.0, 6.0]]}


def test_a_run_gives_times_of_requests_and_rates_of_all() -> None:
    figures = figures_of(TWO, make_answer())
    assert figures == {"ttft_s": 1.5, "tpot_s": 2.0, "output_rate": 1.0, "total_rate": 11.0}


def test_a_request_that_ends_early_is_no_result() -> None:
    with pytest.raises(ValueError, match="a request got 3 tokens; allowed: 4"):
        figures_of(Scenario(num_requests=2, num_prompt_tokens=1, num_output_tokens=4), make_answer())


def test_the_limit_of_a_step_is_its_bytes_or_its_products() -> None:
    assert WEIGHTS.step_s(1, LIMITS) == 2.0
    assert WEIGHTS.step_s(60, LIMITS) == pytest.approx(6.0)
    assert limit_s(TWO, WEIGHTS, LIMITS) == pytest.approx(6.0 + 2 * 2.0)
    assert share_of_limit(TWO, "tpot_s", 4.0, WEIGHTS, LIMITS) == 0.5
    assert share_of_limit(TWO, "output_rate", 0.3, WEIGHTS, LIMITS) == pytest.approx(0.5)
    assert share_of_limit(TWO, "total_rate", 3.3, WEIGHTS, LIMITS) == pytest.approx(0.5)
    assert share_of_limit(TWO, "ttft_s", 1.0, WEIGHTS, LIMITS) is None


def test_a_shared_prefix_is_computed_once_where_it_is_read_from_the_cache() -> None:
    assert OFFLINE["prefix-off"].num_computed_tokens == 16 * 1088
    assert OFFLINE["prefix-cold"].num_computed_tokens == 1024 + 16 * 64
    assert OFFLINE["prefix-warm"].num_computed_tokens == 16 * 64


def test_prompts_of_two_turns_share_their_beginning_alone() -> None:
    scenario = Scenario(num_requests=2, num_prompt_tokens=40, num_output_tokens=1, num_shared_tokens=30)
    first, second = scenario.prompts("a"), scenario.prompts("a", turn=1)
    assert scenario.prompts("a") == first
    assert {tuple(prompt[:30]) for prompt in first + second} == {tuple(first[0][:30])}
    assert len({tuple(prompt[30:]) for prompt in first + second}) == 4
    assert scenario.prompts("b")[0][:30] != first[0][:30]


def test_a_ratio_over_one_is_in_our_favour() -> None:
    assert ratio("tpot_s", [1.0, 9.0, 2.0], [3.0, 1.0, 4.0]) == 1.5
    assert ratio("total_rate", [1.0, 9.0, 2.0], [3.0, 1.0, 4.0]) == pytest.approx(2 / 3)
    assert agreement([[1, 2], [3, 4]], [[1, 2], [3, 5]]) == 0.5


def test_the_table_shows_medians_ranges_targets_and_limits() -> None:
    results = Results(limits=[LIMITS, Limits(bytes_per_s=50.0, flops=2000.0)])
    for ours, theirs in ((4.0, 5.0), (2.0, 6.0), (3.0, 9.0)):
        results.add("single", "baton", {"tpot_s": ours})
        results.add("single", "vllm", {"tpot_s": theirs})
    results.add("serve", "baton", {"peak_bytes": 2e9})
    results.add("serve", "vllm", {"peak_bytes": 3e9})
    lines = table(results, OFFLINE, WEIGHTS).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert results.best_limits() == Limits(bytes_per_s=100.0, flops=2000.0)
    assert cells[2:] == [
        ["single", "TPOT, ms", "baton", "3000.0 (2000.0 to 4000.0)", "", "67%"],
        ["single", "TPOT, ms", "vllm", "6000.0 (5000.0 to 9000.0)", "2.00 (reaches 1.3)", "33%"],
        ["serve", "peak memory, GB", "baton", "2.00", "", ""],
        ["serve", "peak memory, GB", "vllm", "3.00", "1.50 (misses 2)", ""],
    ]


STARTS_ANOTHER = (
    "import subprocess\nprint(subprocess.Popen(['sleep', '60'], start_new_session=True).pid, flush=True)\n"
)


def started_by(log: Path) -> Path:
    """Return the folder in /proc of the process that `STARTS_ANOTHER` has started."""
    while not (words := log.read_text().split()):
        time.sleep(0.01)
    return Path("/proc", words[0])


def test_an_engine_that_fails_shows_its_last_lines_and_leaves_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-S", "-c", f"{STARTS_ANOTHER}raise SystemExit('no such model')"]
    with OfflineEngine("theirs", command, log=log, environment={}) as engine:
        with pytest.raises(
            EngineFailedError, match=r"theirs ended; the end of .*log:\n  \d+\n  no such model"
        ):
            engine.wait_until_ready(20)
        engine.close()
        assert not started_by(log).exists()


def test_an_engine_that_does_not_answer_is_ended_with_all_it_has_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-S", "-c", f"{STARTS_ANOTHER}import time\ntime.sleep(60)"]
    with OfflineEngine("theirs", command, log=log, environment={}) as engine:
        other = started_by(log)
        engine.pause()
        with pytest.raises(EngineFailedError, match=r"did not answer within 0\.1 s"):
            engine.wait_until_ready(0.1)
        assert other.exists()
        engine.close()
        assert not other.exists()
