"""The target of a benchmark: a server of OpenAI's HTTP interface."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any, Final, Protocol

import msgspec

from baton_bench.answers import Answer, BenchRequest
from baton_bench.completion_stream import CompletionStream
from baton_bench.http_client import HttpClient
from baton_core.errors import ErrorCode, RequestError


class Backend(StrEnum):
    OPENAI = "openai"
    OPENAI_CHAT = "openai-chat"
    BATON_GRPC = "baton-grpc"


ENDPOINTS: Final[Mapping[Backend, str]] = {
    Backend.OPENAI: "/v1/completions",
    Backend.OPENAI_CHAT: "/v1/chat/completions",
}
POLL_S: Final = 0.5
"""Between two questions whether a server is there."""
_ASK_WITHIN_S: Final = 10.0


class Target(Protocol):
    """A server that answers requests."""

    async def send(self, answer: Answer) -> None:
        """Send the answer's request and mutate it as tokens come; the caller sets a deadline.

        Raises:
            OSError: the server cannot be reached, or breaks off.
            ValueError: it refuses the request, or its answer is not whole.
        """
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDefaults:
    """The fields that all requests have in common."""

    model: str = ""
    """The name that requests ask for; empty leaves it out."""
    ignore_eos: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the body: `temperature` and so on."""
    request_id_prefix: str = ""
    """The header x-request-id of each request is this and its number; empty: there is none."""


class _Card(msgspec.Struct):
    id: str
    root: str | None = None


class _Models(msgspec.Struct):
    data: list[_Card]


class OpenAiTarget:
    """A server of completions or chats."""

    def __init__(
        self, client: HttpClient, backend: Backend, endpoint: str, defaults: RequestDefaults
    ) -> None:
        self._client = client
        self._is_chat = backend is Backend.OPENAI_CHAT
        self._endpoint = endpoint or ENDPOINTS[backend]
        self._defaults = defaults
        self._numbers = count()

    async def send(self, answer: Answer) -> None:
        request, stream = answer.request, CompletionStream(answer)
        headers = {"x-session-id": request.session_id} if request.session_id else {}
        if prefix := self._defaults.request_id_prefix:
            headers["x-request-id"] = f"{prefix}{next(self._numbers)}"
        status = await self._client.request("POST", self._endpoint, self.body(request), stream.take, headers)
        stream.end(status)

    async def close(self) -> None:
        await self._client.close()

    def body(self, request: BenchRequest) -> bytes:
        """The JSON of a request; a chat's prompt is text."""
        defaults = self._defaults
        fields: dict[str, Any] = {"model": defaults.model} if defaults.model else {}
        if self._is_chat:
            fields["messages"] = [{"role": "user", "content": request.prompt}]
            fields["max_completion_tokens"] = request.num_tokens
        else:
            fields["prompt"] = request.prompt
            fields["max_tokens"] = request.num_tokens
        if defaults.ignore_eos:
            fields["ignore_eos"] = True
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return msgspec.json.encode({**fields, **stream, **defaults.sampling})


async def first_model(client: HttpClient, base: str, within_s: float) -> tuple[str, str]:
    """Name and root of the first model that the server lists, as soon as it does; 0 seconds are one try.

    Raises:
        RequestError: UNAVAILABLE, it did not within `within_s` seconds, or lists none.
    """
    reason = f"no answer within {within_s:g} s"
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s or None):
            while True:
                try:
                    async with asyncio.timeout(_ASK_WITHIN_S):
                        return await _ask_models(client, base)
                except TimeoutError:
                    reason = f"no answer within {_ASK_WITHIN_S:g} s"
                except (OSError, ValueError) as error:
                    reason = str(error) or type(error).__name__
                if not within_s:
                    break
                await asyncio.sleep(POLL_S)
    raise RequestError(ErrorCode.UNAVAILABLE, f"the server does not list its models: {reason}")


async def _ask_models(client: HttpClient, base: str) -> tuple[str, str]:
    body = bytearray()
    status = await client.request("GET", f"{base}/models", b"", lambda data, _: body.extend(data))
    if status != 200:
        raise ValueError(f"HTTP {status} at {base}/models")
    try:
        cards = msgspec.json.decode(bytes(body), type=_Models).data
    except msgspec.DecodeError as error:
        raise ValueError(f"no list of models: {error}") from None
    if not cards:
        raise ValueError("its list is empty")
    return cards[0].id, cards[0].root or ""
