"""The workers a router knows: who they are, what they hold, what this router has given them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from baton_core.block_hash import block_hashes, root_hash
from baton_core.errors import IncompatibleWorkerError
from baton_core.placement import WorkerView
from baton_core.prefix_index import PrefixIndex
from baton_core.router_messages import CacheDelta, KVSource, RequestSpec
from baton_core.worker_info import ModelIdentity, WorkerInfo, WorkerLoad


@dataclass(slots=True, kw_only=True)
class _Member:
    info: WorkerInfo
    load: WorkerLoad = field(default_factory=WorkerLoad)
    num_given_tokens: int = 0
    num_given_sequences: int = 0
    num_given_blocks: int = 0
    """Blocks of prompts that are on their way to it."""

    def can_reserve(self, num_blocks: int) -> bool:
        """Whether it would take a reservation, as its own rule says: half of its pool, or one alone."""
        is_within_half = self.num_given_blocks + num_blocks <= self.info.num_blocks // 2
        is_alone = not self.num_given_blocks
        return num_blocks <= self.load.num_available_blocks and (is_within_half or is_alone)


class Charge(NamedTuple):
    """What the ledger counts against a worker for one request."""

    worker_id: str
    num_tokens: int = 0
    """Prompt tokens to compute."""
    num_sequences: int = 0
    num_blocks: int = 0
    """Blocks of a prompt that is computed elsewhere."""


class Fleet:
    """Members of one model. The ledger counts what was given out and not yet taken back."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._index = PrefixIndex()

    @property
    def identity(self) -> ModelIdentity | None:
        """What every member shares; None while there is none."""
        first = next(iter(self._members.values()), None)
        return first.info.identity if first else None

    @property
    def is_ready(self) -> bool:
        """Whether some worker decodes and some worker prefills."""
        roles = [member.info.role for member in self._members.values()]
        return any(role.can_decode for role in roles) and any(role.can_prefill for role in roles)

    @property
    def max_model_len(self) -> int:
        """What every member can hold; 0 without members."""
        return min((member.info.max_model_len for member in self._members.values()), default=0)

    @property
    def is_ledger_empty(self) -> bool:
        members = self._members.values()
        return not any(m.num_given_tokens or m.num_given_sequences or m.num_given_blocks for m in members)

    def workers(self) -> list[tuple[WorkerInfo, WorkerLoad]]:
        return [(member.info, member.load) for member in self._members.values()]

    def check(self, info: WorkerInfo) -> None:
        """Refuse a worker that cannot exchange blocks with the members.

        Raises:
            IncompatibleWorkerError: names the field, its value and what is allowed.
        """
        if info.worker_id in self._members:
            raise IncompatibleWorkerError(
                f"worker_id is {info.worker_id!r}; allowed: a name that no registered worker has"
            )
        for member in self._members.values():
            member.info.identity.require_compatible(info.identity)

    def join(self, info: WorkerInfo) -> None:
        self.check(info)
        load = WorkerLoad(num_available_blocks=info.num_blocks)
        self._members[info.worker_id] = _Member(info=info, load=load)

    def leave(self, worker_id: str) -> None:
        self._members.pop(worker_id, None)
        self._index.drop(worker_id)

    def report(self, worker_id: str, load: WorkerLoad) -> None:
        if (member := self._members.get(worker_id)) is not None:
            member.load = load

    def apply_delta(self, worker_id: str, delta: CacheDelta) -> None:
        if worker_id in self._members:
            self._index.apply(worker_id, delta)

    def give(self, charge: Charge, *, sign: int = 1) -> None:
        """Count what is given to a worker; `sign` -1 takes it back."""
        if (member := self._members.get(charge.worker_id)) is not None:
            member.num_given_tokens += sign * charge.num_tokens
            member.num_given_sequences += sign * charge.num_sequences
            member.num_given_blocks += sign * charge.num_blocks

    def source(self, worker_id: str) -> KVSource:
        """Where a decode worker pulls from."""
        info = self._members[worker_id].info
        return KVSource(
            worker_id=worker_id,
            epoch=info.epoch,
            peer_address=info.peer_address,
            kv_description=info.kv_description,
        )

    def num_blocks(self, num_prompt_tokens: int) -> int:
        """Blocks that a computed prompt takes."""
        assert self.identity is not None, "only workers have blocks"
        return self.identity.paging.num_blocks(num_prompt_tokens)

    def prompt_hashes(self, spec: RequestSpec) -> list[bytes]:
        """Content addresses of the prompt's full blocks, as the members compute them."""
        assert self.identity is not None, "hashes depend on the model"
        root = root_hash(self.identity, spec.cache_salt)
        return block_hashes(root, spec.prompt_token_ids, self.identity.block_size)

    def views(self, num_prompt_tokens: int, hashes: Sequence[bytes]) -> list[WorkerView]:
        """The snapshot that placement decides on, for a prompt whose blocks have these hashes."""
        if self.identity is None:
            return []
        num_blocks = self.num_blocks(num_prompt_tokens)
        cached = self._index.num_cached_blocks(hashes, self._members)
        return [
            WorkerView(
                worker_id=worker_id,
                role=member.info.role,
                num_cached_tokens=cached[worker_id] * self.identity.block_size,
                num_queued_tokens=member.num_given_tokens,
                num_sequences=member.num_given_sequences,
                can_reserve=member.can_reserve(num_blocks),
            )
            for worker_id, member in self._members.items()
        ]
