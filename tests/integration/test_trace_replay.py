"""The replay of a trace, end to end: real processes whose model step is a timer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
def test_a_replay_hands_over_every_prompt_and_finds_what_is_cached(tmp_path: Path) -> None:
    trace, result = tmp_path / "trace.jsonl", tmp_path / "result.json"
    lines = [
        {"timestamp": 1000 * turn, "input_length": 512 * turn + 700, "output_length": 8, "hash_ids": ids}
        for turn in range(4)
        for ids in ([0, 1, *range(10, 10 + turn)], [0, 2, *range(20, 20 + turn)])
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ["--topology", "1p1d", "--policies", "always-split", "--repeats", "1", "--every", "1"]
    flags += ["--output-divisor", "1", "--speedup", "2", "--timing", "assumed_8b_gpu"]
    command = [sys.executable, "-m", "bench.trace_replay", str(trace), *flags]
    done = subprocess.run(
        [*command, "--save-result", str(result)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    replay = json.loads(result.read_text())["1p1d"]
    (run,) = replay["metrics"]["always-split"]
    assert "Wrong or missing answers: 0" in done.stdout
    assert run["split_share"] == 1.0
    assert run["transferred_bytes"] > 0
    assert 0.3 < replay["ideal_hit_rate"] == run["hit_rate"]
