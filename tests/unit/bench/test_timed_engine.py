"""An engine that waits: its tokens show a block that is wrong, and its steps last as long as they should."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from baton_core.worker.step_plan import SampleSpec, SeqId, SequenceSlice, StepPlan
from baton_simulator.capacity.step_timing import StepTiming
from bench.replay.timed_engine import TimedEngine, expected_tokens
from bench.replay.timed_worker import kv_spec

BLOCK_SIZE, NUM_BLOCKS, VOCAB_SIZE = 4, 8, 4096
PROMPT = tuple(range(100, 110))
SAMPLE = SampleSpec(seed=0, position=0, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)


def make_engine() -> tuple[TimedEngine, torch.Tensor]:
    pool = torch.zeros((NUM_BLOCKS, *kv_spec(16, BLOCK_SIZE).block_shape))
    timing = StepTiming(step_s=0.0, prompt_token_s=0, prompt_pair_s=0, decode_s=0, decode_context_s=0)
    return TimedEngine(pool, BLOCK_SIZE, timing, VOCAB_SIZE, np.zeros(3)), pool


def step(
    tokens: tuple[int, ...],
    start: int,
    table: tuple[int, ...],
    *,
    is_sampled: bool = True,
    copies: tuple[tuple[int, int], ...] = (),
) -> StepPlan:
    piece = SequenceSlice(
        seq_id=SeqId("r", 0),
        token_ids=tokens,
        start=start,
        block_tables=(table,),
        samples=(SAMPLE,) if is_sampled else (),
    )
    return StepPlan(step_id=1, slices=(piece,), block_copies=copies)


def decode(engine: TimedEngine, token: int, table: tuple[int, ...], count: int) -> list[int]:
    """Tokens that follow the prompt and its first token."""
    tokens = [token]
    for position in range(len(PROMPT), len(PROMPT) + count):
        ((sampled,),) = engine.compute(step((tokens[-1],), position, table)).sampled
        tokens.append(sampled)
    return tokens


def test_tokens_do_not_depend_on_chunks_nor_on_where_blocks_lie() -> None:
    engine, _ = make_engine()
    assert engine.compute(step(PROMPT[:7], 0, (5, 2), is_sampled=False)).sampled == ((),)
    ((first,),) = engine.compute(step(PROMPT[7:], 7, (5, 2, 7))).sampled
    assert decode(engine, first, (5, 2, 7, 1), 4) == expected_tokens(PROMPT, 5, VOCAB_SIZE)


def test_blocks_that_were_moved_or_copied_go_on_with_the_same_tokens() -> None:
    (source, held), (target, pool) = make_engine(), make_engine()
    ((first,),) = source.compute(step(PROMPT, 0, (0, 1, 2))).sampled
    pool[[6, 3, 4]] = held[[0, 1, 2]]
    target.compute(step((0,), 0, (7,), is_sampled=False, copies=((4, 5),)))
    assert decode(target, first, (6, 3, 5), 2) == expected_tokens(PROMPT, 3, VOCAB_SIZE)


def test_a_stale_block_shows_in_the_next_token() -> None:
    engine, pool = make_engine()
    ((first,),) = engine.compute(step(PROMPT, 0, (0, 1, 2))).sampled
    pool[1] = pool[0]
    assert decode(engine, first, (0, 1, 2), 1) != expected_tokens(PROMPT, 2, VOCAB_SIZE)


def test_order_matters() -> None:
    assert expected_tokens((1, 2), 1, VOCAB_SIZE) != expected_tokens((2, 1), 1, VOCAB_SIZE)


def test_a_step_lasts_as_long_as_its_timing_says_and_is_metered() -> None:
    pool = torch.zeros((NUM_BLOCKS, *kv_spec(16, BLOCK_SIZE).block_shape))
    timing = StepTiming(step_s=0.02, prompt_token_s=0, prompt_pair_s=0, decode_s=0, decode_context_s=0)
    meter = np.zeros(3)
    engine = TimedEngine(pool, BLOCK_SIZE, timing, VOCAB_SIZE, meter)
    began = time.perf_counter()
    engine.execute(step(PROMPT, 0, (0, 1, 2)))
    assert time.perf_counter() - began >= 0.02
    assert meter[0] >= 0.02
    assert meter[1] == 1
    assert meter[2] == pytest.approx(meter[0] - 0.02)


@pytest.mark.parametrize(("wanted", "given"), [(1, 8), (64, 64), (4096, 4096)])
def test_a_token_has_the_bytes_that_are_asked_for_and_room_for_its_slot(wanted: int, given: int) -> None:
    assert kv_spec(wanted, 32).block_bytes == 32 * given
