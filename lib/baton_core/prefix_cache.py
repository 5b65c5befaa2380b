"""Which block holds which content: hash to block, for valid blocks and for those being imported.

Routers hear of the first KV group's blocks: a worker that has those of a prompt mostly has the others'.
"""

from __future__ import annotations

from collections.abc import Iterable

from baton_core.block_hash import is_in_first_group
from baton_core.router_messages import CacheDelta


class PrefixCache:
    """Index of one block pool. A hash names at most one valid and at most one importing block."""

    def __init__(self) -> None:
        self._valid: dict[bytes, int] = {}
        self._importing: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._stored: dict[bytes, None] = {}
        self._removed: dict[bytes, None] = {}

    def find(self, block_hash: bytes) -> int | None:
        """The valid block with this content."""
        return self._valid.get(block_hash)

    def find_importing(self, block_hash: bytes) -> int | None:
        """The block that this content is being imported into."""
        return self._importing.get(block_hash)

    def blocks(self, block_hashes: Iterable[bytes]) -> list[int]:
        """The valid blocks with these contents, each of which there must be."""
        return [self._valid[block_hash] for block_hash in block_hashes]

    def hash_of(self, block_id: int) -> bytes | None:
        return self._hash_of.get(block_id)

    def insert(self, block_id: int, block_hash: bytes) -> bool:
        """Make a valid block findable. False when another block has this content already."""
        if block_hash in self._valid:
            return False
        self._valid[block_hash] = block_id
        self._hash_of[block_id] = block_hash
        if block_hash in self._removed:
            del self._removed[block_hash]
        elif is_in_first_group(block_hash):
            self._stored[block_hash] = None
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

    def begin_import(self, block_id: int, block_hash: bytes) -> None:
        self._importing[block_hash] = block_id

    def end_import(self, block_id: int, block_hash: bytes) -> None:
        if self._importing.get(block_hash) == block_id:
            del self._importing[block_hash]

    def take_delta(self) -> CacheDelta | None:
        """What changed since the last call; None when nothing did."""
        if not self._stored and not self._removed:
            return None
        delta = CacheDelta(stored=tuple(self._stored), removed=tuple(self._removed))
        self._stored, self._removed = {}, {}
        return delta

    def snapshot(self) -> tuple[bytes, ...]:
        """What a router that has just joined has to know: every findable hash."""
        return tuple(block_hash for block_hash in self._valid if is_in_first_group(block_hash))

    def __len__(self) -> int:
        return len(self._valid)
