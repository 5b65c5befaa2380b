"""From a client's request to the one that workers get, in the tokenizing threads."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec
from baton_router.generation import GenerationRequest, TokenIds
from baton_router.model_folder import ModelFolder
from baton_router.output_forms import check_form
from baton_router.prompt_truncation import truncate_prompt
from baton_router.request_limits import DEFAULT_LIMITS, RequestLimits
from baton_router.tokenization import Tokenizer
from baton_router.validation import (
    check_model,
    check_name,
    check_params,
    check_prompt,
    check_room,
    check_template_trust,
    read_priority,
)
from baton_router.word_rules import encode_bad_words, read_thinking

MAX_REQUEST_ID_CHARACTERS: Final = 128
MAX_CACHE_SALT_CHARACTERS: Final = 128
_SEED_BITS: Final = 63


class PromptReader:
    """Validates and tokenizes for one served model; changes nothing of its own."""

    def __init__(
        self,
        model_names: Sequence[str],
        model: ModelFolder,
        tokenizer: Tokenizer,
        limits: RequestLimits = DEFAULT_LIMITS,
    ) -> None:
        self._model_names = model_names
        self._model = model
        self._tokenizer = tokenizer
        self._limits = limits

    def read(self, request: GenerationRequest, *, max_model_len: int) -> RequestSpec:
        """Check a request, tokenize its prompt, and give it what it lacks: a name and a seed.

        Raises:
            InvalidRequestError: a field is out of range; the message names it.
            RequestError: NOT_FOUND, another model is asked for.
        """
        check_model(request.model, self._model_names)
        check_name("request_id", request.request_id, MAX_REQUEST_ID_CHARACTERS)
        check_name("cache_salt", request.cache_salt, MAX_CACHE_SALT_CHARACTERS)
        check_template_trust(request.prompt, self._limits)
        priority = read_priority(request.priority)
        params = self._read_params(request)
        token_ids = self._read_prompt(request, params, max_model_len)
        return RequestSpec(
            request_id=request.request_id or f"req-{secrets.token_hex(8)}",
            prompt_token_ids=token_ids,
            params=params,
            cache_salt=request.cache_salt,
            priority=priority,
            bad_words=encode_bad_words(params.bad_words, self._tokenizer, self._model.vocab_size),
            thinking=read_thinking(params, token_ids, self._tokenizer, self._limits.reasoning),
        )

    def _read_params(self, request: GenerationRequest) -> SamplingParams:
        params = replace(self._model.sampling_defaults, **request.given)
        check_params(params, self._limits, self._model.vocab_size)
        if params.structured_outputs is not None:
            check_form(params.structured_outputs)
        return params if params.seed is not None else replace(params, seed=_choose_seed())

    def _read_prompt(
        self, request: GenerationRequest, params: SamplingParams, max_model_len: int
    ) -> TokenIds:
        token_ids = self._tokenizer.encode_prompt(
            request.prompt, add_special_tokens=request.add_special_tokens
        )
        if request.truncate_prompt_tokens is not None:
            limit = request.truncate_prompt_tokens
            token_ids = truncate_prompt(token_ids, limit, params.max_tokens, max_model_len)
        check_prompt(
            token_ids,
            max_model_len=max_model_len,
            vocab_size=self._model.vocab_size,
            field=request.prompt_field,
        )
        check_room(params, len(token_ids), max_model_len)
        return token_ids


def _choose_seed() -> int:
    return secrets.randbits(_SEED_BITS)
