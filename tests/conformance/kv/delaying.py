"""A connector that holds pulls back until a gate opens: for tests of what happens in between."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import torch

from baton_core.worker.worker_events import Pull, PullAborted, PullDone
from baton_kv.connector import KVConnector
from baton_kv.part_reads import PartRead
from baton_kv.pool_memory import Lend

_WAIT_S: Final = 0.001


class DelayingConnector(KVConnector):
    """Starts no pull of `inner` while `gate` is clear; everything else passes through."""

    def __init__(self, inner: KVConnector, gate: threading.Event) -> None:
        self._inner = inner
        self._gate = gate
        self._held: dict[int, Pull] = {}
        self.capabilities = inner.capabilities

    def allocate(self, num_blocks: int, lend: Lend | None = None) -> torch.Tensor:
        return self._inner.allocate(num_blocks, lend)

    def describe(self) -> bytes:
        return self._inner.describe()

    def connect(self, peer_id: str, description: bytes, part: PartRead | None = None) -> None:
        self._inner.connect(peer_id, description, part)

    def compute_checksums(self, block_ids: Sequence[int]) -> tuple[int | None, ...]:
        return self._inner.compute_checksums(block_ids)

    def pull(self, pull: Pull) -> None:
        self._held[pull.pull_id] = pull

    def poll(self) -> list[PullDone]:
        if self._held and self._gate.wait(_WAIT_S):
            for pull in self._held.values():
                self._inner.pull(pull)
            self._held.clear()
        return self._inner.poll()

    def wait(self, timeout_s: float | None = None) -> None:
        if not self._held:
            self._inner.wait(timeout_s)

    def wake(self) -> None:
        self._inner.wake()

    def abort(self, pull_id: int) -> PullAborted:
        if self._held.pop(pull_id, None) is not None:
            return PullAborted(pull_id=pull_id, is_fenced=True)
        return self._inner.abort(pull_id)

    def gone_peers(self) -> list[str]:
        return self._inner.gone_peers()

    def disconnect(self, peer_id: str) -> None:
        self._inner.disconnect(peer_id)

    def close(self) -> None:
        self._held.clear()
        self._inner.close()
