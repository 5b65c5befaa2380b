"""Finds the host under which the cluster's other processes reach this one."""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from typing import Final

from baton_core.errors import InvalidConfigError

_TCP: Final = "tcp://"
FAR_AWAY: Final = "192.0.2.1:9"
"""An address that nobody has; the interface of the default route leads to it."""
_UNRESOLVED: Final = (socket.EAI_AGAIN, socket.EAI_NONAME)
_log = logging.getLogger(__name__)
_WILDCARDS: Final = {"0.0.0.0": socket.AF_INET, "[::]": socket.AF_UNSPEC}  # noqa: S104 (not bound)
"""Wildcard addresses, and the family of the addresses that reach a socket bound to them."""


def bound_host(address: str) -> str:
    """Host of a bound address; an address that is not TCP's is this machine's."""
    return address.removeprefix(_TCP).rpartition(":")[0] if address.startswith(_TCP) else "127.0.0.1"


def reachable_host(address: str, advertised: str, towards: str) -> str:
    """Return the address of `advertised`, or else the host of the bound `address`.

    For one that is bound to all interfaces: that of the interface through which this machine reaches
    `towards` (`host:port`), or to the rest of the world while that has no address. A name is looked up here,
    once, so that no peer ever waits for it.

    Raises:
        InvalidConfigError: the host does not resolve, or there is no way to `towards`.
    """
    bound = bound_host(address)
    host = resolve(advertised or bound, bound, "--advertise-host" if advertised else "the bound host")
    return _host_towards(towards, _WILDCARDS[host]) if host in _WILDCARDS else host


def with_host(address: str, host: str) -> str:
    """Put another host into a TCP address; other addresses stay as they are."""
    return f"{_TCP}{host}:{address.rpartition(':')[2]}" if address.startswith(_TCP) else address


def resolve(host: str, bound: str, flag: str) -> str:
    """Return an address of a host, as in a URL; of the family of the one that is bound if there is one.

    Raises:
        InvalidConfigError: the host, which `flag` gave, does not resolve.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidConfigError(
            f"{flag} is {host!r}, which does not resolve ({_reason(error)}); "
            "allowed: a name or an address under which other machines reach this one"
        ) from None
    addresses = [_in_url(family, str(where[0])) for family, _, _, _, where in found]
    return next((one for one in addresses if one.startswith("[") == bound.startswith("[")), addresses[0])


def _host_towards(goal: str, family: socket.AddressFamily) -> str:
    try:
        return _own_host(goal, family)
    except (OSError, UnicodeError) as error:
        if isinstance(error, socket.gaierror) and error.errno in _UNRESOLVED:
            with suppress(OSError):
                host = _own_host(FAR_AWAY, family)
                _log.warning(
                    "%s does not resolve yet; other processes are told to reach this one at %s", goal, host
                )
                return host
        raise InvalidConfigError(
            f"--advertise-host is not given, and no interface leads to {goal!r} ({_reason(error)}); "
            "allowed: a host under which other machines reach this one"
        ) from None


def _own_host(goal: str, family: socket.AddressFamily) -> str:
    """Return the address of the interface that leads to `goal`; raises as the sockets do."""
    host, _, port = goal.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), port, family, socket.SOCK_DGRAM)
    chosen, kind, _, _, where = found[0]
    with socket.socket(chosen, kind) as probe:
        probe.connect(where)  # sends nothing
        return _in_url(chosen, probe.getsockname()[0])


def _in_url(family: int, address: str) -> str:
    return f"[{address}]" if family == socket.AF_INET6 else address


def _reason(error: OSError | UnicodeError) -> str | None:
    return error.strerror if isinstance(error, OSError) else "not a host name"
