"""Memory that calls reserve: bodies and, before any work is done for them, log-probabilities and embeddings.

Tokens and texts are not counted: the KV caches of workers bound them, at a thousand times their size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_core.prompt_embeds import MAX_EMBEDS_BYTES
from baton_core.requests.packed_logprobs import ENTRY_BYTES
from baton_core.requests.pooling import PoolingModel
from baton_core.sessions.router_messages import RequestSpec
from baton_router.streams.client_stream import MAX_WAITING_EVENTS
from baton_router.text.tenant_turns import TenantTurns
from baton_router.text.tokenizing_threads import NUM_THREADS

ANSWERS_AT_A_TIME: Final = 4
"""Answers of the largest size that are held together; any number of smaller ones."""
MAX_OPEN_BYTES: Final = 8 * MAX_EMBEDS_BYTES
"""Embeddings of all open requests together."""


class LogprobsMemory:
    """Memory for the log-probabilities of all calls: `max_bytes` each, four times as much together."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._max_total_bytes = ANSWERS_AT_A_TIME * max_bytes
        self._num_bytes = 0

    @contextmanager
    def hold(
        self,
        specs: Sequence[RequestSpec],
        *,
        max_model_len: int,
        is_streamed: bool,
        pooling: PoolingModel | None = None,
    ) -> Iterator[None]:
        """Reserve memory for one call's reply, until the block is left; `pooling` is what the model pools.

        Raises:
            InvalidRequestError: the reply could exceed the limit of one reply.
            RequestError: OVERLOADED, the replies of other calls leave no room for it.
        """
        of_prompts = sum(_prompt_bytes(spec) for spec in specs)
        of_outputs = sum(_output_bytes(spec, max_model_len, is_streamed) for spec in specs)
        of_pooled = sum(_pooled_bytes(spec, pooling) for spec in specs)
        num_bytes = of_prompts + of_outputs + of_pooled
        if of_pooled > self._max_bytes:
            allowed = f"shorter or fewer prompts: the answer has {of_pooled} bytes of numbers, and"
            raise InvalidRequestError(
                "prompt", f"{len(specs)} prompts", f"{allowed} --max-answer-bytes is {self._max_bytes}"
            )
        if num_bytes > self._max_bytes:
            field = "prompt_logprobs" if of_prompts > of_outputs else "logprobs"
            value = getattr(specs[0].params, field)
            raise InvalidRequestError(
                field,
                value,
                f"less, fewer sequences or a lower max_tokens: the answer could hold {num_bytes} bytes of "
                f"log-probabilities, and --max-answer-bytes is {self._max_bytes}",
            )
        if self._num_bytes + num_bytes > self._max_total_bytes:
            text = (
                f"log-probabilities of other answers take {self._num_bytes} bytes, this one's up to "
                f"{num_bytes}; allowed together: {self._max_total_bytes}"
            )
            raise RequestError(ErrorCode.OVERLOADED, text)
        self._num_bytes += num_bytes
        try:
            yield
        finally:
            self._num_bytes -= num_bytes


class EmbedsMemory:
    """Memory for the embeddings of open requests, which the router keeps for those that migrate."""

    def __init__(self, max_bytes: int = MAX_OPEN_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0

    @contextmanager
    def hold(self, specs: Sequence[RequestSpec]) -> Iterator[None]:
        """Count the embeddings of one call's requests, until the block is left.

        Raises:
            RequestError: OVERLOADED, those of other calls leave no room for them.
        """
        num_bytes = sum(len(one.data) for spec in specs for one in spec.prompt_embeds)
        if num_bytes and self._num_bytes + num_bytes > self._max_bytes:
            text = (
                f"prompt_embeds of other requests take {self._num_bytes} bytes, these {num_bytes}; "
                f"allowed together: {self._max_bytes}"
            )
            raise RequestError(ErrorCode.OVERLOADED, text)
        self._num_bytes += num_bytes
        try:
            yield
        finally:
            self._num_bytes -= num_bytes


def _pooled_bytes(spec: RequestSpec, model: PoolingModel | None) -> int:
    if spec.pooling is None or model is None:
        return 0
    return model.result_bytes(spec.pooling, len(spec.prompt_token_ids))


def _prompt_bytes(spec: RequestSpec) -> int:
    """Return the bytes of a prompt's log-probabilities, which each choice repeats."""
    num_top = spec.params.prompt_logprobs
    if num_top is None:
        return 0
    return spec.params.n * len(spec.prompt_token_ids) * (1 + num_top) * ENTRY_BYTES


def _output_bytes(spec: RequestSpec, max_model_len: int, is_streamed: bool) -> int:
    """Return the bytes of an output's log-probabilities; a stream holds only what may wait for its client."""
    params = spec.params
    named = params.logprob_token_ids or ()
    if params.logprobs is None and not named:
        return 0
    room = max(0, max_model_len - len(spec.prompt_token_ids))
    num_tokens = room if params.max_tokens is None else min(room, params.max_tokens)
    if is_streamed:
        num_tokens = min(num_tokens, MAX_WAITING_EVENTS)
    return params.n * num_tokens * (1 + max(params.logprobs or 0, len(named))) * ENTRY_BYTES


LARGE_BYTES: Final = 2**16
"""A body of more is large. Smaller ones are not counted: there can be no more of them than connections."""
MAX_READ_BYTES: Final = 2**28
"""Bytes of all large bodies that are being read or wait to be decoded."""
MAX_DECODED: Final = NUM_THREADS
"""Large bodies that are decoded at a time: there are as many threads that read them."""
WAIT_S: Final = 30.0
"""Longest wait for a turn to decode."""


class BodyMemory:
    """Memory for the bodies of all calls: those that are being read, and large ones that have been decoded.

    A decoded body takes ten times its bytes and more. So only a few large ones are decoded at a time, each
    until its prompts are read; that depends on the router alone, so the others' turns come, tenant by tenant.
    The time to read a body depends on its client, so no call waits for that: a body without room is refused.
    """

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
