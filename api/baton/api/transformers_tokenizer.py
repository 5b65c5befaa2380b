"""The tokenizer that callers get: Transformers', as code written for vLLM expects it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from baton_core.errors import InvalidConfigError


@cache
def load_tokenizer(folder: Path) -> Any:
    """Load it once; it has `encode`, `decode`, `apply_chat_template` and so on.

    Raises:
        InvalidConfigError: Transformers is not installed, or cannot load it.
    """
    try:
        # Optional: Baton reads tokenizers itself and needs no Transformers for it.
        from transformers import AutoTokenizer
    except ImportError as error:
        text = "get_tokenizer needs transformers: pip install 'baton[transformers]'"
        raise InvalidConfigError(text) from error
    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise InvalidConfigError(
            f"tokenizer is {str(folder)!r}, which Transformers cannot load ({error})"
        ) from error
