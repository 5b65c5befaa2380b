"""The producer's end of the NIXL transport: the agent that lets consumers read the local pool.

Where UCX has no one-sided transport, a read moves only while this end is polled too. So consumers say when
they begin and end; their messages may overtake each other or come twice, and are numbered.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import msgspec

from baton_kv.nixl_agent import NixlAgent
from baton_kv.nixl_messages import ReadingBegan, ReadingEnded, decode_notice

FORGET_S: Final = 30.0
"""A consumer that has said nothing for so long does not count as reading."""
MAX_CONSUMERS: Final = 1024
"""Remembered at a time."""


@dataclass(slots=True)
class _Consumer:
    heard_at: float
    began: int = 0
    ended: int = 0
    """Latest numbers that were heard of."""


class PoolServer:
    """Lets the local pool be read, and knows whether that is going on."""

    def __init__(self, agent: NixlAgent) -> None:
        self._agent = agent
        self._consumers: OrderedDict[str, _Consumer] = OrderedDict()

    @property
    def is_being_read(self) -> bool:
        """True if a consumer has begun and not ended."""
        return any(consumer.began > consumer.ended for consumer in self._consumers.values())

    def advance(self, now: float) -> None:
        """Let move what can, and take what consumers say."""
        for name, message in self._agent.advance():
            self.take(now, name, message)
        while self._consumers:
            name, consumer = next(iter(self._consumers.items()))
            if consumer.heard_at + FORGET_S > now and len(self._consumers) <= MAX_CONSUMERS:
                break
            del self._consumers[name]

    def take(self, now: float, name: str, message: bytes) -> None:
        """Take a message of a consumer; one that cannot be read changes nothing."""
        try:
            notice = decode_notice(message)
        except msgspec.MsgspecError:
            return
        consumer = self._consumers.setdefault(name, _Consumer(now))
        consumer.heard_at = now
        self._consumers.move_to_end(name)
        match notice:
            case ReadingBegan(number):
                consumer.began = max(consumer.began, number)
            case ReadingEnded(number):
                consumer.ended = max(consumer.ended, number)

    def close(self) -> None:
        self._agent.close()
