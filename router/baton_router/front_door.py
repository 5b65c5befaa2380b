"""What every protocol's service stands on: takes requests for the served model and follows them to their end.

One object per router, on its loop. Counts what is open, so that a router that shuts down can wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Final

from baton_core.errors import ErrorCode, RequestError
from baton_core.requests.phases import Phase, PhaseName
from baton_core.requests.request_context import RequestContext
from baton_core.routing.readiness import why_not_ready
from baton_core.sessions.router_messages import RequestSpec
from baton_router.chat_template import Conversation
from baton_router.client_stream import ClientStream
from baton_router.generation import GenerationRequest, Prompt, TokenIds
from baton_router.model_folder import ModelFolder
from baton_router.prompt_reader import PromptReader
from baton_router.request_limits import DEFAULT_LIMITS, RequestLimits
from baton_router.request_spans import RequestSpans
from baton_router.resume_tokens import ResumeTokens
from baton_router.resumption import AcceptedRequest, RequestReader
from baton_router.router import Router
from baton_router.tenant_salt import tenant_salt
from baton_router.text_converter import TextConverter
from baton_router.tokenization import Tokenizer
from baton_router.tokenizing_threads import TokenizingThreads
from baton_router.validation import check_model

SHUTS_DOWN: Final = "the router shuts down"
MAX_CALLS: Final = 8192
"""Calls open at a time, those included whose request is over and whose client does not read."""
_GRACE_S: Final = 1.0
"""After a call's deadline, within which the core's own error, which says more, comes first."""


class FrontDoor:
    """Serves one model through `router`.

    Args:
        timeout_s: for calls without a deadline of their own.
        shares_prefixes: whether tenants may use each other's cached prefixes.
        resume_tokens: as every router of the fleet writes them.
    """

    def __init__(
        self,
        model_names: Sequence[str],
        model: ModelFolder,
        tokenizer: Tokenizer,
        *,
        threads: TokenizingThreads,
        router: Router,
        timeout_s: float,
        limits: RequestLimits = DEFAULT_LIMITS,
        spans: RequestSpans | None = None,
        shares_prefixes: bool = False,
        resume_tokens: ResumeTokens | None = None,
    ) -> None:
        self.model_names = tuple(model_names)
        self.model = model
        self.tokenizer = tokenizer
        self.router = router
        self.timeout_s = timeout_s
        self._threads = threads
        self._spans = spans or RequestSpans()
        self._shares_prefixes = shares_prefixes
        self.resume_tokens = resume_tokens or ResumeTokens()
        prompts = PromptReader(model_names, model, tokenizer, limits)
        self._requests = RequestReader(prompts, self.resume_tokens, model.vocab_size)
        self._texts = TextConverter(model, tokenizer, limits)
        self._num_calls = 0
        self._is_draining = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @property
    def num_calls(self) -> int:
        """Calls that are open now."""
        return self._num_calls

    @property
    def is_ready(self) -> bool:
        """Whether a prompt can be served now."""
        return self.router.is_ready and not self._is_draining

    @property
    def why_not_ready(self) -> str:
        """Empty while it is."""
        if self._is_draining:
            return SHUTS_DOWN
        return "" if self.is_ready else why_not_ready(self.router.fleet.workers())

    @property
    def broken_pairs(self) -> list[str]:
        """A line for each pair of workers that share no request because blocks do not arrive."""
        return [
            f"blocks of {pair.prefill} do not arrive at {pair.decode}: {why}"
            for pair, why in self.router.transfers.broken.items()
        ]

    @property
    def max_model_len(self) -> int:
        """What every worker can hold; without workers what the model can."""
        return self.router.fleet.max_model_len or self.model.max_position_embeddings

    @asynccontextmanager
    async def generate(
        self, request: GenerationRequest, timeout_s: float | None = None
    ) -> AsyncIterator[ClientStream]:
        """Start a request; leaving the block cancels what is not over.

        Raises:
            InvalidRequestError: a field is out of range; the message names it.
            RequestError: NOT_FOUND, OVERLOADED, UNAVAILABLE, or DEADLINE_EXCEEDED.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        now = asyncio.get_running_loop().time
        with self.open_call():
            began_s = now()
            deadline = began_s + timeout_s
            async with ends_within(timeout_s):
                accepted = await self._threads.run(
                    self._requests.read,
                    request,
                    max_model_len=self.max_model_len,
                    identity=self.router.fleet.identity,
                    now_s=time.time(),
                )
            async with ends_within(timeout_s, deadline + _GRACE_S):
                stream = self._open_stream(request, accepted)
                phases = _phases(request.context.arrived_s, began_s, now())
                self.router.submit(stream, max(0.0, deadline - now()), phases)
                try:
                    yield stream
                finally:
                    self.router.abandon(stream)

    async def tokenize(
        self,
        prompt: Prompt,
        *,
        model: str = "",
        add_special_tokens: bool | None = None,
        timeout_s: float | None = None,
    ) -> TokenIds:
        """Return the ids that `generate` would make of a text or a conversation. Needs no worker.

        Raises:
            InvalidRequestError: a field is out of range; the message names it.
            RequestError: NOT_FOUND, OVERLOADED, UNAVAILABLE, or DEADLINE_EXCEEDED.
        """
        check_model(model, self.model_names)
        with self.open_call():
            async with ends_within(self.timeout_s if timeout_s is None else timeout_s):
                return await self._threads.run(
                    self._texts.tokenize, prompt, add_special_tokens=add_special_tokens
                )

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        model: str = "",
        skip_special_tokens: bool = False,
        timeout_s: float | None = None,
    ) -> str:
        """Return the text of token ids. Needs no worker.

        Raises:
            InvalidRequestError: a field is out of range; the message names it.
            RequestError: NOT_FOUND, OVERLOADED, UNAVAILABLE, or DEADLINE_EXCEEDED.
        """
        check_model(model, self.model_names)
        with self.open_call():
            async with ends_within(self.timeout_s if timeout_s is None else timeout_s):
                return await self._threads.run(
                    self._texts.detokenize, token_ids, skip_special_tokens=skip_special_tokens
                )

    def _open_stream(self, request: GenerationRequest, accepted: AcceptedRequest) -> ClientStream:
        stream = ClientStream(
            self._spans.begin(self._salted(accepted.spec, request.context), request.context),
            self.tokenizer,
            context=request.context,
            is_chat=isinstance(request.prompt, Conversation),
            resume_token=accepted.resume_token,
            num_received=accepted.num_received,
            is_resumed=accepted.is_resumed,
        )
        stream.skip(accepted.received)
        return stream

    def _salted(self, spec: RequestSpec, context: RequestContext) -> RequestSpec:
        if self._shares_prefixes:
            return spec
        return replace(spec, cache_salt=tenant_salt(context.tenant, spec.cache_salt))

    async def drain(self, within_s: float) -> None:
        """Refuse new requests and wait until the last client has its end, or `within_s` is over."""
        self._is_draining = True
        try:
            async with asyncio.timeout(within_s):
                await self._is_idle.wait()
        except TimeoutError:
            return

    @contextmanager
    def open_call(self) -> Iterator[None]:
        """Count a call, which `drain` waits for.

        Raises:
            RequestError: UNAVAILABLE, the router shuts down; OVERLOADED, too many calls are open.
        """
        if self._is_draining:
            raise RequestError(ErrorCode.UNAVAILABLE, SHUTS_DOWN)
        if self._num_calls >= MAX_CALLS:
            text = f"{self._num_calls} calls are open; allowed: {MAX_CALLS}"
            raise RequestError(ErrorCode.OVERLOADED, text)
        self._num_calls += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._num_calls -= 1
            if not self._num_calls:
                self._is_idle.set()


def _phases(arrived_s: float | None, began_s: float, tokenized_s: float) -> tuple[Phase, ...]:
    """Where the time went before a request was submitted."""
    tokenize = Phase(name=PhaseName.TOKENIZE, start_s=began_s, end_s=tokenized_s)
    if arrived_s is None:
        return (tokenize,)
    return (Phase(name=PhaseName.RECEIVE, start_s=arrived_s, end_s=began_s), tokenize)


@asynccontextmanager
async def ends_within(timeout_s: float, at: float | None = None) -> AsyncIterator[None]:
    """End what takes longer than `timeout_s`, at the loop's time `at` if that is given.

    Raises:
        RequestError: DEADLINE_EXCEEDED.
    """
    try:
        async with asyncio.timeout(timeout_s) if at is None else asyncio.timeout_at(at):
            yield
    except TimeoutError:
        raise RequestError(ErrorCode.DEADLINE_EXCEEDED, f"not finished within {timeout_s:.3g} s") from None
