"""`LLM`: one process or a cluster of its own, the same outputs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
import torch

from baton import LLM, RequestOutput, SamplingParams
from baton.commands.cli_arguments import BUNDLED_MODEL
from baton.logprobs import PromptLogprobs
from baton_core.errors import InvalidConfigError, InvalidRequestError
from tests.e2e.calls import draw_prompt, greedy
from tests.e2e.every_parameter import EVERY, PROCESSOR
from tests.e2e.processes import STOP_WITHIN_S, Family, children_of, family_of

INTERRUPTED_WITHIN_S = 20.0
"""Limit of an interrupted call, which would take many times as long."""
TEXT = "import json\n\n# Read the file\n"
ARGUMENTS = {"dtype": "float32", "logits_processors": [PROCESSOR], "reasoning_parser": "qwen3"}
EMBEDS = torch.randn(1200, 256, generator=torch.Generator().manual_seed(0))
"""Larger than a command to a worker may be without embeddings."""
SAMPLED = SamplingParams(seed=5, temperature=0.9, top_k=50, max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module")
def spawned() -> Iterator[LLM]:
    """With a prefill and a decode worker of its own, which end with `close`."""
    before = set(children_of(os.getpid()))
    llm = LLM(prefill_workers=1, decode_workers=1, split="always", enable_prompt_embeds=True, **ARGUMENTS)
    (launcher,) = set(children_of(os.getpid())) - before
    assert os.getpgid(launcher) != os.getpgrp(), "a terminal's interrupt would reach it, too"
    titles = sorted(children_of(launcher).values())
    assert titles == ["baton decode-worker", "baton prefill-worker", "baton router"]
    with Family(family_of(launcher)) as family, llm:
        yield llm
        llm.close()
        family.wait_until_gone(within_s=20.0)


def without_names(outputs: list[RequestOutput]) -> list[RequestOutput]:
    """Return the outputs without request names, which count the requests of an object."""
    own = {"request_id": "", "num_cached_tokens": 0, "metrics": None, "kv_transfer_params": None}
    return [replace(output, **own) for output in outputs]


def test_a_cluster_of_its_own_gives_the_same_outputs(llm: LLM, spawned: LLM) -> None:
    ids = draw_prompt(600, seed=1)
    prompts = [TEXT, ids, {"prompt": TEXT}, {"prompt_token_ids": ids[:300]}, ids[:3], TEXT, TEXT]
    prompts.append({"prompt_embeds": EMBEDS})
    stopped = greedy(30, stop=(stop_string(llm),))
    params = [
        greedy(20),
        SAMPLED,
        msgspec.structs.replace(SAMPLED, n=3),
        greedy(9),
        msgspec.structs.replace(SAMPLED, seed=-6),
        stopped,
        stopped,
        greedy(9),
    ]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert without_names(spawned.generate(prompts, params, use_tqdm=False)) == without_names(outputs)
    assert [output.prompt for output in outputs] == [TEXT, None, TEXT, None, None, TEXT, TEXT, None]
    assert [len(output.prompt_token_ids) for output in outputs[1::2][:2]] == [600, 300]
    reasons = [output.outputs[0].finish_reason for output in outputs]
    assert reasons == ["length"] * 5 + ["stop"] * 2 + ["length"]
    assert len({tuple(completion.token_ids) for completion in outputs[2].outputs}) == 3


def test_a_request_with_more_sequences_than_strangers_may_have_is_handed_over(llm: LLM, spawned: LLM) -> None:
    params = msgspec.structs.replace(SAMPLED, n=150, max_tokens=3)
    prompt = draw_prompt(300, seed=5)
    expected = llm.generate(prompt, params, use_tqdm=False)
    assert without_names(spawned.generate(prompt, params, use_tqdm=False)) == without_names(expected)
    assert [one.index for one in expected[0].outputs] == list(range(150))


def stop_string(llm: LLM) -> str:
    (output,) = llm.generate(TEXT, greedy(30), use_tqdm=False)
    text = output.outputs[0].text
    return text[len(text) // 2 :][:3]


@pytest.fixture(scope="module")
def every_output(spawned: LLM) -> dict[str, tuple[RequestOutput, RequestOutput]]:
    """Return the outputs of each request, from one process and handed over between two workers."""
    prompts = [draw_prompt(300, seed=1000 + number) for number in range(len(EVERY))]
    split = spawned.generate(prompts, list(EVERY.values()), use_tqdm=False)
    with LLM(**ARGUMENTS) as together:
        outputs = together.generate(prompts, list(EVERY.values()), use_tqdm=False)
    return dict(zip(EVERY, zip(outputs, split, strict=True), strict=True))


@pytest.mark.parametrize("name", EVERY)
def test_every_parameter_gives_the_same_tokens_where_prompts_are_handed_over(
    name: str, every_output: dict[str, tuple[RequestOutput, RequestOutput]]
) -> None:
    together, split = every_output[name]
    assert together.kv_transfer_params is None
    assert split.kv_transfer_params is not None, "the prompt was not handed over"
    assert split.kv_transfer_params["remote_engine_id"] == "prefill-0"
    for one, other in zip(together.outputs, split.outputs, strict=True):
        assert replace(other, logprobs=None, cumulative_logprob=None) == replace(
            one, logprobs=None, cumulative_logprob=None
        )
        assert other.cumulative_logprob == pytest.approx(one.cumulative_logprob, abs=1e-3)
        assert_close(one.logprobs, other.logprobs)
    assert_close(together.prompt_logprobs, split.prompt_logprobs)


def assert_close(one: PromptLogprobs | None, other: PromptLogprobs | None) -> None:
    """The same tokens at every position, with the same log-probabilities up to rounding."""
    assert type(one) is type(other)
    for entries, others in zip(one or [], other or [], strict=True):
        assert (entries or {}).keys() == (others or {}).keys()
        for token_id, entry in (entries or {}).items():
            found = (others or {})[token_id]
            assert found.logprob == pytest.approx(entry.logprob, abs=1e-4)
            assert found.decoded_token == entry.decoded_token


def test_every_parameter_does_something(every_output: dict[str, tuple[RequestOutput, RequestOutput]]) -> None:
    outputs = {name: together.outputs[0] for name, (together, _) in every_output.items()}
    assert len({tuple(one.token_ids) for one in every_output["n"][0].outputs}) == 4
    assert outputs["stop"].text.endswith(("e", " "))
    assert outputs["stop_token_ids"].stop_reason == outputs["stop_token_ids"].token_ids[-1]
    assert len(outputs["min_tokens"].token_ids) >= 12
    assert set(outputs["allowed_token_ids"].token_ids) <= set(range(60, 90))
    assert outputs["detokenize"].text == ""
    assert json.loads(outputs["json"].text)["name"] in ("a", "bc")
    assert re.fullmatch("[ab]{2,6}c", outputs["regex"].text)
    assert outputs["choice"].text in ("left", "right", "up")
    assert re.fullmatch("[xyz]{3,9}!", outputs["grammar"].text)
    assert outputs["json_object"].text.startswith("{")
    assert re.fullmatch(r"\[a\][xy]{3}\[b\]", outputs["structural_tag"].text)
    assert outputs["repetition_detection"].finish_reason == "repetition"
    assert outputs["unlimited"].finish_reason == "stop"
    assert len(outputs["logits_processors"].token_ids) == 16


@pytest.mark.parametrize("name", ["llm", "spawned"])
def test_outputs_keep_the_order_of_the_prompts(name: str, request: pytest.FixtureRequest) -> None:
    llm: LLM = request.getfixturevalue(name)
    prompts = [draw_prompt(length, seed=length) for length in (400, 2, 90, 40)]
    params = [greedy(max_tokens) for max_tokens in (3, 40, 1, 20)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [list(output.prompt_token_ids) for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 40, 1, 20]
    (alone,) = llm.generate(prompts[1], params[1], use_tqdm=False)
    assert alone.outputs == outputs[1].outputs


@pytest.mark.parametrize("name", ["llm", "spawned"])
def test_a_bad_prompt_or_parameter_is_refused_before_any_work(
    name: str, request: pytest.FixtureRequest
) -> None:
    llm: LLM = request.getfixturevalue(name)
    good = draw_prompt(100, seed=9)
    for prompts, params, said in (
        ([good, []], greedy(1), "prompt is '0 tokens'; allowed: 1 to"),
        ([good, [2**20]], greedy(1), "prompt is 1048576; allowed: token ids from 0"),
        ([good, [5] * 2**15], greedy(1), "prompt is '32768 tokens'; allowed: 1 to"),
        ([good, [-1]], greedy(1), "prompt is -1; allowed: token ids from 0"),
        ([good, ["a"]], greedy(1), "prompt is ['a']; allowed: text, token ids"),
        ([good, "\ud800"], greedy(1), "prompt is '\\ud800'; allowed: text that UTF-8 can hold"),
        ([good, {"text": "a"}], greedy(1), "prompt is {'text': 'a'}; allowed: text, token ids"),
        ([good, good], [greedy(1)], "sampling_params is 'a list of 1'; allowed: a list of 2, or one value"),
        ([good], greedy(1, stop_token_ids=(2**20,)), "stop_token_ids is 1048576"),
    ):
        with pytest.raises(InvalidRequestError) as raised:
            llm.generate(prompts, params, use_tqdm=False)
        assert str(raised.value).startswith(said)
    (output,) = llm.generate(good, greedy(1), use_tqdm=False)
    assert output.num_cached_tokens == 0, "a good prompt was computed beside a bad one"


@pytest.mark.parametrize("name", ["llm", "spawned"])
def test_a_priority_is_ignored_where_the_workers_know_none(name: str, request: pytest.FixtureRequest) -> None:
    llm: LLM = request.getfixturevalue(name)
    first, second = llm.generate([TEXT, TEXT], greedy(2), priority=[0, 3], use_tqdm=False)
    assert first.outputs[0].token_ids == second.outputs[0].token_ids
    for priority, said in (
        ([1], "priority is 'a list of 1'; allowed: a list of 2, or one value"),
        ([0, 2**31], "priority is 2147483648"),
        ([0, "1"], "priority is '1'; allowed: an integer from"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            llm.generate([TEXT, TEXT], greedy(2), priority=priority, use_tqdm=False)


def test_priorities_and_limits_of_long_prompts_change_no_token(llm: LLM) -> None:
    prompts = [draw_prompt(length, seed=length) for length in (400, 30, 300, 31)]
    with LLM(
        dtype="float32",
        max_num_seqs=2,
        max_num_batched_tokens=64,
        scheduling_policy="priority",
        max_num_partial_prefills=2,
        long_prefill_token_threshold=32,
    ) as other:
        outputs = other.generate(prompts, greedy(12), priority=[2, 1, 0, -1], use_tqdm=False)
    expected = llm.generate(prompts, greedy(12), use_tqdm=False)
    assert without_names(outputs) == without_names(expected)


@pytest.mark.parametrize("name", ["llm", "spawned"])
def test_an_interrupted_call_stops_the_work_and_the_next_one_is_served(
    name: str, request: pytest.FixtureRequest
) -> None:
    llm: LLM = request.getfixturevalue(name)
    prompts = [draw_prompt(20, seed=30 + number) for number in range(64)]
    expected = llm.generate(prompts, greedy(8), use_tqdm=False)
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    interrupt = threading.Timer(0.5, signal.pthread_kill, (main_thread, signal.SIGINT))
    interrupt.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompts, greedy(1900), use_tqdm=False)
    assert time.monotonic() - began < INTERRUPTED_WITHIN_S
    interrupt.join()
    outputs = llm.generate(prompts, greedy(8), use_tqdm=False)
    assert without_names(outputs) == without_names(expected)


def test_a_program_that_ends_without_close_leaves_no_process_behind() -> None:
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdin is not None
    assert program.stdout is not None
    with program.stdin as end, program.stdout as printed:
        assert printed.readline() == b"generated\n"
        with Family(family_of(program.pid)) as family:
            end.close()
            assert program.wait(STOP_WITHIN_S) == 0
            family.wait_until_gone(STOP_WITHIN_S)


PROGRAM = """
import sys
from baton import LLM, SamplingParams
memory = {"kv_cache_memory_bytes": 2**26, "structured_outputs_config": {"backend": "guidance"}}
llm = LLM(prefill_workers=1, decode_workers=1, **memory)
llm.generate("a b c", SamplingParams(max_tokens=2), use_tqdm=False)
print("generated", flush=True)
sys.stdin.read()
"""
"""Ends with its standard input."""


def test_what_the_workers_refuse_is_the_error_of_the_start() -> None:
    before = set(children_of(os.getpid()))
    with pytest.raises(InvalidConfigError, match=r"^kv_cache_memory_bytes is 1; allowed: at least "):
        LLM(BUNDLED_MODEL, prefill_workers=1, decode_workers=1, kv_cache_memory_bytes=1)
    assert set(children_of(os.getpid())) == before
