"""From a client's message to the request that workers get, in the tokenizing threads."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

from baton_core.router_messages import RequestSpec
from baton_proto.v1 import baton_pb2 as pb
from baton_router.model_folder import ModelFolder
from baton_router.tokenization import Tokenizer
from baton_router.tokenizing_threads import TokenizingThreads
from baton_router.validation import RequestValidator, check_prompt

_SEED_BITS: Final = 63


class PromptReader:
    """Validates and tokenizes. `read` belongs to the loop; what it starts runs in the threads."""

    def __init__(
        self,
        model_names: Sequence[str],
        model: ModelFolder,
        tokenizer: Tokenizer,
        threads: TokenizingThreads,
    ) -> None:
        self._vocab_size = model.vocab_size
        self._tokenizer = tokenizer
        self._threads = threads
        self._validator = RequestValidator(
            model_names,
            model,
            choose_seed=lambda: secrets.randbits(_SEED_BITS),
            choose_request_id=lambda: f"req-{secrets.token_hex(8)}",
        )

    async def read(self, request: pb.GenerateRequest, *, max_model_len: int) -> RequestSpec:
        """Check a request, tokenize its prompt, and give it what it lacks: a name and a seed.

        Raises:
            InvalidRequestError: a field is out of range; the message names it.
            RequestError: OVERLOADED, too many requests wait; NOT_FOUND, another model is asked for.
        """
        return await self._threads.run(self._read, request, max_model_len)

    def _read(self, request: pb.GenerateRequest, max_model_len: int) -> RequestSpec:
        valid = self._validator.validate(request)
        token_ids = self._tokenizer.encode_prompt(valid.prompt)
        check_prompt(token_ids, max_model_len=max_model_len, vocab_size=self._vocab_size)
        return RequestSpec(
            request_id=valid.request_id,
            prompt_token_ids=token_ids,
            params=valid.params,
            cache_salt=valid.cache_salt,
            priority=request.priority,
        )
