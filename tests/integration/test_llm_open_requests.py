"""Requests that are open at an `LLM` beside its calls: those of its engine, and those that were enqueued."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from baton import LLM, RequestOutputKind
from baton_core.errors import EngineDeadError, ErrorCode, RequestError
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args
from tests.models import make_prompt

PROMPTS = [make_prompt(length, seed=length) for length in (30, 3, 70)]


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_a_call_leaves_the_outputs_of_the_engine_s_other_requests(llm: LLM, kind: RequestOutputKind) -> None:
    (whole,) = llm.generate(PROMPT, greedy(20), use_tqdm=False)
    llm.llm_engine.add_request("x", PROMPT, greedy(20, output_kind=kind))
    (between,) = llm.generate(PROMPTS[1], greedy(2), use_tqdm=False)
    assert len(between.outputs[0].token_ids) == 2
    assert llm.llm_engine.open_requests == ("x",)
    (output,) = llm.wait_for_completion(use_tqdm=False)
    assert (output.request_id, output.finished) == ("x", True)
    assert output.outputs == whole.outputs
    assert not llm.llm_engine.has_unfinished_requests()


def test_what_a_call_leaves_comes_with_the_engine_s_next_step(llm: LLM) -> None:
    (whole,) = llm.generate(PROMPT, greedy(6), use_tqdm=False)
    llm.llm_engine.add_request("x", PROMPT, greedy(6, output_kind=RequestOutputKind.DELTA))
    (name,) = llm.enqueue(PROMPTS[1], greedy(1), use_tqdm=False)
    llm.generate(PROMPTS[2], greedy(12), use_tqdm=False)
    assert llm.llm_engine.has_unfinished_requests()
    outputs = {output.request_id: output for output in llm.llm_engine.step()}
    assert outputs["x"].outputs == whole.outputs
    assert outputs[name].finished
    assert llm.wait_for_completion(use_tqdm=False) == []


def test_calls_from_several_threads_take_turns(llm: LLM) -> None:
    def generate(length: int) -> Any:
        return llm.generate([PROMPT[:length]], greedy(6), use_tqdm=False)[0].outputs[0].token_ids

    lengths = [*range(1, 9)] * 3
    expected = [generate(length) for length in lengths]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(generate, lengths)) == expected


def test_nobody_waits_for_an_enqueued_request_that_was_aborted(llm: LLM) -> None:
    first, second = llm.enqueue(PROMPTS[:2], greedy(5), use_tqdm=False)
    llm.llm_engine.abort_request(first)
    assert [output.request_id for output in llm.wait_for_completion(use_tqdm=False)] == [second]


def test_names_of_enqueued_requests_that_ended_otherwise_are_forgotten(llm: LLM) -> None:
    llm.llm_engine.abort_request(llm.enqueue(PROMPTS, greedy(5), use_tqdm=False))
    llm.enqueue(PROMPT, greedy(2), use_tqdm=False)
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
    (waiting,) = llm.enqueue(PROMPT, greedy(2), use_tqdm=False)
    llm.generate(PROMPT, greedy(2), use_tqdm=False)
    assert llm._offline._enqueued == [waiting]
    (output,) = llm.wait_for_completion(use_tqdm=False)
    assert (output.request_id, llm._offline._enqueued) == (waiting, [])


def test_a_chosen_id_is_none_that_an_open_request_has(llm: LLM) -> None:
    following = llm.request_counter.counter + 1
    taken = llm.llm_engine.add_request(str(following), PROMPT, greedy(3))
    outputs = llm.generate(PROMPTS[:2], greedy(2), use_tqdm=False)
    assert [output.request_id for output in outputs] == [str(following - 1), str(following + 1)]
    assert [output.request_id for output in llm.wait_for_completion(use_tqdm=False)] == [taken]


def test_when_one_request_is_refused_none_is_taken(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = llm.llm_engine._executor.submit
    submitted: list[str] = []

    def submit_two(spec: Any) -> None:
        if len(submitted) == 2:
            raise RequestError(ErrorCode.UNAVAILABLE, "no more")
        submit(spec)
        submitted.append(spec.request_id)

    with monkeypatch.context() as patch:
        patch.setattr(llm.llm_engine._executor, "submit", submit_two)
        with pytest.raises(RequestError, match="no more"):
            llm.generate(PROMPTS, greedy(5), use_tqdm=False)
    assert len(submitted) == 2
    assert not llm.llm_engine.has_unfinished_requests()
    assert llm.wait_for_completion(use_tqdm=False) == []


def test_after_its_end_it_takes_no_request(folder: Path) -> None:
    llm = LLM.from_engine_args(tiny_args(folder))
    llm.enqueue(PROMPT, greedy(5), use_tqdm=False)
    llm.close()
    assert not llm.llm_engine.has_unfinished_requests()
    with pytest.raises(EngineDeadError, match="the engine is shut down"):
        llm.generate(PROMPT, greedy(2), use_tqdm=False)
    llm.close()
