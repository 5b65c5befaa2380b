"""Between the connector of a group's leader and those of its other ranks, where each rank has a KV pool."""

from __future__ import annotations

from collections.abc import Iterable
from queue import SimpleQueue

import msgspec

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.ranks.rank_layout import ParallelSizes, RankPlace
from baton_kv.backends import CONNECTORS
from baton_kv.connector import KVConnector
from baton_kv.curve import CurveKeys
from baton_kv.group_connector import Answer, GroupConnector, SendEffect
from baton_kv.rank_connector import RankConnector
from baton_kv.row_copies import CopyRows
from baton_kv.transfer_thread import TransferEffect
from baton_kv.transport import Listen, Transport


class KVEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks of a group serve their pools to other workers."""

    transport: Transport
    epoch: int
    host: str
    """Address at which ranks of the leader's machine listen; those of others take their own."""
    advertised_host: str
    is_encrypted: bool

    def listen(self, own_host: str) -> Listen:
        """Return where a rank listens, with keys of its own; `own_host` is empty on the leader's machine."""
        return Listen(
            host=own_host or self.host,
            advertised_host=own_host or self.advertised_host,
            curve=CurveKeys.make() if self.is_encrypted else None,
        )


def rank_connector(
    spec: KVSpec, place: RankPlace, endpoint: KVEndpoint, listen: Listen, copy: CopyRows
) -> RankConnector:
    """Return the connector of one rank, given the spec of whole blocks."""
    make = CONNECTORS[endpoint.transport]
    return RankConnector(spec, place, lambda own: make(own, endpoint.epoch, listen, copy))


class GroupTransfers:
    """Makes the leader's connector, and carries what it sends other ranks and what they answer."""

    def __init__(self, sizes: ParallelSizes, endpoint: KVEndpoint, listen: Listen, copy: CopyRows) -> None:
        self.endpoint = endpoint
        self._sizes = sizes
        self._listen = listen
        self._copy = copy
        self._send: SendEffect | None = None
        self._answers: SimpleQueue[tuple[int, Answer]] = SimpleQueue()
        self._connector: KVConnector | None = None

    def attach(self, send: SendEffect) -> None:
        """Let `send` reach the other ranks."""
        self._send = send

    def make_connector(self, spec: KVSpec) -> KVConnector:
        """Return the connector of the group for whole blocks of `spec`."""
        leader = RankPlace(sizes=self._sizes, rank=self._sizes.leader)
        own = rank_connector(spec, leader, self.endpoint, self._listen, self._copy)
        self._connector = GroupConnector(
            spec, self.endpoint.epoch, self._sizes, own, self._send_to, self._answers
        )
        return self._connector

    def take(self, rank: int, answers: Iterable[Answer]) -> None:
        """Take what another rank says; any thread may call it, also before there is a connector."""
        for answer in answers:
            self._answers.put((rank, answer))
        if self._connector is not None:
            self._connector.wake()

    def _send_to(self, rank: int, effect: TransferEffect) -> None:
        assert self._send is not None, "a group of several ranks is attached"
        self._send(rank, effect)
