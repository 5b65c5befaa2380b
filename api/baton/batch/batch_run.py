"""Sends the requests of a batch to a server, several at a time, and keeps each result as it comes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import msgspec

from baton.batch.lines import BatchRequest, WrongLine
from baton.batch.results import BatchError, BatchResponse, BatchResult, PartialResults, answered
from baton_bench.http_client import HttpClient
from baton_core.errors import ErrorCode, RequestError

_PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Waits before a request is sent again to a server that has no room, or is not there."""
_COME_AGAIN: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_ANSWER_WITHIN_S: Final = 6 * 3600.0
_WITH_PRIORITY: Final = ("/v1/chat/completions", "/v1/completions")


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One run over the lines of a batch.

    Args:
        priority: of requests that name none; None leaves it out.
        pauses_s: waits between the tries of a request, in seconds.
    """

    client: HttpClient
    results: PartialResults
    priority: int | None = None
    pauses_s: tuple[float, ...] = _PAUSES_S

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
        for line in waiting:
            self.results.add(_refused(line) if isinstance(line, WrongLine) else await self._answer(line))
            on_result()

    async def _answer(self, request: BatchRequest) -> BatchResult:
        body = request.body
        if self.priority is not None and request.url in _WITH_PRIORITY:
            body = {"priority": self.priority, **body}
        content, request_id = msgspec.json.encode(body), f"batch-{uuid.uuid4().hex}"
        for pause_s in (*self.pauses_s, None):
            try:
                status, answer = await self._ask(request.url, content, request_id)
            except (OSError, ValueError) as error:
                if pause_s is None:
                    text = f"the server is lost ({error}); the same command goes on where this one ends"
                    raise RequestError(ErrorCode.UNAVAILABLE, text) from None
            else:
                if status not in _COME_AGAIN or pause_s is None:
                    break
            await asyncio.sleep(pause_s)
        response = BatchResponse(status_code=status, request_id=request_id, body=answer)
        return answered(_new_id(), request.custom_id, response)

    async def _ask(self, url: str, content: bytes, request_id: str) -> tuple[int, Any]:
        """Return the status and the JSON of an answer; text where it is no JSON."""
        whole = bytearray()
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            status = await self.client.request(
                "POST", url, content, lambda piece, _: whole.extend(piece), {"x-request-id": request_id}
            )
        try:
            return status, msgspec.json.decode(whole)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return status, whole.decode(errors="replace")


def _refused(line: WrongLine) -> BatchResult:
    error = BatchError(code=ErrorCode.INVALID_REQUEST, message=line.message, line=line.number)
    return BatchResult(id=_new_id(), custom_id=line.custom_id, response=None, error=error)


def _new_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"
