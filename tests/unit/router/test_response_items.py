"""Items and errors of responses: a text has the log-probabilities of its own tokens, however it arrives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_router.http.chat.output_parsers import ReasoningUse
from baton_router.http.chat.replies import TokenLogprob
from baton_router.http.chat.tool_choice import Choice, ToolUse
from baton_router.http.responses.items import ItemWriter
from baton_router.http.responses.replies import MessageItem, ResponseError, TextPiece, response_error
from baton_router.output_parsing.output_parser import Tool
from baton_router.output_parsing.registry import find_reasoning_parser
from baton_router.requests.generation import Delta
from baton_router.requests.thinking import Thinking

USE = ToolUse(choice=Choice.AUTO, tools=(Tool(name="f"),), parser_name="hermes")
THINKING = ["<think>", "th", "ink", " a ", "</think>", "\n\n"]
CALLING = [
    "<tool_call>",
    '{"',
    "name",
    '": "',
    "f",
    '", ',
    '"arguments": {"',
    "x",
    '": "',
    "I",
    '"}}',
    "</tool_call>",
]
END = "<end>"
CASES: list[tuple[list[str], list[list[str]]]] = [
    (["Hi", " there", END], [["Hi", " there", END]]),
    ([*THINKING, "th", "ink", " it", END], [["\n\n", "th", "ink", " it", END]]),
    ([*THINKING, "I", " look", ".", *CALLING, END], [["\n\n", "I", " look", "."]]),
    (["I", " look", ".", *CALLING, "x", " é", END], [["I", " look", "."], ["x", " é", END]]),
    (["a", " <", "tool", "s>", " b", END], [["a", " <", "tool", "s>", " b", END]]),
    ([*THINKING, "�", "b", END], [["</think>", "\n\n", "�", "b", END]]),
]


def entry(token: str) -> TokenLogprob:
    content = [0xFF] if token == "�" else list(token.encode())
    return TokenLogprob(token=token, logprob=-1.0, bytes=content, top_logprobs=[])


def messages(tokens: Sequence[str], size: int) -> tuple[list[list[str]], list[str]]:
    """Return the tokens of each message, and those of its pieces in a stream, by tokens at a time."""
    left: Iterator[str] = iter(tokens)
    reasoning = ReasoningUse(
        parser=find_reasoning_parser("qwen3"), template_arguments={}, thinking=Thinking.BEFORE
    )
    writer = ItemWriter(
        reasoning.make_parser(USE.make_parser()),
        USE,
        lambda entries: [entry(next(left)) for _ in entries],
        response_id="resp_r",
        names={},
        hides_reasoning=False,
    )
    pieces: list[str] = []
    for start in range(0, len(tokens), size):
        some = tokens[start : start + size]
        logprobs: Any = some
        reason = "stop" if END in some else None
        delta = Delta(
            index=0,
            text="".join(some).removesuffix(END),
            token_ids=(),
            logprobs=logprobs,
            finish_reason=reason,
        )
        for event in writer.piece(delta):
            if isinstance(event, TextPiece):
                pieces += [each.token for each in event.logprobs]
    items = [item for item in writer.items if isinstance(item, MessageItem)]
    return [[each.token for part in item.content for each in part.logprobs] for item in items], pieces


@pytest.mark.parametrize(("tokens", "expected"), CASES)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_text_has_the_log_probabilities_of_its_tokens(
    tokens: list[str], expected: list[list[str]], size: int
) -> None:
    found, pieces = messages(tokens, size)
    assert found == expected
    assert pieces == [token for message in expected for token in message]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RequestError(ErrorCode.OVERLOADED, "full"), "rate_limit_exceeded", "full (overloaded)"),
        (RequestError(ErrorCode.WORKER_LOST, "gone"), "server_error", "gone (worker_lost)"),
        (
            InvalidRequestError("input", 5, "text"),
            "invalid_prompt",
            "input is 5; allowed: text (invalid_request)",
        ),
    ],
)
def test_a_failure_has_a_code_that_clients_of_openai_know(error: Exception, code: str, message: str) -> None:
    assert response_error(error) == ResponseError(code=code, message=message)
