"""Text to token ids and back, with the results of Transformers' tokenizer but without it.

Safe to share between the tokenizing threads and the loop: nothing changes after construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from baton_core.errors import InvalidModelError, InvalidRequestError
from baton_router.chat_template import ChatMessage, ChatTemplate, Conversation
from baton_router.model_folder import ModelFolder

TokenIds: TypeAlias = tuple[int, ...]
Prompt: TypeAlias = str | TokenIds | Conversation


class Tokenizer:
    """The tokenizer and the chat template of one model."""

    def __init__(self, model: ModelFolder) -> None:
        """Load the model's tokenizer.

        Raises:
            InvalidModelError: its files or the chat template are broken.
        """
        self._backend = _load_backend(model)
        added = self._backend.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        bos_token = model.special_tokens.get("bos_token")
        bos_id = None if bos_token is None else self._backend.token_to_id(bos_token)
        self._added_bos_id = bos_id if self._backend.encode("").ids[:1] == [bos_id] else None
        source = model.chat_template
        self._template = None if source is None else ChatTemplate(source, model.special_tokens)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> TokenIds:
        """Return the ids of `text`.

        Transformers' ids but for one case: a text that begins with the BOS token gets no second one.
        """
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        bos_id = self._added_bos_id
        if add_special_tokens and bos_id is not None and ids[:2] == [bos_id, bos_id]:
            ids = ids[1:]
        return tuple(ids)

    def render_chat(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation, if told so ready for the assistant's answer.

        Raises:
            InvalidRequestError: the model has no chat template, or its template refuses the messages.
        """
        if self._template is None:
            raise InvalidRequestError("prompt", "a chat", "text or token_ids: the model has no chat template")
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)

    def encode_prompt(self, prompt: Prompt) -> TokenIds:
        """Return the ids of a prompt of any kind.

        Raises:
            InvalidRequestError: the model has no chat template, or its template refuses the messages.
        """
        match prompt:
            case str():
                return self.encode(prompt)
            case Conversation():
                # The template has written every special token itself.
                return self.encode(self.render_chat(prompt.messages), add_special_tokens=False)
            case _:
                return prompt

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`; ids without a token have none, broken UTF-8 is U+FFFD."""
        text: str = self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def is_decoded(self, token_id: int, *, skip_special_tokens: bool) -> bool:
        """Say whether `decode` looks at this token at all."""
        if skip_special_tokens and token_id in self._special_ids:
            return False
        return self._backend.id_to_token(token_id) is not None


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
