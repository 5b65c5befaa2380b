"""Under which host the other workers reach this one."""

from __future__ import annotations

import socket
from typing import Final

from baton_core.errors import InvalidConfigError

_TCP: Final = "tcp://"
_WILDCARDS: Final = ("0.0.0.0", "[::]")  # noqa: S104 (recognised, not bound)


def bound_host(address: str) -> str:
    """Host of a bound address; an address that is not TCP's is this machine's."""
    return address.removeprefix(_TCP).rpartition(":")[0] if address.startswith(_TCP) else "127.0.0.1"


def reachable_host(address: str, advertised: str, router: str) -> str:
    """Return `advertised`, or else the host of the bound `address`.

    For one that is bound to all interfaces: that of the interface through which this machine reaches
    `router` (`host:port`).

    Raises:
        InvalidConfigError: there is no way to the router.
    """
    host = advertised or bound_host(address)
    return _host_towards(router) if host in _WILDCARDS else host


def with_host(address: str, host: str) -> str:
    """Put another host into a TCP address; other addresses stay as they are."""
    return f"{_TCP}{host}:{address.rpartition(':')[2]}" if address.startswith(_TCP) else address


def _host_towards(router: str) -> str:
    host, _, port = router.rpartition(":")
    try:
        family, kind, _, _, where = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)  # sends nothing
            found: str = probe.getsockname()[0]
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise InvalidConfigError(
            f"--advertise-host is not given, and no interface leads to router {router!r} ({reason}); "
            "allowed: a host under which other machines reach this one"
        ) from None
    return f"[{found}]" if family == socket.AF_INET6 else found
