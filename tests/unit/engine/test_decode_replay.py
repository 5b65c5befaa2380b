"""Recorded decode steps against the same steps computed eagerly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from baton_core.worker.step_plan import LogprobsSpec, SequenceSlice
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model
from baton_engine.sampling.sampler import Sampler
from baton_engine.sizing import KVCacheSettings
from baton_engine.steps.decode_replay import MAX_GRAPH_SEQS, DecodeReplay
from baton_engine.steps.runner import ModelRunner
from baton_kernels.cpu.graph_replay import GraphReplay
from baton_kernels.reference.torch_sampling import TorchSampling
from tests.models import VARIANTS, make_prompt
from tests.unit.engine.steps import BLOCK_SIZE, group_tables, make_plan, make_slice, make_spec

pytestmark = [pytest.mark.usefixtures("needs_build"), pytest.mark.slow]
NUM_BLOCKS = 8
"""Blocks of a sequence, in each KV group."""
Tokens = list[list[int]]


def load(folder: Path, **settings: object) -> ModelRunner:
    cache = KVCacheSettings(kv_cache_memory_bytes=8 << 20)
    chosen = EngineSettings(
        model=str(folder), block_size=BLOCK_SIZE, kv_cache=cache, max_num_seqs=16, **settings
    )
    return load_model(chosen).start().runner


def run(runner: ModelRunner, batches: list[range]) -> Tokens:
    """Decode with the sequences of each batch in turn, after all of their prompts; their tokens."""
    num_seqs = max(batch.stop for batch in batches)
    tokens = [make_prompt(5 + 3 * seq, seed=seq) for seq in range(num_seqs)]
    num_groups = len(runner.spec.groups)

    def piece(seq: int, start: int) -> SequenceSlice:
        first = seq * NUM_BLOCKS
        return make_slice(
            tokens[seq][start:],
            range(first, first + NUM_BLOCKS),
            start=start,
            samples=(make_spec(len(tokens[seq]), seed=seq, temperature=0.8 if seq % 2 else 0.0),),
            name=f"seq-{seq}",
            num_groups=num_groups,
        )

    def step(seqs: range, starts: list[int]) -> None:
        pieces = [piece(seq, start) for seq, start in zip(seqs, starts, strict=True)]
        result = runner.execute(make_plan(*pieces))
        for seq, (token,) in zip(seqs, result.sampled, strict=True):
            tokens[seq].append(token)

    step(range(num_seqs), [0] * num_seqs)
    for batch in batches:
        step(batch, [len(tokens[seq]) - 1 for seq in batch])
    return tokens


BATCHES = [range(3), range(3), range(1), range(1, 3), range(3), range(2, 10), range(12), range(3)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_replayed_steps_draw_the_tokens_of_eager_ones(
    variant: str, model_folder: Callable[[str], Path]
) -> None:
    folder = model_folder(variant)
    runner = load(folder)
    if not runner.model.is_capturable:
        assert runner._captured is None
        return
    assert isinstance(runner._captured, DecodeReplay)
    assert run(runner, BATCHES) == run(load(folder, enforce_eager=True), BATCHES)
    assert {kind.num_seqs for kind in runner._captured._graphs} == set(range(1, MAX_GRAPH_SEQS + 1))


@pytest.mark.parametrize(
    "settings",
    [{"dtype": "bfloat16"}, {"quantization": "int8"}, {"batch_invariant": True}],
    ids=["bfloat16", "int8", "batch-invariant"],
)
def test_so_they_do_with_other_kernels(
    settings: dict[str, object], model_folder: Callable[[str], Path]
) -> None:
    folder = model_folder("llama")
    expected = run(load(folder, enforce_eager=True, **settings), BATCHES)
    runner = load(folder, **settings)
    assert run(runner, BATCHES) == expected
    assert isinstance(runner._captured, DecodeReplay)
    assert {kind.num_seqs for kind in runner._captured._graphs} == set(range(1, MAX_GRAPH_SEQS + 1))


@pytest.mark.parametrize("variant", ["llama", "qwen2-mixed-windows", "gemma3"])
def test_what_is_generated_at_once_is_what_single_steps_sample(
    variant: str, model_folder: Callable[[str], Path]
) -> None:
    folder, num_tokens = model_folder(variant), BLOCK_SIZE + 2
    expected = run(load(folder, enforce_eager=True), [range(3)] * (num_tokens + 1))
    for runner in (load(folder), load(folder, enforce_eager=True)):
        tokens = run(runner, [range(3)])
        pieces = tuple(decoded(runner, tokens, seq) for seq in range(3))
        generated = runner.generate(pieces, num_tokens)
        assert [[*seq, *more] for seq, more in zip(tokens, generated, strict=True)] == expected


def test_where_nothing_can_be_sampled_generation_ends_and_for_others_it_goes_on(
    model_folder: Callable[[str], Path],
) -> None:
    folder = model_folder("llama")
    for runner in (load(folder), load(folder, enforce_eager=True)):
        tokens = run(runner, [range(2)])
        pieces = tuple(decoded(runner, tokens, seq) for seq in range(2))
        expected = runner.generate(pieces, 4)
        runner.kv_pool[0] = torch.nan  # a block of the first one
        assert runner.generate(pieces, 4) == [(), expected[1]]


def test_steps_that_tell_more_than_tokens_are_sampled_outside_of_the_graph(
    model_folder: Callable[[str], Path],
) -> None:
    runner = load(model_folder("llama"))
    tokens = run(runner, [range(2)])
    assert isinstance(runner._captured, DecodeReplay)
    plain = decoded(runner, tokens, 0)
    told = decoded(runner, tokens, 1, LogprobsSpec(num_top=1))
    assert runner._captured.samples([plain])
    assert not runner._captured.samples([plain, told])
    result = runner.execute(make_plan(plain, told))
    assert list(result.logprobs) == [1]
    assert result.sampled[:1] == runner.execute(make_plan(plain)).sampled


def test_sampling_that_no_graph_can_replay_is_left_outside_of_it(
    model_folder: Callable[[str], Path],
) -> None:
    runner = load(model_folder("llama"))
    tokens = run(runner, [range(2)])
    pieces = tuple(decoded(runner, tokens, seq) for seq in range(2))
    expected = runner.generate(pieces, 4)
    runner._sampler = Sampler(TorchSampling())
    runner.capture_decodes(MAX_GRAPH_SEQS, NUM_BLOCKS * BLOCK_SIZE)
    assert isinstance(runner._captured, DecodeReplay)
    assert runner.generate(pieces, 4) == expected
    assert [kind.is_sampled for kind in runner._captured._graphs] == [False]


def decoded(
    runner: ModelRunner, tokens: Tokens, seq: int, logprobs: LogprobsSpec | None = None
) -> SequenceSlice:
    """Return the slice that computes the last token of a sequence, with blocks for those behind it."""
    first, temperature = seq * NUM_BLOCKS, 0.8 if seq % 2 else 0.0
    spec = make_spec(len(tokens[seq]), seed=seq, temperature=temperature, logprobs=logprobs)
    start, name = len(tokens[seq]) - 1, f"seq-{seq}"
    piece = make_slice(tokens[seq][-1:], (), start=start, samples=(spec,), name=name)
    tables = group_tables(range(first, first + NUM_BLOCKS), len(runner.spec.groups))
    return replace(piece, block_tables=tables)


def test_a_step_of_each_kind_is_recorded_once(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_recorded = 0
    record = GraphReplay.record

    def count(forward: Callable[[], torch.Tensor]) -> tuple[GraphReplay, torch.Tensor]:
        nonlocal num_recorded
        num_recorded += 1
        return record(forward)

    monkeypatch.setattr(GraphReplay, "record", count)
    run(load(model_folder("llama")), [range(2)] * 5)
    assert num_recorded == 2 * MAX_GRAPH_SEQS, "steps, and sampling behind them"


def test_steps_with_sampling_and_without_have_one_graph_of_the_model(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, num_passes = load(model_folder("llama"), enforce_eager=True), 0
    forward = runner.model.forward

    def count(*args: object) -> torch.Tensor:
        nonlocal num_passes
        num_passes += 1
        return forward(*args)

    tokens = run(runner, [range(2)])
    monkeypatch.setattr(runner.model, "forward", count)
    runner.capture_decodes(MAX_GRAPH_SEQS, NUM_BLOCKS * BLOCK_SIZE)
    for logprobs in (None, LogprobsSpec(num_top=1)) * 2:
        runner.execute(make_plan(*(decoded(runner, tokens, seq, logprobs) for seq in range(2))))
    assert num_passes == 1


def test_a_model_that_looks_at_numbers_after_all_runs_eagerly_and_the_log_says_so_once(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner = load(model_folder("llama"))
    forward = runner.model.forward

    def looking(token_ids: torch.Tensor, *rest: object) -> torch.Tensor:
        assert token_ids.max().item() >= 0
        return forward(token_ids, *rest)

    monkeypatch.setattr(runner.model, "forward", looking)
    runner.capture_decodes(MAX_GRAPH_SEQS, NUM_BLOCKS * BLOCK_SIZE)
    with caplog.at_level("WARNING"):
        tokens = run(runner, BATCHES)
    assert len(caplog.records) == 1
    assert tokens == run(load(model_folder("llama"), enforce_eager=True), BATCHES)
