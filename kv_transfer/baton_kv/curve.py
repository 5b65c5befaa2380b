"""CURVE on ZMQ sockets: encrypted, and open to those alone who know the key of the other end.

An address may carry the key of the socket that listens there: `tcp://host:port#KEY`, in hexadecimal. A key is
never sent over the connection that it protects, so whoever is not told the address cannot connect.
Source: https://rfc.zeromq.org/spec/26/ (CurveZMQ).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import Any, Final

import zmq
from zmq.auth import load_certificate
from zmq.utils import z85

from baton_core.errors import InvalidConfigError

OVERHEAD_BYTES: Final = 33
"""Bytes of overhead that ZMQ's limit on the size of messages counts besides a frame."""
_KEY_BYTES: Final = 32
_KEY: Final = re.compile(f"[0-9a-f]{{{2 * _KEY_BYTES}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveKeys:
    """Keys of a socket that others connect to; 40 characters of Z85 each."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def make(cls) -> CurveKeys:
        """A pair that nobody had before."""
        public, secret = zmq.curve_keypair()
        return cls(public=public, secret=secret)

    def address(self, endpoint: str) -> str:
        """The endpoint with the key that it needs."""
        return f"{endpoint}#{z85.decode(self.public).hex()}"


def read_keys(field: str, file: str) -> CurveKeys:
    """Read a pair from a secret certificate of ZMQ, as `zmq.auth.create_certificates` writes it.

    Raises:
        InvalidConfigError: it cannot be used; the message names field, file and what is allowed.
    """
    public, secret = _read_certificate(field, file)
    if secret is None:
        raise _refusal(field, file, "no secret key in it")
    return CurveKeys(public=public, secret=secret)


def read_public_key(field: str, file: str) -> bytes:
    """Read the public key of a certificate of ZMQ, 40 characters of Z85.

    Raises:
        InvalidConfigError: as `read_keys`.
    """
    return _read_certificate(field, file)[0]


def _read_certificate(field: str, file: str) -> tuple[bytes, bytes | None]:
    try:
        public, secret = load_certificate(file)
        sizes = {len(z85.decode(key)) for key in (public, secret) if key is not None}
    except OSError as error:
        raise _refusal(field, file, error.strerror or "no such file") from None
    except (ValueError, struct.error):
        raise _refusal(field, file, "no keys in it") from None
    if sizes != {_KEY_BYTES}:
        raise _refusal(field, file, "keys of another size")
    return public, secret


def _refusal(field: str, file: str, reason: str) -> InvalidConfigError:
    return InvalidConfigError(
        f"{field} is {file!r}, which cannot be used ({reason}); "
        "allowed: a certificate as zmq.auth.create_certificates writes it"
    )


def protect(socket: zmq.Socket[Any], keys: CurveKeys | None) -> None:
    """Let those alone exchange messages with `socket` who know its public key. Call it before it binds."""
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)


def has_key(address: str) -> bool:
    return "#" in address


def without_key(address: str) -> str:
    """Return the endpoint to connect to."""
    return address.partition("#")[0]


def prepare_dial(socket: zmq.Socket[Any], address: str) -> str:
    """Use the key that `address` carries, if it does; returns the endpoint to connect to.

    Raises:
        ValueError: that is no key.
    """
    endpoint, _, key = address.partition("#")
    if has_key(address):
        if not _KEY.fullmatch(key):
            raise ValueError("key of the address is of another form; allowed: 64 hexadecimal digits")
        use_server_key(socket, z85.encode(bytes.fromhex(key)))
    return endpoint


def use_server_key(socket: zmq.Socket[Any], public: bytes) -> None:
    """Speak to the producer of this key alone, with a pair of keys for this connection."""
    own, secret = zmq.curve_keypair()
    socket.setsockopt(zmq.CURVE_SERVERKEY, public)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, own)
    socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
