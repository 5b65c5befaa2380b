"""Index from content hash to block, for valid blocks and for those being pulled.

Routers hear of the first KV group's blocks: a worker that has those of a prompt mostly has the others'.
"""

from __future__ import annotations

from collections.abc import Iterable

from baton_core.blocks.block_hash import is_in_first_group
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.kv_events.cache_events import BlockContent


class PrefixCache:
    """Index of one block pool. A hash names at most one valid and at most one importing block.

    One that is not enabled stays empty.
    """

    def __init__(self, *, is_enabled: bool = True) -> None:
        self.is_enabled = is_enabled
        self.num_queried_tokens = 0
        """Prompt tokens that requests looked for, when they began here."""
        self.num_hit_tokens = 0
        """Queried tokens that were found."""
        self._valid: dict[bytes, int] = {}
        self._pulling: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._stored: dict[bytes, BlockContent | None] = {}
        self._removed: dict[bytes, None] = {}
        self._is_cleared = False
        """True if it was empty since the last change was taken; `_stored` came after."""
        self._num_changes = 0

    def find(self, block_hash: bytes) -> int | None:
        """The valid block with this content."""
        return self._valid.get(block_hash)

    def find_pulling(self, block_hash: bytes) -> int | None:
        """The block that this content is being imported into."""
        return self._pulling.get(block_hash)

    def blocks(self, block_hashes: Iterable[bytes]) -> list[int]:
        """The valid blocks with these contents, each of which there must be."""
        return [self._valid[block_hash] for block_hash in block_hashes]

    def note_lookup(self, num_tokens: int, num_found: int) -> None:
        """Count that a prompt of so many tokens was looked for."""
        if self.is_enabled:
            self.num_queried_tokens += num_tokens
            self.num_hit_tokens += num_found

    def block_ids(self) -> set[int]:
        """The valid blocks that can be found."""
        return set(self._hash_of)

    def hash_of(self, block_id: int) -> bytes | None:
        return self._hash_of.get(block_id)

    @property
    def pending_contents(self) -> tuple[BlockContent, ...]:
        """Contents of the blocks that the next delta publishes as stored, in its order, as far as known."""
        return tuple(content for content in self._stored.values() if content is not None)

    def insert(self, block_id: int, block_hash: bytes, content: BlockContent | None = None) -> bool:
        """Make a valid block findable. False when another block has this content already, or it is off.

        `content` is what `pending_contents` says of it.
        """
        if not self.is_enabled or block_hash in self._valid:
            return False
        self._valid[block_hash] = block_id
        self._hash_of[block_id] = block_hash
        if block_hash in self._removed:
            del self._removed[block_hash]
        elif is_in_first_group(block_hash):
            self._stored[block_hash] = content
        return True

    def remove(self, block_id: int) -> None:
        """Forget a valid block, if it is known."""
        block_hash = self._hash_of.pop(block_id, None)
        if block_hash is None:
            return
        del self._valid[block_hash]
        if block_hash in self._stored:
            del self._stored[block_hash]
        elif is_in_first_group(block_hash):
            self._removed[block_hash] = None

    def begin_pull(self, block_id: int, block_hash: bytes) -> None:
        if self.is_enabled:
            self._pulling[block_hash] = block_id

    def end_pull(self, block_id: int, block_hash: bytes) -> None:
        if self._pulling.get(block_hash) == block_id:
            del self._pulling[block_hash]

    def mark_cleared(self) -> None:
        """Tell of an empty cache, which it must be, in one word instead of block by block."""
        assert not self._valid, "blocks can still be found"
        self._removed, self._is_cleared = {}, True

    def take_delta(self) -> CacheDelta | None:
        """Take the changes since the last call, under the next number; None if there are none."""
        if not self._stored and not self._removed and not self._is_cleared:
            return None
        self._num_changes += 1
        delta = CacheDelta(
            stored=tuple(self._stored),
            removed=tuple(self._removed),
            number=self._num_changes,
            is_snapshot=self._is_cleared,
        )
        self._stored, self._removed, self._is_cleared = {}, {}, False
        return delta

    def snapshot(self) -> CacheDelta:
        """Return every findable hash, for a subscriber that has heard nothing yet.

        It has the number of the last change taken; what it holds of the next one may be told again.
        """
        stored = tuple(block_hash for block_hash in self._valid if is_in_first_group(block_hash))
        return CacheDelta(stored=stored, number=self._num_changes, is_snapshot=True)

    def __len__(self) -> int:
        return len(self._valid)
