"""The socket over which a producer passes its pool's memory to the processes that pull from it.

An abstract Unix socket: its name vanishes with the producer. A connection stays open for as long as the
consumer keeps the pool, so that either side sees the other's end. The listener answers on its own thread:
a producer is reachable while its transfer thread is busy.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
from typing import Final

MAX_PEERS: Final = 256
"""Consumers of one pool; one more is turned away."""
_GREETING: Final = b"baton-kv"
"""Carries the descriptor, which cannot travel alone."""
_BACKOFF_S: Final = 0.1


class PoolListener:
    """Hands a duplicate of `file`, which it closes in the end, to every consumer of the same user."""

    def __init__(self, address: str, file: int) -> None:
        self._file = file
        self._socket = _unix_socket()
        self._socket.bind(f"\0{address}")
        self._socket.listen()
        self._socket.setblocking(False)
        self._stopped, self._stop = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._selector.register(self._stopped, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="kv-pool-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and hang up on every consumer. Safe to repeat."""
        self._stop.close()
        self._thread.join()

    def _serve(self) -> None:
        peers: set[socket.socket] = set()
        with self._socket, self._stopped, self._selector as selector:
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._stopped in ready:
                    break
                for gone in peers & ready:  # a consumer never speaks: this is its end, and makes room
                    peers.remove(gone)
                    selector.unregister(gone)
                    gone.close()
                if self._socket in ready and (peer := self._accept(len(peers))) is not None:
                    peers.add(peer)
                    selector.register(peer, selectors.EVENT_READ)
            for peer in peers:
                peer.close()
        os.close(self._file)

    def _accept(self, num_peers: int) -> socket.socket | None:
        try:
            peer, _ = self._socket.accept()
        except OSError:  # out of descriptors: the consumer waits in the backlog until its deadline
            time.sleep(_BACKOFF_S)
            return None
        peer.setblocking(False)
        try:
            if num_peers < MAX_PEERS and _peer_uid(peer) == os.getuid():
                socket.send_fds(peer, [_GREETING], [self._file])
                return peer
        except OSError:  # the consumer is gone already
            pass
        peer.close()
        return None


def request_pool(address: str, timeout_s: float) -> tuple[socket.socket, int]:
    """Ask for a pool; return the open connection and the memory's descriptor.

    The caller closes the connection and the descriptor.

    Raises:
        OSError: nobody listens, the producer turned this process away, or `timeout_s` has passed.
    """
    deadline = time.monotonic() + timeout_s
    connection = _unix_socket()
    try:
        connection.settimeout(timeout_s)
        connection.connect(f"\0{address}")
        if _peer_uid(connection) != os.getuid():
            raise PermissionError("the producer runs as another user")
        connection.settimeout(max(1e-3, deadline - time.monotonic()))
        _, files, _, _ = socket.recv_fds(connection, len(_GREETING), 1)
        if len(files) != 1:
            raise ConnectionRefusedError("the producer turned this process away")
        os.set_inheritable(files[0], False)
        connection.setblocking(False)
    except OSError:
        connection.close()
        raise
    return connection, files[0]


def is_open(connection: socket.socket) -> bool:
    """True if the producer at the other end still offers its pool."""
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _unix_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _peer_uid(connection: socket.socket) -> int:
    layout = struct.Struct("3i")  # struct ucred: pid, uid, gid
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
    uid: int = layout.unpack(credentials)[1]
    return uid
