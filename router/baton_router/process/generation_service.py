"""Takes requests for the served model and follows them to their end, for every protocol.

One object per router, on its loop. Counts what is open, so that a router that shuts down can wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Final, ParamSpec, TypeVar

from baton_core.errors import BatonError, ErrorCode, RequestError
from baton_core.requests.phases import Phase, PhaseName
from baton_core.requests.request_context import NamedWorkers
from baton_core.sessions.router_messages import RequestSpec
from baton_router.process.adapter_loading import AdapterLoading
from baton_router.process.call_timeout import ends_within
from baton_router.process.logged_requests import LoggedRequests
from baton_router.process.router import Router
from baton_router.process.text_converter import TextConverter
from baton_router.requests.generation import GenerationRequest
from baton_router.requests.lanes import choose_lane, lane_of_tokens
from baton_router.requests.request_limits import RequestLimits
from baton_router.requests.request_reader import PreparedRequest, PromptReader, RequestReader
from baton_router.requests.resume_tokens import ResumeTokens
from baton_router.requests.served_adapters import ServedAdapters
from baton_router.requests.thinking import warn_of_split_markers
from baton_router.requests.validation import tenant_salt
from baton_router.streams.client_stream import ClientStream
from baton_router.streams.loop_turns import LoopShare, StreamTurns
from baton_router.streams.memory import BodyMemory, EmbedsMemory, LogprobsMemory
from baton_router.streams.request_spans import RequestSpans
from baton_router.text.model_folder import ModelFolder
from baton_router.text.prompts import Prompt, TokenIds
from baton_router.text.tokenization import Tokenizer
from baton_router.text.tokenizing_threads import Lane, TokenizingThreads

P = ParamSpec("P")
T = TypeVar("T")
SHUTS_DOWN: Final = "the router shuts down"
MAX_CALLS: Final = 8192
"""Calls open at a time, including those whose request is over and whose client does not read."""
_GRACE_S: Final = 1.0
"""After a call's deadline, within which the core's own, more precise error comes first."""


class GenerationService:
    """Serves one model through `router`.

    Args:
        timeout_s: for calls without a deadline of their own.
        shares_prefixes: whether tenants may use each other's cached prefixes.
        resume_tokens: as every router of the fleet writes them.
        seed: of the seeds of requests without one; None: they are random.
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
        limits: RequestLimits,
        spans: RequestSpans,
        shares_prefixes: bool,
        resume_tokens: ResumeTokens,
        seed: int | None,
        log_requests: LoggedRequests,
        adapters: ServedAdapters,
    ) -> None:
        self.model_names = tuple(model_names)
        self.adapters = adapters
        self.model = model
        self.tokenizer = tokenizer
        self.router = router
        self.timeout_s = timeout_s
        self.share = LoopShare()
        """Turns of the loop for long work."""
        self._stream_turns = StreamTurns()
        self.bodies = BodyMemory()
        """Memory for request bodies."""
        self._answers = LogprobsMemory(limits.max_answer_bytes)
        self._embeds = EmbedsMemory()
        self._threads = threads
        self._spans = spans
        self._shares_prefixes = shares_prefixes
        self._log_requests = log_requests
        self.resume_tokens = resume_tokens
        self._prompts = PromptReader(
            adapters, model, tokenizer, limits, seed=seed, max_output_tokens=model.max_output_tokens
        )
        warn_of_split_markers(tokenizer, limits.reasoning)
        self._requests = RequestReader(self._prompts, resume_tokens, model.vocab_size)
        self._texts = TextConverter(model, tokenizer, limits)
        self.adapter_loading = AdapterLoading(adapters, threads, router, timeout_s)
        self._num_calls = 0
        self._is_draining = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @property
    def num_calls(self) -> int:
        """Open calls."""
        return self._num_calls

    @property
    def is_ready(self) -> bool:
        """True if a prompt can be served now."""
        return self.router.is_ready and not self._is_draining

    @property
    def why_not_ready(self) -> str:
        """The reason why no prompt can be served; empty while ready."""
        if self._is_draining:
            return SHUTS_DOWN
        return self.router.why_not_ready

    @property
    def broken_pairs(self) -> list[str]:
        """A line for each pair of workers that share no request because blocks do not arrive."""
        return [
            f"blocks of {pair.prefill} do not arrive at {pair.decode}: {why}"
            for pair, why in self.router.transfers.broken.items()
        ]

    @property
    def missing_workers(self) -> list[str]:
        """A line for each worker that was there, until it is again."""
        return [str(worker) for worker in self.router.absent if worker.end or worker.has_left]

    @property
    def data_parallel_size(self) -> int:
        """Data-parallel ranks that requests may name."""
        return self.router.fleet.data_parallel_size

    @property
    def max_model_len(self) -> int:
        """Tokens that the largest worker holds of a sequence; without workers those of the model."""
        return self.router.fleet.max_model_len or self.model.max_position_embeddings

    async def prepare(self, request: GenerationRequest, timeout_s: float | None = None) -> PreparedRequest:
        """Check a request and tokenize its prompt.

        Raises:
            InvalidRequestError: a field is out of range; the message names it.
            RequestError: NOT_FOUND, OVERLOADED, UNAVAILABLE, or DEADLINE_EXCEEDED.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        now = asyncio.get_running_loop().time
        with self.open_call():
            began_s = now()
            async with ends_within(timeout_s):
                prepared = await self._threads.run(
                    request.context.tenant,
                    choose_lane(request.prompt, request.sampling.get("structured_outputs")),
                    self._requests.read,
                    request,
                    max_model_len=self.max_model_len,
                    identity=self.router.fleet.identity,
                    now_s=time.time(),
                )
            if self._log_requests.is_on:
                self._log_requests.log(prepared.spec)
            return replace(prepared, timeout_s=timeout_s, began_s=began_s, tokenized_s=now())

    def pick(self, prepared: PreparedRequest, num_open: int = 0) -> NamedWorkers | None:
        """Choose workers for a request that comes to a router later; as `Router.pick`.

        Raises:
            RequestError: OVERLOADED.
        """
        return self.router.pick(self._owned(prepared).spec, prepared.context, num_open)

    @contextmanager
    def reserve_memory(self, prepared: Sequence[PreparedRequest]) -> Iterator[None]:
        """Reserve memory for the embeddings of one call, and for the log-probabilities of its reply.

        Raises:
            InvalidRequestError: it could be too large; the message names the field.
            RequestError: OVERLOADED, other calls leave no room.
        """
        specs = [one.spec for one in prepared]
        is_streamed = all(one.is_streamed for one in prepared)
        answers = self._answers.hold(
            specs,
            max_model_len=self.max_model_len,
            is_streamed=is_streamed,
            pooling=self.router.fleet.pooling,
        )
        with answers, self._embeds.hold(specs):
            yield

    @asynccontextmanager
    async def run(
        self, prepared: PreparedRequest, examined: Sequence[RequestSpec] | None = None
    ) -> AsyncIterator[ClientStream]:
        """Start a request; leaving the block cancels what is not over, or fails it if an error leaves it.

        `examined` is as in `Submit`.

        Raises:
            NameTakenError: a running request has its name.
            InvalidRequestError: its client's resumption does not fit.
            RequestError: UNAVAILABLE, OVERLOADED, or DEADLINE_EXCEEDED.
        """
        now = asyncio.get_running_loop().time
        deadline = prepared.began_s + prepared.timeout_s
        with self.open_call():
            async with ends_within(prepared.timeout_s, deadline + _GRACE_S):
                stream = await self._open_stream(prepared)
                phases = _phases(prepared.context.arrived_s, prepared.began_s, prepared.tokenized_s)
                self.router.submit(stream, max(0.0, deadline - now()), phases, examined)
                try:
                    yield stream
                except BatonError as error:
                    self.router.abandon(stream, error)
                    raise
                finally:
                    self.router.abandon(stream)

    async def run_in_thread(
        self, tenant: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a function of a large body or answer in a thread, in a turn of the tenant.

        Raises:
            RequestError: OVERLOADED, or what `function` raises.
        """
        async with ends_within(self.timeout_s):
            return await self._threads.run(tenant, Lane.BODY, function, *args, **kwargs)

    async def tokenize(
        self,
        prompt: Prompt,
        *,
        tenant: str,
        model: str = "",
        add_special_tokens: bool | None = None,
        timeout_s: float | None = None,
    ) -> TokenIds:
        """Return the ids that `generate` would make of a text or a conversation. Needs no worker.

        Raises:
            InvalidRequestError: a field is out of range; the message names it.
            RequestError: NOT_FOUND, OVERLOADED, UNAVAILABLE, or DEADLINE_EXCEEDED.
        """
        self.adapters.find(model)
        with self.open_call():
            async with ends_within(self.timeout_s if timeout_s is None else timeout_s):
                return await self._threads.run(
                    tenant,
                    choose_lane(prompt),
                    self._texts.tokenize,
                    prompt,
                    add_special_tokens=add_special_tokens,
                )

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        tenant: str,
        model: str = "",
        skip_special_tokens: bool = False,
        timeout_s: float | None = None,
    ) -> str:
        """Return the text of token ids. Needs no worker.

        Raises:
            InvalidRequestError: a field is out of range; the message names it.
            RequestError: NOT_FOUND, OVERLOADED, UNAVAILABLE, or DEADLINE_EXCEEDED.
        """
        self.adapters.find(model)
        with self.open_call():
            async with ends_within(self.timeout_s if timeout_s is None else timeout_s):
                return await self._threads.run(
                    tenant,
                    lane_of_tokens(len(token_ids)),
                    self._texts.detokenize,
                    token_ids,
                    skip_special_tokens=skip_special_tokens,
                )

    async def _open_stream(self, prepared: PreparedRequest) -> ClientStream:
        stream = ClientStream(self._owned(prepared), self.tokenizer, turns=self._stream_turns)
        if received := prepared.received:
            lane = lane_of_tokens(sum(len(one.token_ids) for one in received))
            await self._threads.run(prepared.context.tenant, lane, stream.skip, received)
        return stream

    def _owned(self, prepared: PreparedRequest) -> PreparedRequest:
        """Return it with its trace and its tenant, which salts its prefixes unless they are shared."""
        context = prepared.context
        spec = replace(prepared.spec, tenant=context.tenant, traceparent=self._spans.begin(context))
        if not self._shares_prefixes:
            spec = replace(spec, cache_salt=tenant_salt(context.tenant, spec.cache_salt))
        return replace(prepared, spec=spec)

    async def drain(self, within_s: float) -> None:
        """Refuse new requests and wait until the last call is over, at most `within_s`."""
        self._is_draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._is_idle.wait()

    def close(self) -> None:
        """End the processes that work on clients' texts."""
        self.tokenizer.close()
        self._prompts.close()

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
    """Return the phases before a request was submitted."""
    tokenize = Phase(name=PhaseName.TOKENIZE, start_s=began_s, end_s=tokenized_s)
    if arrived_s is None:
        return (tokenize,)
    return (Phase(name=PhaseName.RECEIVE, start_s=arrived_s, end_s=began_s), tokenize)
