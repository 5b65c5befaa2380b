"""Options of gRPC servers and channels: how large a message may be, and how a dead connection is noticed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

Options: TypeAlias = tuple[tuple[str, int], ...]

MAX_GRPC_BYTES: Final = 4 * 2**20
"""Of one message."""

MESSAGE_OPTIONS: Final[Options] = (
    ("grpc.max_receive_message_length", MAX_GRPC_BYTES),
    ("grpc.max_send_message_length", MAX_GRPC_BYTES),
)
MAX_METADATA_BYTES: Final = 16 * 2**10
"""Of one call; over half of it some calls are refused already."""
MAX_STREAMS: Final = 4096
"""Calls of one connection at a time; more wait at the client."""
IDLE_MS: Final = 600_000
"""That a connection without a call stays open; clients connect again by themselves."""
HANDSHAKE_MS: Final = 20_000
"""Within which a connection has to show that it speaks the protocol."""
_MIN_PING_INTERVAL_MS: Final = 5_000
_IDENTITY_ONLY: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepalive:
    """A ping after `time_s` without a byte from the peer; without an answer in `timeout_s` it is dead."""

    time_s: float
    timeout_s: float

    @property
    def options(self) -> Options:
        return (
            ("grpc.keepalive_time_ms", int(1e3 * self.time_s)),
            ("grpc.keepalive_timeout_ms", int(1e3 * self.timeout_s)),
            ("grpc.http2.ping_timeout_ms", int(1e3 * self.timeout_s)),  # otherwise its minute holds
            ("grpc.http2.max_pings_without_data", 0),  # as many as it takes: an answer may take its time
        )


SERVER_KEEPALIVE: Final = Keepalive(time_s=10.0, timeout_s=5.0)
CLIENT_KEEPALIVE: Final = Keepalive(time_s=30.0, timeout_s=10.0)
"""Only while a call is open, and rarely enough for proxies that count pings."""


def server_options(keepalive: Keepalive) -> Options:
    """Options of a server that also pings idle connections, and lets clients ping them."""
    return (
        *MESSAGE_OPTIONS,
        *keepalive.options,
        # gRPC measures a message after decompressing it, and 4 MiB of gzip may hold 4 GiB.
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ONLY),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES // 2),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_connection_idle_ms", IDLE_MS),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.so_reuseport", 0),  # two processes on one port would share its connections unnoticed
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
    )


def client_options(keepalive: Keepalive = CLIENT_KEEPALIVE) -> Options:
    """Options of a client's channel."""
    return (*MESSAGE_OPTIONS, *keepalive.options)
