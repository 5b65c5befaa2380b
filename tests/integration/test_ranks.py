"""`LLM` over the ranks of a model, which are processes: the same answers, and one end for all of them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from baton import LLM, RequestOutput, SamplingParams
from baton_core.errors import (
    ErrorCode,
    InvalidConfigError,
    InvalidModelError,
    InvalidRequestError,
    RequestError,
)
from baton_core.worker.step_plan import StepPlan
from baton_engine.sampling.sampler import Sampler
from baton_engine.steps.decode_replay import MAX_GRAPH_SEQS
from baton_engine.steps.runner import ModelRunner
from baton_engine.steps.step_pipeline import Launched
from baton_worker.core.speculation.model_drafts import DraftCosts
from baton_worker.core.speculation.step_times import StepTimes
from baton_worker.engine.resident_engine import ResidentEngine
from baton_worker.ranks.rank_group import RankGroup
from tests.e2e.processes import children_of, until
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args
from tests.models import make_model, make_prompt
from tests.quantized_reference import FIXTURES
from tests.tiers import exhaustive

PROMPTS: list[Any] = [
    *(make_prompt(length, seed=length) for length in (30, 3, 70)),
    {"prompt_embeds": torch.randn(40, 64, generator=torch.Generator().manual_seed(0))},
]
PARAMS = [
    greedy(12, logprobs=2, prompt_logprobs=1),
    SamplingParams(max_tokens=12, seed=1, temperature=0.8, n=3, ignore_eos=True),
    greedy(12, repetition_penalty=1.3, bad_words=["a"], logprobs=1),
    greedy(12),
]
LOST_WITHIN_S = 2.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("ranks") / "model", "gemma3")


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[RequestOutput]:
    with LLM.from_engine_args(tiny_args(folder, enable_prompt_embeds=True)) as llm:
        return answers_of(llm)


def answers_of(llm: LLM) -> list[RequestOutput]:
    return llm.generate(PROMPTS, PARAMS, use_tqdm=False)


def answers_asked_between(llm: LLM) -> list[RequestOutput]:
    """Answers while, with steps in flight, all ranks are asked for something else."""
    engine, told = llm.llm_engine, {}
    for number, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
        engine.add_request(str(number), prompt, params)
    while engine.has_unfinished_requests():
        told.update({output.request_id: output for output in engine.step()})
        assert len(llm.collective_rpc("tests.integration.asked_functions:process_id")) > 1
    return [told[str(number)] for number in range(len(PROMPTS))]


def assert_same(found: list[RequestOutput], expected: list[RequestOutput]) -> None:
    """The same tokens and texts, and log-probabilities that differ by no more than sums over ranks do."""
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours.prompt_logprobs, theirs.prompt_logprobs)
        for one, other in zip(ours.outputs, theirs.outputs, strict=True):
            assert (one.token_ids, one.text, one.finish_reason) == (
                other.token_ids,
                other.text,
                other.finish_reason,
            )
            assert_close(one.logprobs, other.logprobs)


def assert_close(found: Any, expected: Any) -> None:
    values = [
        [one and {token: told.logprob for token, told in one.items()} for one in logprobs or []]
        for logprobs in (found, expected)
    ]
    assert len(values[0]) == len(values[1])
    for ours, theirs in zip(*values, strict=True):
        assert ours == (theirs and pytest.approx(theirs, abs=1e-4))


@pytest.fixture
def in_flight(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of steps that the other ranks know, each time that the leader begins the first of them."""
    numbers: list[int] = []
    told: list[int] = []
    announce, compute = RankGroup._announce, ModelRunner._compute

    def announce_step(self: RankGroup, plan: StepPlan) -> None:
        told.append(plan.step_id)
        announce(self, plan)

    def compute_step(self: ModelRunner, plan: StepPlan) -> Launched:
        numbers.append(1 + told[-1] - plan.step_id)
        return compute(self, plan)

    monkeypatch.setattr(RankGroup, "_announce", announce_step)
    monkeypatch.setattr(ModelRunner, "_compute", compute_step)
    return numbers


def followers() -> list[int]:
    """Processes of other ranks that this one has started."""
    return [pid for pid, title in children_of(os.getpid()).items() if title.startswith("baton rank")]


@pytest.mark.parametrize(
    ("tensor", "pipeline", "settings"),
    [
        exhaustive(1, 3, {"cpu_kernels": "torch"}),
        (2, 1, {"batch_invariant": True, "parallel_invariant": True}),
        exhaustive(2, 2, {"batch_invariant": True, "parallel_invariant": True}),
        (2, 2, {"async_scheduling": True, "pipeline_layer_partition": "1,2"}),
    ],
    ids=[
        "pipeline, by gloo",
        "tensor, parallel invariant",
        "both, parallel invariant",
        "both, recorded and planned ahead",
    ],
)
def test_answers_are_those_of_one_process(
    tensor: int,
    pipeline: int,
    settings: dict[str, Any],
    folder: Path,
    expected: list[RequestOutput],
    in_flight: list[int],
) -> None:
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    args = tiny_args(folder, enable_prompt_embeds=True, **sizes, **settings)
    with LLM.from_engine_args(args) as llm:
        assert_same(answers_of(llm), expected)
        assert max(in_flight) == pipeline
        assert llm.get_world_size() == tensor * pipeline
        ranks = llm.collective_rpc("tests.integration.asked_functions:process_id")
        assert [rank for rank, _ in ranks] == list(range(tensor * pipeline))
        assert len({pid for _, pid in ranks}) == tensor * pipeline
        with pytest.raises(InvalidRequestError, match=r"method is .* a name such as package"):
            llm.collective_rpc(lambda runner: runner.rank)
        recorded = llm.collective_rpc("tests.integration.asked_functions:num_recorded")
        assert [number > 0 for number in recorded] == ["async_scheduling" in settings] * (tensor * pipeline)
        if pipeline == 3:
            llm.sleep(2)
            assert llm.llm_engine.is_sleeping()
            llm.wake_up()
            assert_same(answers_asked_between(llm), expected)
    until(lambda: not followers(), 10.0, "end of the other ranks")


@pytest.mark.parametrize("name", ["ct-w4a16", exhaustive("ct-fp8-dynamic")])
def test_a_checkpoint_that_is_stored_quantized_gives_the_same_tokens(name: str, folder: Path) -> None:
    answers = []
    for size in (1, 2):
        args = tiny_args(
            FIXTURES / name,
            tokenizer=str(folder),
            dtype="float32",
            max_model_len=64,
            tensor_parallel_size=size,
        )
        with LLM.from_engine_args(args) as llm:
            (output,) = llm.generate([list(range(3, 43))], greedy(8), use_tqdm=False)
            answers.append(output.outputs[0].token_ids)
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gptq-desc-act", "in an order of their own"),
        exhaustive("transformers-fp8-block", "cut a group; allowed: multiples of 128"),
    ],
)
def test_a_checkpoint_whose_layers_cannot_be_divided_is_refused(name: str, said: str, folder: Path) -> None:
    args = tiny_args(
        FIXTURES / name, tokenizer=str(folder), dtype="float32", max_model_len=64, tensor_parallel_size=2
    )
    with pytest.raises(InvalidModelError, match=f"cannot be divided over ranks: .*{said}"):
        LLM.from_engine_args(args)
    until(lambda: not followers(), 10.0, "end of the other ranks")


@pytest.mark.parametrize(
    ("number", "settings"),
    [
        (signal.SIGKILL, {"pipeline_parallel_size": 2}),
        (
            signal.SIGSTOP,
            {"tensor_parallel_size": 2, "max_num_seqs": MAX_GRAPH_SEQS, "async_scheduling": True},
        ),
    ],
    ids=["killed beside steps of both stages", "stopped within replayed steps that are planned ahead"],
)
def test_a_rank_that_is_lost_ends_its_group(
    number: signal.Signals, settings: dict[str, Any], folder: Path
) -> None:
    llm = LLM.from_engine_args(tiny_args(folder, **settings))
    (follower,) = followers()
    lost_s: list[float] = []

    def lose() -> None:
        lost_s.append(time.monotonic())
        os.kill(follower, number)

    threading.Timer(0.5, lose).start()
    prompts = [PROMPT] * 200
    said = r"rank [01] of the model's ranks is lost: its process (was killed|is sto)"
    with pytest.raises(RequestError, match=said):
        llm.generate(prompts, greedy(200), use_tqdm=False)
    assert time.monotonic() - lost_s[0] < LOST_WITHIN_S
    with pytest.raises(RequestError, match=r"rank [01] of the model's ranks is lost"):
        llm.generate([PROMPT], greedy(4), use_tqdm=False)
    llm.close()
    until(lambda: not followers(), 10.0, "end of the other ranks")


def test_a_step_that_never_ends_ends_the_group(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on GPUs, where no exchange has a deadline of its own."""

    def hang(*args: object) -> None:
        time.sleep(2.0)

    llm = LLM.from_engine_args(tiny_args(folder, tensor_parallel_size=2))
    with monkeypatch.context() as patch:
        patch.setattr(RankGroup, "leading", _leading_within(0.5))
        patch.setattr(Sampler, "sample", hang)
        with pytest.raises(RequestError, match=r"a step of the model's ranks takes more than 0\.5 s"):
            llm.generate([PROMPT], greedy(4), use_tqdm=False)
    until(lambda: not followers(), 10.0, "end of the other ranks")
    llm.close()


def _leading_within(within_s: float) -> Callable[[RankGroup], AbstractContextManager[None]]:
    leading = RankGroup.leading

    def leads(group: RankGroup) -> AbstractContextManager[None]:
        group._watch._step_within_s = within_s
        return leading(group)

    return leads


def test_stages_compute_chunks_of_one_prompt_at_the_same_time(tmp_path: Path, in_flight: list[int]) -> None:
    folder, prompt = make_model(tmp_path / "model", "llama"), make_prompt(200, seed=1)

    def answer(**sizes: int) -> tuple[list[int], Any]:
        args = tiny_args(folder, max_num_batched_tokens=32, **sizes)
        with LLM.from_engine_args(args) as llm:
            (output,) = llm.generate([prompt], greedy(8, prompt_logprobs=0), use_tqdm=False)
        return output.outputs[0].token_ids, output.prompt_logprobs

    token_ids, logprobs = answer(pipeline_parallel_size=2)
    assert max(in_flight) == 2
    expected, expected_logprobs = answer()
    assert token_ids == expected
    assert_close(logprobs, expected_logprobs)


def test_the_pools_of_all_ranks_begin_empty(tmp_path: Path) -> None:
    """Ranks with the same heads would differ where nobody has written yet, and so would checksums."""
    folder = make_model(tmp_path / "model", "llama-mqa-wide-heads")
    args = tiny_args(folder, tensor_parallel_size=2, rank_pools="apart")
    with LLM.from_engine_args(args) as llm:
        assert llm.collective_rpc("tests.integration.asked_functions:first_block") == [0.0] * 2


@pytest.mark.parametrize("pipeline", [1, exhaustive(2)])
def test_the_leader_of_ranks_drafts_by_a_model(
    pipeline: int, folder: Path, expected: list[RequestOutput], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepTimes, "relative", lambda _, base, most: [1.0] * (most - base + 1))
    monkeypatch.setattr(DraftCosts, "relative", 0.0)
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": pipeline}
    config = {"model": str(folder), "num_speculative_tokens": 3}
    args = tiny_args(folder, enable_prompt_embeds=True, speculative_config=config, **sizes)
    with LLM.from_engine_args(args) as llm:
        assert_same(answers_of(llm), expected)
        (accepted,) = (one for one in llm.get_metrics() if one.name.endswith("num_accepted_tokens"))
        assert accepted.value > 10


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"tensor_parallel_size": 3},
            "3, which does not divide 4 query heads and does not divide 2 KV heads; allowed: 1, 2, 4",
        ),
        (
            {"pipeline_parallel_size": 4},
            "pipeline_parallel_size is 4; allowed: at most 3, the model's layers",
        ),
        (
            {"pipeline_parallel_size": 2, "pipeline_layer_partition": "2,2"},
            "pipeline_layer_partition is 2,2; allowed: a sum of 3, the model's layers",
        ),
        (
            {"pipeline_layer_partition": "1,2"},
            "pipeline_layer_partition is 1,2; allowed: as many numbers as pipeline_parallel_size, 1",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(settings: dict[str, Any], said: str, folder: Path) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        LLM.from_engine_args(tiny_args(folder, **settings))
    until(lambda: not followers(), 10.0, "end of the other ranks")


def test_a_leader_that_fails_within_a_step_does_not_go_on_apart_from_its_group(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise MemoryError("on purpose")

    llm = LLM.from_engine_args(tiny_args(folder, tensor_parallel_size=2))
    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "sample", fail)
        with pytest.raises(RequestError, match="on purpose"):
            llm.generate([PROMPT], greedy(4), use_tqdm=False)
    with pytest.raises(RequestError, match="the leader of the model's ranks failed: MemoryError: on purpose"):
        llm.generate([PROMPT], greedy(4), use_tqdm=False)
    until(lambda: not followers(), 10.0, "end of the other ranks")
    llm.close()


def test_a_change_that_not_all_ranks_could_make_ends_the_group(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise RequestError(ErrorCode.INTERNAL, "on purpose")

    llm = LLM.from_engine_args(tiny_args(folder, tensor_parallel_size=2))
    monkeypatch.setattr(ResidentEngine, "sleep", fail)
    with pytest.raises(RequestError, match="on purpose"):
        llm.sleep(1)
    with pytest.raises(RequestError, match="not all of the model's ranks could Sleep: on purpose"):
        llm.generate([PROMPT], greedy(4), use_tqdm=False)
    until(lambda: not followers(), 10.0, "end of the other ranks")
    llm.close()


def test_models_without_shares_are_refused(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "granite")
    with pytest.raises(InvalidConfigError, match=r"tensor_parallel_size is 2; allowed with .*: 1"):
        LLM.from_engine_args(tiny_args(folder, tensor_parallel_size=2))
