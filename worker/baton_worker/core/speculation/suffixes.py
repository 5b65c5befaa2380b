"""Suffix decoding: the tokens that have followed most often where the last tokens were before.

It drafts what a suffix tree with counts would draft, of which it looks at the latest occurrences alone.
Instead of a tree it keeps the text, and the places of each pair of tokens: a token costs one entry.
Source: Oliaro et al., "SuffixDecoding", arXiv 2411.04975; parameters as in vLLM.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from typing import Final

from baton_core.worker.speculative_config import SpeculativeConfig

MAX_PLACES: Final = 16
"""Latest occurrences that are looked at."""
MAX_INDEXED: Final = 1024
"""Tokens of a long prompt that are taken in for a step."""
MAX_TEXT_TOKENS: Final = 1 << 16
"""Tokens of earlier outputs that are remembered for a tenant: about 10 MB."""
MAX_TENANTS: Final = 16
"""Tenants whose outputs are remembered; the least recent one is forgotten."""
_END: Final = -1
"""Stands between two outputs."""
Draft = tuple[tuple[int, ...], float]
"""Tokens, and how many of them are expected to be right."""


class SuffixText:
    """A text that grows, with the places of its pairs of tokens."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._places: dict[tuple[int, int], deque[int]] = {}
        """Latest places behind each pair of tokens."""

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens."""
        for token_id in token_ids:
            self.token_ids.append(token_id)
            if len(self.token_ids) > 1:
                pair = (self.token_ids[-2], token_id)
                self._places.setdefault(pair, deque(maxlen=MAX_PLACES)).append(len(self.token_ids))

    def propose(self, recent: Sequence[int], num_tokens: int, config: SpeculativeConfig) -> Draft:
        """Return at most `num_tokens` that may follow `recent`, the end of a text of two tokens or more."""
        matches: dict[int, int] = {}
        for place in self._places.get((recent[-2], recent[-1]), ()):
            if place < len(self.token_ids):
                matches[place] = self._match(place, recent)
        longest = max(matches.values(), default=0)
        places = [place for place, length in matches.items() if length == longest]
        most = int(min(num_tokens, longest * config.suffix_decoding_max_spec_factor))
        return self._vote(places, most, config.suffix_decoding_min_token_prob)

    def _match(self, place: int, recent: Sequence[int]) -> int:
        """Return how many tokens before a place are the last ones of `recent`."""
        length = 2
        while length < min(len(recent), place) and self.token_ids[place - 1 - length] == recent[-1 - length]:
            length += 1
        return length

    def _vote(self, places: list[int], most: int, least_share: float) -> Draft:
        """Follow the most frequent tokens behind the places, as long as enough of all went that way."""
        draft: list[int] = []
        num_all, expected = len(places), 0.0
        while len(draft) < most:
            votes = Counter(self.token_ids[place] for place in places if place < len(self.token_ids))
            votes.pop(_END, None)
            if not votes:
                break
            token_id, count = votes.most_common(1)[0]
            if count < least_share * num_all:
                break
            draft.append(token_id)
            expected += count / num_all
            places = [
                place + 1
                for place in places
                if place < len(self.token_ids) and self.token_ids[place] == token_id
            ]
        return tuple(draft), expected


class EarlierOutputs:
    """The outputs of requests that are over, apart for each root of block hashes: tenants share none."""

    def __init__(self, max_outputs: int) -> None:
        self._max_outputs = max_outputs
        self._texts: OrderedDict[bytes, SuffixText] = OrderedDict()
        self._outputs: dict[bytes, deque[tuple[int, ...]]] = {}

    def text(self, root: bytes) -> SuffixText:
        """Return the text of a tenant's outputs, valid until the next `add`."""
        return self._texts.get(root) or SuffixText()

    def add(self, root: bytes, token_ids: tuple[int, ...]) -> None:
        """Remember an output; of a tenant that has too many, the older half is forgotten."""
        token_ids = token_ids[-MAX_TEXT_TOKENS // 2 :]
        if not self._max_outputs or len(token_ids) < 3:
            return
        outputs = self._outputs.setdefault(root, deque())
        outputs.append(token_ids)
        text = self._texts.setdefault(root, SuffixText())
        text.extend((*token_ids, _END))
        self._texts.move_to_end(root)
        if len(text.token_ids) > MAX_TEXT_TOKENS or len(outputs) > self._max_outputs:
            self._texts[root] = self._without_half(outputs)
        if len(self._texts) > MAX_TENANTS:
            forgotten, _ = self._texts.popitem(last=False)
            del self._outputs[forgotten]

    def _without_half(self, outputs: deque[tuple[int, ...]]) -> SuffixText:
        most = max(1, min(len(outputs) - 1, self._max_outputs // 2))
        while len(outputs) > most or sum(map(len, outputs)) > MAX_TEXT_TOKENS // 2:
            outputs.popleft()
        text = SuffixText()
        for output in outputs:
            text.extend((*output, _END))
        return text


class SuffixDrafter:
    """The drafter of one sequence: of its own text and of earlier outputs what promises more is drafted."""

    def __init__(self, config: SpeculativeConfig, earlier: EarlierOutputs, root: bytes) -> None:
        self._config = config
        self._earlier, self._root = earlier, root
        self._text = SuffixText()

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> tuple[int, ...]:
        """Return at most `num_tokens` that may follow `token_ids`, which continue those of the last call."""
        num_known = len(self._text.token_ids)
        self._text.extend(token_ids[num_known : num_known + MAX_INDEXED])
        if len(token_ids) < 2:
            return ()
        recent = token_ids[-max(2, self._config.suffix_decoding_max_tree_depth) :]
        texts = (self._text, self._earlier.text(self._root))
        drafts = [text.propose(recent, num_tokens, self._config) for text in texts]
        return max(drafts, key=lambda draft: draft[1])[0]
