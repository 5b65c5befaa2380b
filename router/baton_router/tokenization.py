"""Text to token ids and back, with the results of Transformers' tokenizer but without it.

Safe to share between the tokenizing threads and the loop: beside caches nothing changes after construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from baton_core.errors import ErrorCode, InvalidModelError, InvalidRequestError, RequestError
from baton_router.chat_template import ChatTemplate, Conversation
from baton_router.generation import Prompt, TokenIds
from baton_router.model_folder import ModelFolder
from baton_router.token_decoding import TokenDecoder

_MAX_REQUEST_TEMPLATES: Final = 16
"""Templates of requests that stay compiled."""


class Tokenizer:
    """The tokenizer and the chat templates of one model."""

    def __init__(self, model: ModelFolder, chat_template: str | None = None) -> None:
        """Load the model's tokenizer; `chat_template` is Jinja source to use instead of the model's own.

        Raises:
            InvalidModelError: its files or the chat template are broken.
        """
        self._backend = _load_backend(model)
        self._decoder = TokenDecoder(self._backend)
        bos_token = model.special_tokens.get("bos_token")
        bos_id = None if bos_token is None else self._backend.token_to_id(bos_token)
        self._added_bos_id = bos_id if self._backend.encode("").ids[:1] == [bos_id] else None
        self._special_tokens = model.special_tokens
        self._compile = lru_cache(_MAX_REQUEST_TEMPLATES)(self._compile_template)
        plain = chat_template or model.chat_template
        tools = chat_template or model.tool_chat_template
        self._template = None if plain is None else self._compile_template(plain)
        self._tool_template = self._template if tools is None else self._compile_template(tools)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> TokenIds:
        """Return the ids of `text`.

        Transformers' ids but for one case: a text that begins with the BOS token gets no second one.

        Raises:
            InvalidRequestError: the text has half a surrogate pair.
            RequestError: INTERNAL, the tokenizer cannot cope with the text.
        """
        try:  # in a batch, because that alone leaves the interpreter to other threads meanwhile
            (encoded,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except TypeError:  # what the library raises for it
            raise InvalidRequestError("prompt", text, "text that UTF-8 can hold") from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of the library, over a damaged file; no Exception
                raise
            raise RequestError(
                ErrorCode.INTERNAL, f"the model's tokenizer fails on a text: {error}"
            ) from None
        ids: list[int] = encoded.ids
        bos_id = self._added_bos_id
        if add_special_tokens and bos_id is not None and ids[:2] == [bos_id, bos_id]:
            ids = ids[1:]
        return tuple(ids)

    def render_chat(self, conversation: Conversation) -> str:
        """Return the text of a conversation.

        Its own template comes first, then the model's for tools if it brings such, then the model's.

        Raises:
            InvalidRequestError: there is no chat template, or the template refuses the messages.
        """
        template = self._tool_template if conversation.tools else self._template
        if conversation.template is not None:
            try:
                template = self._compile(conversation.template)
            except InvalidModelError as error:
                raise InvalidRequestError("chat_template", conversation.template, str(error)) from error
        if template is None:
            raise InvalidRequestError("prompt", "a chat", "text or token_ids: the model has no chat template")
        return template.render(conversation)

    def encode_prompt(self, prompt: Prompt, *, add_special_tokens: bool | None = None) -> TokenIds:
        """Return the ids of a prompt of any kind.

        Special tokens are added around a text, and not around a conversation, whose template writes them.

        Raises:
            InvalidRequestError: there is no chat template, or the template refuses the messages.
        """
        match prompt:
            case str():
                return self.encode(prompt, add_special_tokens=add_special_tokens is not False)
            case Conversation():
                return self.encode(self.render_chat(prompt), add_special_tokens=bool(add_special_tokens))
            case _:
                return prompt

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`; ids without a token have none, broken UTF-8 is U+FFFD."""
        return self._decoder.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def is_decoded(self, token_id: int, *, skip_special_tokens: bool) -> bool:
        """Say whether `decode` looks at this token at all."""
        return self._decoder.is_decoded(token_id, skip_special_tokens=skip_special_tokens)

    def added_text(self, token_id: int) -> str | None:
        """The text of a token that stands beside the model's vocabulary, such as `<|im_end|>`; else None."""
        return self._decoder.added_text(token_id)

    def bytes_after(self, last: int | None, token_id: int) -> bytes:
        """What a token adds to a text whose last token is `last`, or that it begins (None)."""
        return self._decoder.bytes_after(last, token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token adds to a text that it does not begin, perhaps a part of a character.

        Special tokens are spelled out; an id without a token has b"".
        """
        return self._decoder.bytes_of(token_id)

    def token_text(self, token_id: int) -> str:
        """The same as text; parts of characters are U+FFFD."""
        return self._decoder.bytes_of(token_id).decode(errors="replace")

    def _compile_template(self, source: str) -> ChatTemplate:
        return ChatTemplate(source, self._special_tokens)


def _load_backend(model: ModelFolder) -> Backend:
    try:
        if model.byte_level_bpe is None:
            backend = Backend.from_file(str(model.tokenizer_file))
        else:
            backend = model.byte_level_bpe.build(model.special_tokens.get("bos_token"))
    except Exception as error:  # the library raises nothing narrower
        raise InvalidModelError(
            f"{model.tokenizer_file} cannot be loaded ({error}); allowed: a file of the tokenizers library"
        ) from error
    backend.no_truncation()
    backend.no_padding()
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    wanted = dict.fromkeys((*model.special_tokens.values(), *model.extra_special_tokens))
    backend.add_tokens([AddedToken(token, special=True) for token in wanted if token not in known])
    return backend
