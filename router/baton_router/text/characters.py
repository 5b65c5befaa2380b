"""Characters of bytes that come in pieces, and texts of tokens that may be a part of a character."""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from baton_core.requests.logprobs import PositionLogprobs

REPLACEMENT: Final = "\ufffd"
_REPLACEMENT_BYTES: Final = REPLACEMENT.encode()
_MAX_CHARACTER_BYTES: Final = 4
_Utf8: Final = getincrementaldecoder("utf-8")
_ESCAPED_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")


def without_half_pairs(text: str) -> str:
    """Return the text with U+FFFD for each half of a surrogate pair, which UTF-8 cannot hold."""
    return text.encode("utf-16-le", errors="surrogatepass").decode("utf-16-le", errors="replace")


def read_json(text: str) -> Any:
    """Return the value of JSON that a model wrote, without halves of surrogate pairs.

    Raises:
        ValueError: `text` is no JSON.
        RecursionError: it is nested too deeply.
    """
    value = json.loads(text)
    if not _ESCAPED_HALF.search(text):
        return value
    return json.loads(without_half_pairs(json.dumps(value, ensure_ascii=False)))


class CharacterStream:
    """Bytes in, complete characters out.

    Broken bytes are U+FFFD once a character follows them, as in text decoded at once; at the end of the text
    they are left out, which is where bytes that end no character mostly are.
    """

    def __init__(self) -> None:
        self._decoder = _Utf8("replace")
        self._num_broken = 0
        """Replaced bytes that no character has followed yet."""
        self._last_bytes = b""
        self.is_between = True
        """True if all bytes so far have become characters that were shown."""

    def push(self, data: bytes) -> str:
        """Take the next bytes; return the characters that can be shown."""
        text = self._decoder.decode(data)
        self._last_bytes = (self._last_bytes + data)[-len(_REPLACEMENT_BYTES) :]
        shown = text if _is_whole(text, self._last_bytes) else text.rstrip(REPLACEMENT)
        num_before, self._num_broken = self._num_broken, len(text) - len(shown)
        if not shown:
            self._num_broken += num_before
        self.is_between = not self._num_broken and not self._decoder.getstate()[0]
        if not shown:
            return ""
        return REPLACEMENT * num_before + shown


class TokenTexts:
    """The texts of the tokens at the positions of one sequence, in their order.

    A token that ends within a character has no text, but the one that ends the character has the text of all
    its tokens, which are those at the positions before. So vLLM's `decoded_token` is.

    Args:
        text_of: the text of one token.
        bytes_of: its bytes.
    """

    def __init__(self, text_of: Callable[[int], str], bytes_of: Callable[[int], bytes]) -> None:
        self._text_of = text_of
        self._bytes_of = bytes_of
        self._parts: deque[bytes] = deque(maxlen=_MAX_CHARACTER_BYTES)
        """The last tokens that end within a character, with none that does not between them."""

    def read(self, entry: PositionLogprobs) -> list[str]:
        """Return the texts of the tokens of the next position."""
        texts = [self._text(token_id) for token_id in entry.token_ids]
        token_id = entry.token_ids[0]
        data = self._bytes_of(token_id)
        if _is_whole(self._text_of(token_id), data):
            self._parts.clear()
        else:
            self._parts.append(data)
        return texts

    def _text(self, token_id: int) -> str:
        text = self._text_of(token_id)
        if not text.endswith(REPLACEMENT):
            return text
        data = self._bytes_of(token_id)
        if _is_whole(text, data):
            return text
        for part in reversed(self._parts):
            data = part + data
            text = data.decode(errors="replace")
            if _is_whole(text, data):
                return text
        return ""


def _is_whole(text: str, data: bytes) -> bool:
    """Return whether `text`, which `data` spells, ends with a character."""
    return not text.endswith(REPLACEMENT) or data.endswith(_REPLACEMENT_BYTES)
