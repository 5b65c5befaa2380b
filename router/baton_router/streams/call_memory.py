"""Memory that calls reserve before any work is done for them: log-probabilities of replies, embeddings.

Tokens and texts are not counted: the workers' KV caches bound them, at a thousand times their size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_core.prompt_embeds import MAX_EMBEDS_BYTES
from baton_core.requests.packed_logprobs import ENTRY_BYTES
from baton_core.requests.pooling import PoolingModel
from baton_core.sessions.router_messages import RequestSpec
from baton_router.streams.client_stream import MAX_WAITING_EVENTS

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
