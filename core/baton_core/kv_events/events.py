"""KV events: what became findable in a worker's cache and what no longer is, as vLLM publishes it.

Names and order of the fields are those of the wire; `baton_core.kv_events.encoding` writes and reads them.
`epoch` is ours: theirs do not mark a restart.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

BlockHash = bytes | int
"""Ours are 16 bytes; other producers also send the low 64 bits of theirs."""

DEVICE_MEDIUM: Final = "GPU"
"""vLLM's name of the pool that the model computes in, on whatever device."""


class BlockStored(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Blocks of one sequence that follow each other."""

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    """Hash of the block before the first one; None at the start of a sequence."""
    token_ids: tuple[int, ...]
    """Token ids of all blocks, `block_size` each."""
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: tuple[tuple[Any, ...] | None, ...] | None = None
    """Keys that the hashes cover besides the tokens, for each block."""
    group_idx: int | None = None
    """The KV group; None is the first one, as it is here always."""
    epoch: int | None = None


class BlockRemoved(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    block_hashes: tuple[BlockHash, ...]
    medium: str | None
    group_idx: int | None = None
    epoch: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """The whole cache was cleared."""

    epoch: int | None = None


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared
