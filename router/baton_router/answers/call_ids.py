"""Names for tool calls, by which a client says which call it brings the result of."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from typing import Final

ChooseId = Callable[[], str]

_ALPHANUMERIC: Final = string.ascii_letters + string.digits


def random_call_id() -> str:
    return f"chatcmpl-tool-{secrets.token_hex(16)}"


def random_mistral_call_id() -> str:
    """Nine letters and digits: Mistral's chat templates refuse every other id."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))
