"""The metrics that a worker is asked for, and what they need of its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from baton_core.ranks.rank_layout import ParallelSizes
from baton_engine.checkpoint.model_source import resolve_model
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import LoadedEngine
from baton_engine.models.model_work import model_work, require_known_work
from baton_engine.models.registry import read_model_config
from baton_worker.core.metrics_config import MetricsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Metrics that cost a little; none of them by default."""

    residency_share: float = 0.0
    """Share of the KV blocks of which is measured how long they stay; 0: of none."""
    estimates_work: bool = False
    """True if the work of steps is estimated."""

    def require_possible(self, engine: EngineSettings) -> None:
        """Refuse a model whose work cannot be estimated, before its weights are read.

        Raises:
            InvalidConfigError: naming its architecture.
        """
        if self.estimates_work:
            require_known_work(
                read_model_config(resolve_model(engine.model), overrides=engine.config_overrides)
            )

    def for_engine(self, engine: LoadedEngine, sizes: ParallelSizes) -> MetricsConfig:
        """Return the metrics of a worker of this model.

        Raises:
            InvalidConfigError: its work cannot be estimated.
        """
        if not self.estimates_work:
            return MetricsConfig(residency_share=self.residency_share)
        work = model_work(
            engine.config,
            engine.kv_spec,
            dtype=engine.dtype,
            read_bytes=engine.read_bytes,
            sizes=sizes,
        )
        return MetricsConfig(residency_share=self.residency_share, model_work=work)


NO_METRICS: Final = MetricsSettings()
