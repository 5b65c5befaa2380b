"""Backend for workers anywhere: blocks travel over TCP with nothing else installed.

The connector's sockets, both ends, are used by the one thread that owns it, and nothing else writes what
arrives: so an order that `abort` has dropped changes no byte any more, and its late chunks are thrown away.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import torch
import zmq

from baton_core.blocks.kv_spec import KVSpec
from baton_kv.connector import (
    AbortResult,
    Capabilities,
    HolderUnreachableError,
    InvalidBlocksError,
    KVConnector,
    PullOrder,
    PullOutcome,
    VerifiesBy,
)
from baton_kv.curve import has_key
from baton_kv.description import Offer, decode_description, describe_pool
from baton_kv.landing import Landing
from baton_kv.orders import RunningOrder, require_in_range, require_sound
from baton_kv.pool_bytes import PoolBytes, as_pool, open_pool, require_blocks
from baton_kv.pool_memory import reserve_memory
from baton_kv.tcp_encrypted import EncryptedHolderWire, EncryptedPullerWires
from baton_kv.tcp_holder import BlockServer, ServedPool
from baton_kv.tcp_link import HolderAddress, HolderLink
from baton_kv.tcp_plain import PlainHolderWire, PlainPullerWires
from baton_kv.tcp_socket import TcpTimings
from baton_kv.tcp_wire import HolderWire, PullerWires
from baton_kv.transport import Listen
from baton_kv.wakeup import Wakeup


@dataclass(frozen=True, slots=True)
class _Local:
    served: ServedPool
    server: BlockServer
    address: str

    @property
    def blocks(self) -> PoolBytes:
        return self.served.blocks


@dataclass(slots=True)
class _Peer:
    epoch: int
    num_blocks: int
    spec: KVSpec
    """Of the peer's pool: how its blocks are laid out."""
    address: str
    link: HolderLink


class TcpConnector(KVConnector):
    """Sends and receives blocks in chunks; every block is checksummed.

    `connect` does not wait: an order is what finds out whether the holder can be reached. A connection that
    was lost is made anew by the next order.
    """

    capabilities: ClassVar = Capabilities(name="tcp", verifies_by=VerifiesBy.CHECKSUM, has_safe_abort=True)

    def __init__(
        self, spec: KVSpec, epoch: int, where: Listen | None = None, timings: TcpTimings | None = None
    ) -> None:
        self._spec = spec
        self._epoch = epoch
        self._listen = where or Listen()
        self._timings = timings or TcpTimings()
        self._context = zmq.Context()
        self._wakeup = Wakeup()
        self._local: _Local | None = None
        self._peers: dict[str, _Peer] = {}
        self._sources: dict[int, str] = {}
        """Peer of each order in flight."""
        self._ended: list[PullOutcome] = []

    # --- the local pool ---

    def allocate(self, num_blocks: int) -> torch.Tensor:
        require_blocks(num_blocks)
        memory, file = reserve_memory(num_blocks * self._spec.block_bytes)
        os.close(file)
        pool = as_pool(torch.frombuffer(memory, dtype=torch.uint8), self._spec)
        self.register(pool)
        return pool

    def register(self, pool: torch.Tensor) -> None:
        """Serve a pool that is placed already, on any device, instead of allocating one.

        Raises:
            InvalidConfigError: the address to listen on cannot be bound.
        """
        if self._local is not None:
            raise RuntimeError("the pool is already allocated")
        blocks = open_pool(pool)
        wires = self._listen_for_pullers(blocks)
        served = ServedPool(
            blocks=blocks,
            block_bytes=self._spec.block_bytes,
            epoch=self._epoch,
            token=secrets.token_hex(16),
        )
        server = BlockServer(wires, served, idle_s=self._timings.idle_s)
        self._local = _Local(served, server, f"{wires.address}/{served.token}")

    @property
    def offer(self) -> Offer:
        """How a description names the local pool: `tcp://host:port/token`, with a key `tcp://host:port#KEY/token`."""
        return Offer(self.capabilities.name, self._pool.address)

    @property
    def wires(self) -> PullerWires:
        """The connections to those who pull from the local pool."""
        return self._pool.server.wires

    def describe(self) -> bytes:
        return describe_pool(self._spec, self._epoch, len(self._pool.blocks), self.offer).encode()

    def seal(self, block_ids: Sequence[int]) -> tuple[int | None, ...]:
        pool = self._pool.blocks
        require_in_range("block_id", block_ids, len(pool))
        return tuple(pool.checksum(block_id) for block_id in block_ids)

    # --- pools of others ---

    def connect(self, peer_id: str, description: bytes) -> None:
        self.disconnect(peer_id)
        described = decode_description(description, self._spec)
        spec, address = described.spec(self._spec), described.address(self.capabilities.name)
        self._peers[peer_id] = _Peer(
            epoch=described.epoch,
            num_blocks=described.num_blocks,
            spec=spec,
            address=address,
            link=self._make_link(peer_id, spec, address),
        )

    def disconnect(self, peer_id: str) -> None:
        peer = self._peers.pop(peer_id, None)
        if peer is not None:
            peer.link.close(f"peer {peer_id!r} was disconnected")

    def pull(self, order: PullOrder) -> None:
        if order.pull_id in self._sources:
            raise ValueError(f"pull_id is {order.pull_id}; allowed: one that is not in flight")
        try:
            peer = self._require_sound(order)
        except InvalidBlocksError as error:
            self._ended.append(RunningOrder(order).end(str(error)))
            return
        if not order.copies:
            self._ended.append(RunningOrder(order).end())
            return
        if not peer.link.is_open:
            try:
                peer.link = self._make_link(order.source, peer.spec, peer.address)
            except HolderUnreachableError as error:
                self._ended.append(RunningOrder(order).end(str(error)))
                return
        self._sources[order.pull_id] = order.source
        peer.link.add(time.monotonic(), order)

    def abort(self, pull_id: int) -> AbortResult:
        source = self._sources.pop(pull_id, None)
        if source is not None:
            self._peers[source].link.drop(pull_id)
        self._ended = [outcome for outcome in self._ended if outcome.pull_id != pull_id]
        return AbortResult.FENCED

    # --- running ---

    def poll(self) -> list[PullOutcome]:
        now = time.monotonic()
        if self._local is not None:
            self._local.server.advance(now)
        for link in self._open_links():
            link.advance(now)
        ended, self._ended = self._ended, []
        return ended

    def wait(self, timeout_s: float | None = None) -> None:
        poller = zmq.Poller()
        poller.register(self._wakeup.file, zmq.POLLIN)
        ends = [link.files for link in self._open_links()]
        if self._local is not None:
            ends.append(self._local.server.wires.files)
        for file, events in chain.from_iterable(ends):
            poller.register(file, events)
        waits = [*self._waits(time.monotonic()), *([] if timeout_s is None else [timeout_s])]
        timeout_ms = math.ceil(1000 * max(0.0, min(waits))) if waits else None
        if (self._wakeup.file, zmq.POLLIN) in poller.poll(timeout_ms):
            self._wakeup.clear()

    def wake(self) -> None:
        self._wakeup.set()

    def close(self) -> None:
        for peer_id in list(self._peers):
            self.disconnect(peer_id)
        self._ended.clear()
        self._sources.clear()
        if self._local is not None:
            self._local.server.wires.close()
            self._local = None
        self._context.destroy(linger=0)

    # --- parts ---

    @property
    def _pool(self) -> _Local:
        if self._local is None:
            raise RuntimeError("the pool is not allocated")
        return self._local

    def _waits(self, now: float) -> list[float]:
        """For how long each thing that is under way may be left alone."""
        if self._ended or (self._local is not None and self._local.server.can_send):
            return [0.0]
        deadlines = [link.next_deadline() for link in self._open_links()]
        if self._local is not None:
            deadlines.append(self._local.server.next_deadline())
        return [deadline - now for deadline in deadlines if deadline is not None]

    def _open_links(self) -> list[HolderLink]:
        return [peer.link for peer in self._peers.values() if peer.link.is_open]

    def _make_link(self, peer_id: str, spec: KVSpec, address: str) -> HolderLink:
        """Begin to connect.

        Raises:
            HolderUnreachableError: that is no address.
        """
        endpoint, _, token = address.rpartition("/")
        try:
            if not endpoint.startswith("tcp://"):
                raise ValueError("another form")
            wire: HolderWire = (
                EncryptedHolderWire(self._context, endpoint, self._timings)
                if has_key(endpoint)
                else PlainHolderWire(endpoint, self._timings)
            )
        except (zmq.ZMQError, OSError, ValueError) as error:
            raise HolderUnreachableError("address", address, f"tcp://host:port/token ({error})") from None
        return HolderLink(
            wire,
            HolderAddress(name=f"holder {peer_id!r}", endpoint=endpoint.partition("#")[0], token=token),
            Landing(self._pool.blocks, self._spec, spec),
            silence_s=self._timings.silence_s,
            on_end=self._on_end,
        )

    def _listen_for_pullers(self, blocks: PoolBytes) -> PlainPullerWires | EncryptedPullerWires:
        if self._listen.curve is None:
            return PlainPullerWires(self._listen, self._timings, blocks)
        return EncryptedPullerWires(self._context, self._listen, self._timings, blocks, self._wakeup.set)

    def _require_sound(self, order: PullOrder) -> _Peer:
        peer = self._peers.get(order.source)
        if peer is None:
            raise InvalidBlocksError("source", order.source, f"one of {sorted(self._peers)}")
        require_sound(
            order,
            epoch=peer.epoch,
            num_remote_blocks=peer.num_blocks,
            num_local_blocks=len(self._pool.blocks),
        )
        return peer

    def _on_end(self, outcome: PullOutcome) -> None:
        del self._sources[outcome.pull_id]
        self._ended.append(outcome)
