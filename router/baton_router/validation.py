"""From a client's message to a request that can be served, or to the error that says why not.

Pure; runs in the tokenizing threads before any work is done for the request. `check_prompt` follows once the
prompt's tokens are known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_core.sampling_params import SamplingParams
from baton_proto.v1 import baton_pb2
from baton_router.chat_template import ChatMessage, Conversation
from baton_router.model_folder import ModelFolder
from baton_router.tokenization import Prompt

MAX_REQUEST_ID_CHARACTERS: Final = 128
MAX_CACHE_SALT_CHARACTERS: Final = 128
MAX_MESSAGES: Final = 4096
ROLES: Final = ("system", "user", "assistant")

_OPTIONAL_FIELDS: Final = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "ignore_eos",
    "max_tokens",
    "include_stop_str_in_output",
    "skip_special_tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidRequest:
    """A client's request with every field in range and every default applied."""

    request_id: str
    prompt: Prompt
    params: SamplingParams
    """With a seed."""
    cache_salt: str


class RequestValidator:
    """Checks requests for one served model."""

    def __init__(
        self,
        model_names: Sequence[str],
        model: ModelFolder,
        *,
        choose_seed: Callable[[], int],
        choose_request_id: Callable[[], str],
    ) -> None:
        self._model_names = model_names
        self._model = model
        self._choose_seed = choose_seed
        self._choose_request_id = choose_request_id

    def validate(self, request: baton_pb2.GenerateRequest) -> ValidRequest:
        """Check every field, and fill in what the client left out.

        Raises:
            InvalidRequestError: a field is out of range; the message names it, its value and what is allowed.
            RequestError: NOT_FOUND, another model is asked for.
        """
        check_model(request.model, self._model_names)
        _check_text("request_id", request.request_id, MAX_REQUEST_ID_CHARACTERS)
        _check_text("cache_salt", request.cache_salt, MAX_CACHE_SALT_CHARACTERS)
        return ValidRequest(
            prompt=self._read_prompt(request),
            params=self._read_params(request.sampling_params),
            request_id=request.request_id or self._choose_request_id(),
            cache_salt=request.cache_salt,
        )

    def _read_prompt(self, request: baton_pb2.GenerateRequest) -> Prompt:
        match request.WhichOneof("prompt"):
            case "text":
                return read_text(request.text)
            case "token_ids":
                if not request.token_ids.ids:
                    raise InvalidRequestError("token_ids", [], "at least one token id")
                self._check_token_ids("token_ids", request.token_ids.ids)
                return tuple(request.token_ids.ids)
            case "chat":
                return Conversation(messages=read_messages(request.chat))
            case _:
                raise InvalidRequestError("prompt", None, "one of text, token_ids and chat")

    def _read_params(self, message: baton_pb2.SamplingParams) -> SamplingParams:
        given: dict[str, Any] = {
            name: getattr(message, name) for name in _OPTIONAL_FIELDS if message.HasField(name)
        }
        given |= {"stop": tuple(message.stop), "stop_token_ids": tuple(message.stop_token_ids)}
        params = replace(self._model.sampling_defaults, **given)
        self._check_token_ids("stop_token_ids", params.stop_token_ids)
        return params if params.seed is not None else replace(params, seed=self._choose_seed())

    def _check_token_ids(self, field: str, token_ids: Sequence[int]) -> None:
        check_token_ids(field, token_ids, self._model.vocab_size)


def check_model(name: str, model_names: Sequence[str]) -> None:
    """Refuse a name that is none of the served ones; empty means the model there is.

    Raises:
        RequestError: NOT_FOUND.
    """
    if name and name not in model_names:
        error = InvalidRequestError("model", name, ", ".join(map(repr, model_names)))
        raise RequestError(ErrorCode.NOT_FOUND, str(error))


def read_text(text: str) -> str:
    """Return a prompt's text.

    Raises:
        InvalidRequestError: it is empty.
    """
    if not text:
        raise InvalidRequestError("text", text, "at least one character")
    return text


def read_messages(chat: baton_pb2.Chat) -> tuple[ChatMessage, ...]:
    """Return a conversation's messages.

    Raises:
        InvalidRequestError: there are none or too many of them, or one has an unknown role.
    """
    if not chat.messages:
        raise InvalidRequestError("chat", [], "at least one message")
    if len(chat.messages) > MAX_MESSAGES:
        raise InvalidRequestError("chat", f"{len(chat.messages)} messages", f"at most {MAX_MESSAGES}")
    for message in chat.messages:
        if message.role not in ROLES:
            raise InvalidRequestError("role", message.role, ", ".join(ROLES))
    return tuple(ChatMessage(role=message.role, content=message.content) for message in chat.messages)


def check_prompt(token_ids: Sequence[int], *, max_model_len: int, vocab_size: int) -> None:
    """Check a prompt's tokens, however they came about, against what the workers can hold.

    A `max_tokens` that does not fit beside the prompt is no error: the sequence ends at `max_model_len`.

    Raises:
        InvalidRequestError: the prompt is empty, leaves no room for a token, or has one the model lacks.
    """
    if not 1 <= len(token_ids) < max_model_len:
        raise InvalidRequestError("prompt", f"{len(token_ids)} tokens", f"1 to {max_model_len - 1} tokens")
    check_token_ids("prompt", token_ids, vocab_size)


def check_token_ids(field: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Refuse ids that the model has no token for.

    Raises:
        InvalidRequestError: naming one such id.
    """
    for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(field, token_id, f"token ids from 0 to {vocab_size - 1}")


def _check_text(field: str, text: str, max_characters: int) -> None:
    if len(text) > max_characters or not text.isprintable():
        raise InvalidRequestError(field, text, f"at most {max_characters} characters, all printable")
