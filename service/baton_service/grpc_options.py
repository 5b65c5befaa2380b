"""Options of gRPC servers and channels: how large a message may be, and how a dead connection is noticed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from baton_core.prompt_embeds import MAX_EMBEDS_BYTES

Options: TypeAlias = tuple[tuple[str, int], ...]

MAX_GRPC_BYTES: Final = 4 * 2**20
"""Largest size of one message without embeddings."""
MAX_EMBEDDED_BYTES: Final = 2 * MAX_EMBEDS_BYTES
"""Largest size of one message with embeddings, and with what comes with each row."""
MAX_METADATA_BYTES: Final = 16 * 2**10
"""Largest metadata of one call; some calls over half of it are already refused."""
MAX_CONNECTIONS: Final = 8192
"""Connections of one server at a time; one more is closed."""
MAX_STREAMS: Final = 4096
"""Calls of one connection at a time.

gRPC counts those that have just ended too, and so refuses clients that keep to the limit: it is several times
what they need. This overload protection of gRPC stays on: without it, calls that are reset at once leave over
10 KB each, which are not freed.
"""
IDLE_MS: Final = 600_000
"""Time that a connection without a call stays open; clients reconnect by themselves."""
HANDSHAKE_MS: Final = 10_000
"""Time within which a connection must complete its handshake; silent ones occupy a place that long."""
DIRECT: Final[Options] = (("grpc.enable_http_proxy", 0),)
"""Option of a channel to an address of the fleet: `http_proxy` of the environment does not redirect it."""
_MIN_PING_INTERVAL_MS: Final = 5_000
_IDENTITY_ONLY: Final = 1
_MAX_OPTION: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepalive:
    """Pings after `time_s` without a byte from the peer, which is dead without a reply in `timeout_s`."""

    time_s: float
    timeout_s: float

    @property
    def options(self) -> Options:
        return (
            ("grpc.keepalive_time_ms", int(1e3 * self.time_s)),
            ("grpc.keepalive_timeout_ms", int(1e3 * self.timeout_s)),
            ("grpc.http2.ping_timeout_ms", int(1e3 * self.timeout_s)),  # otherwise its minute holds
            ("grpc.http2.max_pings_without_data", 0),  # unlimited: a reply may take long
        )


SERVER_KEEPALIVE: Final = Keepalive(time_s=10.0, timeout_s=5.0)
CLIENT_KEEPALIVE: Final = Keepalive(time_s=30.0, timeout_s=10.0)
"""Pings are sent only while a call is open, and rarely enough for proxies that count them."""


def message_options(max_message_bytes: int = MAX_GRPC_BYTES) -> Options:
    """Options of an end that takes messages up to this size; it may send some with embeddings."""
    return (
        ("grpc.max_receive_message_length", min(max_message_bytes, _MAX_OPTION)),
        ("grpc.max_send_message_length", MAX_EMBEDDED_BYTES),
    )


def server_options(
    keepalive: Keepalive,
    max_connections: int = MAX_CONNECTIONS,
    *,
    max_message_bytes: int = MAX_GRPC_BYTES,
    shares_ports: bool = False,
) -> Options:
    """Options of a server that also pings idle connections, and lets clients ping them."""
    return (
        *message_options(max_message_bytes),
        *keepalive.options,
        # gRPC measures a message after decompressing it, and 4 MiB of gzip may hold 4 GiB.
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ONLY),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES // 2),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.max_connection_idle_ms", IDLE_MS),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.so_reuseport", int(shares_ports)),  # otherwise a second process would take half unnoticed
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
    )


def client_options(keepalive: Keepalive = CLIENT_KEEPALIVE) -> Options:
    """Options of a client's channel."""
    return (*message_options(), *keepalive.options)
