"""Methods of engines about LoRA adapters."""

from __future__ import annotations

import asyncio

from baton.api.request_builder import RequestBuilder
from baton.executors.executor import AsyncExecutor, Executor
from baton.lora import LoRARequest
from baton_worker.controls.engine_operations import PinAdapters


class LoRAMethods:
    """Adapters that are known by their ids; they are loaded when requests ask for them."""

    requests: RequestBuilder
    _executor: Executor

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read an adapter's folder, so that requests need not; returns True.

        Raises:
            InvalidRequestError: the folder cannot be used, or the engine takes no adapters.
        """
        return self.requests.adapters.find(lora_request) is not None

    def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter, pinned or not; False where no id is that. Its running requests go on."""
        was_pinned = lora_id in self.requests.adapters.pinned
        is_found = self.requests.adapters.forget(lora_id)
        if was_pinned:
            self._executor.control(PinAdapters(numbers=self.requests.adapters.pinned))
        return is_found

    def list_loras(self) -> set[int]:
        """Return the ids of the adapters that are known."""
        return self.requests.adapters.ids

    def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter loaded at all workers, from its first request until it is removed; returns True.

        Raises:
            InvalidRequestError: no adapter has this id.
            BatonError: others are pinned in all places of `max_cpu_loras`, or a worker does not answer.
        """
        self._executor.control(PinAdapters(numbers=self.requests.adapters.with_pinned(lora_id)))
        self.requests.adapters.pin(lora_id)
        return True


class AsyncLoRAMethods:
    """The same, as coroutines."""

    requests: RequestBuilder
    _executor: AsyncExecutor
    _pinning: asyncio.Lock
    """Held while workers are told what is pinned: each change is told on top of the one before it."""

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """As `LoRAMethods.add_lora`."""
        return self.requests.adapters.find(lora_request) is not None

    async def remove_lora(self, lora_id: int) -> bool:
        """As `LoRAMethods.remove_lora`."""
        async with self._pinning:
            was_pinned = lora_id in self.requests.adapters.pinned
            is_found = self.requests.adapters.forget(lora_id)
            if was_pinned:
                await self._executor.control(PinAdapters(numbers=self.requests.adapters.pinned))
        return is_found

    async def list_loras(self) -> set[int]:
        """As `LoRAMethods.list_loras`."""
        return self.requests.adapters.ids

    async def pin_lora(self, lora_id: int) -> bool:
        """As `LoRAMethods.pin_lora`."""
        async with self._pinning:
            await self._executor.control(PinAdapters(numbers=self.requests.adapters.with_pinned(lora_id)))
            self.requests.adapters.pin(lora_id)
        return True
