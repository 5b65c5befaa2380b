"""A request at a worker: what it may ask for, what it waits for, and what the worker keeps of it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Sequence as Values
from dataclasses import dataclass

from baton_core.blocks.block_hash import root_hash
from baton_core.errors import InvalidRequestError, OverloadedError
from baton_core.prompt_embeds import check_places
from baton_core.requests.logprobs import MAX_CHUNK_LOGPROBS, MAX_LOGPROBS
from baton_core.requests.pooling import check_runner
from baton_core.requests.sampling_params import check_first_token, held_off_token_ids
from baton_core.requests.sampling_rules import SamplingRules
from baton_core.requests.vocabulary import check_token_ids
from baton_core.sessions.router_messages import (
    Generate,
    OutputSoFar,
    Prefill,
    RequestSpec,
    Reserve,
    ToRouter,
)
from baton_core.worker.sequence import Sequence, SequenceState
from baton_core.worker.step_plan import SeqId
from baton_core.worker.worker_events import AdapterLoaded, GrammarCompiled, SendToRouter, WorkerEffect
from baton_worker.core.adapter_cache import AdapterCache
from baton_worker.core.grammar_compilations import GrammarCompilations
from baton_worker.core.scheduler_config import SchedulingPolicy
from baton_worker.core.worker_config import WorkerConfig


@dataclass(slots=True, kw_only=True)
class WorkerRequest:
    """Changes as its sequences come and go."""

    spec: RequestSpec
    router_id: str
    sequences: dict[int, Sequence]
    """The sequences that have not ended, by index."""
    followers: list[Sequence]
    """Sequences that begin when the first one has computed the prompt, and find it in the prefix cache."""
    is_prefill: bool = False
    has_first_token: bool = False

    @property
    def leader(self) -> Sequence:
        """The sequence that computes, or imports, the prompt."""
        return next(iter(self.sequences.values()))

    def begin(self) -> Sequence:
        """Return the leader, which follows nobody from here on: those before it may have ended."""
        leader = self.leader
        self.followers = [seq for seq in self.followers if seq is not leader]
        return leader

    def emit(self, *messages: ToRouter) -> list[WorkerEffect]:
        """Return the effects that send messages to its router."""
        return [SendToRouter(router_id=self.router_id, message=one) for one in messages]

    def take_followers(self) -> list[Sequence]:
        """Take the followers that may begin now."""
        followers, self.followers = self.followers, []
        return [seq for seq in followers if seq.seq_id.index in self.sequences]


class Preparations:
    """The grammars and LoRA adapters that requests of one worker wait for before they can be computed.

    An adapter stays with its request until it ends.
    """

    def __init__(self, within_s: float, max_cpu_loras: int) -> None:
        self.grammars = GrammarCompilations(within_s)
        self.adapters = AdapterCache(max_cpu_loras, within_s)

    def __contains__(self, request_id: object) -> bool:
        """Say whether a request waits for something."""
        return request_id in self.grammars or request_id in self.adapters

    def begin(self, now: float, spec: RequestSpec) -> list[WorkerEffect]:
        """Take a request, which waits for what it needs."""
        if spec.adapter is not None:
            self.adapters.begin(now, spec.request_id, spec.adapter)
        if (grammar := spec.params.structured_outputs) is None:
            return []
        return [self.grammars.begin(now, spec.request_id, grammar, spec.tenant)]

    def end(self, event: GrammarCompiled | AdapterLoaded) -> tuple[str, ...]:
        """Take an answer; returns the requests that waited for it."""
        if isinstance(event, AdapterLoaded):
            return self.adapters.end(event)
        request_id = self.grammars.end(event.compilation_id)
        return () if request_id is None else (request_id,)

    def drop(self, request_id: str) -> None:
        """Forget a request that is over."""
        self.grammars.drop(request_id)
        self.adapters.drop(request_id)

    def load_adapters(
        self, now: float, in_flight: Iterable[Sequence]
    ) -> tuple[list[WorkerEffect], list[str]]:
        """Begin to load what has a place now, in that of adapters that no sequence in flight has.

        Returns what is to be done, and the requests that wait no longer for an adapter.
        """
        return self.adapters.advance(now, {seq.adapter_digest for seq in in_flight})

    def next_deadline(self) -> float | None:
        """The time when `overdue` names somebody."""
        deadlines = (self.grammars.next_deadline(), self.adapters.next_deadline())
        return min((one for one in deadlines if one is not None), default=None)

    def overdue(self, now: float) -> list[tuple[str, str]]:
        """Requests that waited too long, each once, with what for; they wait until they are dropped."""
        late = dict(self.grammars.overdue(now))
        return [*late.items(), *(one for one in self.adapters.overdue(now) if one[0] not in late)]

    def check_invariants(self, request_ids: Iterable[str]) -> None:
        """Raise AssertionError when somebody waits who is none of these."""
        self.grammars.check_invariants(request_ids)
        self.adapters.check_invariants(request_ids)


def new_request(
    now: float,
    router_id: str,
    command: Generate | Prefill | Reserve,
    config: WorkerConfig,
) -> WorkerRequest:
    """Return the request of a command, with its first sequence, or all of them if they were resumed.

    Raises:
        InvalidRequestError: several sequences were resumed, or something is pooled, and it is to be split;
            or its parameters leave no first token.
    """
    spec = command.spec
    if len(spec.resumed) > 1 and not isinstance(command, Generate):
        raise InvalidRequestError("resumed", f"{len(spec.resumed)} sequences", "one, where it is split")
    if spec.pooling is not None and not isinstance(command, Generate):
        raise InvalidRequestError("task", spec.pooling.task.value, "generate, where it is split")
    is_resumed = bool(spec.resumed)
    root = root_hash(config.identity, spec.cache_salt, spec.adapter_digest)
    rules = _sampling_rules(spec, config)
    sequences = [
        Sequence(
            SeqId(spec.request_id, one.index),
            spec.prompt_token_ids,
            spec.params,
            paging=config.paging,
            root=root,
            arrival_s=now,
            state=SequenceState.PULLING if isinstance(command, Reserve) else SequenceState.WAITING,
            priority=0 if config.scheduler.policy is SchedulingPolicy.FCFS else spec.priority,
            is_pinned=isinstance(command, Prefill),
            rules=rules,
            max_chunk_tokens=_max_chunk_tokens(spec, config),
            publishes_contents=config.publishes_cache,
            cache_salt=spec.cache_salt,
            output_token_ids=one.token_ids,
            pooling=spec.pooling,
            is_whole=config.is_whole(spec.pooling),
            prompt_embeds=spec.prompt_embeds,
            adapter=spec.adapter,
        )
        for one in spec.resumed or (OutputSoFar(index=0, token_ids=()),)
    ]
    return WorkerRequest(
        spec=spec,
        router_id=router_id,
        sequences={seq.seq_id.index: seq for seq in sequences},
        followers=sequences[1:],
        is_prefill=isinstance(command, Prefill),
        has_first_token=isinstance(command, Reserve) or (is_resumed and isinstance(command, Generate)),
    )


def check_request(spec: RequestSpec, config: WorkerConfig) -> None:
    """Refuse a request that does not fit this model or this worker.

    Raises:
        InvalidRequestError: names the field, its value and what is allowed.
    """
    check_runner(config.pooling, spec.pooling)
    if spec.adapter is not None and not config.max_cpu_loras:
        raise InvalidRequestError("lora_request", spec.adapter.name, "None: enable_lora is False")
    _check_lengths(spec, config)
    for field, token_ids in _token_ids(spec):
        check_token_ids(field, token_ids, config.vocab_size)
    _check_embeds(spec, config.embedding_size)
    most = min(config.vocab_size, MAX_LOGPROBS)
    for field in ("logprobs", "prompt_logprobs"):
        value = getattr(spec.params, field)
        if (config.vocab_size if value == -1 else value or 0) > most:
            lowest = -1 if most == config.vocab_size else 0
            raise InvalidRequestError(field, value, f"{lowest} to {most}")
    for name in spec.params.logits_processors:
        if isinstance(name, str) and name not in config.logits_processors:
            allowed = ", ".join(sorted(config.logits_processors)) or "none at this worker"
            raise InvalidRequestError("logits_processors", name, allowed)


def check_open(request_id: str, open_ids: Collection[str], max_num_requests: int) -> None:
    """Refuse a name that is taken, and more requests than may be open.

    Raises:
        InvalidRequestError: an open request has the name.
        OverloadedError: as many are open as may be.
    """
    if request_id in open_ids:
        raise InvalidRequestError("request_id", request_id, "a name that no running request has")
    if len(open_ids) >= max_num_requests:
        raise OverloadedError(f"this worker has {len(open_ids)} requests, its maximum")


def _check_lengths(spec: RequestSpec, config: WorkerConfig) -> None:
    num_tokens, limit = len(spec.prompt_token_ids), config.max_model_len - 1
    allowed = f"1 to {limit} tokens, one less than max_model_len"
    if spec.pooling is not None:
        limit = config.max_model_len
        if config.is_whole(spec.pooling):
            limit = min(limit, config.scheduler.max_num_batched_tokens)
        allowed = f"1 to {limit} tokens, which max_model_len and max_num_batched_tokens allow"
    if not 1 <= num_tokens <= limit:
        raise InvalidRequestError("prompt", f"{num_tokens} tokens", allowed)
    most = min(limit - num_tokens, (spec.params.max_tokens or config.max_model_len) - 1)
    for one in spec.resumed:
        if not 1 <= len(one.token_ids) <= most:
            allowed = f"1 to {most} tokens, fewer than max_tokens and max_model_len leave"
            raise InvalidRequestError("resumed", f"{len(one.token_ids)} tokens", allowed)


def _check_embeds(spec: RequestSpec, embedding_size: int) -> None:
    check_places(spec.prompt_embeds, len(spec.prompt_token_ids))
    for one in spec.prompt_embeds:
        if one.hidden_size != embedding_size:
            allowed = f"{embedding_size}, the width of the model's embeddings"
            if not embedding_size:
                allowed = "none: this model takes token ids alone"
            raise InvalidRequestError("prompt_embeds.hidden_size", one.hidden_size, allowed)


def _token_ids(spec: RequestSpec) -> Iterator[tuple[str, Values[int]]]:
    """Yield the token ids that a request names, by field."""
    params = spec.params
    yield "prompt_token_ids", spec.prompt_token_ids
    for one in spec.resumed:
        yield "resumed", one.token_ids
    yield "stop_token_ids", params.stop_token_ids
    yield "allowed_token_ids", params.allowed_token_ids or ()
    yield "logprob_token_ids", params.logprob_token_ids or ()
    yield "logit_bias", tuple(params.logit_bias or ())
    yield "bad_words", [token_id for word in spec.bad_words for token_id in word]
    if spec.thinking is not None:
        yield "thinking", spec.thinking.start_token_ids + spec.thinking.end_token_ids


def _sampling_rules(spec: RequestSpec, config: WorkerConfig) -> SamplingRules | None:
    """Return the rules that change a request's logits; None if tokens are sampled from them as they are."""
    params = spec.params
    ending = held_off_token_ids(params, config.eos_token_ids)
    check_first_token(params, spec.bad_words, ending)
    is_ruled = spec.bad_words or spec.thinking or params.changes_logits
    if not is_ruled and not config.has_batch_processors:
        return None
    return SamplingRules(
        params=params, bad_words=spec.bad_words, thinking=spec.thinking, ending_token_ids=ending
    )


def _max_chunk_tokens(spec: RequestSpec, config: WorkerConfig) -> int:
    """Return the prompt tokens of one step, so that their log-probabilities stay within their limit."""
    num_top = spec.params.prompt_logprobs
    if num_top is None:
        return sys.maxsize
    return max(1, MAX_CHUNK_LOGPROBS // ((config.vocab_size if num_top == -1 else num_top) + 1))
