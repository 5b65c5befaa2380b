"""`baton bench latency` and `throughput` with a real engine: what they measure, print and write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from baton.cli import main

SMALL = ["--kv-cache-memory-bytes", "16M", "--max-model-len", "256", "--disable-tqdm"]


def test_a_batch_is_timed_as_often_as_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "latency.json"
    sizes = "--input-len 8 --output-len 4 --batch-size 2 --num-iters-warmup 1 --num-iters 3"
    assert main(["bench", "latency", *sizes.split(), "--output-json", str(path), *SMALL]) == 0
    told = json.loads(path.read_text())
    latencies = told["latencies"]
    assert len(latencies) == 3
    assert told["avg_latency"] == pytest.approx(sum(latencies) / 3)
    assert list(told["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
    assert told["percentiles"]["50"] == sorted(latencies)[1]
    printed = capsys.readouterr().out
    assert printed.startswith(f"Avg latency: {told['avg_latency']} seconds\n10% percentile latency: ")


def test_a_dataset_that_is_there_at_once_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, prompts = tmp_path / "throughput.json", tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "The os module", "output_tokens": 5}\n')
    flags = ["--dataset-name", "custom", "--dataset-path", str(prompts), "--num-prompts", "4"]
    assert main(["bench", "throughput", *flags, "--output-json", str(path), *SMALL]) == 0
    told = json.loads(path.read_text())
    assert (told["num_requests"], told["total_output_tokens"]) == (4, 20)
    assert told["requests_per_second"] == pytest.approx(4 / told["elapsed_time"])
    assert told["tokens_per_second"] == pytest.approx(told["total_num_tokens"] / told["elapsed_time"])
    printed = capsys.readouterr().out
    rates = [f"{told[name]:.2f}" for name in ("requests_per_second", "tokens_per_second")]
    assert printed.startswith(f"Throughput: {rates[0]} requests/s, {rates[1]} total tokens/s, ")
    assert "Total num output tokens:  20\n" in printed
