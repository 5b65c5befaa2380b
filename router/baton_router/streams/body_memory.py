"""Memory for request bodies: those that are being read, and large ones that have been decoded.

A decoded body takes ten times its bytes and more. So only a few large ones are decoded at a time, each until
its prompts are read; that depends on the router alone, so the others' turns come, tenant by tenant. The time
to read a body depends on its client, so no call waits for that: a body without room is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from baton_core.errors import ErrorCode, RequestError
from baton_router.text.tenant_turns import TenantTurns
from baton_router.text.tokenizing_threads import NUM_THREADS

LARGE_BYTES: Final = 2**16
"""A body of more is large. Smaller ones are not counted: there can be no more of them than connections."""
MAX_READ_BYTES: Final = 2**28
"""Bytes of all large bodies that are being read or wait to be decoded."""
MAX_DECODED: Final = NUM_THREADS
"""Large bodies that are decoded at a time: there are as many threads for long work."""
WAIT_S: Final = 30.0
"""Longest wait for a turn to decode."""


class BodyMemory:
    """Memory for the bodies of all calls."""

    def __init__(
        self, *, max_read_bytes: int = MAX_READ_BYTES, max_decoded: int = MAX_DECODED, wait_s: float = WAIT_S
    ) -> None:
        self.max_read_bytes = max_read_bytes
        self.wait_s = wait_s
        self.num_read_bytes = 0
        """Bytes of large bodies now."""
        self.turns = TenantTurns(max_decoded)

    @contextmanager
    def body(self) -> Iterator[BodyReservation]:
        """Reserve memory for one body, released when the block is left, or earlier."""
        room = BodyReservation(self)
        try:
            yield room
        finally:
            room.release()


class BodyReservation:
    """The memory of one body, a part of `memory`."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._num_bytes = 0
        self._num_counted_bytes = 0
        self._tenant: str | None = None
        """The tenant whose turn it is to decode this body; None outside of a turn."""

    @property
    def is_large(self) -> bool:
        return self._num_bytes > LARGE_BYTES

    def add(self, num_bytes: int) -> None:
        """Count bytes that have arrived.

        Raises:
            RequestError: UNAVAILABLE, the bodies of others leave no room.
        """
        memory = self._memory
        self._num_bytes += num_bytes
        to_count = max(0, self._num_bytes - LARGE_BYTES) - self._num_counted_bytes
        if memory.num_read_bytes + to_count > memory.max_read_bytes:
            text = f"bodies of {memory.num_read_bytes} bytes are being read; allowed: {memory.max_read_bytes}"
            raise RequestError(ErrorCode.UNAVAILABLE, text)
        memory.num_read_bytes += to_count
        self._num_counted_bytes += to_count

    async def wait_to_decode(self, tenant: str) -> None:
        """Wait for the turn of a large body of a tenant.

        Raises:
            RequestError: UNAVAILABLE, the turn does not come in time.
        """
        if not self.is_large or self._tenant is not None:
            return
        try:
            async with asyncio.timeout(self._memory.wait_s):
                await self._memory.turns.take(tenant)
        except TimeoutError:
            text = f"other large bodies have taken over {self._memory.wait_s:g} s"
            raise RequestError(ErrorCode.UNAVAILABLE, text) from None
        self._tenant = tenant

    def release(self) -> None:
        """Release the memory once the body's prompts are read, so that the next large one may be decoded."""
        self._memory.num_read_bytes -= self._num_counted_bytes
        if self._tenant is not None:
            self._memory.turns.release(self._tenant)
        self._num_counted_bytes, self._tenant = 0, None
