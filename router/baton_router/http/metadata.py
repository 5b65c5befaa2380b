"""The bounds of `metadata`, which clients attach to what is kept here: those of OpenAI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from baton_core.errors import InvalidRequestError

_MAX_PAIRS: Final = 16
_MAX_NAME: Final = 64
_MAX_TEXT: Final = 512


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raises InvalidRequestError: there are too many texts, or one of them or its name is too long."""
    allowed = f"at most {_MAX_PAIRS} texts of {_MAX_TEXT} characters, with names of {_MAX_NAME}"
    are_short = all(len(name) <= _MAX_NAME and len(text) <= _MAX_TEXT for name, text in metadata.items())
    if len(metadata) > _MAX_PAIRS or not are_short:
        raise InvalidRequestError("metadata", metadata, allowed)
