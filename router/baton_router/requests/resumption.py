"""Resumes requests: their seed, what must stay the same, and the tokens that the client has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.model.model_identity import ModelIdentity, with_weights
from baton_core.requests.pooling import decode_pooling_model
from baton_core.requests.request_context import RequestContext
from baton_core.requests.vocabulary import check_token_ids
from baton_core.sessions.router_messages import OutputSoFar, RequestSpec, SequenceOutput
from baton_router.requests.generation import Delta, GenerationRequest, ReceivedSequence, Resumption
from baton_router.requests.prompt_reader import PromptReader, bounded
from baton_router.requests.resume_tokens import ResumeTicket, ResumeTokens, require_same

_FIELD: Final = "num_received_tokens"
_IDS_FIELD: Final = "received_token_ids"


class ReceivedTokens:
    """Splits each sequence into the part that its client has and the new part."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = tuple(counts)
        self._num_emitted = [0] * len(counts)

    def split(self, output: SequenceOutput) -> tuple[tuple[SequenceOutput, bool], ...]:
        """Split an output where its client's tokens end; each part says whether the client has it."""
        num_old = max(0, self.counts[output.index] - self._num_emitted[output.index])
        if not num_old:
            return ((output, False),)
        if num_old >= len(output.token_ids):
            return ((output, True),)
        ids, logprobs = output.token_ids, output.logprobs
        old = msgspec.structs.replace(
            output,
            token_ids=ids[:num_old],
            logprobs=logprobs[:num_old],
            finish_reason=None,
            stop_token_id=None,
        )
        new = msgspec.structs.replace(output, token_ids=ids[num_old:], logprobs=logprobs[num_old:])
        return ((old, True), (new, False))

    def note(self, delta: Delta) -> None:
        """Count the tokens of a delta.

        Raises:
            InvalidRequestError: the sequence ends with fewer tokens than its client claims to have.
        """
        self._num_emitted[delta.index] += len(delta.token_ids)
        num_emitted = self._num_emitted[delta.index]
        if delta.finish_reason is not None and num_emitted < self.counts[delta.index]:
            allowed = f"at most {num_emitted} of sequence {delta.index}, all that it has"
            raise InvalidRequestError(_FIELD, list(self.counts), allowed)


def read_resumption(
    token: str, num_received_tokens: Sequence[int], received: Sequence[ReceivedSequence] = ()
) -> Resumption | None:
    """Return a client's resumption of its broken stream; None where it starts a new request.

    Raises:
        InvalidRequestError: received tokens without a resume token, or received tokens beside their numbers.
    """
    if num_received_tokens and not token:
        raise InvalidRequestError(_FIELD, list(num_received_tokens), "nothing, unless resume_token is given")
    if received and (num_received_tokens or not token):
        allowed = "beside resume_token, and instead of num_received_tokens"
        raise InvalidRequestError(_IDS_FIELD, f"of {len(received)} sequences", allowed)
    if not token:
        return None
    return Resumption(token=token, num_received_tokens=tuple(num_received_tokens), received=tuple(received))


def checked_counts(resumption: Resumption, n: int, max_tokens: int) -> tuple[int, ...]:
    """Return the tokens received of each of `n` sequences, none of any where nothing is given.

    Raises:
        InvalidRequestError: there are not as many numbers as sequences, or one is not 0 to `max_tokens`.
    """
    lengths = tuple(len(one.token_ids) for one in resumption.received)
    given = resumption.num_received_tokens or lengths
    counts = given or (0,) * n
    if len(counts) != n or not all(0 <= count <= max_tokens for count in counts):
        field = _IDS_FIELD if lengths else _FIELD
        what = f"lengths {list(lengths)}" if lengths else list(given)
        raise InvalidRequestError(field, what, f"{n} of them, one a sequence, each 0 to {max_tokens} tokens")
    return counts


def outputs_so_far(
    received: Sequence[ReceivedSequence], vocab_size: int, max_tokens: int
) -> tuple[OutputSoFar, ...]:
    """Return the outputs after which workers continue.

    Empty where they generate from the beginning: no sequence continues, or one has no token yet.

    Raises:
        InvalidRequestError: a token is not the model's, or a sequence that is to continue has ended.
    """
    for one in received:
        check_token_ids(_IDS_FIELD, one.token_ids, vocab_size)
        if not one.is_finished and len(one.token_ids) >= max_tokens:
            raise already_finished(len(one.token_ids))
    going = [(index, one) for index, one in enumerate(received) if not one.is_finished]
    if not all(one.token_ids for _, one in going):
        return ()
    return tuple(OutputSoFar(index=index, token_ids=one.token_ids) for index, one in going)


def already_finished(num_tokens: int) -> InvalidRequestError:
    """Return the error for tokens that end a sequence which is to continue."""
    return InvalidRequestError(_IDS_FIELD, f"{num_tokens} tokens, which end it", "with is_finished")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedRequest:
    """A request that is checked, before it is submitted."""

    spec: RequestSpec
    resume_token: str = ""
    """Resumes the stream at any router."""
    call: str = ""
    """Name that the call and its resumptions share; empty where it cannot be resumed."""
    num_received: tuple[int, ...] = ()
    """Tokens of each sequence that the client has from an earlier call; empty means none."""
    is_resumed: bool = False
    """True if the client came with that token."""
    received: tuple[ReceivedSequence, ...] = ()
    """Tokens that the client has and workers continue after; empty where they generate from the beginning."""
    token_for: Callable[[str], str] | None = None
    """Returns the resume token for the hash of other weights, or nothing where it stays; None: it stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A request that is checked and tokenized but not submitted."""

    accepted: AcceptedRequest
    context: RequestContext
    model: str
    """The name that the client asked for; empty without one."""
    is_chat: bool
    is_streamed: bool
    timeout_s: float
    """Timeout from `began_s` on, on the loop's clock."""
    began_s: float
    tokenized_s: float


class RequestReader:
    """Reads requests of one served model; changes nothing of its own. In the tokenizing threads."""

    def __init__(self, prompts: PromptReader, tokens: ResumeTokens, vocab_size: int) -> None:
        self._prompts = prompts
        self._vocab_size = vocab_size
        self._tokens = tokens

    def read(
        self, request: GenerationRequest, *, max_model_len: int, identity: ModelIdentity | None, now_s: float
    ) -> AcceptedRequest:
        """Check and tokenize a request, as `PromptReader.read`; `now_s` is in seconds since 1970.

        Raises:
            InvalidRequestError: a field is out of range, or this is not the request of its resume token.
            RequestError: NOT_FOUND, another model is requested.
        """
        if request.resumption is not None:
            if request.pooling is not None:
                raise InvalidRequestError("resume_token", "a token", "none, where something is pooled")
            return self._read_resumed(request, request.resumption, max_model_len, identity, now_s)
        pooling = decode_pooling_model(identity.pooling) if identity else None
        spec = self._prompts.read(request, max_model_len=max_model_len, pooling=pooling)
        if spec.pooling is not None:
            return AcceptedRequest(spec=spec)
        ticket = ResumeTicket(
            request_id=spec.request_id,
            seed=spec.params.seed or 0,
            created_s=int(now_s),
            fingerprints=self._tokens.fingerprints(spec, request.context.tenant, identity),
        )
        return AcceptedRequest(
            spec=bounded(spec, max_model_len),
            resume_token=self._tokens.write(ticket),
            call=ticket.call,
            token_for=partial(self._token_for, ticket, spec.adapter_digest, identity),
        )

    def _token_for(
        self, ticket: ResumeTicket, adapter_digest: str, identity: ModelIdentity | None, weights: str
    ) -> str:
        """Return the token of a request that begins on these weights, as after an update; empty: it stays."""
        if identity is None or weights in ("", identity.weights):
            return ""
        identity = with_weights(identity, weights)
        model = self._tokens.model_fingerprint(adapter_digest, identity)
        return self._tokens.write(replace(ticket, fingerprints=replace(ticket.fingerprints, model=model)))

    def _read_resumed(
        self,
        request: GenerationRequest,
        resumption: Resumption,
        max_model_len: int,
        identity: ModelIdentity | None,
        now_s: float,
    ) -> AcceptedRequest:
        ticket = self._tokens.read(resumption.token, now_s)
        spec = self._prompts.read(_as_before(request, ticket), max_model_len=max_model_len)
        require_same(ticket, self._tokens.fingerprints(spec, request.context.tenant, identity))
        spec = replace(bounded(spec, max_model_len), weights=identity.weights if identity else "")
        most = spec.params.max_tokens or 0
        counts = checked_counts(resumption, spec.params.n, most)
        resumed = outputs_so_far(resumption.received, self._vocab_size, most)
        if resumed:  # its prompt log-probabilities were sent
            spec = replace(spec, params=replace(spec.params, prompt_logprobs=None), resumed=resumed)
        return AcceptedRequest(
            spec=spec,
            resume_token=resumption.token,
            call=ticket.call,
            num_received=counts,
            is_resumed=True,
            received=resumption.received if resumed else (),
        )


def _as_before(request: GenerationRequest, ticket: ResumeTicket) -> GenerationRequest:
    """Return the request with its former seed and name, where it sets none itself."""
    sampling: dict[str, Any] = dict(request.sampling)
    if sampling.get("seed") in (None, -1):
        sampling["seed"] = ticket.seed
    return replace(request, sampling=sampling, request_id=request.request_id or ticket.request_id)
