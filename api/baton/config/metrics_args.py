"""Arguments of metrics that cost a little and are off by default."""

from __future__ import annotations

from dataclasses import dataclass

from baton.config.engine_arg_fields import arg
from baton.config.flags import SHARE_OVER_0


@dataclass(kw_only=True)
class MetricsArgs:
    """The part of `EngineArgs` on metrics."""

    kv_cache_metrics: bool = arg(bool, False, "measure how long KV blocks stay and how often they are used")
    kv_cache_metrics_sample: float = arg(
        float, 0.01, "share of the blocks of which that is measured", SHARE_OVER_0
    )
    enable_mfu_metrics: bool = arg(bool, False, "estimate the operations of steps and the bytes they move")
