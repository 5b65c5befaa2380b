"""The source of each prompt token: a byte for each, so that none is counted twice."""

from __future__ import annotations

from typing import Final

from baton_core.requests.phases import TokenSources

_UNKNOWN, _COMPUTED, _LOCAL_CACHE, _REMOTE, _RECOMPUTED, _LOST = range(6)
_CODES: Final = bytes(range(6))
_FOUND: Final = bytes.maketrans(bytes((_UNKNOWN, _LOST)), bytes((_LOCAL_CACHE, _LOCAL_CACHE)))
_PULLED: Final = bytes.maketrans(bytes((_UNKNOWN,)), bytes((_REMOTE,)))
_DONE: Final = bytes.maketrans(_CODES, bytes((_COMPUTED, *[_RECOMPUTED] * 5)))


class PromptSources:
    """The sources of one request's prompt at one worker; positions behind the prompt are ignored."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self._sources = bytearray(num_prompt_tokens)

    def find(self, start: int, end: int) -> None:
        """These are in this worker's cache; what it computed or pulled for the request before stays that."""
        self._sources[start:end] = self._sources[start:end].translate(_FOUND)

    def pull(self, start: int, end: int) -> None:
        """These came from another worker, but for those that were here already."""
        self._sources[start:end] = self._sources[start:end].translate(_PULLED)

    def lose(self, start: int) -> None:
        """Mark the tokens from `start` on as lost: they were to come from another worker and did not."""
        self._sources[start:] = bytes((_LOST,)) * (len(self._sources) - start)

    def compute(self, start: int, end: int) -> None:
        """These were computed; where that is not their first time, they count as recomputed instead."""
        self._sources[start:end] = self._sources[start:end].translate(_DONE)

    @property
    def counts(self) -> TokenSources:
        """Number of tokens from each source."""
        return TokenSources(
            num_computed=self._sources.count(_COMPUTED),
            num_local_cache=self._sources.count(_LOCAL_CACHE),
            num_remote=self._sources.count(_REMOTE),
            num_recomputed=self._sources.count(_RECOMPUTED),
        )
