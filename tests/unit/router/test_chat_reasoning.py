"""Thoughts before an answer: where they stand, how they are read, how many tokens they have."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from baton_core.requests.sampling_params import SamplingParams
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_router.http.chat.output_parsers import (
    ReasoningCounter,
    ReasoningUse,
    find_reasoning,
    markers_of,
)
from baton_router.output_parsing.output_parser import ParsedOutput, PlainParser, collect
from baton_router.output_parsing.registry import find_reasoning_parser
from baton_router.process.http_settings import HttpSettings
from baton_router.requests.request_limits import ReasoningMarkers
from baton_router.requests.thinking import (
    UNLIMITED,
    Thinking,
    find_thinking,
    read_thinking,
    warn_of_split_markers,
)
from baton_router.text.chat_template import Conversation
from baton_router.text.model_folder import read_model_folder
from baton_router.text.tokenization import Tokenizer

BUNDLED = Path(__file__).parents[3] / "api" / "baton" / "bundled"
MARKERS = ReasoningMarkers(start="<think>", end="</think>")
IMPLIED = ReasoningMarkers(start="<think>", end="</think>", is_implied=True)
ANSWER = "<|im_end|>\n<|im_start|>assistant\n"
PLACES = [
    ("", Thinking.BEFORE),
    ("<think>\n", Thinking.INSIDE),
    ("<think>\nWell, ", Thinking.INSIDE),
    ("<think>\n\n</think>\n\n", Thinking.OVER),
    ("<think>So.</think>It is", Thinking.OVER),
    ("</think>", Thinking.OVER),
]


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer with a special token for each marker."""
    folder = tmp_path_factory.mktemp("marked")
    shutil.copytree(BUNDLED, folder, dirs_exist_ok=True)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"extra_special_tokens": ["<think>", "</think>"]}
    path.write_text(json.dumps(config))
    return Tokenizer(read_model_folder(folder))


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer with an added token for each marker, each turn's beginning and two spaces."""
    folder = tmp_path_factory.mktemp("added")
    shutil.copytree(BUNDLED, folder, dirs_exist_ok=True)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    first = 1 + max(token["id"] for token in tokenizer["added_tokens"])
    first = max(first, len(tokenizer["model"]["vocab"]))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    for token_id, text in enumerate(("<|user|>", "<|assistant|>", "<think>", "</think>", "  "), first):
        tokenizer["added_tokens"].append({"id": token_id, "content": text, **flags})
    path.write_text(json.dumps(tokenizer))
    return Tokenizer(read_model_folder(folder))


@pytest.fixture(scope="module")
def unmarked() -> Tokenizer:
    return Tokenizer(read_model_folder(BUNDLED))


def encode(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tokenizer.encode(text, add_special_tokens=False)


def use(name: str, tokenizer: Tokenizer, turn: str, **template_arguments: object) -> ReasoningUse:
    settings = HttpSettings(reasoning_parser=name)
    conversation = Conversation(messages=(), template_arguments=template_arguments)
    found = find_reasoning(settings, conversation, encode(tokenizer, ANSWER + turn), tokenizer)
    assert found is not None
    return found


def read(reasoning: ReasoningUse, text: str) -> ParsedOutput:
    parser = reasoning.make_parser(PlainParser())
    return collect([*parser.push(text), *parser.flush()])


@pytest.mark.parametrize(("turn", "place"), PLACES)
def test_the_answers_own_turn_says_where_the_thinking_stands(
    marked: Tokenizer, unmarked: Tokenizer, turn: str, place: Thinking
) -> None:
    for tokenizer in (marked, unmarked):
        for before in ("", "<|im_start|>user\nWhat is <think>?", "<|im_start|>user\nAnd </think>?"):
            prompt = encode(tokenizer, before + ANSWER + turn)
            assert find_thinking(prompt, tokenizer, MARKERS) is place
            implied = Thinking.INSIDE if place is Thinking.BEFORE else place
            assert find_thinking(prompt, tokenizer, IMPLIED) is implied


def test_a_turn_begins_after_tokens_that_are_added_and_not_special(added: Tokenizer) -> None:
    for before in ("", "And </think>?", "What is <think>?", "a  b"):
        for turn, place in PLACES:
            prompt = encode(added, f"<|endoftext|><|user|>{before}<|assistant|>{turn}")
            assert find_thinking(prompt, added, MARKERS) is place
    spaced = encode(added, "<|assistant|><think>a  b")
    assert added.added_text(spaced[-2]) == "  "
    assert find_thinking(spaced, added, MARKERS) is Thinking.INSIDE


def test_continued_reasoning_may_be_of_any_length(added: Tokenizer) -> None:
    prompt = encode(added, "<|assistant|><think>" + " a" * 5000)
    assert find_thinking(prompt, added, MARKERS, continues_text=True) is Thinking.INSIDE
    assert find_thinking(prompt[2:], added, MARKERS, continues_text=True) is Thinking.OVER


def test_without_special_tokens_the_whole_prompt_is_looked_at(unmarked: Tokenizer) -> None:
    assert find_thinking(encode(unmarked, "Say. <think>"), unmarked, MARKERS) is Thinking.INSIDE
    assert find_thinking((), unmarked, MARKERS) is Thinking.BEFORE


def test_parsers_say_whether_a_thought_needs_a_mark() -> None:
    assert markers_of(find_reasoning_parser("qwen3")) == MARKERS
    assert markers_of(find_reasoning_parser("deepseek_r1")) == IMPLIED
    assert markers_of(find_reasoning_parser("openai_gptoss")).may_end


def test_workers_follow_the_thinking_for_a_budget_or_a_form(marked: Tokenizer) -> None:
    (start,), (end,) = encode(marked, "<think>"), encode(marked, "</think>")
    form = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
    both = SamplingParams(structured_outputs=form.structured_outputs, thinking_token_budget=4)

    def starts(params: SamplingParams, turn: str, markers: ReasoningMarkers = MARKERS) -> object:
        thinking = read_thinking(
            params.thinking_token_budget,
            encode(marked, ANSWER + turn),
            marked,
            markers,
            is_structured=params.structured_outputs is not None,
        )
        if thinking is None:
            return None
        assert thinking.end_token_ids == (end,)
        assert thinking.num_tokens == (params.thinking_token_budget or UNLIMITED)
        return thinking.start_token_ids

    assert starts(SamplingParams(), "") is None
    assert starts(form, "") == (start,)
    assert starts(form, "", IMPLIED) == ()
    assert starts(form, "<think>\n") == ()
    assert starts(form, "<think>\n\n</think>\n\n") is None
    assert starts(both, "<think>\n\n</think>\n\n") is None, "no thought comes before the form"
    assert starts(both, "") == (start,)
    assert starts(SamplingParams(thinking_token_budget=4), "<think>\n\n</think>\n\n") == (start,)
    assert read_thinking(None, (5,), marked, None, is_structured=True) is None


def test_a_warning_names_markers_that_are_several_tokens(
    marked: Tokenizer, unmarked: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_split_markers(marked, MARKERS)
    warn_of_split_markers(unmarked, None)
    warn_of_split_markers(marked, ReasoningMarkers(start="<think>a b<think>", end="</think>"))
    assert not caplog.messages
    warn_of_split_markers(unmarked, MARKERS)
    assert [message[:9] for message in caplog.messages] == ["'<think>'", "'</think>"]


def test_thoughts_are_read_from_where_the_prompt_left_off(unmarked: Tokenizer) -> None:
    split = ParsedOutput(content="So.", reasoning="Hm.", tool_calls=())
    plain = ParsedOutput(content="So.", reasoning=None, tool_calls=())
    assert read(use("qwen3", unmarked, ""), "<think>Hm.</think>So.") == split
    assert read(use("qwen3", unmarked, ""), "So.") == plain
    assert read(use("qwen3", unmarked, "<think>"), "Hm.</think>So.") == split
    assert read(use("qwen3", unmarked, "", enable_thinking=False), "So.") == plain
    assert read(use("deepseek_r1", unmarked, ""), "Hm.</think>So.") == split
    assert read(use("deepseek_r1", unmarked, "<think></think>"), "So.") == plain
    assert find_reasoning(HttpSettings(), Conversation(messages=()), (), unmarked) is None


@pytest.mark.parametrize(
    ("content", "reasoning"),
    [
        ("The answer is", None),
        ([{"type": "text", "text": "The answer is"}], None),
        ("<think>Let me see: the answer is", " 5."),
        ("", " 5."),
        ([{"type": "text", "text": "\n"}], " 5."),
        (None, " 5."),
    ],
)
def test_text_that_the_output_continues_is_no_reasoning(
    unmarked: Tokenizer, content: Any, reasoning: str | None
) -> None:
    text = content[0]["text"] if isinstance(content, list) else content or ""
    conversation = Conversation(
        messages=({"role": "assistant", "content": content},),
        add_generation_prompt=False,
        continue_final_message=True,
    )
    settings = HttpSettings(reasoning_parser="deepseek_r1")
    found = find_reasoning(settings, conversation, encode(unmarked, ANSWER + text), unmarked)
    assert found is not None
    assert read(found, " 5.").reasoning == reasoning


def test_text_that_the_output_continues_has_its_form_at_once(unmarked: Tokenizer) -> None:
    prompt = encode(unmarked, ANSWER + '{"a":')
    waits = [
        read_thinking(None, prompt, unmarked, IMPLIED, is_structured=True, continues_text=continues)
        for continues in (False, True)
    ]
    assert waits[0] is not None
    assert waits[1] is None


@pytest.mark.parametrize(
    ("turn", "output", "thought"),
    [
        ("", "<think>one two</think>three", "one two"),
        ("<think>", "one two</think>three", "one two"),
        ("<think>", "one two", "one two"),
        ("", "one two", ""),
        ("<think></think>", "one two", ""),
    ],
)
def test_tokens_between_the_markers_are_counted(
    marked: Tokenizer, unmarked: Tokenizer, turn: str, output: str, thought: str
) -> None:
    for tokenizer in (marked, unmarked):
        counter = use("qwen3", tokenizer, turn).make_counter(tokenizer)
        for part in re.split("(</?think>)", output):
            counter.add(encode(tokenizer, part))
        assert counter.num_tokens == len(encode(tokenizer, thought))


def test_markers_that_merge_with_the_text_beside_them_end_a_thought() -> None:
    pieces = (b"", b"one", b" two", b".</", b"think", b">\n", b"three", b"</think><think>", b"\xc3", b"\xa9")
    counter = ReasoningCounter(pieces.__getitem__, "<think>", ["</think>"], is_inside=True, is_once=False)
    counter.add([0, 1, 2])
    assert counter.num_tokens == 3
    counter.add([3, 4, 5])
    assert counter.num_tokens == 3, "no token with a part of a marker counts"
    counter.add([6, 6, 7, 8, 9])
    assert counter.num_tokens == 5, "a second thought counts as well"


def test_an_answer_that_spells_out_the_marker_is_no_second_thought(unmarked: Tokenizer) -> None:
    parser = find_reasoning_parser("deepseek_r1")
    reasoning = ReasoningUse(parser=parser, template_arguments={}, thinking=Thinking.INSIDE)
    counter = reasoning.make_counter(unmarked)
    counter.add(encode(unmarked, "one two</think>It begins with <think> and has an end."))
    assert counter.num_tokens == len(encode(unmarked, "one two"))


def test_a_call_after_a_thought_in_harmony_is_no_thought(unmarked: Tokenizer) -> None:
    parser = find_reasoning_parser("openai_gptoss")
    reasoning = ReasoningUse(parser=parser, template_arguments={}, thinking=Thinking.BEFORE)
    header = "<|start|>assistant<|channel|>"
    for closing in ("<|end|>", "<|return|>", "<|call|>"):
        counter = reasoning.make_counter(unmarked)
        counter.add(encode(unmarked, f"<|channel|>analysis<|message|>one two{closing}"))
        num_thought = counter.num_tokens
        counter.add(encode(unmarked, f"{header}commentary to=functions.f <|message|>{{}}<|call|>"))
        assert counter.num_tokens == num_thought == len(encode(unmarked, "one two"))
        counter.add(encode(unmarked, f"{header}analysis<|message|>one two<|end|>"))
        counter.add(encode(unmarked, f"{header}final<|message|>one two<|return|>"))
        assert counter.num_tokens == 2 * num_thought, "each thought counts"
