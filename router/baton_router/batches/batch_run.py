"""Sends the requests of a batch, several at a time, and keeps each result as it comes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import msgspec

from baton_core.errors import ErrorCode, RequestError
from baton_router.batches.partial_results import PartialResults
from baton_router.core.batches.batch_lines import BatchRequest, WrongLine
from baton_router.core.batches.batch_results import BatchError, BatchResponse, BatchResult, answered

Ask = Callable[[str, bytes, str], Awaitable[tuple[int, bytes]]]
"""Sends a body to a route under a request id; returns the status and the body of the answer.

It raises OSError or ValueError where no server answers."""
PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Waits before a request is sent again to a server that has no room, or is not there."""
_COME_AGAIN: Final = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
_ANSWER_WITHIN_S: Final = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One run over the lines of a batch.

    Args:
        ask: sends one request.
        defaults: fields that bodies have which do not name them, by route.
        pauses_s: waits between the tries of a request, in seconds.
        waits_for_room: a request that finds no room (429) is sent again for as long as it takes.
    """

    ask: Ask
    results: PartialResults
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    pauses_s: tuple[float, ...] = PAUSES_S
    waits_for_room: bool = False
    _files: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the one thread that reads lines or adds a result."""

    async def run(
        self,
        lines: Iterable[BatchRequest | WrongLine],
        max_inflight: int,
        on_result: Callable[[], object],
    ) -> None:
        """Add a result for each line that has none, with at most `max_inflight` requests at a time.

        Raises:
            RequestError: UNAVAILABLE, the server is lost.
            InvalidConfigError: a result cannot be written.
        """
        waiting = (line for line in lines if line.key not in self.results.done)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(max_inflight):
                    group.create_task(self._work(waiting, on_result))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _work(
        self, waiting: Iterator[BatchRequest | WrongLine], on_result: Callable[[], object]
    ) -> None:
        while True:
            async with self._files:
                line = await asyncio.to_thread(next, waiting, None)
            if line is None:
                return
            result = _refused(line) if isinstance(line, WrongLine) else await self._answer(line)
            async with self._files:
                await asyncio.to_thread(self.results.add, result)
            on_result()

    async def _answer(self, request: BatchRequest) -> BatchResult:
        content = request.body_with(self.defaults.get(request.url, {}))
        request_id, pauses_s = f"batch-{uuid.uuid4().hex}", list(self.pauses_s)
        while True:
            try:
                async with asyncio.timeout(_ANSWER_WITHIN_S):
                    status, answer = await self.ask(request.url, content, request_id)
            except (OSError, ValueError) as error:
                if not pauses_s:
                    text = f"the server is lost ({error}); the same command goes on where this one ends"
                    raise RequestError(ErrorCode.UNAVAILABLE, text) from None
            else:
                if status not in _COME_AGAIN or not pauses_s:
                    break
                if status == HTTPStatus.TOO_MANY_REQUESTS and self.waits_for_room and len(pauses_s) == 1:
                    await asyncio.sleep(pauses_s[0])
                    continue
            await asyncio.sleep(pauses_s.pop(0))
        response = BatchResponse(status_code=status, request_id=request_id, body=_json_of(answer))
        return answered(new_result_id(), request.custom_id, response)


def new_result_id() -> str:
    """Return a name for a line of the output."""
    return f"batch_req_{uuid.uuid4().hex}"


def _json_of(answer: bytes) -> Any:
    """Return the JSON of an answer; text where it is no JSON."""
    try:
        return msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return answer.decode(errors="replace")


def _refused(line: WrongLine) -> BatchResult:
    error = BatchError(code=ErrorCode.INVALID_REQUEST, message=line.message, line=line.number)
    return BatchResult(id=new_result_id(), custom_id=line.custom_id, response=None, error=error)
