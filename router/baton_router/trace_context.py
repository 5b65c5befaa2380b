"""The W3C trace context of a client's call: taken in, and given out with what became of it here."""

from __future__ import annotations

import re
from typing import Final

HEADER: Final = "traceparent"
_FORM: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]{0,64})?")


def read_traceparent(text: str) -> str:
    """A header's value as it is, or nothing where it has not the form of one: a trace is no reason to refuse.

    Source: https://www.w3.org/TR/trace-context/#traceparent-header
    """
    text = text.strip()
    return text if _FORM.fullmatch(text) else ""
