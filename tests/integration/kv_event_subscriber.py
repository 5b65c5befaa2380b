"""Another router's view of KV events: written from the documented wire format alone."""

from __future__ import annotations

from typing import Any

import msgspec
import zmq


class Subscriber:
    """Follows one producer; what it believes to be cached is in `hashes`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, replay_endpoint: str) -> None:
        self.hashes: set[bytes] = set()
        self.epochs: list[int] = []
        self.num_replayed = 0
        self.num_removed = 0
        self._next = 0
        self._sub = context.socket(zmq.SUB)
        self._sub.setsockopt(zmq.SUBSCRIBE, b"")
        self._sub.connect(endpoint)
        self._replay = context.socket(zmq.DEALER)
        self._replay.connect(replay_endpoint)

    def follow(self, silence_s: float) -> None:
        """Take what comes until nothing has come for so long."""
        while self._sub.poll(int(silence_s * 1000)):
            _, number, payload = self._sub.recv_multipart()
            sequence = int.from_bytes(number, "big")
            if sequence > self._next:
                self.catch_up()
            self._take(sequence, payload)

    def catch_up(self) -> None:
        """Ask for everything from the next sequence number on."""
        self._replay.send_multipart((b"", self._next.to_bytes(8, "big")))
        while True:
            assert self._replay.poll(5000), "the replay socket does not answer"
            _, number, payload = self._replay.recv_multipart()
            if int.from_bytes(number, "big", signed=True) == -1:
                assert payload == b""
                return
            self.num_replayed += 1
            self._take(int.from_bytes(number, "big"), payload)

    def _take(self, sequence: int, payload: bytes) -> None:
        if sequence < self._next:
            return
        assert sequence == self._next, "a batch is missing"
        self._next += 1
        ts, events, rank = msgspec.msgpack.decode(payload)
        assert ts > 0
        assert rank == 0
        for event in events:
            self._apply(event)

    def _apply(self, event: dict[str, Any]) -> None:
        if event["epoch"] not in self.epochs:
            self.epochs.append(event["epoch"])
        match event:
            case {"type": "BlockStored", "block_hashes": hashes, "token_ids": tokens, "block_size": size}:
                parent = event["parent_block_hash"]
                assert parent is None or parent in self.hashes
                assert len(tokens) == len(hashes) * size
                assert (event["medium"], event["lora_id"], event["lora_name"]) == ("GPU", None, None)
                self.hashes.update(hashes)
            case {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}:
                self.hashes.difference_update(hashes)
                self.num_removed += len(hashes)
            case {"type": "AllBlocksCleared"}:
                self.hashes.clear()
            case _:
                raise AssertionError(f"no such event: {event}")
