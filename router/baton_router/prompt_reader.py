"""From a client's message to the request that workers get, in a few threads beside the loop."""

from __future__ import annotations

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from baton_core.errors import ErrorCode, RequestError
from baton_core.router_messages import RequestSpec
from baton_proto.v1 import baton_pb2 as pb
from baton_router.model_folder import ModelFolder
from baton_router.tokenization import Tokenizer
from baton_router.validation import RequestValidator, check_prompt

NUM_THREADS: Final = 2
MAX_WAITING: Final = 1024
_SEED_BITS: Final = 63


class PromptReader:
    """Validates and tokenizes. `read` belongs to the loop; what it starts runs in the threads.

    Args:
        max_waiting: requests taken at a time; the next one is refused.
    """

    def __init__(
        self, model_name: str, model: ModelFolder, tokenizer: Tokenizer, *, max_waiting: int = MAX_WAITING
    ) -> None:
        self._vocab_size = model.vocab_size
        self._tokenizer = tokenizer
        self._validator = RequestValidator(
            model_name,
            model,
            choose_seed=lambda: secrets.randbits(_SEED_BITS),
            choose_request_id=lambda: f"req-{secrets.token_hex(8)}",
        )
        self._max_waiting = max_waiting
        self._num_waiting = 0
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="tokenize")

    async def read(self, request: pb.GenerateRequest, *, max_model_len: int) -> RequestSpec:
        """Check a request, tokenize its prompt, and give it what it lacks: a name and a seed.

        Raises:
            InvalidRequestError: a field is out of range; the message names it.
            RequestError: OVERLOADED, too many requests wait; NOT_FOUND, another model is asked for.
        """
        if self._num_waiting >= self._max_waiting:
            text = f"{self._num_waiting} prompts wait to be tokenized; allowed: {self._max_waiting}"
            raise RequestError(ErrorCode.OVERLOADED, text)
        self._num_waiting += 1
        loop = asyncio.get_running_loop()
        reading = loop.run_in_executor(self._threads, self._read, request, max_model_len)
        reading.add_done_callback(self._on_read)
        # Shielded: a thread goes on although its caller is gone, and counts until it is done.
        return await asyncio.shield(reading)

    def close(self) -> None:
        """Wait for the prompts in work, drop those that wait."""
        self._threads.shutdown(cancel_futures=True)

    def _on_read(self, reading: asyncio.Future[RequestSpec]) -> None:
        self._num_waiting -= 1

    def _read(self, request: pb.GenerateRequest, max_model_len: int) -> RequestSpec:
        valid = self._validator.validate(request)
        token_ids = self._tokenizer.encode_prompt(valid.prompt)
        check_prompt(token_ids, max_model_len=max_model_len, vocab_size=self._vocab_size)
        return RequestSpec(
            request_id=valid.request_id,
            prompt_token_ids=token_ids,
            params=valid.params,
            cache_salt=valid.cache_salt,
        )
