"""Tokenize and Detokenize: the model's tokenizer for clients. Runs in the tokenizing threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from baton_core.errors import InvalidRequestError
from baton_proto.v1 import baton_pb2 as pb
from baton_router.model_folder import ModelFolder
from baton_router.tokenization import TokenIds, Tokenizer
from baton_router.validation import check_model, check_token_ids, read_messages, read_text

MAX_TOKENS: Final = 2**20
MAX_TEXT_BYTES: Final = 3 * 2**20
"""Both leave room in a message."""


class TextConverter:
    """Checks and answers requests for one served model."""

    def __init__(self, model_names: Sequence[str], model: ModelFolder, tokenizer: Tokenizer) -> None:
        self._model_names = model_names
        self._vocab_size = model.vocab_size
        self._tokenizer = tokenizer

    def tokenize(self, request: pb.TokenizeRequest) -> TokenIds:
        """Return the token ids of a text or of a conversation.

        Raises:
            InvalidRequestError: a field is out of range; the message names it.
            RequestError: NOT_FOUND, another model is asked for.
        """
        check_model(request.model, self._model_names)
        is_chat = request.WhichOneof("prompt") == "chat"
        text = self._text_of(request)
        adds_special = request.add_special_tokens if request.HasField("add_special_tokens") else not is_chat
        token_ids = self._tokenizer.encode(text, add_special_tokens=adds_special)
        if len(token_ids) > MAX_TOKENS:
            raise InvalidRequestError("prompt", f"{len(token_ids)} tokens", f"at most {MAX_TOKENS} tokens")
        return token_ids

    def detokenize(self, request: pb.DetokenizeRequest) -> str:
        """Return the text of token ids.

        Raises:
            InvalidRequestError: a field is out of range; the message names it.
            RequestError: NOT_FOUND, another model is asked for.
        """
        check_model(request.model, self._model_names)
        num_tokens = len(request.token_ids)
        if not 1 <= num_tokens <= MAX_TOKENS:
            raise InvalidRequestError("token_ids", f"{num_tokens} ids", f"1 to {MAX_TOKENS} ids")
        check_token_ids("token_ids", request.token_ids, self._vocab_size)
        text = self._tokenizer.decode(request.token_ids, skip_special_tokens=request.skip_special_tokens)
        num_bytes = len(text.encode())
        if num_bytes > MAX_TEXT_BYTES:
            allowed = f"at most {MAX_TEXT_BYTES} bytes of text"
            raise InvalidRequestError("token_ids", f"{num_bytes} bytes of text", allowed)
        return text

    def _text_of(self, request: pb.TokenizeRequest) -> str:
        ends_prompted = not request.HasField("add_generation_prompt") or request.add_generation_prompt
        match request.WhichOneof("prompt"):
            case "text":
                if request.HasField("add_generation_prompt"):
                    raise InvalidRequestError("add_generation_prompt", ends_prompted, "only beside chat")
                return read_text(request.text)
            case "chat":
                messages = read_messages(request.chat)
                return self._tokenizer.render_chat(messages, add_generation_prompt=ends_prompted)
            case _:
                raise InvalidRequestError("prompt", None, "one of text and chat")
