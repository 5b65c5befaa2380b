"""Token sequences that may not be completed."""

from __future__ import annotations

from collections.abc import Iterable


class BadWords:
    """The bad words of one request, indexed by the token before the last, so that a step checks few."""

    def __init__(self, words: Iterable[tuple[int, ...]]) -> None:
        self._by_previous: dict[int | None, list[tuple[int, ...]]] = {}
        for word in words:
            previous = word[-2] if len(word) > 1 else None
            self._by_previous.setdefault(previous, []).append(word)

    def completions(self, output_token_ids: tuple[int, ...]) -> list[int]:
        """Return the last tokens of the words whose other tokens are the end of the output."""
        words = list(self._by_previous.get(None, ()))
        if output_token_ids:
            words += self._by_previous.get(output_token_ids[-1], ())
        return [word[-1] for word in words if _ends_with(output_token_ids, word[:-1])]


def _ends_with(token_ids: tuple[int, ...], end: tuple[int, ...]) -> bool:
    return not end or token_ids[-len(end) :] == end
