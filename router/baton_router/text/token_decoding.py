"""Token ids to text and to bytes, with the model's own decoder.

Safe to share between threads: beside a cache nothing changes after construction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from tokenizers import Tokenizer as Backend

_REPLACEMENT: Final = "\ufffd"
_ANCHOR: Final = "a"
"""Stands before a token, since some decoders spell the first one of a text differently."""
_LOCAL_DECODERS: Final = frozenset(
    (b"ByteLevel", b"ByteFallback", b"Fuse", b"Metaspace", b"Replace", b"Sequence", b"Strip", b"WordPiece")
)
"""Kinds with which every token after the first adds the same, whatever the one before it."""


class TokenDecoder:
    """The decoding half of a tokenizer.

    A token may be a part of a character: in byte-level vocabularies any, in those with byte fallback the
    tokens of bytes (`<0xE2>`).
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._decoder = backend.decoder
        added = backend.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        kinds = re.findall(rb'"type":"(\w+)"', b"" if self._decoder is None else self._decoder.__getstate__())
        self._is_local = _LOCAL_DECODERS.issuperset(kinds)
        self._fallback = self._find_fallback_bytes()
        self._byte_level = _byte_level_alphabet() if self._join(["\u0120"]) == " " else {}
        self._bytes: dict[int, bytes] = {}
        self._whole_texts: dict[int, str | None] = {}

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of `token_ids`; ids without a token have none, broken UTF-8 is U+FFFD.

        The `tokenizers` library's text, but for one case: where tokens of byte fallback spell characters
        and broken bytes side by side, the characters stay. (The library replaces each byte of such a run.)
        """
        if self._fallback.keys().isdisjoint(token_ids):
            # In a batch, because that alone leaves the interpreter to other threads meanwhile.
            texts: list[str] = self._backend.decode_batch(
                [token_ids], skip_special_tokens=skip_special_tokens
            )
            return texts[0]
        skip = skip_special_tokens
        shown = (token for token in token_ids if self.is_decoded(token, skip_special_tokens=skip))
        return self._join(list(self._spell(shown)))

    def is_decoded(self, token_id: int, *, skip_special_tokens: bool) -> bool:
        """Return whether `decode` reads this token at all."""
        if skip_special_tokens and token_id in self._special_ids:
            return False
        return self._backend.id_to_token(token_id) is not None

    def added_text(self, token_id: int) -> str | None:
        """The text of a token that stands beside the model's vocabulary, such as `<|im_end|>`; else None."""
        return self._added.get(token_id)

    def spelling(self, token_id: int) -> str:
        """The token as the vocabulary spells it, such as `Ġos`; empty for an id without a token."""
        return self._backend.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token that does not begin a text, perhaps a part of a character.

        Special tokens are spelled out; an id without a token has b"".
        """
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._find_bytes(token_id)
        return found

    def whole_text(self, token_id: int) -> str | None:
        """Return the text that a token adds after any other that ends with a whole character.

        None where that depends on the tokens before, on whether special tokens are shown, or on what follows.
        """
        try:
            return self._whole_texts[token_id]
        except KeyError:
            found = self._whole_texts[token_id] = self._find_whole_text(token_id)
            return found

    def bytes_after(self, last: int | None, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text after the token `last`; None: it begins the text."""
        found = self.token_bytes(token_id)
        if last is not None and self._is_local:
            return found
        try:
            found.decode()
        except UnicodeDecodeError:
            return found  # a part of a character: no decoder changes it
        before = [] if last is None else [str(self._backend.id_to_token(last))]
        text = self._join([*before, str(self._backend.id_to_token(token_id))])
        return text[len(self._join(before)) :].encode()

    def _find_whole_text(self, token_id: int) -> str | None:
        if not self._is_local or token_id in self._added:
            return None
        try:
            text = self.token_bytes(token_id).decode()
        except UnicodeDecodeError:
            return None
        return text if text and not text.endswith(_REPLACEMENT) else None

    def _find_bytes(self, token_id: int) -> bytes:
        spelling = self._backend.id_to_token(token_id)
        if spelling is None:
            return b""
        if token_id in self._fallback:
            return bytes([self._fallback[token_id]])
        if self._byte_level:
            if all(character in self._byte_level for character in spelling):
                return bytes(self._byte_level[character] for character in spelling)
            return str(spelling).encode()
        return self._join([_ANCHOR, spelling])[len(self._join([_ANCHOR])) :].encode()

    def _find_fallback_bytes(self) -> dict[int, int]:
        """Bytes by token id; none where the decoder takes `<0x41>` for what it says."""
        if self._join([_spell_byte(ord("A"))]) != "A":
            return {}
        ids = {byte: self._backend.token_to_id(_spell_byte(byte)) for byte in range(256)}
        return {token_id: byte for byte, token_id in ids.items() if token_id is not None}

    def _spell(self, token_ids: Iterator[int]) -> Iterator[str]:
        """The spellings that the decoder takes; in runs of bytes, each broken one is a token of its own."""
        run = bytearray()
        for token_id in token_ids:
            if token_id in self._fallback:
                run.append(self._fallback[token_id])
                continue
            yield from _spell_run(run)
            run.clear()
            yield str(self._backend.id_to_token(token_id))
        yield from _spell_run(run)

    def _join(self, spellings: list[str]) -> str:
        text: str = " ".join(spellings) if self._decoder is None else self._decoder.decode(spellings)
        return text


def _spell_run(run: bytes | bytearray) -> Iterator[str]:
    for character in run.decode(errors="replace"):
        if character == _REPLACEMENT:
            yield character
        else:
            yield from map(_spell_byte, character.encode())


def _spell_byte(byte: int) -> str:
    return f"<0x{byte:02X}>"


def _byte_level_alphabet() -> dict[str, int]:
    """Bytes by the character that spells them: printable Latin-1 itself, the rest count up from U+0100.

    Source: GPT-2, `bytes_to_unicode`.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}
