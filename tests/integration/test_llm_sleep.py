"""An engine that sleeps and wakes up computes what it computed before, from an empty cache."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from baton import LLM
from baton_core.errors import InvalidRequestError, RequestError
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args
from tests.models import make_model

ASLEEP = "the engine sleeps; allowed: wake_up first"


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = make_model(tmp_path_factory.mktemp("sleep") / "llama", "llama")
    with LLM.from_engine_args(tiny_args(folder)) as llm:
        yield llm


def tokens(llm: LLM) -> tuple[list[int], int | None]:
    (output,) = llm.generate(PROMPT, greedy(12), use_tqdm=False)
    return output.outputs[0].token_ids, output.num_cached_tokens


@pytest.mark.parametrize(("level", "keeps_cache"), [(0, True), (1, False), (2, False)])
def test_tokens_are_the_same_after_each_level(llm: LLM, level: int, keeps_cache: bool) -> None:
    assert llm.reset_prefix_cache()
    expected, num_cached_tokens = tokens(llm)
    assert num_cached_tokens == 0
    assert tokens(llm) == (expected, 64)
    llm.sleep(level)
    assert llm.is_sleeping
    with pytest.raises(RequestError, match=ASLEEP):
        tokens(llm)
    llm.wake_up()
    assert not llm.is_sleeping
    assert tokens(llm) == (expected, 64 if keeps_cache else 0)


@pytest.mark.parametrize("level", [1, 2])
def test_memory_is_given_up(llm: LLM, level: int) -> None:
    (runner,) = llm.collective_rpc(lambda runner: runner)
    model, pool = (weakref.ref(runner.model), weakref.ref(runner.kv_pool))
    del runner
    llm.sleep(level)
    gc.collect()
    assert pool() is None
    assert (model() is None) is (level == 2)
    llm.wake_up()


def test_parts_come_back_one_by_one(llm: LLM) -> None:
    expected, _ = tokens(llm)
    llm.sleep(2)
    assert not llm.wake_up(["weights"])
    assert llm.is_sleeping
    with pytest.raises(RequestError, match="the engine sleeps without kv_cache; allowed: wake_up first"):
        llm.apply_model(lambda model: None)
    assert llm.collective_rpc("reload_weights") == [None], "waking has read them"
    assert llm.wake_up(["kv_cache"])
    assert not llm.is_sleeping
    assert tokens(llm) == (expected, 0)
    llm.sleep(1)
    llm.wake_up()
    with pytest.raises(InvalidRequestError, match="method is 'reload_weights'; allowed: after sleep"):
        llm.collective_rpc("reload_weights")


def test_what_is_enqueued_while_it_pauses_goes_on_afterwards(llm: LLM) -> None:
    expected, _ = tokens(llm)
    (before,) = llm.enqueue(PROMPT, greedy(12))
    llm.sleep(0, mode="keep")
    (during,) = llm.enqueue(PROMPT, greedy(12))
    with pytest.raises(RequestError, match=ASLEEP):
        llm.wait_for_completion(use_tqdm=False)
    llm.wake_up(["scheduling"])
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [output.request_id for output in outputs] == [before, during]
    assert [output.outputs[0].token_ids for output in outputs] == [expected, expected]


@pytest.mark.parametrize(("mode", "reason", "num_tokens"), [("abort", "abort", 0), ("wait", "length", 12)])
def test_open_requests_end_before_it_sleeps(llm: LLM, mode: str, reason: str, num_tokens: int) -> None:
    llm.enqueue([PROMPT, PROMPT], greedy(12))
    llm.sleep(1, mode=mode)
    llm.wake_up()
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [output.outputs[0].finish_reason for output in outputs] == [reason, reason]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [num_tokens] * 2


def test_nothing_is_taken_without_weights(llm: LLM) -> None:
    llm.sleep(1)
    with pytest.raises(RequestError, match="the engine sleeps without kv_cache and weights"):
        llm.enqueue(PROMPT, greedy(1))
    llm.wake_up()
    assert llm.wait_for_completion(use_tqdm=False) == []


def test_other_levels_modes_and_tags_are_refused(llm: LLM) -> None:
    for call, said in (
        (lambda: llm.sleep(3), "level is 3; allowed: 0, 1, 2"),
        (lambda: llm.sleep(1, mode="keep"), "mode is 'keep'; allowed: abort, wait .level 0 keeps requests"),
        (lambda: llm.sleep(0, mode="drop"), "mode is 'drop'; allowed: abort, wait, keep"),
        (lambda: llm.wake_up(["cache"]), "tags is 'cache'; allowed: weights, kv_cache, scheduling"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            call()
    assert not llm.is_sleeping
    assert len(tokens(llm)[0]) == 12


def test_the_cache_is_not_reset_under_open_requests(llm: LLM) -> None:
    llm.enqueue(PROMPT, greedy(12))
    llm.llm_engine.step()
    assert not llm.reset_prefix_cache()
    llm.wait_for_completion(use_tqdm=False)
    assert llm.reset_prefix_cache()
    assert tokens(llm)[1] == 0


@pytest.mark.parametrize("num_steps", [1, 4])
def test_a_reset_may_take_the_blocks_of_open_requests(llm: LLM, num_steps: int) -> None:
    expected, _ = tokens(llm)
    llm.enqueue([PROMPT, PROMPT[1:]], greedy(12))
    for _ in range(num_steps):
        llm.llm_engine.step()
    num_preemptions = {one.name: one for one in llm.get_metrics()}["vllm:num_preemptions"].value  # type: ignore[union-attr]
    assert llm.reset_prefix_cache(reset_running_requests=True)
    metrics = {one.name: one for one in llm.get_metrics()}
    assert metrics["vllm:kv_cache_usage_perc"].value == 0  # type: ignore[union-attr]
    assert metrics["vllm:num_preemptions"].value > num_preemptions  # type: ignore[union-attr]
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [12, 12]
    assert outputs[0].outputs[0].token_ids == expected
    assert llm.reset_prefix_cache()
