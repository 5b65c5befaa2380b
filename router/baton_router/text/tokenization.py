"""Text to token ids and back, with the results of Transformers' tokenizer but without it.

Safe to share between the tokenizing threads and the loop: beside caches nothing changes after construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_router.embeds.given_embeds import EmbedsLimits, PromptTokens
from baton_router.text.chat_rendering import ChatRendering
from baton_router.text.chat_template import ChatDefaults, ChatTemplate, Conversation
from baton_router.text.embedded_parts import encode_embedded
from baton_router.text.large_texts import LARGE, LargeTexts
from baton_router.text.model_folder import ModelFolder
from baton_router.text.prompts import Prompt, TokenIds
from baton_router.text.token_decoding import TokenDecoder
from baton_router.text.tokenizer_loading import load_backend

MAX_POOLED_CHARACTERS: Final = 2**19
"""Characters of a pair of texts, or those of a text in which the tokens to keep are looked for."""


class PooledPrompt(NamedTuple):
    """The tokens of a prompt of which something is pooled."""

    token_ids: TokenIds
    type_one_from: int | None = None
    """Position of the first token that the tokenizer gives type 1."""


def kept_lengths(lengths: Sequence[int], limit: int) -> list[int]:
    """Return how many tokens are kept of one text or two, so that they are at most `limit` together."""
    if sum(lengths) <= limit:
        return list(lengths)
    if len(lengths) == 1:
        return [limit]
    shorter, longer = sorted(lengths)
    longer = max(shorter, limit - shorter)
    if shorter + longer > limit:
        shorter = limit // 2
        longer = limit - shorter
    return [longer, shorter] if lengths[0] > lengths[1] else [shorter, longer]


def _too_large(field: str, num_characters: int) -> InvalidRequestError:
    allowed = f"at most {MAX_POOLED_CHARACTERS} characters in a pair, or for the tokens to keep of a text"
    return InvalidRequestError(field, f"{num_characters} characters", allowed)


class Tokenizer(TokenDecoder):
    """The tokenizer and the chat templates of one model; the decoder decodes what is not large."""

    def __init__(
        self, model: ModelFolder, chat_template: str | None = None, defaults: ChatDefaults | None = None
    ) -> None:
        """Load the model's tokenizer; `chat_template` is Jinja source to use instead of the model's own.

        `defaults` complete every conversation.

        Raises:
            InvalidModelError: its files or the chat template are broken.
        """
        super().__init__(load_backend(model))
        self._large_texts = LargeTexts(model)
        bos_token = model.special_tokens.get("bos_token")
        bos_id = None if bos_token is None else self._backend.token_to_id(bos_token)
        self._added_bos_id = bos_id if self._backend.encode("").ids[:1] == [bos_id] else None
        eos_token = model.special_tokens.get("eos_token")
        self.eos_token_id: int | None = None if eos_token is None else self._backend.token_to_id(eos_token)
        """The tokenizer's own end token; a model may have others."""
        self.chosen_template = chat_template
        """The template that an operator gave instead of the model's own."""
        self._rendering = ChatRendering(model.special_tokens)
        self._defaults = defaults or ChatDefaults()
        self._template = chat_template or model.chat_template
        self._tool_template = chat_template or model.tool_chat_template or self._template
        for source in {self._template, self._tool_template} - {None}:
            ChatTemplate(source or "")  # seen to be one before the first request comes

    @property
    def chat_template(self) -> str | None:
        """The template of conversations without tools."""
        return self._template

    def encode(self, text: str, *, add_special_tokens: bool = True, most: int | None = None) -> TokenIds:
        """Return the ids of `text`, of which the caller takes `most`; None is all.

        Transformers' ids but for one case: a text that begins with the BOS token gets no second one.

        Raises:
            TooManyTokensError: a large text has far more than `most`; not all of it is tokenized.
            InvalidRequestError: the text has half a surrogate pair.
            RequestError: INTERNAL, the tokenizer cannot cope with the text; for large texts also
                DEADLINE_EXCEEDED, the machine is busy, and UNAVAILABLE, it shuts down.
        """
        if len(text) >= LARGE:
            return self._without_second_bos(
                self._large_texts.encode(text, add_special_tokens=add_special_tokens, most=most),
                add_special_tokens,
            )
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
        return self._without_second_bos(tuple(encoded.ids), add_special_tokens)

    def _without_second_bos(self, ids: TokenIds, has_special_tokens: bool) -> TokenIds:
        bos_id = self._added_bos_id
        has_two = has_special_tokens and bos_id is not None and ids[:2] == (bos_id, bos_id)
        return ids[1:] if has_two else ids

    def render_chat(self, conversation: Conversation) -> str:
        """Return the text of a conversation.

        Its own template comes first, then the model's for tools if it brings such, then the model's.

        Raises:
            InvalidRequestError: there is no chat template, or the template refuses the messages.
        """
        conversation = self._defaults.complete(conversation)
        template = self._tool_template if conversation.tools else self._template
        if conversation.template is not None:
            template = conversation.template
        if template is None:
            raise InvalidRequestError("prompt", "a chat", "text or token_ids: the model has no chat template")
        return self._rendering.render(template, conversation)

    def close(self) -> None:
        """End the processes that render chat templates and that tokenize large texts."""
        self._rendering.close()
        self._large_texts.close()

    def encode_prompt(
        self, prompt: Prompt, *, add_special_tokens: bool | None = None, most: int | None = None
    ) -> TokenIds:
        """Return the ids of a prompt of any kind, of which the caller takes `most`; None is all.

        Special tokens are added around a text, and not around a conversation, whose template writes them.

        Raises:
            TooManyTokensError: as `encode`.
            InvalidRequestError: there is no chat template, or the template refuses the messages.
        """
        match prompt:
            case str():
                return self.encode(prompt, add_special_tokens=add_special_tokens is not False, most=most)
            case Conversation():
                text = self.render_chat(prompt)
                return self.encode(text, add_special_tokens=bool(add_special_tokens), most=most)
            case _:
                return prompt

    def encode_pooled(
        self,
        texts: tuple[str, ...],
        *,
        add_special_tokens: bool = True,
        limit: int | None = None,
        most: int | None = None,
        cuts_left: bool = False,
        field: str = "prompt",
    ) -> PooledPrompt:
        """Return the ids of a text, or of a pair of texts, cut to `limit` tokens, special tokens included.

        The caller takes `most` of a text that is not cut; None is all.

        Special tokens are never cut; of a pair the longer text is cut first, as Transformers cuts it. Errors
        name the texts by `field`.

        Raises:
            TooManyTokensError: as `encode`.
            InvalidRequestError: a text cannot be tokenized, is too large, or `limit` leaves none of it.
            RequestError: as `encode`.
        """
        if len(texts) == 1 and limit is None:
            return PooledPrompt(self.encode(texts[0], add_special_tokens=add_special_tokens, most=most))
        num_characters = sum(map(len, texts))
        is_large = num_characters > MAX_POOLED_CHARACTERS
        if is_large and len(texts) > 1:
            raise _too_large(field, num_characters)
        kept = slice(-MAX_POOLED_CHARACTERS, None) if cuts_left else slice(MAX_POOLED_CHARACTERS)
        try:
            first, *others = self._backend.encode_batch_fast(
                [text[kept] for text in texts], add_special_tokens=False
            )
        except TypeError:
            raise InvalidRequestError(field, texts, "text that UTF-8 can hold") from None
        pair = others[0] if others else None
        if limit is not None:
            added = self._backend.num_special_tokens_to_add(pair is not None) if add_special_tokens else 0
            given = [len(one.ids) for one in (first, *others)]
            if limit - added < min(len(texts), sum(given)):
                allowed = f"at least {added + len(texts)}, with the tokenizer's special tokens"
                raise InvalidRequestError("truncate_prompt_tokens", limit, allowed)
            if is_large and sum(given) <= limit - added:
                raise _too_large(field, num_characters)
            for one, length in zip((first, *others), kept_lengths(given, limit - added), strict=True):
                one.truncate(length, direction="left" if cuts_left else "right")
        whole = self._backend.post_process(first, pair, add_special_tokens)
        ids = self._without_second_bos(tuple(whole.ids), add_special_tokens)
        types = whole.type_ids[len(whole.ids) - len(ids) :]
        return PooledPrompt(ids, types.index(1) if 1 in types else None)

    def cut(self, text: str, most: int) -> str:
        """Return the beginning of a text that has its first `most` tokens, special tokens not included.

        It ends with a whole character; texts of fewer tokens stay as they are.

        Raises:
            InvalidRequestError: the text has half a surrogate pair.
        """
        try:
            (encoded,) = self._backend.encode_batch([text[:MAX_POOLED_CHARACTERS]], add_special_tokens=False)
        except TypeError:
            raise InvalidRequestError("prompt", text, "text that UTF-8 can hold") from None
        if len(encoded.ids) <= most:
            return text
        (_, end), (next_start, _) = encoded.offsets[most - 1 : most + 1]
        return text[: min(end, next_start)]

    def encode_embedded(self, conversation: Conversation, limits: EmbedsLimits) -> PromptTokens:
        """Return the tokens of a conversation that has embeddings among its parts.

        Raises:
            InvalidRequestError: as `encode_prompt`, or the embeddings are out of their limits.
        """
        return encode_embedded(
            conversation, limits, self.render_chat, partial(self.encode, add_special_tokens=False)
        )

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`; ids without a token have none, broken UTF-8 is U+FFFD.

        Raises:
            RequestError: as `encode`, for so many ids that their text is large.
        """
        if len(token_ids) >= LARGE:
            return self._large_texts.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """Return the text of a token that does not begin a text; parts of characters are U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")
