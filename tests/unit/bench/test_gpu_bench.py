"""The arithmetic of `bench.gpu`, and that each of its parts runs: on a CPU, with tiny shapes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_kernels.interface.kernels import LayerKernels
from bench.gpu.__main__ import (
    PARTS,
    make_setup,
    markdown,
    parse_arguments,
    run_in_process,
    run_part,
    time_limits,
)
from bench.gpu.measures import (
    LLAMA3_8B,
    QWEN2_387M,
    TINY,
    Heads,
    Table,
    attempt,
    decode_attention_bytes,
    percent,
    prefill_attention_flops,
    show,
)
from bench.gpu.models import RandomWeights, build

HEADS = Heads(name="", num_q_heads=4, num_kv_heads=2, head_dim=8)
QUICK = ("--device", "cpu", "--quick", "--dtype", "float32")


def test_decode_attention_reads_keys_and_values_once_and_queries_and_writes_results() -> None:
    keys_and_values, queries_and_results = 2 * 100 * 2 * 8, 2 * 4 * 8
    assert decode_attention_bytes(HEADS, 3, 100, 2) == 3 * 2 * (keys_and_values + queries_and_results)


@pytest.mark.parametrize(("num_tokens", "context"), [(7, 7), (3, 10), (1, 5)])
def test_prefill_attention_multiplies_twice_for_each_visible_pair(num_tokens: int, context: int) -> None:
    pairs = sum(context - num_tokens + place + 1 for place in range(num_tokens))
    assert prefill_attention_flops(HEADS, num_tokens, context) == pairs * 4 * 8 * 2 * 2


def test_a_models_weights_are_those_that_it_loads() -> None:
    setup = make_setup(parse_arguments(QUICK))
    weights = RandomWeights(Path(), setup.dtype, setup.device)
    build(weights, TINY, 64, LayerKernels())
    norms, embedding = (2 * TINY.num_hidden_layers + 1) * TINY.hidden_size, 64 * TINY.hidden_size
    assert weights.loaded_bytes == 4 * (TINY.num_read_weights + norms + embedding)


@pytest.mark.parametrize(
    ("shape", "low", "high"), [(QWEN2_387M, 386e6, 388e6), (LLAMA3_8B, 7.4e9, 7.6e9)], ids=["387M", "8B"]
)
def test_a_decode_step_reads_every_weight_but_an_embedding_of_its_own(
    shape: Any, low: float, high: float
) -> None:
    assert low < shape.num_read_weights < high
    kv_bytes = shape.decode_bytes(32, 2048, 2) - shape.decode_bytes(0, 2048, 2)
    assert (
        kv_bytes == 32 * 2048 * 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * 2
    )
    assert shape.decode_bytes(0, 2048, 2) == 2 * shape.num_read_weights


def test_a_prompts_work_is_its_products_and_its_attention() -> None:
    attention = 2 * prefill_attention_flops(TINY.heads, 10, 10)
    products = 2 * 10 * 2 * TINY.num_layer_weights
    assert TINY.prefill_flops(10) == attention + products + 2 * 32 * 64


def test_a_contender_that_fails_leaves_the_reason_in_its_cell() -> None:
    def fail() -> float:
        raise RuntimeError("no such kernel\nand more")

    def lack() -> float:
        raise ModuleNotFoundError(name="flashinfer")

    assert attempt(fail) == "RuntimeError: no such kernel"
    assert attempt(lack) == "flashinfer is not installed"
    assert attempt(lambda: 0.002, 1e3) == pytest.approx(2.0)
    assert percent(0.5, 2.0) == "25%"
    assert percent(0.5, "RuntimeError") is None


def test_tables_show_three_digits_that_count() -> None:
    shown = [show(cell) for cell in (None, "x", 7, 0.012345, 12.345, 123_456.0, 0.0, 1e-9)]
    assert shown == ["–", "x", "7", "0.0123", "12.3", "123,456", "0.0", "1.00e-09"]
    table = Table(title="T", columns=("a", "b"), rows=[(1, 2.0)])
    assert table.markdown() == "### T\n\n| a | b |\n| --- | --- |\n| 1 | 2.00 |\n"


def test_the_parts_share_the_time() -> None:
    limits = time_limits(["correctness", "decode"], 6)
    assert limits == pytest.approx({"correctness": 120, "decode": 240})
    assert sum(time_limits(list(PARTS), 9.5).values()) == pytest.approx(570)


def test_a_part_that_hangs_says_so_in_its_place() -> None:
    result = run_in_process("correctness", 0.05, QUICK)
    assert markdown(result) == "failed after 0.05 s: not done within 0 s\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_each_part_runs_to_its_tables(name: str) -> None:
    tables = run_part(name, make_setup(parse_arguments(QUICK)))
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    text = markdown({"tables": json.loads(json.dumps([asdict(table) for table in tables]))})
    assert all(f"### {table.title}\n" in text for table in tables)
    for verdict in ("WRONG", "NO |", "AttributeError", "TypeError"):
        assert verdict not in text


def test_a_gpu_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(SystemExit):
        parse_arguments([])
    assert "device is 'cuda' and torch sees no GPU; allowed: cpu" in capsys.readouterr().err
