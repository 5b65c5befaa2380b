"""The metrics that a worker has only where they are asked for."""

from __future__ import annotations

from dataclasses import dataclass

from baton_core.worker.model_work import ModelWork


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """Metrics that cost a little; none of them by default."""

    residency_share: float = 0.0
    """Share of the KV blocks of which is measured how long they stay; 0: of none."""
    model_work: ModelWork | None = None
    """The shape of the model, by which the work of steps is estimated; None: it is not."""
