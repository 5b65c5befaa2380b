"""A client of /v1/chat/completions, and a router whose worker answers it with given texts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import msgspec

from baton_core.requests.logprobs import PositionLogprobs
from baton_core.sessions.router_messages import Generate, PromptLogprobs, RequestSpec, SequenceOutput
from baton_router.process.http_settings import HttpSettings
from tests.integration.router_cluster import TOKENIZER, serving
from tests.integration.scripted_worker import ScriptedWorker

EOS = 2
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Say the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
HELLO = [{"role": "user", "content": "Hello!"}]


class ChattyWorker(ScriptedWorker):
    """Also gives log-probabilities: of the token itself, of the two most likely, and of the prompt."""

    def _output(self, spec: RequestSpec, index: int, start: int, end: int) -> SequenceOutput:
        output = super()._output(spec, index, start, end)
        if spec.params.logprobs is None:
            return output
        entries = tuple(_entry(token_id, spec.params.logprobs) for token_id in output.token_ids)
        return msgspec.structs.replace(output, logprobs=entries)

    def _say_first(self, spec: RequestSpec) -> None:
        if (top := spec.params.prompt_logprobs) is not None:
            entries = tuple(_entry(token_id, top) for token_id in spec.prompt_token_ids[1:])
            self.client.send(
                self._router_id, PromptLogprobs(request_id=spec.request_id, start=1, entries=entries)
            )
        super()._say_first(spec)

    @property
    def spec(self) -> RequestSpec:
        """The specification of the last request."""
        return next(c.spec for c in reversed(self.commands) if isinstance(c, Generate))


def _entry(token_id: int, top: int) -> PositionLogprobs:
    others = (7, 8)[:top]
    return PositionLogprobs(
        token_ids=(token_id, *others), logprobs=(-float("inf"), *(-0.5, -1.5)[:top]), ranks=(9, *(1, 2)[:top])
    )


class Chat:
    """A client of the route."""

    def __init__(self, client: httpx.AsyncClient, worker: ChattyWorker) -> None:
        self.client = client
        self.worker = worker

    async def post(self, **body: Any) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json={"messages": HELLO, **body})

    async def ask(self, **body: Any) -> dict[str, Any]:
        response = await self.post(**body)
        assert response.status_code == 200, response.text
        return response.json()

    async def stream(self, **body: Any) -> list[dict[str, Any]]:
        response = await self.post(stream=True, **body)
        assert response.status_code == 200, response.text
        *events, done, last = response.text.split("\n\n")
        assert (done, last) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]

    async def refusal(self, **body: Any) -> dict[str, Any]:
        response = await self.post(**body)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        return error

    async def prompt(self) -> str:
        return TOKENIZER.decode(self.worker.spec.prompt_token_ids, skip_special_tokens=False)


@asynccontextmanager
async def chatting(*texts: str, tokens_at_once: int = 1, **http: Any) -> AsyncIterator[Chat]:
    """A router whose worker answers sequence `index` with `texts[index]`."""
    answers = [(*TOKENIZER.encode(text, add_special_tokens=False), EOS) for text in texts]
    worker = ChattyWorker("w1", answers=answers, num_tokens_per_output=tokens_at_once)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(http=HttpSettings(**http)))
        await stack.enter_async_context(worker.joined(server.grpc_port))
        url = f"http://127.0.0.1:{server.http_port}"
        yield Chat(await stack.enter_async_context(httpx.AsyncClient(base_url=url, verify=False)), worker)


def joined(chunks: Sequence[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """Put the message of one choice together, as clients do."""
    message: dict[str, Any] = {"content": None, "tool_calls": []}
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index):
        delta = choice["delta"]
        for key in ("role", "content", "reasoning_content", "reasoning"):
            if delta.get(key):
                message[key] = (message.get(key) or "") + delta[key]
        for piece in delta.get("tool_calls", ()):
            if piece["index"] == len(message["tool_calls"]):
                assert piece["type"] == "function"
                call = {"id": piece["id"], "type": "function", "function": {"name": "", "arguments": ""}}
                message["tool_calls"].append(call)
            call = message["tool_calls"][piece["index"]]
            for key, value in piece["function"].items():
                call["function"][key] += value
        message["finish_reason"] = choice["finish_reason"]
    return message


def calls_of(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    ]
