"""The watch over ranks: what ends their group."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from unittest.mock import patch

import pytest

from baton_core.errors import BatonError, ErrorCode, RequestError
from baton_worker.ranks import rank_watch
from baton_worker.ranks.follower import Follower
from baton_worker.ranks.rank_channel import AliveFrame, AnswerFrame, RankChannel
from baton_worker.ranks.rank_starter import StartedRank
from baton_worker.ranks.rank_watch import RankWatch

WITHIN_S = 5.0


class QuietRank(StartedRank):
    """A rank without a process."""

    def kill(self) -> None: ...

    def has_ended(self, within_s: float) -> bool:
        return True

    def why_ended(self) -> str:
        return "it is gone"


class Watched:
    """A watched rank, by its own end of the channel."""

    def __init__(self, ours: socket.socket, theirs: socket.socket) -> None:
        self.channel = RankChannel(theirs)
        self.follower = Follower(QuietRank(1, RankChannel(ours)))
        self.lost: Future[None] = Future()
        self.watch = RankWatch([self.follower], None, 60.0, self.lost, self.end)

    def end(self, reason: str, error: BatonError | None) -> None:
        if not self.lost.done():
            self.lost.set_exception(error or RequestError(ErrorCode.UNAVAILABLE, reason))

    def close(self) -> None:
        self.watch.expect_ends()
        self.watch.close()
        self.channel.close()
        self.follower.channel.close()


@pytest.fixture
def watched() -> Iterator[Watched]:
    one = Watched(*socket.socketpair())
    yield one
    one.close()


def test_a_rank_whose_descriptor_is_beyond_1024_is_watched() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(2048, limits[0]), limits[1]))
    try:
        ours, theirs = socket.socketpair()
        far = socket.socket(fileno=fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD_CLOEXEC, 1024))
        ours.close()
        one = Watched(far, theirs)
        one.channel.send(AnswerFrame())
        assert one.follower.answers.get(timeout=WITHIN_S) == AnswerFrame()
        one.channel.shut_down()
        with pytest.raises(RequestError, match="rank 1 of the model's ranks is lost: it is gone"):
            one.lost.result(WITHIN_S)
        one.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_watch_that_fails_ends_the_group(watched: Watched) -> None:
    os.write(watched.channel.fileno(), b"\x01\x00\x00\x00\xc1")
    with pytest.raises(RequestError, match="the watch over the model's ranks failed: DecodeError: "):
        watched.lost.result(WITHIN_S)


def test_silence_is_taken_while_weights_are_loaded(watched: Watched) -> None:
    with patch.object(rank_watch, "LOST_AFTER_S", 0.5):
        watched.watch.on_loaded()
        watched.watch.on_loading()
        time.sleep(1.0)
        assert not watched.lost.done()
        watched.channel.send(AliveFrame())
        watched.watch.on_loaded()
        with pytest.raises(RequestError, match=r"rank 1 .* is silent for 0\.[5-9] s"):
            watched.lost.result(WITHIN_S)
