"""Content addresses of KV blocks: chained 128-bit hashes.

A block's hash covers every token up to its end, or the embedding in its place, so equal hashes mean equal KV.
The root covers what else KV depends on: model identity, tenant salt and adapter. In KV groups after the
first, the group follows the hash.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import astuple
from functools import lru_cache
from hashlib import blake2b

from baton_core.model.model_identity import ModelIdentity
from baton_core.prompt_embeds import PromptEmbeds, digest_between

HASH_BYTES = 16
_NOT_HASHED = frozenset({"transport", "numerics"})
MAX_ROOTS = 1024
"""Roots that are remembered, one for each tenant salt and adapter."""


@lru_cache(maxsize=MAX_ROOTS)
def root_hash(identity: ModelIdentity, cache_salt: str = "", adapter_digest: str = "") -> bytes:
    """Parent of a sequence's first block; `adapter_digest` is that of its LoRA adapter.

    `transport` is left out: it moves blocks, it does not make them. So is `numerics`: workers that differ in
    it never meet, and blocks do not outlive their worker.
    """
    parts = (*(str(part) for name, part in _named(identity) if name not in _NOT_HASHED), cache_salt)
    parts += (adapter_digest,) if adapter_digest else ()
    framed = b"".join(len(part.encode()).to_bytes(4, "little") + part.encode() for part in parts)
    return blake2b(framed, digest_size=HASH_BYTES).digest()


def child_hash(parent: bytes, token_ids: Sequence[int], embeds: bytes = b"") -> bytes:
    """Hash of a full block of `token_ids` that follows the block hashed `parent`.

    `embeds` is the digest of the embeddings that some of its tokens stand for.
    """
    return blake2b(parent + array("I", token_ids).tobytes() + embeds, digest_size=HASH_BYTES).digest()


def block_hashes(
    root: bytes, token_ids: Sequence[int], block_size: int, embeds: Sequence[PromptEmbeds] = ()
) -> list[bytes]:
    """Hashes of the full blocks of a sequence, in order; a partial last block has none."""
    hashes: list[bytes] = []
    extend_hashes(hashes, root, token_ids, block_size, embeds)
    return hashes


def extend_hashes(
    hashes: list[bytes],
    root: bytes,
    token_ids: Sequence[int],
    block_size: int,
    embeds: Sequence[PromptEmbeds] = (),
) -> None:
    """Append to `hashes`, which cover a prefix of `token_ids`, those of the full blocks that follow."""
    for start in range(len(hashes) * block_size, len(token_ids) - block_size + 1, block_size):
        parent, end = hashes[-1] if hashes else root, start + block_size
        hashes.append(child_hash(parent, token_ids[start:end], digest_between(embeds, start, end)))


def group_address(block_hash: bytes, group: int) -> bytes:
    """Address of the block that holds the same tokens in a KV group; the first group's is the hash itself."""
    return block_hash + group.to_bytes(2, "little") if group else block_hash


def is_in_first_group(address: bytes) -> bool:
    """True if a block is of the first KV group, the one that routers know of."""
    return len(address) <= HASH_BYTES


def _named(identity: ModelIdentity) -> list[tuple[str, object]]:
    return list(zip(identity.__slots__, astuple(identity), strict=True))
