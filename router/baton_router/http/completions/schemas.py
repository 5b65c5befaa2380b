"""Request and reply bodies of `/v1/completions`."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from baton_router.http.reply_parts import PromptLogprobs, Usage
from baton_router.http.sampling_fields import RequestFields


class CompletionRequest(RequestFields, kw_only=True):
    """Complete a text."""

    one_of: ClassVar[frozenset[str]] = frozenset({"prompt", "prompt_embeds"})
    """Fields of which it needs one."""
    prompt: str | list[str | int | list[int]] | None = None
    """A text, token ids, or a list of either. Needed without `prompt_embeds`."""
    prompt_embeds: str | list[str] | None = None
    """Embeddings in the place of a prompt, or several: base64 of a tensor [tokens, hidden size] as torch.save
    or safetensors writes it. Their choices come before those of `prompt`."""
    max_tokens: int | None = 16
    """0 with echo: only the prompt; null: as many as the context holds."""
    logprobs: int | None = None
    """Most likely tokens to return at each position."""
    echo: bool | None = None
    """Repeat the prompt before what follows it."""
    suffix: Any = None
    """Refused: text can only be continued at its end."""

    @property
    def shows_output(self) -> bool:
        """True unless only the prompt is shown."""
        return self.max_tokens != 0


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities of each token of the text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    """Offset of each token in the text, in characters."""


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One sequence, or what is new of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token that ended it."""
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class Completion(msgspec.Struct, kw_only=True):
    """A whole reply, or a chunk of a streamed one."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    usage: Usage | UnsetType | None = UNSET
    """Usage; in chunks, where it is requested, null but in the last one."""
    kv_transfer_params: None = None
    resume_token: str | UnsetType = UNSET
    """Token in the first chunk of each prompt, with which a broken stream resumes at any router."""
