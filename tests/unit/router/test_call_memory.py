"""Answers that could hold too much are refused before any work is done for them."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import Any

import pytest

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_core.requests.packed_logprobs import ENTRY_BYTES
from baton_core.sessions.router_messages import RequestSpec
from baton_router.streams.client_stream import MAX_WAITING_EVENTS
from baton_router.streams.memory import ANSWERS_AT_A_TIME, LogprobsMemory
from tests.builders import make_request


def spec(*, prompt: int = 10, **params: Any) -> RequestSpec:
    return make_request(prompt=prompt, **params)


def hold(memory: LogprobsMemory, *specs: RequestSpec, is_streamed: bool = False) -> Any:
    return memory.hold(specs, max_model_len=100_000, is_streamed=is_streamed)


def test_an_answer_of_the_largest_size_is_taken_and_one_of_more_names_its_field() -> None:
    memory = LogprobsMemory(4 * 100 * 3 * ENTRY_BYTES)
    with hold(memory, spec(n=4, max_tokens=100, logprobs=2)):
        pass
    allowed = "a lower max_tokens: the answer could hold 19392 bytes of log-probabilities"
    with pytest.raises(InvalidRequestError, match=f"logprobs is 2; allowed: .*{allowed}") as caught:
        hold(memory, spec(n=4, max_tokens=101, logprobs=2)).__enter__()
    assert caught.value.field == "logprobs"


def test_prompts_count_together_and_are_repeated_in_each_choice() -> None:
    memory = LogprobsMemory(2 * 2 * 50 * 21 * ENTRY_BYTES)
    large = spec(prompt=50, prompt_logprobs=20, n=2)
    with hold(memory, large, large):
        pass
    with pytest.raises(InvalidRequestError, match="prompt_logprobs is 20") as caught:
        hold(memory, large, large, spec(prompt_logprobs=0)).__enter__()
    assert caught.value.field == "prompt_logprobs"


def test_streams_hold_what_may_wait_and_answers_without_log_probabilities_nothing() -> None:
    memory = LogprobsMemory(MAX_WAITING_EVENTS * ENTRY_BYTES)
    endless = spec(max_tokens=None, logprobs=0)
    with hold(memory, endless, is_streamed=True), hold(memory, spec(max_tokens=None, n=64)):
        pass
    with pytest.raises(InvalidRequestError), hold(memory, endless):
        pass


def test_answers_of_all_calls_together_are_bounded_and_leave_room_when_they_are_over() -> None:
    memory = LogprobsMemory(100 * ENTRY_BYTES)
    one = spec(max_tokens=100, logprobs=0)
    with ExitStack() as stack:
        for _ in range(ANSWERS_AT_A_TIME):
            stack.enter_context(hold(memory, one))
        text = re.escape("take 6400 bytes, this one's up to 1600; allowed together: 6400")
        with pytest.raises(RequestError, match=text) as caught, hold(memory, one):
            pass
        assert caught.value.code is ErrorCode.OVERLOADED
    with hold(memory, one):
        pass
