"""Static inputs of decode steps: sizes, what lies where, and padding that touches nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from baton_core.kv_layout.kv_spec import KVGroup, KVSpec
from baton_core.kv_layout.paging import NO_BLOCK
from baton_core.worker.step_plan import SAMPLED
from baton_engine.steps.decode_graphs import capture_sizes
from baton_engine.steps.decode_inputs import DecodeInputs
from baton_kernels.interface.sampling import Refusal
from tests.unit.engine.steps import make_slice

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SPEC = KVSpec(
    num_layers=1,
    num_kv_heads=1,
    head_dim=8,
    block_size=8,
    dtype="float32",
    groups=(KVGroup(layers=(0,)), KVGroup(layers=(1,), window=9)),
)


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (20, (1, 2, 4, 8, 16, 20)),
        (1000, (1, 2, 4, *range(8, 257, 8))),
    ],
)
def test_steps_are_padded_to_few_sizes_up_to_the_largest(max_num_seqs: int, sizes: tuple[int, ...]) -> None:
    assert capture_sizes(max_num_seqs) == sizes


def test_inputs_start_as_padding_alone() -> None:
    for batch in DecodeInputs(SPEC, 5, 32).batches(5):
        assert batch.slot_mapping.tolist() == [-1] * 5
        assert batch.seq_lens.tolist() == [0] * 5
        assert batch.query_start.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_step_lies_in_the_first_places_of_every_group() -> None:
    inputs = DecodeInputs(SPEC, 5, 32)
    full, window = inputs.batches(4)
    inputs.fill([make_slice([7], [3, 1], start=9, num_groups=2), make_slice([8], [2], num_groups=2)], 4)
    assert inputs.token_ids[:4].tolist() == [7, 8, 0, 0]
    assert full.positions.tolist() == [9, 0, 0, 0]
    assert full.seq_lens.tolist() == [10, 1, 0, 0]
    assert full.block_tables.tolist() == [[6, 2, 0, 0], [4, 0, 0, 0], [0] * 4, [0] * 4]
    assert window.block_tables.tolist() == [[7, 3, 0, 0], [5, 0, 0, 0], [0] * 4, [0] * 4]
    assert full.slot_mapping.tolist() == [2 * 8 + 1, 4 * 8, -1, -1]
    assert window.slot_mapping.tolist() == [3 * 8 + 1, 5 * 8, -1, -1]
    assert (full.window, window.window) == (None, 9)
    assert window.query_lens == (1, 1, 1, 1)
    assert window.context_lens == (32,) * 4


def test_tokens_that_are_on_the_device_take_their_places() -> None:
    inputs = DecodeInputs(SPEC, 5, 32)
    sampled = torch.tensor([70, 80])
    pieces = [make_slice([SAMPLED], [3, 1], start=9, num_groups=2), make_slice([SAMPLED], [2], num_groups=2)]
    inputs.fill(pieces, 4, sampled)
    assert inputs.token_ids[:4].tolist() == [70, 80, 0, 0]
    assert inputs.batches(4)[0].positions.tolist() == [9, 0, 0, 0]


def test_the_next_step_lies_one_token_on_in_every_group() -> None:
    inputs = DecodeInputs(SPEC, 5, 32)
    full, window = inputs.batches(2)
    first = replace(make_slice([7], [3], start=7), block_tables=((6, 2), (7, 3)))
    inputs.fill([first, make_slice([8], [2], num_groups=2)], 2)
    inputs.advance(torch.tensor([70, Refusal.NOT_A_NUMBER]))
    assert inputs.token_ids[:2].tolist() == [70, 0]
    assert full.positions.tolist() == [8, 1]
    assert full.seq_lens.tolist() == [9, 2]
    assert full.slot_mapping.tolist() == [2 * 8, 4 * 8 + 1]
    assert window.slot_mapping.tolist() == [3 * 8, 5 * 8 + 1]


def test_a_shorter_step_leaves_nothing_of_a_longer_one() -> None:
    inputs = DecodeInputs(SPEC, 5, 32)
    (batch, _) = inputs.batches(4)
    inputs.fill([make_slice([7], [3, 1, 2], start=17, num_groups=2)] * 4, 4)
    inputs.fill([make_slice([9], [4], start=2, num_groups=2)], 2)
    assert batch.seq_lens.tolist() == [3, 0, 0, 0]
    assert batch.slot_mapping.tolist() == [8 * 8 + 2, -1, -1, -1]
    assert batch.block_tables[:2].tolist() == [[8, 0, 0, 0], [0] * 4]


def test_blocks_before_the_window_are_no_block_of_the_pool() -> None:
    inputs = DecodeInputs(SPEC, 1, 32)
    piece = make_slice([7], [3, 1, 2], start=17, num_groups=2)
    tables = (piece.block_tables[0], (NO_BLOCK, *piece.block_tables[1][1:]))
    inputs.fill([type(piece)(seq_id=piece.seq_id, token_ids=(7,), start=17, block_tables=tables)], 1)
    assert inputs.batches(1)[1].block_tables.tolist() == [[0, 3, 5, 0]]


def test_replayed_steps_equal_eager_ones_at_other_lengths_and_sizes(
    model_folder: Callable[[str], Path],
) -> None:
    """The model runs on Triton's kernels, interpreted, as a captured step would."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.unit.engine.interpreted_decode_step",
            model_folder("qwen2-mixed-windows"),
        ],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    steps = json.loads(done.stdout)
    assert len(steps) == 2
    for step in steps:
        assert 0 < step["hidden"] < 1e-4
        assert step["cache"] < 1e-4
        assert step["slots touched by one alone"] == step["broken rows"] == 0
