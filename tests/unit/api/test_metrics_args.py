"""Arguments of metrics that are off by default."""

from __future__ import annotations

import pytest

from baton import EngineArgs
from baton.config.worker_parts import worker_settings
from baton_core.errors import InvalidConfigError


def residency_share(**given: object) -> float:
    return worker_settings(EngineArgs(**given)).metrics.residency_share  # type: ignore[arg-type]


def test_blocks_are_sampled_where_it_is_asked_for() -> None:
    assert residency_share() == residency_share(kv_cache_metrics_sample=0.5) == 0
    assert residency_share(kv_cache_metrics=True) == 0.01
    assert residency_share(kv_cache_metrics=True, kv_cache_metrics_sample=1) == 1


def test_work_is_estimated_where_it_is_asked_for() -> None:
    assert not worker_settings(EngineArgs()).metrics.estimates_work
    assert worker_settings(EngineArgs(enable_mfu_metrics=True)).metrics.estimates_work


@pytest.mark.parametrize("share", [0, 1.5, -1.0])
def test_a_share_is_over_0_and_at_most_1(share: float) -> None:
    with pytest.raises(InvalidConfigError, match=f"kv_cache_metrics_sample is {share}; allowed: .*over 0"):
        EngineArgs(kv_cache_metrics_sample=share)
