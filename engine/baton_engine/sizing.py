"""Decides at start how many KV blocks a worker gets and how long its sequences may become."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import torch

from baton_core.errors import InvalidConfigError
from baton_core.kv_layout.kv_spec import KVSpec

logger = logging.getLogger(__name__)

GIB: Final = 1 << 30
DEFAULT_CPU_KV_BYTES: Final = GIB
"""Upper end of the default on a CPU, where the memory is everyone's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSettings:
    """The operator's settings of the KV cache of one worker.

    Raises:
        InvalidConfigError: a value is outside its range.
    """

    kv_cache_memory_bytes: int | None = None
    """Exact size; None takes a share of the free memory."""
    num_gpu_blocks_override: int | None = None
    """Exact number of blocks, whatever their size; it comes before `kv_cache_memory_bytes`."""
    memory_share: float = 0.9
    """Share of the free memory for weights and KV cache of all workers on this machine together; the rest is
    for what a step computes and for captured steps."""
    num_workers: int = 1
    """Workers that share this device's memory."""
    max_model_len: int | None = None
    """Longest sequence in tokens; None takes the model's, lowered to what fits."""
    min_model_len: int = 2
    """Least length of the longest sequence in tokens: a prompt and what follows it; 1 where nothing does."""
    max_num_batched_tokens: int = 2048
    """Token budget of a step: layers with a window keep a window and a chunk of a sequence."""

    def __post_init__(self) -> None:
        sizes = ("kv_cache_memory_bytes", "num_gpu_blocks_override", "num_workers", "max_model_len")
        for name in (*sizes, "max_num_batched_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidConfigError(f"{name} is {value}; allowed: an integer of at least 1")
        if not 0 < self.memory_share <= 1:
            raise InvalidConfigError(f"memory_share is {self.memory_share}; allowed: above 0 and at most 1")

    @property
    def size_name(self) -> str:
        """Name of the setting that makes the cache larger."""
        is_counted = self.num_gpu_blocks_override is not None
        return "num_gpu_blocks_override" if is_counted else "kv_cache_memory_bytes"

    def without_cache(self, longest: int, block_size: int, max_num_seqs: int) -> KVCacheSettings:
        """Return the settings with blocks for the tokens of a step, of prompts of up to `longest` tokens."""
        num_tokens = max(self.max_num_batched_tokens, self.max_model_len or longest)
        return replace(self, num_gpu_blocks_override=-(-num_tokens // block_size) + max_num_seqs)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBeside:
    """Memory for a second model beside a first, in bytes: its weights, and a KV cache that grows alike."""

    weight_bytes: int = 0
    block_bytes: int = 0
    """For each block of the first model's."""


NOTHING_BESIDE: Final = MemoryBeside()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryState:
    """A device's memory, in bytes: free before the weights were loaded, and what the weights take."""

    device_type: str
    free_bytes: int
    weight_bytes: int
    beside: MemoryBeside = NOTHING_BESIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCachePlan:
    """The KV cache of one worker."""

    num_blocks: int
    max_model_len: int


def plan_kv_cache(
    spec: KVSpec, max_position_embeddings: int, settings: KVCacheSettings, memory: MemoryState
) -> KVCachePlan:
    """Divide the memory into blocks.

    Raises:
        InvalidConfigError: as `kv_cache_bytes` and `plan_blocks`.
    """
    return plan_blocks(spec, max_position_embeddings, settings, kv_cache_bytes(spec, settings, memory))


def plan_blocks(
    spec: KVSpec, max_position_embeddings: int, settings: KVCacheSettings, kv_bytes: int
) -> KVCachePlan:
    """Divide so many bytes into blocks.

    Raises:
        InvalidConfigError: not one block fits, or the sequence length that the operator asks for is beyond
            the model or the cache.
    """
    num_blocks = kv_bytes // spec.block_bytes
    limit = max(max_position_embeddings, num_blocks * spec.block_size)
    capacity = spec.paging.max_tokens(num_blocks, settings.max_num_batched_tokens, limit)
    if not capacity:
        given = settings.num_gpu_blocks_override
        value, unit = (kv_bytes, spec.block_bytes) if given is None else (given, 1)
        least = len(spec.groups) * unit
        text = f"{settings.size_name} is {value}; allowed: at least {least}, a block for each KV group"
        raise InvalidConfigError(text)
    max_model_len = _max_model_len(settings, max_position_embeddings, capacity)
    return KVCachePlan(num_blocks=num_blocks, max_model_len=max_model_len)


def kv_cache_bytes(spec: KVSpec, settings: KVCacheSettings, memory: MemoryState) -> int:
    """Return the bytes of the memory that are for KV blocks.

    Raises:
        InvalidConfigError: the weights leave less than the operator asks for.
    """
    taken = memory.weight_bytes + memory.beside.weight_bytes
    each = spec.block_bytes + memory.beside.block_bytes
    left = max(0, memory.free_bytes - taken) * spec.block_bytes // each
    if settings.num_gpu_blocks_override is not None:
        most = left // spec.block_bytes
        if settings.num_gpu_blocks_override > most:
            raise InvalidConfigError(
                f"num_gpu_blocks_override is {settings.num_gpu_blocks_override}; "
                f"allowed: at most {most}, for which the weights leave room"
            )
        return settings.num_gpu_blocks_override * spec.block_bytes
    if settings.kv_cache_memory_bytes is not None:
        if settings.kv_cache_memory_bytes > left:
            raise InvalidConfigError(
                f"kv_cache_memory_bytes is {settings.kv_cache_memory_bytes}; "
                f"allowed: at most {left}, which the weights leave free"
            )
        return settings.kv_cache_memory_bytes
    share = int(memory.free_bytes * settings.memory_share) // settings.num_workers - taken
    share = max(0, share) * spec.block_bytes // each
    if memory.device_type == "cpu":
        share = min(share, DEFAULT_CPU_KV_BYTES)
    return share


def _max_model_len(settings: KVCacheSettings, max_position_embeddings: int, capacity: int) -> int:
    wanted, least = settings.max_model_len, settings.min_model_len
    if (longest := wanted or min(max_position_embeddings, capacity)) < least:
        raise InvalidConfigError(f"max_model_len is {longest}; allowed: at least {least} tokens")
    if wanted is not None:
        allowed = min(max_position_embeddings, capacity)
        if wanted > allowed:
            longer = ""
            if wanted > max_position_embeddings:
                longer = f'; hf_overrides {{"max_position_embeddings": {wanted}}} for a model that takes more'
            raise InvalidConfigError(
                f"max_model_len is {wanted}; allowed: at most {allowed} "
                f"(model {max_position_embeddings}, KV cache {capacity} tokens{longer})"
            )
        return wanted
    if capacity < max_position_embeddings:
        logger.warning(
            "max_model_len lowered from %d to %d tokens, which the KV cache holds; a larger %s "
            "holds more, and a given max_model_len that does not fit is refused",
            max_position_embeddings,
            capacity,
            settings.size_name,
        )
    return min(max_position_embeddings, capacity)


@contextmanager
def explaining_full_memory(settings: KVCacheSettings) -> Iterator[None]:
    """Turn a device's lack of memory beside the KV pool into an error that names what gives it some."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        kv_bytes = settings.kv_cache_memory_bytes
        name, value = (
            ("kv_cache_memory_bytes", kv_bytes) if kv_bytes else ("memory_share", settings.memory_share)
        )
        raise InvalidConfigError(
            f"{name} is {value} and leaves too little memory for steps ({error}); allowed: less, a smaller "
            "max_num_seqs or max_num_batched_tokens, or enforce_eager True"
        ) from error


def memory_table(spec: KVSpec, plan: KVCachePlan, memory: MemoryState) -> str:
    """Return the division of the memory as lines of text for the log."""
    kv_bytes = plan.num_blocks * spec.block_bytes
    num_tokens = plan.num_blocks // len(spec.groups) * spec.block_size
    beside = memory.beside.weight_bytes + plan.num_blocks * memory.beside.block_bytes
    rows = [
        ("weights", memory.weight_bytes, ""),
        ("KV cache", kv_bytes, f"{plan.num_blocks} blocks of {spec.block_size} tokens, {num_tokens} tokens"),
        *([("drafts", beside, "weights and KV cache of what drafts, at most")] if beside else []),
        ("left free", memory.free_bytes - memory.weight_bytes - kv_bytes - beside, ""),
    ]
    lines = [f"{name:<10}{size / GIB:>9.3f} GiB  {note}".rstrip() for name, size, note in rows]
    return "\n".join([f"memory of {memory.device_type}", *lines])
