"""Bounds of what clients keep here, and pages of its lists: those of OpenAI."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

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


def check_limit(limit: int, max_limit: int) -> None:
    """Raises InvalidRequestError: the limit of a list is out of range."""
    if not 1 <= limit <= max_limit:
        raise InvalidRequestError("limit", limit, f"an integer from 1 to {max_limit}")


def start_after(ids: Sequence[str], after: str, whole: str = "this list") -> int:
    """Return where a list goes on after the item of an id, if one is given; `whole` is what it lists.

    Raises:
        InvalidRequestError: no item has the id.
    """
    if after and after not in ids:
        raise InvalidRequestError("after", after, f"the id of an item of {whole}")
    return ids.index(after) + 1 if after else 0


def start_after_sorted(ids: Sequence[str], after: str, prefix: str, *, is_reversed: bool) -> int:
    """Return the same for ids that are in order; one of their form has a place there although it is deleted.

    Raises:
        InvalidRequestError: the id has another form: a prefix, and hexadecimal digits behind it.
    """
    if re.fullmatch(rf"{prefix}[0-9a-f]+", after) is None:
        return start_after(ids, after)
    return sum(each >= after if is_reversed else each <= after for each in ids)


def page_of(items: Sequence[Any], ids: Sequence[str], start: int, limit: int) -> dict[str, Any]:
    """Return the fields of a list: items from a number on, at most `limit`."""
    shown = ids[start : start + limit]
    return {
        "data": items[start : start + limit],
        "first_id": shown[0] if shown else None,
        "last_id": shown[-1] if shown else None,
        "has_more": start + limit < len(items),
    }
