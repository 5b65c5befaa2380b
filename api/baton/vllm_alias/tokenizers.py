"""Functions of vLLM for tokenizers and chat templates, by Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from baton_router.text.model_folder import read_chat_template


def get_tokenizer(
    tokenizer_name: str | Path,
    *args: Any,
    tokenizer_mode: str = "auto",
    trust_remote_code: bool = False,
    revision: str | None = None,
    download_dir: str | None = None,
    **kwargs: Any,
) -> Any:
    """Load a tokenizer; code that comes with a model is not run, whatever `trust_remote_code` says.

    Raises:
        OSError: there is none.
        ValueError: it needs code of its own.
    """
    from transformers import AutoTokenizer  # takes seconds to load

    return AutoTokenizer.from_pretrained(
        tokenizer_name,
        *args,
        use_fast=tokenizer_mode != "slow",
        trust_remote_code=False,
        revision=revision,
        cache_dir=download_dir,
        **kwargs,
    )


def load_chat_template(chat_template: Path | str | None, *, is_literal: bool = False) -> str | None:
    """Return the Jinja source that a file has, or that is given itself; `is_literal`: it is no file.

    Raises:
        InvalidConfigError: it is neither.
    """
    if chat_template is None or is_literal:
        return None if chat_template is None else str(chat_template)
    return read_chat_template(str(chat_template), "chat_template")


def resolve_chat_template(
    tokenizer: Any, chat_template: str | None, tools: list[dict[str, Any]] | None, **_model: Any
) -> str | None:
    """Return the template that chats are rendered with, None where the tokenizer has none."""
    if chat_template is None and tokenizer.chat_template is None:
        return None
    template: str = tokenizer.get_chat_template(chat_template, tools=tools)
    return template
