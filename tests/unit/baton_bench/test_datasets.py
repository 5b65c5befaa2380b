"""Datasets: lengths, shared prefixes, determinism, and files that are refused."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from baton.config.engine_args import BUNDLED_MODEL
from baton_bench.prompt_files import CustomPrompts, ShareGpt
from baton_bench.synthetic import PrefixRepetition, RandomPrompts
from baton_bench.token_source import FIRST_TOKEN, TokenSource
from baton_bench.trace_prompts import TracePrompts
from baton_bench.warm_ups import warm_ups
from baton_core.errors import InvalidConfigError
from baton_simulator.capacity.trace import Scale

IDS = TokenSource(None, 500, writes_text=False)


@pytest.fixture(scope="module")
def text() -> TokenSource:
    return TokenSource.of_model(BUNDLED_MODEL, writes_text=True)


def rng(seed: int = 3) -> random.Random:
    return random.Random(seed)


def test_random_prompts_have_a_common_prefix_and_drawn_lengths() -> None:
    prompts = RandomPrompts(input_len=20, output_len=8, range_ratio=0.5, prefix_len=4)
    requests = prompts.sample(300, rng(), IDS)
    assert requests == prompts.sample(300, rng(), IDS)
    assert requests != prompts.sample(300, rng(4), IDS)
    assert len({request.prompt[:4] for request in requests}) == 1
    assert {len(request.prompt) for request in requests} == set(range(14, 35))
    assert {request.num_tokens for request in requests} == set(range(4, 13))
    assert all(FIRST_TOKEN <= token < 500 for request in requests for token in request.prompt)


def test_lengths_without_a_range_are_exact() -> None:
    (request,) = RandomPrompts(input_len=7, output_len=1).sample(1, rng(), IDS)
    assert (len(request.prompt), request.num_prompt_tokens, request.num_tokens) == (7, 7, 1)


def test_texts_have_as_many_tokens_as_asked_for(text: TokenSource) -> None:
    requests = RandomPrompts(input_len=30, output_len=1).sample(20, rng(), text)
    assert text.tokenizer is not None
    for request in requests:
        assert isinstance(request.prompt, str)
        assert request.num_prompt_tokens == len(text.tokenizer.encode(request.prompt))
    assert {request.num_prompt_tokens for request in requests} == {30}


def test_prefixes_are_repeated_equally_often() -> None:
    prompts = PrefixRepetition(prefix_len=5, suffix_len=3, num_prefixes=4, output_len=2)
    requests = prompts.sample(40, rng(), IDS)
    assert sorted(Counter(request.prompt[:5] for request in requests).values()) == [10] * 4
    assert len({request.prompt for request in requests}) == 40
    with pytest.raises(
        InvalidConfigError, match="--prefix-repetition-num-prefixes is 4; allowed: up to the 3"
    ):
        prompts.sample(3, rng(), IDS)


def test_sharegpt_asks_first_questions_for_answers_as_long(tmp_path: Path, text: TokenSource) -> None:
    def talk(*turns: str) -> dict[str, object]:
        return {"id": "a", "conversations": [{"from": "human", "value": turn} for turn in turns]}

    question, answer = "Which module reads JSON files?", "The module json of the standard library."
    path = tmp_path / "talks.json"
    alone, short, long = talk(question), talk(question, "no"), talk("long " * 3000, answer)
    path.write_text(json.dumps([alone, short, long, talk(question, answer, "Thanks.")]))
    (request, again) = ShareGpt(path=path).sample(2, rng(), text)
    assert request == again
    assert request.prompt == question
    assert request.num_tokens == text.count(answer, "")
    assert len(ShareGpt(path=path, repeats=False).sample(9, rng(), text)) == 1
    assert {one.num_tokens for one in ShareGpt(path=path, output_len=9).sample(2, rng(), IDS)} == {9}
    with pytest.raises(
        InvalidConfigError, match="--tokenizer is not given and --sharegpt-output-len neither"
    ):
        ShareGpt(path=path).sample(1, rng(), IDS)


def test_custom_prompts_have_their_own_lengths_or_the_common_one(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "output_tokens": 3}\n\n{"prompt": "b", "more": 1}\n')
    prompts = CustomPrompts(path=path, output_len=9, is_shuffled=False)
    sampled = [(one.prompt, one.num_tokens) for one in prompts.sample(3, rng(), IDS)]
    assert sampled == [("a", 3), ("b", 9), ("a", 3)]
    path.write_text('{"prompt": "a"}\n{"prompt": ""}\n')
    with pytest.raises(InvalidConfigError, match=r"line 2 of .*prompts\.jsonl is no prompt"):
        prompts.sample(1, rng(), IDS)


def test_a_file_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_bytes(b'{"prompt": "\xff"}\n')
    with pytest.raises(InvalidConfigError, match=r"line 1 of .* is no prompt .*invalid start byte"):
        CustomPrompts(path=path).sample(1, rng(), IDS)
    path.write_bytes(b'[{"conversations": [{"value": "\xff"}, {"value": "a"}]}]')
    with pytest.raises(InvalidConfigError, match=r"allowed: a JSON list of objects .*invalid start byte"):
        ShareGpt(path=path, output_len=1).sample(1, rng(), IDS)


def test_warm_ups_are_as_long_as_what_is_measured_and_share_nothing_with_it(
    tmp_path: Path, text: TokenSource
) -> None:
    requests = PrefixRepetition(prefix_len=50, suffix_len=9, num_prefixes=3, output_len=2).sample(
        6, rng(), IDS
    )
    before = warm_ups(requests, 7, rng(4), IDS)
    assert [(len(one.prompt), one.num_tokens) for one in before] == [(59, 2)] * 7
    assert not {one.prompt[:16] for one in before} & {one.prompt[:16] for one in requests}

    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "which of these words is the first one of them"}))
    for source in (text, IDS):
        (measured,) = CustomPrompts(path=path, output_len=4).sample(1, rng(), source)
        first, second = warm_ups([measured], 2, rng(4), source)
        assert isinstance(first.prompt, str)
        assert len({first.prompt, second.prompt, measured.prompt}) == 3
        assert (first.num_prompt_tokens, first.num_tokens) == (measured.num_prompt_tokens, 4)


@pytest.mark.parametrize("kind", [CustomPrompts, ShareGpt])
def test_a_file_without_a_prompt_is_refused(kind: type[CustomPrompts | ShareGpt], tmp_path: Path) -> None:
    path = tmp_path / "empty"
    with pytest.raises(InvalidConfigError, match=r"--dataset-path is .*; allowed: a readable file"):
        kind(path=path).sample(1, rng(), IDS)
    path.write_text("" if kind is CustomPrompts else "[]")
    with pytest.raises(InvalidConfigError, match=r"--dataset-path is .*; allowed: a file with a prompt"):
        kind(path=path).sample(1, rng(), IDS)


def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace"
    lines = [
        {"timestamp": at_ms, "input_length": 1024, "output_length": 40, "hash_ids": ids}
        for at_ms, ids in ((1000, [1, 2]), (3000, [1, 3]), (5000, [4, 5]))
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_a_traces_prompts_share_what_its_ids_share(tmp_path: Path) -> None:
    prompts = TracePrompts(path=trace(tmp_path), scale=Scale(divisor=64, output_divisor=10))
    first, second, third = (request.prompt for request in prompts.sample(9, rng(), IDS))
    assert [len(first), len(second), len(third)] == [16, 16, 16]
    assert (first[:8] == second[:8], first[8:] == second[8:], first[:8] == third[:8]) == (True, False, False)
    assert [request.num_tokens for request in prompts.sample(2, rng(), IDS)] == [4, 4]
    assert prompts.sample(1, rng(5), IDS)[0].prompt != first, "no prompt of another seed's run is cached"


def test_a_trace_has_arrivals_of_its_own_which_a_rate_stretches(tmp_path: Path) -> None:
    prompts = TracePrompts(path=trace(tmp_path), scale=Scale(speedup=2.0))
    assert prompts.arrival_times(3, None) == [0.0, 1.0, 2.0]
    assert prompts.arrival_times(3, 0.5) == [0.0, 2.0, 4.0]
    assert prompts.arrival_times(1, 0.5) == [0.0]


def test_requests_of_a_trace_that_came_at_once_have_even_gaps_at_a_rate(tmp_path: Path) -> None:
    path = trace(tmp_path)
    path.write_text("".join(f"{path.read_text().splitlines()[0]}\n" for _ in range(3)))
    prompts = TracePrompts(path=path, scale=Scale())
    assert prompts.arrival_times(3, None) == [0.0, 0.0, 0.0]
    assert prompts.arrival_times(3, 0.5) == [0.0, 2.0, 4.0]
