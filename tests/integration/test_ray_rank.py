"""A rank on Ray, without a cluster."""

from __future__ import annotations

import socket

import pytest
import ray

from baton_worker.ranks.rank_channel import RankChannel
from baton_worker.ranks.ray_executor import RayRank


def test_a_rank_has_ended_once_ray_is_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kill", "wait", "get"):  # each of them starts a cluster where there is none
        monkeypatch.delattr(ray, name)
    assert not ray.is_initialized()
    near, far = socket.socketpair()
    with near, far:
        rank = RayRank(1, RankChannel(near), object(), object())
        rank.kill()
        assert rank.has_ended(10.0)
        assert rank.why_ended() == "Ray was shut down"
