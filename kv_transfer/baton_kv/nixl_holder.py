"""The holder's end of the NIXL transport: the agent that lets pullers read the local pool.

Where UCX has no one-sided way, a read moves only while this end is polled too. So pullers say when they begin
and end; their messages may overtake each other or come twice, and are numbered.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import msgspec

from baton_kv.nixl_agent import NixlAgent
from baton_kv.nixl_messages import ReadingBegan, ReadingEnded, decode_notice

FORGET_S: Final = 30.0
"""A puller that has said nothing for so long does not count as reading."""
MAX_PULLERS: Final = 1024
"""Remembered at a time."""


@dataclass(slots=True)
class _Puller:
    heard_at: float
    began: int = 0
    ended: int = 0
    """Latest numbers that were heard of."""


class PoolServer:
    """Lets the local pool be read, and knows whether that is going on."""

    def __init__(self, agent: NixlAgent) -> None:
        self._agent = agent
        self._pullers: OrderedDict[str, _Puller] = OrderedDict()

    @property
    def metadata(self) -> bytes:
        return self._agent.metadata

    @property
    def is_being_read(self) -> bool:
        """Whether a puller has begun and not ended."""
        return any(puller.began > puller.ended for puller in self._pullers.values())

    def advance(self, now: float) -> None:
        """Let move what can, and take what pullers say."""
        for name, message in self._agent.advance():
            self.take(now, name, message)
        while self._pullers:
            name, puller = next(iter(self._pullers.items()))
            if puller.heard_at + FORGET_S > now and len(self._pullers) <= MAX_PULLERS:
                break
            del self._pullers[name]

    def take(self, now: float, name: str, message: bytes) -> None:
        """Take a message of a puller; one that cannot be read changes nothing."""
        try:
            notice = decode_notice(message)
        except msgspec.MsgspecError:
            return
        puller = self._pullers.setdefault(name, _Puller(now))
        puller.heard_at = now
        self._pullers.move_to_end(name)
        match notice:
            case ReadingBegan(number):
                puller.began = max(puller.began, number)
            case ReadingEnded(number):
                puller.ended = max(puller.ended, number)

    def close(self) -> None:
        self._agent.close()
