"""The open requests of `AsyncLLMEngine`, and vLLM's parts by which trainers count, end and await them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from baton.api.output_processor import OutputProcessor
from baton.executors.executor import ABORTED, AsyncExecutor, Inbox


class AsyncOpenRequests:
    """A part of `AsyncLLMEngine`."""

    _executor: AsyncExecutor
    _open: dict[str, Inbox]

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        """End requests; their iterators yield their last outputs, with `abort` as the reason.

        Ids are the same inside, so `internal` has no effect. They are free at once.
        """
        self._end([request_id] if isinstance(request_id, str) else request_id)

    async def wait_for_requests_to_drain(self, drain_timeout: float = 300.0) -> None:
        """Wait until no request is computed, those among them that come meanwhile.

        Raises:
            TimeoutError: some still are after `drain_timeout` seconds.
        """
        async with asyncio.timeout(drain_timeout):
            while inboxes := self._unended():
                await asyncio.gather(*(inbox.wait_ended() for inbox in inboxes))

    def get_num_unfinished_requests(self) -> int:
        return len(self._open)

    @property
    def output_processor(self) -> OutputProcessor:
        return OutputProcessor(self._open, self._end)

    @property
    def engine_core(self) -> EngineCore:
        return EngineCore(self)

    def _unended(self) -> list[Inbox]:
        return [inbox for inbox in self._open.values() if not inbox.has_ended]

    def _end(self, request_ids: Iterable[str]) -> list[str]:
        """End requests; returns the ids of those that were open."""
        ended = []
        for name in request_ids:
            if (inbox := self._open.pop(name, None)) is not None:
                self._executor.abort(name)
                inbox.put((ABORTED,))
                ended.append(name)
        return ended


@dataclass(frozen=True, slots=True)
class EngineCore:
    """The computing part of the engine, as far as callers have asked for it by name."""

    engine: AsyncOpenRequests

    async def abort_requests_async(self, request_ids: Iterable[str]) -> None:
        """End requests as `AsyncLLMEngine.abort` does."""
        await self.engine.abort(request_ids)
