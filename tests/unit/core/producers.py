"""A producer of blocks whose consumers are played by a test."""

from __future__ import annotations

from typing import Any

from baton_core.blocks.block_pool import BlockPool
from baton_core.sessions.peer_messages import (
    BlockOffer,
    BlocksReady,
    LeaseGone,
    LeaseRenew,
    Release,
    Subscribe,
    ToProducer,
)
from baton_core.worker.worker_events import SendToConsumer, WorkerEffect
from baton_prefill.core.lease_table import LeaseTable, LeaseTimings

EPOCH = 3
PEER = b"d"


class Producer:
    """A lease table over eight blocks; blocks 0 to 3 are the prompt of request `r`."""

    def __init__(self, *, has_checksums: bool = False) -> None:
        self.pool = BlockPool(8)
        self.table = self.pool.allocate(4) or []
        self.leases = LeaseTable(self.pool, epoch=EPOCH, has_checksums=has_checksums, timings=LeaseTimings())

    def prefill(self, *, num_ready: int = 4, now: float = 0.0) -> list[WorkerEffect]:
        """The prompt is computed up to `num_ready` blocks; with all of them the request ends."""
        effects = self.leases.open(now, "r")
        effects += self.add_blocks(num_ready)
        if num_ready == 4:
            self.leases.complete(now, "r")
            self.pool.release(self.table)
        return effects

    def add_blocks(self, num_ready: int) -> list[WorkerEffect]:
        """The first `num_ready` blocks are computed."""
        return self.leases.add_blocks("r", dict(enumerate(self.table[:num_ready])))

    def hear(self, message: ToProducer, *, now: float = 0.0, peer: bytes = PEER) -> list[Any]:
        """The messages that answer `message`."""
        effects = self.leases.on_message(now, peer, message)
        self.leases.check_invariants()
        assert all(isinstance(effect, SendToConsumer) and effect.peer_id == peer for effect in effects)
        return [effect.message for effect in effects if isinstance(effect, SendToConsumer)]


def subscribe(*, transfer_id: str = "t", epoch: int = EPOCH, **changes: Any) -> Subscribe:
    fields: dict[str, Any] = {"request_id": "r", "indices": (0, 1, 2, 3), "lease_s": 10.0}
    return Subscribe(transfer_id=transfer_id, producer_epoch=epoch, **{**fields, **changes})


def renew(renewal: int = 1, *, missing: tuple[int, ...] = ()) -> LeaseRenew:
    return LeaseRenew(transfer_id="t", producer_epoch=EPOCH, missing=missing, renewal=renewal)


RELEASE = Release(transfer_id="t", producer_epoch=EPOCH)


def offer(index: int, *, generation: int = 1, checksum: int | None = None) -> BlockOffer:
    return BlockOffer(index=index, block_id=index, generation=generation, checksum=checksum)


def ready(*indices: int, renewal: int = 0) -> BlocksReady:
    return BlocksReady(
        transfer_id="t", producer_epoch=EPOCH, offers=tuple(offer(i) for i in indices), renewal=renewal
    )


def gone(reason: str, transfer_id: str = "t") -> LeaseGone:
    return LeaseGone(transfer_id=transfer_id, producer_epoch=EPOCH, reason=reason)
