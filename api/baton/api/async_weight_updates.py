"""The methods of `AsyncLLMEngine` that update the weights, as those of `LLM`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from baton.api.weight_updates import WeightUpdates
from baton.executors.executor import AsyncExecutor
from baton_worker.controls.engine_operations import Control


class AsyncWeightUpdates:
    """A part of `AsyncLLMEngine`."""

    _executor: AsyncExecutor
    _weights: WeightUpdates

    async def init_weight_transfer_engine(self, request: object) -> None:
        """Agree on the way of new weights; it may be left out."""
        self._weights.init(request)

    async def start_weight_update(self, is_checkpoint_format: bool = True) -> None:
        """Begin an update: `update_weights` and `finish_weight_update` follow."""
        await self._control_each(self._weights.start(is_checkpoint_format=is_checkpoint_format))

    async def update_weights(self, request: object) -> None:
        """Give new weights, which nothing computes with yet."""
        await self._control_each(self._weights.update(request))

    async def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Change to the new weights when the open requests have ended. Those that come meanwhile wait.

        Raises:
            InvalidModelError: a tensor is missing, has another shape or is not finite: the old ones stay.
            RequestError: INVALID_REQUEST, there are no new weights; OVERLOADED, open requests are paused.
        """
        await self._control_each(self._weights.finish(weight_version))

    async def get_weight_version(self) -> str:
        return self._weights.version

    async def update_weight_version(self, new_version: str) -> None:
        self._weights.version = new_version

    async def _control_each(self, commands: Iterator[Control]) -> None:
        """Ask one thing after the other, each when the one before is done."""
        while (command := await asyncio.to_thread(next, commands, None)) is not None:
            await self._executor.control(command)
