"""Objects of `vllm.config` in the place of mappings."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from baton import EngineArgs
from baton.config.config_objects import PoolerConfig, ProfilerConfig, SpeculativeConfig
from baton_core.errors import InvalidConfigError
from baton_worker.kv_events.kv_events_config import KVEventsConfig

TRACE = {"profiler": "torch", "torch_profiler_dir": "/tmp/traces"}
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
POOLED = {"pooling_type": "MEAN", "use_activation": False}


@pytest.mark.parametrize(
    ("field", "kind", "values"),
    [
        ("pooler_config", PoolerConfig, POOLED),
        ("profiler_config", ProfilerConfig, {**TRACE, "delay_iterations": 0, "max_iterations": 0}),
        ("speculative_config", SpeculativeConfig, DRAFTS),
    ],
)
def test_an_object_says_what_a_mapping_says(field: str, kind: Any, values: dict[str, Any]) -> None:
    config = pickle.loads(pickle.dumps(kind(**values)))  # noqa: S301
    assert config == kind(**values)
    assert getattr(EngineArgs(**{field: config}), field) == values


def test_settings_of_events_are_taken_as_they_are() -> None:
    events = KVEventsConfig(enable_kv_cache_events=True, topic="kv")
    args = EngineArgs(kv_events_config=events)  # type: ignore[arg-type]  # as vLLM's callers do
    assert args.kv_events_config == EngineArgs(kv_events_config=args.kv_events_config).kv_events_config
    assert args.kv_events_config is not None
    assert args.kv_events_config["topic"] == "kv"


def test_values_of_an_object_are_checked() -> None:
    config = ProfilerConfig(**TRACE, max_iterations=2)
    with pytest.raises(InvalidConfigError, match="profiler_config has max_iterations: 2; allowed: torch"):
        EngineArgs(profiler_config=config)
    with pytest.raises(TypeError, match="pooling"):
        PoolerConfig(pooling="MEAN")
