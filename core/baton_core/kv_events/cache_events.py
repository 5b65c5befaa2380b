"""Makes KV events of a cache's changes, given what the stored blocks contain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.kv_events.events import DEVICE_MEDIUM, AllBlocksCleared, BlockRemoved, BlockStored, KVEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockContent:
    """The content behind the hash of a full block of the first KV group."""

    index: int
    """Place in its sequence."""
    parent: bytes | None
    """Hash of the block before it; None for the first one."""
    token_ids: tuple[int, ...]
    cache_salt: str = ""
    embeds_digest: bytes = b""
    """Digest of the embeddings that stand in the place of some of its tokens; empty without any."""
    adapter_digest: str = ""
    """Digest of the LoRA adapter that computed it; empty is the model alone."""
    adapter_name: str | None = None
    adapter_number: int | None = None
    """The id of that adapter, where it has one."""


def cache_events(
    delta: CacheDelta, contents: Sequence[BlockContent], *, block_size: int, epoch: int
) -> tuple[KVEvent, ...]:
    """The events of one change; `contents` are those of `delta.stored`, in its order.

    Blocks that follow each other share an event, and a prefix comes before what extends it.
    """
    events: list[KVEvent] = []
    if delta.is_snapshot:
        events.append(AllBlocksCleared(epoch=epoch))
    if delta.removed:
        events.append(BlockRemoved(block_hashes=delta.removed, medium=DEVICE_MEDIUM, epoch=epoch))
    for run in _runs(delta.stored, contents):
        blocks = [content for _, content in run]
        event = BlockStored(
            block_hashes=tuple(block_hash for block_hash, _ in run),
            parent_block_hash=blocks[0].parent,
            token_ids=tuple(token_id for block in blocks for token_id in block.token_ids),
            block_size=block_size,
            lora_id=blocks[0].adapter_number,
            medium=DEVICE_MEDIUM,
            lora_name=blocks[0].adapter_name,
            extra_keys=_extra_keys(blocks),
            epoch=epoch,
        )
        events.append(event)
    return tuple(events)


_Run = list[tuple[bytes, BlockContent]]


def _runs(stored: Sequence[bytes], contents: Sequence[BlockContent]) -> list[_Run]:
    runs: list[_Run] = []
    open_runs: dict[bytes, _Run] = {}
    """By the hash of their last block."""
    for block_hash, content in sorted(zip(stored, contents, strict=True), key=lambda block: block[1].index):
        run = None if content.parent is None else open_runs.pop(content.parent, None)
        if run is None:
            run = []
            runs.append(run)
        run.append((block_hash, content))
        open_runs[block_hash] = run
    return runs


def _extra_keys(blocks: Sequence[BlockContent]) -> tuple[tuple[str, ...] | None, ...] | None:
    """The salt is a key of a sequence's first block, and through it of all that follow.

    So is the digest of its adapter. A digest of embeddings, in hexadecimal digits, is a key of the block
    that has them.
    """
    keys = tuple(_keys_of(block) or None for block in blocks)
    return keys if any(keys) else None


def _keys_of(block: BlockContent) -> tuple[str, ...]:
    salt = "" if block.index else block.cache_salt
    adapter = "" if block.index else block.adapter_digest
    return tuple(key for key in (salt, adapter, block.embeds_digest.hex()) if key)
