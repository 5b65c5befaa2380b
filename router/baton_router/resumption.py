"""Reads a client's request, new or resumed, and gives it what its client needs to go on with it elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from baton_core.sessions.router_messages import OutputSoFar, RequestSpec
from baton_core.sessions.worker_info import ModelIdentity
from baton_router.generation import GenerationRequest, ReceivedSequence, Resumption
from baton_router.prompt_reader import PromptReader
from baton_router.received_tokens import checked_counts, outputs_so_far
from baton_router.resume_tokens import ResumeTicket, ResumeTokens, require_same


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedRequest:
    """A request that is checked, before it is submitted."""

    spec: RequestSpec
    resume_token: str
    num_received: tuple[int, ...]
    """Tokens of each sequence that the client has from an earlier call."""
    is_resumed: bool
    received: tuple[ReceivedSequence, ...] = ()
    """Those tokens, where workers go on behind them; empty where they generate from the beginning."""


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
            RequestError: NOT_FOUND, another model is asked for.
        """
        if request.resumption is not None:
            return self._read_resumed(request, request.resumption, max_model_len, identity, now_s)
        spec = self._prompts.read(request, max_model_len=max_model_len)
        ticket = ResumeTicket(
            request_id=spec.request_id,
            seed=spec.params.seed or 0,
            created_s=int(now_s),
            fingerprints=self._tokens.fingerprints(spec, request.context.tenant, identity),
        )
        return AcceptedRequest(
            spec=spec,
            resume_token=self._tokens.write(ticket),
            num_received=(0,) * spec.params.n,
            is_resumed=False,
        )

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
        room = max_model_len - len(spec.prompt_token_ids)
        most = room if spec.params.max_tokens is None else min(room, spec.params.max_tokens)
        counts = checked_counts(resumption, spec.params.n, most)
        resumed = outputs_so_far(resumption.received, self._vocab_size, most)
        return AcceptedRequest(
            spec=_resumed(spec, resumed) if resumed else spec,
            resume_token=resumption.token,
            num_received=counts,
            is_resumed=True,
            received=resumption.received if resumed else (),
        )


def _resumed(spec: RequestSpec, resumed: tuple[OutputSoFar, ...]) -> RequestSpec:
    """What goes on behind its first tokens has told all of its prompt."""
    return replace(spec, params=replace(spec.params, prompt_logprobs=None), resumed=resumed)


def _as_before(request: GenerationRequest, ticket: ResumeTicket) -> GenerationRequest:
    """The request with the seed and the name that it was given, where it does not say them itself."""
    given: dict[str, Any] = dict(request.given)
    if given.get("seed") in (None, -1):
        given["seed"] = ticket.seed
    return replace(request, given=given, request_id=request.request_id or ticket.request_id)
