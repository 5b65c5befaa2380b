"""Arguments of metrics that cost a little and are off by default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from baton.config.engine_arg_fields import arg
from baton.config.flags import SHARE_OVER_0
from baton_worker.core.metrics_config import MetricsConfig


@dataclass(kw_only=True)
class MetricsArgs:
    """The part of `EngineArgs` on metrics."""

    kv_cache_metrics: bool = arg(bool, False, "measure how long KV blocks stay and how often they are used")
    kv_cache_metrics_sample: float = arg(
        float, 0.01, "share of the blocks of which that is measured", SHARE_OVER_0
    )


def metrics_config(args: Any) -> MetricsConfig:
    """Return the metrics that a worker is to have."""
    return MetricsConfig(residency_share=args.kv_cache_metrics_sample if args.kv_cache_metrics else 0.0)
